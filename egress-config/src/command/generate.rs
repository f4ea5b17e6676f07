//! `generate`: a file for a given proxy-server.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::ValueEnum;
use egress_config::{
    ClientTls, Connection, EgressSelector, FilePath, HttpConnect, ProxyUrl, SelectionName,
    TcpProxy, UdsPath, to_yaml,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Generate {
    /// How kube-apiserver speaks to the proxy-server: its --mode.
    #[arg(long, value_enum)]
    mode: Mode,
    /// Path of the proxy-server's Unix socket: its --uds-name.
    #[arg(long, required_unless_present = "url", conflicts_with = "url")]
    uds_name: Option<String>,
    /// https://HOST:PORT of the proxy-server, for the mode http-connect: its --server-port.
    #[arg(long, requires_all = ["client_cert", "client_key"])]
    url: Option<String>,
    /// File with the authority of the proxy-server's certificate. Without it kube-apiserver uses the system's.
    #[arg(long, requires = "url")]
    ca_bundle: Option<String>,
    /// File with kube-apiserver's certificate towards the proxy-server.
    #[arg(long, requires = "url")]
    client_cert: Option<String>,
    /// File with the key to it.
    #[arg(long, requires = "url")]
    client_key: Option<String>,
    /// Name in the proxy-server's certificate, if it is not the host of --url. Needs kube-apiserver 1.36.
    #[arg(long, requires = "url")]
    tls_server_name: Option<String>,
    /// Traffic that goes through the proxy-server: cluster, controlplane, etcd, by commas.
    #[arg(long, value_delimiter = ',', default_value = "cluster")]
    through: Vec<SelectionName>,
    /// Traffic that is written down as going direct, as it does when it is not mentioned.
    #[arg(long, value_delimiter = ',')]
    direct: Vec<SelectionName>,
}

/// Names as the proxy-server's `--mode` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Grpc,
    HttpConnect,
}

impl Generate {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let through = self.through.clone();
        let direct = self.direct.clone();
        let proxied = connection(self)?;
        for (index, name) in through.iter().chain(&direct).enumerate() {
            if through.iter().chain(&direct).take(index).any(|n| n == name) {
                bail!("{name} is given twice in --through and --direct");
            }
        }
        let selector = EgressSelector::new(
            through
                .into_iter()
                .map(|name| (name, proxied.clone()))
                .chain(direct.into_iter().map(|name| (name, Connection::Direct))),
        );
        io::stdout().write_all(to_yaml(&selector).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

fn connection(generate: Generate) -> anyhow::Result<Connection> {
    if let Some(path) = generate.uds_name {
        let uds = UdsPath::new(path).context("--uds-name")?;
        return match generate.mode {
            Mode::Grpc if !uds.escapes_are_valid() => {
                bail!("--uds-name has a % that gRPC takes for a broken escape; rename the socket")
            }
            Mode::Grpc => Ok(Connection::Grpc(uds)),
            Mode::HttpConnect => Ok(Connection::HttpConnect(HttpConnect::Uds(uds))),
        };
    }
    if generate.mode == Mode::Grpc {
        bail!("--mode grpc needs --uds-name: kube-apiserver speaks gRPC over a Unix socket alone");
    }
    let url = ProxyUrl::parse(&generate.url.unwrap_or_default()).context("--url")?;
    let file = |path: Option<String>| path.and_then(FilePath::new);
    let tls = ClientTls {
        ca_bundle: file(generate.ca_bundle),
        client_cert: file(generate.client_cert).context("--client-cert is empty")?,
        client_key: file(generate.client_key).context("--client-key is empty")?,
        server_name: generate.tls_server_name.filter(|name| !name.is_empty()),
    };
    Ok(Connection::HttpConnect(HttpConnect::Tcp(TcpProxy {
        url: url.url,
        tls,
    })))
}
