//! `egress-config`: checks and writes the file of kube-apiserver's `--egress-selector-config-file`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand, ValueEnum};
use egress_config::{
    ClientTls, Connection, DocumentError, EgressSelector, FilePath, Files, HttpConnect, LoadError,
    Loaded, ProxyUrl, SelectionName, TcpProxy, UdsPath, load, parse, to_yaml,
};

#[derive(Debug, Parser)]
#[command(
    name = "egress-config",
    version,
    about = "Checks and writes kube-apiserver's EgressSelectorConfiguration"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say everything that is wrong with a file. Exits 0 if kube-apiserver can work with it, 1 if not.
    Validate {
        /// The file; `-` for standard input.
        file: PathBuf,
        /// Do not ask whether the certificate files it names exist, since kube-apiserver runs elsewhere.
        #[arg(long)]
        elsewhere: bool,
    },
    /// Print a file for a given proxy-server.
    Generate(Generate),
}

#[derive(Debug, clap::Args)]
struct Generate {
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

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Validate { file, elsewhere } => validate(&file, elsewhere),
        Command::Generate(generate) => run_generate(generate),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed there is nobody left to tell; the exit code says it too.
            drop(writeln!(io::stderr(), "egress-config: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn validate(file: &Path, elsewhere: bool) -> anyhow::Result<()> {
    let files = if elsewhere {
        Files::Elsewhere
    } else {
        Files::MustExist
    };
    let Loaded { findings, .. } = if file == Path::new("-") {
        let bytes = load::read(io::stdin().lock()).context("read standard input")?;
        parse(&bytes, files).map_err(in_lines)?
    } else {
        match load(file, files) {
            Err(LoadError::Document { file, source }) => {
                return Err(in_lines(source).context(file.display().to_string()));
            }
            other => other?,
        }
    };
    let mut out = io::stdout().lock();
    for finding in findings {
        writeln!(out, "{finding}")?;
    }
    writeln!(out, "{}: kube-apiserver can use it", file.display())?;
    Ok(())
}

/// Several findings begin on a line of their own.
fn in_lines(error: DocumentError) -> anyhow::Error {
    match error {
        DocumentError::Invalid { .. } => anyhow::anyhow!("not usable\n{error}"),
        other => other.into(),
    }
}

fn run_generate(generate: Generate) -> anyhow::Result<()> {
    let through = generate.through.clone();
    let direct = generate.direct.clone();
    let proxied = connection(generate)?;
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
    Ok(())
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
