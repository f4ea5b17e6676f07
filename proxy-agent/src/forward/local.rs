//! The node's side: listeners, and the sockets of its clients.

use std::fmt;
use std::fs;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use daemon::listen::{ListenError, listen};
use daemon::uds::{SocketFile, UdsError, UdsListener};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tunnel::copy::Socket;

use crate::client::tcp_keepalive;
use crate::config::{Forward, Listen};

/// Why a connection of this node cannot be listened for; the operator's to solve. Names the flag and its value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// A port that cannot be had.
    #[error(transparent)]
    Tcp(#[from] ListenError),
    /// A path that cannot be had.
    #[error(transparent)]
    Unix(#[from] UdsError),
}

/// A listener that has its place, and needs no runtime yet.
#[derive(Debug)]
pub(crate) struct Bound {
    forward: Forward,
    socket: BoundSocket,
}

#[derive(Debug)]
enum BoundSocket {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

impl Bound {
    /// Takes the port or the path. The socket of a process that is gone is replaced, any other file is left alone.
    ///
    /// # Errors
    /// [`BindError`]
    pub(crate) fn bind(forward: &Forward) -> Result<Self, BindError> {
        let flag = format!("--forward={forward}");
        let socket = match &forward.listen {
            Listen::Tcp { host, port } => BoundSocket::Tcp(listen(&flag, host, *port)?),
            Listen::Unix(path) => {
                let (listener, file) =
                    UdsListener::bind(&flag, path, is_socket(path))?.into_parts();
                BoundSocket::Unix(listener, file)
            }
        };
        Ok(Self {
            forward: forward.clone(),
            socket,
        })
    }

    /// What is forwarded, as the flag has it.
    pub(crate) fn forward(&self) -> &Forward {
        &self.forward
    }

    /// The port, where it is one.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match &self.socket {
            BoundSocket::Tcp(listener) => listener.local_addr().ok(),
            BoundSocket::Unix(..) => None,
        }
    }

    /// Hands the listener to the runtime that this is called on.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn listen(self) -> io::Result<Listener> {
        Ok(match self.socket {
            BoundSocket::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            BoundSocket::Unix(listener, file) => {
                Listener::Unix(UnixListener::from_std(listener)?, file)
            }
        })
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// A listener that connections are accepted from. Dropped, the socket's file goes with it.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(
        UnixListener,
        #[expect(dead_code, reason = "kept for its drop")] SocketFile,
    ),
}

/// A client of this node.
pub(super) enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// The next client. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Client> {
        match self {
            Self::Tcp(listener) => Ok(Client::Tcp(listener.accept().await?.0)),
            Self::Unix(listener, _) => Ok(Client::Unix(listener.accept().await?.0)),
        }
    }
}

/// A client's socket.
pub(super) trait Local: Socket + 'static {
    /// Where the client is, for logs.
    fn describe(&self) -> impl fmt::Display;

    /// Resolves when nobody is there any more. A client that has closed its sending side is there, unless it never sent anything: a
    /// probe, which only looks whether the port is open. Cancel safe; takes nothing off the socket.
    fn gone(&self) -> impl Future<Output = ()>;

    /// Options for bytes that flow. What the kernel refuses is only worse, not wrong.
    fn tune(&self) {}
}

impl Local for TcpStream {
    fn describe(&self) -> impl fmt::Display {
        self.peer_addr()
            .map_or_else(|error| error.to_string(), |address| address.to_string())
    }

    async fn gone(&self) {
        let first = self.async_io(Interest::READABLE, || peek(self)).await;
        if matches!(first, Ok(1..)) {
            // Until it is reset. An error of the wait itself says that as well.
            drop(self.ready(Interest::ERROR).await);
        }
    }

    fn tune(&self) {
        let socket = SockRef::from(self);
        let tuned = socket
            .set_tcp_nodelay(true)
            .and_then(|()| socket.set_tcp_keepalive(&tcp_keepalive()));
        if let Err(error) = tuned {
            tracing::debug!(%error, "could not set the options of a socket of this node");
        }
    }
}

impl Local for UnixStream {
    fn describe(&self) -> impl fmt::Display {
        "unix"
    }

    async fn gone(&self) {
        let first = self.async_io(Interest::READABLE, || peek(self)).await;
        if matches!(first, Ok(1..)) {
            // Until it is reset. An error of the wait itself says that as well.
            drop(self.ready(Interest::ERROR).await);
        }
    }
}

/// How much can be read, one byte at most; nothing is taken.
fn peek(socket: &impl AsFd) -> io::Result<usize> {
    SockRef::from(socket).peek(&mut [MaybeUninit::uninit()])
}
