//! The sockets of a frontend.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;

/// How long an idle TCP peer may be silent before it is asked.
const TCP_KEEPALIVE: Duration = Duration::from_secs(30);

/// How long sent data may stay unacknowledged before the connection is given up.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(45);

/// A client of the frontend.
#[derive(Debug)]
pub enum Socket {
    /// On this host.
    Uds(UnixStream),
    /// With a verified certificate. Boxed: most frontends are Unix sockets, and this is 1 KiB.
    Tls(Box<TlsStream<TcpStream>>),
}

/// No Nagle delay; and a peer that has vanished without a word is noticed.
///
/// # Errors
/// If the socket is gone.
pub fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(TCP_KEEPALIVE)
        .with_interval(TCP_KEEPALIVE / 3)
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT))
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Uds(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Uds(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Uds(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Uds(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Uds(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Uds(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl tunnel::copy::Socket for Socket {
    fn abort(&mut self) {
        match self {
            Self::Uds(stream) => stream.abort(),
            // No close_notify either: the TLS layer above knows a truncated stream by that.
            Self::Tls(stream) => stream.get_mut().0.abort(),
        }
    }

    fn is_hung_up(&self) -> bool {
        match self {
            Self::Uds(stream) => stream.is_hung_up(),
            Self::Tls(stream) => stream.get_ref().0.is_hung_up(),
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            Self::Uds(stream) => stream.is_gone(),
            Self::Tls(stream) => stream.get_ref().0.is_gone(),
        }
    }
}

/// A socket whose first bytes have been read already and come again.
#[derive(Debug)]
pub struct Rewound {
    read: Bytes,
    socket: Socket,
}

impl Rewound {
    /// Gives `read` before what the socket still has.
    #[must_use]
    pub fn new(read: Bytes, socket: Socket) -> Self {
        Self { read, socket }
    }
}

impl AsyncRead for Rewound {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read.is_empty() {
            return Pin::new(&mut this.socket).poll_read(cx, buf);
        }
        let part = this.read.split_to(this.read.len().min(buf.remaining()));
        buf.put_slice(part.chunk());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };
    use tunnel::copy::Socket as _;

    use super::*;

    #[tokio::test]
    async fn a_client_of_a_unix_socket_is_gone_once_it_has_closed_both_sides() {
        let (mut client, socket) = UnixStream::pair().expect("pair");
        let mut socket = Socket::Uds(socket);
        client.shutdown().await.expect("shut down");
        assert_eq!(socket.read(&mut [0]).await.expect("end of file"), 0);
        assert!(!socket.is_gone(), "it still reads");
        drop(client);
        let gone = async {
            while !socket.is_gone() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(60), gone)
            .await
            .expect("it has left");
    }
}
