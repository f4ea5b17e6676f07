//! How kube-apiserver reaches us: one listener that serves gRPC and HTTP CONNECT, told apart by their first bytes.

pub mod grpc;
pub mod http_connect;
pub mod socket;

use std::{io, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use certs::Current;
use daemon::{accept::AcceptBackoff, uds::SocketFile};
use rustls::ServerConfig;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream, UnixListener},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use tracing::Instrument as _;
use tunnel::drain::Tasks;

use crate::{dial::Core, metrics::Listener};
use http_connect::{Head, MAX_HEAD};
use socket::{Rewound, Socket};

/// How long a TLS handshake may take.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a client may take to say what it wants: an HTTP/2 preface or a whole CONNECT head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the first bytes of a target that speaks first are held back, unless the client speaks before that.
///
/// kube-apiserver fails a CONNECT whose answer comes in one read with bytes of the target, and loses DATA that comes right
/// behind DIAL_RSP (egress-selector, E3 and E4). It needs 5 ms when idle; on a machine with load 10 a client was once off
/// the CPU for 50 ms.
pub const FIRST_BYTES_PAUSE: Duration = Duration::from_millis(150);

/// What every HTTP/2 client sends first (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A bound frontend listener.
#[derive(Debug)]
pub enum FrontendListener {
    /// A Unix socket, and its file, which goes when the listener does.
    Uds(UnixListener, SocketFile),
    /// TCP with TLS; each handshake is made with what is current when the client comes.
    Tcp(TcpListener, Current<Arc<ServerConfig>>),
}

/// Accepts until the core stops; connections run on `tasks`.
pub async fn serve(listener: FrontendListener, core: Rc<Core>, tasks: Tasks, keepalive: Duration) {
    let mut backoff = AcceptBackoff::default();
    loop {
        let accepted = tokio::select! {
            biased;
            () = core.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((client, peer)) => {
                backoff.on_success();
                let span = tracing::debug_span!("frontend", peer);
                let serving = connection(client, core.clone(), tasks.clone(), keepalive);
                tasks.spawn(serving.instrument(span));
            }
            Err(error) => {
                let was_pausing = backoff.is_pausing();
                let pause = backoff.on_error(&error);
                if !pause.is_zero() && !was_pausing {
                    tracing::warn!(%error, "cannot accept frontend connections, trying again");
                }
                sleep(pause).await;
            }
        }
    }
}

enum Client {
    Uds(tokio::net::UnixStream),
    Tcp(TcpStream, TlsAcceptor),
}

impl FrontendListener {
    /// Where it listens; `None` for a Unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Uds(..) => None,
            Self::Tcp(listener, _) => listener.local_addr().ok(),
        }
    }

    async fn accept(&self) -> io::Result<(Client, String)> {
        match self {
            Self::Uds(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Client::Uds(stream), "uds".to_owned()))
            }
            Self::Tcp(listener, tls) => {
                let (stream, peer) = listener.accept().await?;
                Ok((
                    Client::Tcp(stream, TlsAcceptor::from(tls.current())),
                    peer.to_string(),
                ))
            }
        }
    }
}

/// One client, from accept to end. What is wrong with a client is its own affair: debug, and a counter.
async fn connection(client: Client, core: Rc<Core>, tasks: Tasks, keepalive: Duration) {
    let is_tcp = matches!(client, Client::Tcp(..));
    let Some(mut socket) = handshake(client, &core).await else {
        return;
    };
    let first = match timeout(HEAD_TIMEOUT, first_bytes(&mut socket)).await {
        Ok(Ok(first)) => first,
        Ok(Err(error)) => {
            tracing::debug!(%error, "client went away before it asked for anything");
            return;
        }
        Err(_) => {
            core.metrics.refused(Listener::Frontend);
            tracing::debug!("client asked for nothing within {HEAD_TIMEOUT:?}");
            return;
        }
    };
    match first {
        First::Nothing => {}
        First::Http2(read) => {
            let keepalive = is_tcp.then_some(keepalive);
            grpc::serve(Rewound::new(read, socket), core, tasks, keepalive).await;
        }
        First::Http1(head, early) => http_connect::serve(socket, head, early, &core).await,
    }
}

async fn handshake(client: Client, core: &Core) -> Option<Socket> {
    let (stream, acceptor) = match client {
        Client::Uds(stream) => return Some(Socket::Uds(stream)),
        Client::Tcp(stream, acceptor) => (stream, acceptor),
    };
    if let Err(error) = socket::tune(&stream) {
        tracing::debug!(%error, "client went away before the handshake");
        return None;
    }
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(Socket::Tls(Box::new(stream))),
        Ok(Err(error)) => {
            core.metrics.refused(Listener::Frontend);
            tracing::debug!(%error, "TLS handshake with a client failed");
            None
        }
        Err(_) => {
            core.metrics.refused(Listener::Frontend);
            tracing::debug!("TLS handshake with a client took longer than {HANDSHAKE_TIMEOUT:?}");
            None
        }
    }
}

/// What a client wants.
enum First {
    /// It left in order, as a health check of a load balancer does.
    Nothing,
    /// HTTP/2, and the bytes read so far.
    Http2(Bytes),
    /// One HTTP/1 head, or what is wrong with it, and the bytes read behind it.
    Http1(Head, BytesMut),
}

/// Reads until it is clear what the client wants, at most one head.
async fn first_bytes(socket: &mut Socket) -> io::Result<First> {
    let mut read = BytesMut::new();
    loop {
        let searched = read.len();
        read.reserve(1024);
        if socket.read_buf(&mut read).await? == 0 {
            return if read.is_empty() {
                Ok(First::Nothing)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
        let known = read.len().min(PREFACE.len());
        if read.get(..known) == PREFACE.get(..known) {
            if known == PREFACE.len() {
                return Ok(First::Http2(read.freeze()));
            }
            continue;
        }
        // The end of a head may straddle two reads.
        if let Some(end) = http_connect::head_end(&read, searched.saturating_sub(3)) {
            let head = read.split_to(end);
            return Ok(First::Http1(http_connect::parse(&head), read));
        }
        if read.len() > MAX_HEAD {
            return Ok(First::Http1(Head::TooLong, read));
        }
    }
}
