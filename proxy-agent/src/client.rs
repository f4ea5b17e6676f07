//! One connection to one server: TCP, a proxy if there is one, TLS, HTTP/2, the `Connect` call, and the server's word who it is. What comes out is a
//! [`Tunnel`] that is ready to run.
//!
//! Every step has a deadline. Upstream's agent waits for ever for response headers, and reports a refusal as a lack of them
//! (wire-protocol.md 2.3, W21, W37); ours passes the gRPC status on.

mod call;
mod hello;
mod packet;
mod session;
mod stream;
mod token;

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use certs::Current;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tunnel::grpc::Status;
use tunnel::ledger::Ledger;
use tunnel::observe::Observe;
use tunnel::stream::ALPN;
use tunnel::stream::message::MessageError;

use crate::config::{Announcement, Config, H2};
use crate::dial::{DialFailure, Resolver, Target, connect, resolve};
use crate::proxy::{Proxy, ProxyError, Secured};
use crate::server_address::ServerAddress;

pub(crate) use call::{Greeting, GreetingError};
pub(crate) use session::{Tunnel, TunnelEnd};

/// To the end of the TLS handshake, the way through a proxy included; grpc-go's shortest connect timeout.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(20);

/// How long the lookup of the servers' name may take.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);

/// From the TLS handshake to the server's word who it is.
pub(crate) const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// How long sent data may stay unacknowledged, as grpc-go has it.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// Go's default for every TCP connection, before the first probe and between probes.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// Why there is no tunnel. All can be tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ConnectError {
    /// No TCP connection, or no address to dial.
    #[error("{0}")]
    Dial(DialFailure),
    /// No way through the proxy.
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    /// The server's certificate, or ours, or no TLS at all.
    #[error("TLS handshake")]
    Tls(#[source] io::Error),
    /// Something that speaks TLS, but no tunnel.
    #[error("server chose {} by ALPN, neither adit/1 nor h2", .0.as_deref().unwrap_or("nothing"))]
    Alpn(Option<String>),
    /// `--service-account-token-path`
    #[error("read token from {}", file.display())]
    Token {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// A step took too long.
    #[error("no {step} within {after:?}")]
    TimedOut {
        /// What did not come.
        step: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// HTTP/2 failed.
    #[error("HTTP/2")]
    Http2(#[from] h2::Error),
    /// The call cannot be written.
    #[error("make the request")]
    Request(#[from] http::Error),
    /// The server's refusal, or that of something in front of it.
    #[error("server refused the call: {0}")]
    Refused(Status),
    /// Headers that are no server's.
    #[error(transparent)]
    Greeting(#[from] GreetingError),
    /// The hello was not taken, or its answer is no server's.
    #[error("hello")]
    Hello(#[from] MessageError),
}

/// Where an attempt goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// To a server, or what stands in front of it.
    Address(SocketAddr),
    /// To the proxy, which resolves the servers' name.
    Proxy,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Proxy => f.write_str("through the proxy"),
        }
    }
}

/// Which certificates a tunnel was made with. Does not keep them, nor the key, in memory.
#[derive(Clone, Debug)]
pub(crate) struct Material(Weak<rustls::ClientConfig>);

impl Material {
    pub(crate) fn of(tls: &Arc<rustls::ClientConfig>) -> Self {
        Self(Arc::downgrade(tls))
    }

    /// Whether those of `current` are others.
    pub(crate) fn is_outdated(&self, current: &Arc<rustls::ClientConfig>) -> bool {
        // A weak reference keeps the address from being given to another.
        !std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(current))
    }
}

/// Makes tunnels.
#[derive(Debug)]
pub(crate) struct Connector {
    pub(crate) server: ServerAddress,
    pub(crate) server_name: ServerName<'static>,
    pub(crate) authority: String,
    pub(crate) tls: Current<Arc<rustls::ClientConfig>>,
    pub(crate) announcement: Announcement,
    pub(crate) keepalive: Option<Duration>,
    pub(crate) resolver: Resolver,
    /// What stands between us and the servers.
    pub(crate) proxy: Option<Proxy>,
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) observer: Rc<dyn Observe>,
}

impl Connector {
    /// Makes tunnels to the servers of `config`, which queue what targets do not read at the cost of `ledger`.
    pub(crate) fn new(
        config: &Config,
        resolver: Resolver,
        ledger: Rc<Ledger>,
        observer: Rc<dyn Observe>,
    ) -> Self {
        Self {
            server: config.server.clone(),
            server_name: config.server_name.clone(),
            authority: config.authority.clone(),
            tls: config.tls.clone(),
            announcement: config.announcement.clone(),
            keepalive: config.keepalive,
            resolver,
            proxy: config.proxy.clone(),
            ledger,
            observer,
        }
    }

    /// Where servers may be: the addresses of their name, or the proxy. Cancel safe.
    pub(crate) async fn routes(&self) -> Result<Vec<Via>, ConnectError> {
        if self.proxy.is_some() {
            return Ok(vec![Via::Proxy]);
        }
        let deadline = Instant::now() + LOOKUP_LIMIT;
        let found = resolve(&self.resolver, &self.target(), deadline)
            .await
            .map_err(ConnectError::Dial)?;
        Ok(found.into_iter().map(Via::Address).collect())
    }

    /// A connection of its own to whichever server answers there. Cancel safe: dropping it closes the connection.
    pub(crate) async fn connect(&self, via: Via) -> Result<Tunnel, ConnectError> {
        let deadline = Instant::now() + CONNECT_LIMIT;
        match (via, &self.proxy) {
            (Via::Address(address), _) => {
                let stream = connect(address, deadline)
                    .await
                    .map_err(ConnectError::Dial)?;
                tune(&stream);
                self.open(stream, address, deadline).await
            }
            (Via::Proxy, Some(proxy)) => {
                let (stream, peer) = proxy.dial(&self.resolver, deadline).await?;
                tune(&stream);
                match proxy.secure(stream, deadline).await? {
                    Secured::Plain(stream) => {
                        let stream = proxy.pass(stream, &self.server, deadline).await?;
                        self.open(stream, peer, deadline).await
                    }
                    Secured::Tls(stream) => {
                        let stream = proxy.pass(stream, &self.server, deadline).await?;
                        self.open(stream, peer, deadline).await
                    }
                }
            }
            (Via::Proxy, None) => Err(ConnectError::Proxy(ProxyError::None)),
        }
    }

    fn target(&self) -> Target {
        Target::new(self.server.host(), self.server.port())
    }

    /// A tunnel over a transport that is connected to `peer`.
    pub(crate) async fn open<T>(
        &self,
        transport: T,
        peer: SocketAddr,
        deadline: Instant,
    ) -> Result<Tunnel, ConnectError>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let tls = self.tls.current();
        let material = Material::of(&tls);
        let handshake = TlsConnector::from(tls).connect(self.server_name.clone(), transport);
        let stream = timeout_at(deadline, handshake)
            .await
            .map_err(|_| ConnectError::TimedOut {
                step: "TLS handshake",
                after: CONNECT_LIMIT,
            })?
            .map_err(ConnectError::Tls)?;
        let tunnel = async {
            match stream.get_ref().1.alpn_protocol() {
                Some(chosen) if chosen == ALPN => {
                    Box::pin(self.stream(stream, peer, material)).await
                }
                Some(H2) => Box::pin(self.packet(stream, peer, material)).await,
                other => {
                    let chosen = other.map(|name| name.escape_ascii().to_string());
                    Err(ConnectError::Alpn(chosen))
                }
            }
        };
        timeout_at(Instant::now() + GREETING_LIMIT, tunnel)
            .await
            .map_err(|_| ConnectError::TimedOut {
                step: "greeting of the server",
                after: GREETING_LIMIT,
            })?
    }
}

/// Options of the socket to a server. What the kernel refuses is only worse, not wrong.
fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let tuned = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&tcp_keepalive()))
        .and_then(|()| socket.set_tcp_user_timeout(Some(USER_TIMEOUT)));
    if let Err(error) = tuned {
        tracing::warn!(%error, "could not set the options of the socket to a server");
    }
}

/// Characters of an error with its causes, in a log line.
const MAX_CHAIN: usize = 8 * 1024;

/// An error and its causes on one line. A server's refusal may be as long as it may be, what HTTP/2 quotes of its peer is cut.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    if let Some((at, _)) = text.char_indices().nth(MAX_CHAIN) {
        text.truncate(at);
    }
    text
}

/// Keepalive as Go's dialler sets it.
pub(crate) fn tcp_keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(TCP_KEEPALIVE)
        .with_interval(TCP_KEEPALIVE)
}

#[cfg(test)]
mod tests;
