//! The proxy between this agent and its servers: `HTTPS_PROXY` and `NO_PROXY`, as grpc-go reads them (field-tests.md R127).
//!
//! The variables are read once, at the start. A proxy is `http://` or `https://`; the latter's certificate must end in the system's
//! roots (`SSL_CERT_FILE` and `SSL_CERT_DIR` as usual), for `--ca-cert` is the servers' alone. Targets are dialled directly, whatever
//! the variables say (R128): nodes and Pods are not behind the proxy.

mod environment;
mod handshake;
mod no_proxy;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use certs::{Roots, TlsOptions};
use egress_policy::Policy;
use http::StatusCode;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::dial::{DialFailure, Resolver, Target, dial};
use crate::server_address::ServerAddress;
pub use environment::EnvironmentError;
use environment::ProxyUrl;

/// Why there is no way through the proxy. Never shows credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ProxyError {
    /// It cannot be reached.
    #[error("proxy {proxy}: {source}")]
    Dial {
        /// Which.
        proxy: String,
        /// In Go's words.
        source: DialFailure,
    },
    /// Its certificate, or no TLS at all.
    #[error("TLS handshake with proxy {proxy}")]
    Tls {
        /// Which.
        proxy: String,
        /// What is wrong.
        #[source]
        source: io::Error,
    },
    /// Reading or writing failed.
    #[error("CONNECT through proxy {proxy}")]
    Io {
        /// Which.
        proxy: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A step took too long.
    #[error("no {step} from proxy {proxy} in time")]
    TimedOut {
        /// Which.
        proxy: String,
        /// What did not come.
        step: &'static str,
    },
    /// It said no.
    #[error("proxy {proxy} answered {status} to CONNECT {server}{}", hint(*.status))]
    Refused {
        /// Which.
        proxy: String,
        /// Its answer.
        status: StatusCode,
        /// Where to.
        server: String,
    },
    /// What came is no answer to a CONNECT.
    #[error("proxy {proxy} answered CONNECT with something else than HTTP: {what}")]
    Answer {
        /// Which.
        proxy: String,
        /// What is wrong with it.
        what: String,
    },
    /// No proxy is configured; not reachable by any input.
    #[error("there is no proxy")]
    None,
}

/// What an operator can do about a status.
fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            ": it wants other credentials than HTTPS_PROXY has"
        }
        StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED => {
            ": its rules do not let this host and port through"
        }
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            ": it does not reach the server"
        }
        _ => "",
    }
}

/// A connection to the proxy.
#[derive(Debug)]
pub(crate) enum Secured {
    /// `http://`
    Plain(TcpStream),
    /// `https://`
    Tls(Box<TlsStream<TcpStream>>),
}

/// A proxy that tunnels go through. `Display` and `Debug` show no credentials.
#[derive(Clone)]
pub(crate) struct Proxy {
    url: ProxyUrl,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Proxy {
    /// The proxy that the environment asks for on the way to `server`; `variable` looks a variable up.
    ///
    /// # Errors
    /// [`EnvironmentError`]: the operator's to solve.
    pub(crate) fn from_environment(
        server: &ServerAddress,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, EnvironmentError> {
        let Some(url) = environment::proxy_for(server, variable)? else {
            return Ok(None);
        };
        let tls = if url.is_tls {
            let name =
                ServerName::try_from(url.host.clone()).map_err(|_| EnvironmentError::Host {
                    variable: url.variable,
                    host: url.host.clone(),
                })?;
            Some((system_tls(&url)?, name))
        } else {
            None
        };
        Ok(Some(Self { url, tls }))
    }

    /// Connects to the proxy. Cancel safe.
    pub(crate) async fn dial(
        &self,
        resolver: &Resolver,
        deadline: Instant,
    ) -> Result<(TcpStream, SocketAddr), ProxyError> {
        let target = Target::new(&self.url.host, self.url.port);
        let limit = deadline.saturating_duration_since(Instant::now());
        // The policy is about targets.
        let dialled = dial(resolver, &Policy::default(), &target, limit).await;
        dialled.map_err(|source| ProxyError::Dial {
            proxy: self.to_string(),
            source,
        })
    }

    /// TLS with the proxy, if its URL asks for it. Cancel safe.
    pub(crate) async fn secure(
        &self,
        stream: TcpStream,
        deadline: Instant,
    ) -> Result<Secured, ProxyError> {
        let Some((config, name)) = &self.tls else {
            return Ok(Secured::Plain(stream));
        };
        let handshake = TlsConnector::from(config.clone()).connect(name.clone(), stream);
        let proxy = || self.to_string();
        let stream = timeout_at(deadline, handshake)
            .await
            .map_err(|_| ProxyError::TimedOut {
                proxy: proxy(),
                step: "TLS handshake",
            })?
            .map_err(|source| ProxyError::Tls {
                proxy: proxy(),
                source,
            })?;
        Ok(Secured::Tls(Box::new(stream)))
    }

    /// Has the proxy connect to `server`; what is then read comes from there. Cancel safe.
    pub(crate) async fn pass<T>(
        &self,
        mut stream: T,
        server: &ServerAddress,
        deadline: Instant,
    ) -> Result<T, ProxyError>
    where
        T: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = handshake::connect(&self.url, &mut stream, server);
        timeout_at(deadline, handshake)
            .await
            .map_err(|_| ProxyError::TimedOut {
                proxy: self.to_string(),
                step: "answer to CONNECT",
            })??;
        Ok(stream)
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({self})")
    }
}

/// Trusts the system's roots. Those that are no certificates are left out, as other programs do.
fn system_tls(url: &ProxyUrl) -> Result<Arc<ClientConfig>, EnvironmentError> {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "a part of the system's root certificates cannot be read");
    }
    let origin = Path::new("the system's root certificates");
    let is_root = |certificate: &CertificateDer<'static>| {
        Roots::from_certificates(origin, vec![certificate.clone()]).is_ok()
    };
    let usable = found.certs.into_iter().filter(is_root).collect();
    let roots =
        Roots::from_certificates(origin, usable).map_err(|source| EnvironmentError::Roots {
            variable: url.variable,
            source: Box::new(source),
        })?;
    certs::client_config(&roots, None, &[], &TlsOptions::default()).map_err(|source| {
        EnvironmentError::Roots {
            variable: url.variable,
            source: Box::new(source),
        }
    })
}

#[cfg(test)]
mod tests;
