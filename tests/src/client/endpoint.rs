//! The way to a frontend.

use std::{fmt, io, net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Result;
use certs::{Identity, Roots, TlsOptions, tls::ALPN_AGENT};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::TlsConnector;

use super::Frontend;

/// What bytes are read from and written to.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + fmt::Debug> Io for T {}

/// A connection to a frontend.
pub type Socket = Box<dyn Io>;

/// Where a frontend is.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// At a Unix socket, without TLS.
    Uds(PathBuf),
    /// At a TCP port, with TLS.
    Tls {
        /// The address.
        address: SocketAddr,
        /// The name that the server's certificate must have.
        name: ServerName<'static>,
        /// Roots, client certificate and ALPN.
        config: Arc<ClientConfig>,
    },
}

impl Endpoint {
    /// A TLS endpoint with the ALPN of `frontend`: `h2` for gRPC, none for CONNECT, as kube-apiserver does.
    ///
    /// # Errors
    /// If rustls refuses roots or identity.
    pub fn tls(
        address: SocketAddr,
        roots: &Roots,
        identity: Option<&Identity>,
        frontend: Frontend,
    ) -> Result<Self> {
        let alpn = if frontend.is_grpc() { ALPN_AGENT } else { &[] };
        Self::tls_with_alpn(address, roots, identity, alpn)
    }

    /// A TLS endpoint with any ALPN.
    ///
    /// # Errors
    /// If rustls refuses roots or identity.
    pub fn tls_with_alpn(
        address: SocketAddr,
        roots: &Roots,
        identity: Option<&Identity>,
        alpn: &[&[u8]],
    ) -> Result<Self> {
        Ok(Self::Tls {
            address,
            name: ServerName::from(address.ip()),
            config: certs::client_config(roots, identity, alpn, &TlsOptions::default())?,
        })
    }

    /// Connects; the TLS handshake is over when it returns.
    ///
    /// # Errors
    /// If nobody listens, or TLS fails.
    pub async fn connect(&self) -> io::Result<Socket> {
        match self {
            Self::Uds(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Self::Tls {
                address,
                name,
                config,
            } => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let connector = TlsConnector::from(Arc::clone(config));
                Ok(Box::new(connector.connect(name.clone(), stream).await?))
            }
        }
    }
}
