//! The way to the proxy.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use certs::{Identity, Roots, TlsOptions};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::selection::{ClientTls, TcpProxy, UdsPath};
use crate::url::ProxyUrl;

/// Where Go looks for the system's roots on Linux, in its order; the first that is there counts.
const SYSTEM_ROOTS: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

pub(super) async fn uds(path: &UdsPath) -> Result<(UnixStream, String)> {
    let name = path.as_str();
    // The system's form of an abstract name.
    let name = match name.strip_prefix('@') {
        Some(rest) => format!("\0{rest}"),
        None => name.to_owned(),
    };
    let socket = UnixStream::connect(name)
        .await
        .with_context(|| format!("connect to {path}"))?;
    Ok((socket, path.to_string()))
}

pub(super) async fn tcp(address: &str) -> Result<(TcpStream, String)> {
    let socket = TcpStream::connect(address)
        .await
        .with_context(|| format!("connect to {address}"))?;
    let peer = socket.peer_addr().context("ask for the peer's address")?;
    Ok((socket, peer.to_string()))
}

/// Host and port as the system's resolver takes them.
pub(super) fn address(url: &ProxyUrl) -> String {
    if url.host().contains(':') {
        format!("[{}]:{}", url.host(), url.port())
    } else {
        format!("{}:{}", url.host(), url.port())
    }
}

/// What kube-apiserver reads once at start.
pub(super) async fn files(tls: &ClientTls) -> Result<(Arc<ClientConfig>, String)> {
    let system = || {
        SYSTEM_ROOTS
            .map(Path::new)
            .into_iter()
            .find(|file| file.is_file())
    };
    let (roots, origin) = match &tls.ca_bundle {
        Some(bundle) => (Roots::load(bundle.as_path())?, bundle.to_string()),
        None => {
            let file = system().context("caBundle is absent, and this system has no roots")?;
            (
                Roots::load(file)?,
                format!("the system's roots, {}", file.display()),
            )
        }
    };
    let identity = Identity::load(tls.client_cert.as_path(), tls.client_key.as_path())?;
    // kube-apiserver offers no ALPN.
    let config = certs::client_config(&roots, Some(&identity), &[], &TlsOptions::default())?;
    Ok((config, format!("{} with {origin}", tls.client_cert)))
}

pub(super) async fn tls(
    socket: TcpStream,
    proxy: &TcpProxy,
    config: Arc<ClientConfig>,
) -> Result<(TlsStream<TcpStream>, String)> {
    let name = proxy.tls.server_name.as_deref().unwrap_or(proxy.url.host());
    let server = ServerName::try_from(name.to_owned())
        .with_context(|| format!("\"{name}\" is no name that a certificate can have"))?;
    let stream = TlsConnector::from(config)
        .connect(server, socket)
        .await
        .with_context(|| format!("shake hands with {name}"))?;
    let version = stream.get_ref().1.protocol_version();
    let version = version
        .and_then(|version| version.as_str())
        .unwrap_or("TLS");
    Ok((
        stream,
        format!("{version}, the certificate is good for {name}"),
    ))
}
