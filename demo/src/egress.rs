//! The files that point kube-apiserver at the demo's servers.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use e2e::harness::Pki;
use egress_config::{
    ClientTls, Connection, EgressSelector, FilePath, Files, HttpConnect, ProxyUrl, SelectionName,
    TcpProxy, UdsPath, load, to_yaml,
};

/// One for each server.
#[derive(Debug)]
pub(crate) struct EgressFiles {
    uds: PathBuf,
    tls: PathBuf,
}

impl EgressFiles {
    pub(crate) fn all(&self) -> [&Path; 2] {
        [&self.uds, &self.tls]
    }
}

/// Writes gRPC over `socket`, and HTTP CONNECT over mutual TLS to `address`, beside the certificates.
pub(crate) fn write(pki: &Pki, socket: &Path, address: SocketAddr) -> anyhow::Result<EgressFiles> {
    let socket = UdsPath::new(text(socket)?).context("the socket's path")?;
    let tcp = HttpConnect::Tcp(TcpProxy {
        url: ProxyUrl::parse(&format!("https://{address}"))
            .context("the proxy's URL")?
            .url,
        tls: ClientTls {
            ca_bundle: Some(file(&pki.ca)?),
            client_cert: file(&pki.apiserver.certificate)?,
            client_key: file(&pki.apiserver.key)?,
            server_name: None,
        },
    });
    Ok(EgressFiles {
        uds: write_one(
            pki.folder(),
            "egress-grpc-uds.yaml",
            Connection::Grpc(socket),
        )?,
        tls: write_one(
            pki.folder(),
            "egress-http-connect-mtls.yaml",
            Connection::HttpConnect(tcp),
        )?,
    })
}

/// Writes a file that sends the traffic to nodes through `connection`, and reads it back as kube-apiserver would.
fn write_one(folder: &Path, name: &str, connection: Connection) -> anyhow::Result<PathBuf> {
    let selector = EgressSelector::new([
        (SelectionName::Cluster, connection),
        (SelectionName::ControlPlane, Connection::Direct),
        (SelectionName::Etcd, Connection::Direct),
    ]);
    let path = folder.join(name);
    fs::write(&path, to_yaml(&selector)).with_context(|| format!("write {}", path.display()))?;
    let loaded = load(&path, Files::MustExist)?;
    ensure!(
        loaded.selector == selector,
        "{} reads as something else than was written",
        path.display()
    );
    Ok(path)
}

fn file(path: &Path) -> anyhow::Result<FilePath> {
    FilePath::new(text(path)?).context("an empty path")
}

fn text(path: &Path) -> anyhow::Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}
