//! Plays kube-apiserver: dials through a proxy server's frontend.
//!
//! As strict as kube-apiserver where strictness decides whether a dial works in the field: bytes that come right behind the
//! answer fail it, over HTTP (egress-selector.md C2) as over gRPC (D2). What it tells of failures is more, so that tests can
//! look at bodies, too.

mod connect;
mod endpoint;
mod failure;
mod grpc;

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::timeout,
};

pub use connect::DialAnswer;
pub use endpoint::{Endpoint, Io, Socket};
pub use failure::DialFailure;
pub use grpc::{Call, Connection, End, GrpcStream};

/// The client library's limit on a dial over gRPC. kube-apiserver has none over HTTP; ours bounds both.
pub const DIAL_LIMIT: Duration = Duration::from_secs(30);

/// How long the client library waits for the answer to its CLOSE_REQ.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// A way for kube-apiserver to reach a proxy server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frontend {
    /// HTTP CONNECT over a Unix socket.
    HttpUds,
    /// HTTP CONNECT over mTLS.
    HttpTls,
    /// gRPC over a Unix socket.
    GrpcUds,
    /// gRPC over mTLS.
    GrpcTls,
}

impl Frontend {
    /// All four.
    pub const ALL: [Self; 4] = [Self::HttpUds, Self::HttpTls, Self::GrpcUds, Self::GrpcTls];

    /// The server's `--mode`.
    #[must_use]
    pub const fn mode(self) -> &'static str {
        if self.is_grpc() {
            "grpc"
        } else {
            "http-connect"
        }
    }

    /// Over a Unix socket, or else over mTLS.
    #[must_use]
    pub const fn is_uds(self) -> bool {
        matches!(self, Self::HttpUds | Self::GrpcUds)
    }

    /// gRPC, or else HTTP CONNECT.
    #[must_use]
    pub const fn is_grpc(self) -> bool {
        matches!(self, Self::GrpcUds | Self::GrpcTls)
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HttpUds => "HTTP CONNECT over a Unix socket",
            Self::HttpTls => "HTTP CONNECT over mTLS",
            Self::GrpcUds => "gRPC over a Unix socket",
            Self::GrpcTls => "gRPC over mTLS",
        })
    }
}

/// A client of one frontend. Every dial makes a connection of its own, as kube-apiserver's do.
#[derive(Clone, Debug)]
pub struct Client {
    frontend: Frontend,
    endpoint: Endpoint,
    patience: Duration,
}

impl Client {
    /// A client of the server at `endpoint`.
    #[must_use]
    pub fn new(frontend: Frontend, endpoint: Endpoint) -> Self {
        Self {
            frontend,
            endpoint,
            patience: DIAL_LIMIT,
        }
    }

    /// The same, which gives up a dial after `patience` instead of [`DIAL_LIMIT`].
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The frontend it uses.
    #[must_use]
    pub fn frontend(&self) -> Frontend {
        self.frontend
    }

    /// Where it connects to.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// A bare connection to the frontend, TLS handshake done: to misbehave on.
    ///
    /// # Errors
    /// If the server is not there or refuses.
    pub async fn connect(&self) -> io::Result<Socket> {
        self.endpoint.connect().await
    }

    /// Dials `target`, `host:port`, on a connection of its own. Dropping the future is the end of a client that dies.
    ///
    /// # Errors
    /// [`DialFailure`].
    pub async fn dial(&self, target: &str) -> Result<Stream, DialFailure> {
        if self.frontend.is_grpc() {
            let connection = self.open().await?;
            let stream = connection.dial(target, self.patience).await?;
            return Ok(Stream {
                inner: Inner::Grpc(Box::new(stream)),
            });
        }
        let socket = self.reach().await?;
        let socket = connect::dial(socket, target, self.patience).await?;
        Ok(Stream {
            inner: Inner::Raw(socket),
        })
    }

    /// Opens a gRPC connection, on which many streams may be dialled, as the client library's reusable tunnel does.
    ///
    /// # Errors
    /// If the server is not there, or speaks no HTTP/2.
    pub async fn open(&self) -> Result<Connection, DialFailure> {
        let socket = self.reach().await?;
        Connection::open(socket, self.frontend.is_uds()).await
    }

    /// Connects as [`connect`](Self::connect), but not for ever: the kernel accepts for a server that has stopped to.
    async fn reach(&self) -> Result<Socket, DialFailure> {
        match timeout(self.patience, self.connect()).await {
            Ok(outcome) => outcome.map_err(DialFailure::Connect),
            Err(_) => Err(DialFailure::NoAnswer(self.patience)),
        }
    }
}

/// A connection to a target through the proxy.
///
/// Shutting it down says that no more will be written; with gRPC that is CLOSE_REQ, which ends both directions as soon as the
/// agent has answered. Dropping it is the end of a client that dies.
#[derive(Debug)]
pub struct Stream {
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Raw(Socket),
    Grpc(Box<GrpcStream>),
}

impl Stream {
    /// A gRPC stream of a shared connection.
    #[must_use]
    pub fn from_grpc(stream: GrpcStream) -> Self {
        Self {
            inner: Inner::Grpc(Box::new(stream)),
        }
    }

    /// Closes as kube-apiserver does: the socket at once, a gRPC stream after the answer to CLOSE_REQ.
    ///
    /// # Errors
    /// If the connection is broken, or over gRPC no answer comes within [`CLOSE_LIMIT`].
    pub async fn close(self) -> io::Result<()> {
        match self.inner {
            Inner::Raw(mut socket) => socket.shutdown().await,
            Inner::Grpc(stream) => stream.close().await,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Raw(socket) => Pin::new(socket).poll_read(cx, buf),
            Inner::Grpc(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.inner {
            Inner::Raw(socket) => Pin::new(socket).poll_write(cx, buf),
            Inner::Grpc(stream) => Pin::new(&mut **stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Raw(socket) => Pin::new(socket).poll_flush(cx),
            Inner::Grpc(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.inner {
            Inner::Raw(socket) => Pin::new(socket).poll_shutdown(cx),
            Inner::Grpc(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}
