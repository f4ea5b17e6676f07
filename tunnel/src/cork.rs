//! Frames that leave together.
//!
//! `h2` hands over one DATA frame at a time and flushes behind each, and `tokio-rustls` sends whatever it gets at once: a system call, a
//! segment and a wake-up of the peer for every frame. Corked, frames become TLS records that wait in the session until the connection
//! has nothing more to hand over, or [`HELD`] bytes wait, and then leave in one write. Nothing waits for a timer: the driver of
//! the connection sends what is there each time it has polled it.

use std::{
    cell::RefCell,
    io::{self, IoSlice, Write},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use rustls::{ConnectionCommon, SideData};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{client, server};

/// Bytes of TLS records that wait at most while the transport takes all that it is given.
pub const HELD: usize = 512 * 1024;

/// The same while it does not: what waits has left the scheduler, and on a slow path is ahead of whatever comes later.
pub const HELD_BACK: usize = 128 * 1024;

/// For the socket below (`TCP_NOTSENT_LOWAT`): bytes that the kernel may hold beyond what the peer's window and the path take. By default it is
/// megabytes, in which what is urgent would wait behind what is not.
pub const MAX_UNSENT: u32 = 256 * 1024;

/// A transport that can take bytes and send them later. What cannot sends at once, and is none the worse for it.
pub trait Cork: AsyncRead + AsyncWrite + Unpin {
    /// Holds up to so many bytes from now on.
    fn set_room(&mut self, bytes: usize) {
        let _: usize = bytes;
    }

    /// Takes bytes without sending any; 0 if no more can be held. `None`: this one holds nothing back.
    ///
    /// # Errors
    /// If the session has failed.
    fn take(&mut self, bufs: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let _: &[IoSlice<'_>] = bufs;
        None
    }

    /// Sends what was taken.
    ///
    /// # Errors
    /// If the transport has failed.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _: &mut Context<'_> = cx;
        Poll::Ready(Ok(()))
    }
}

impl Cork for DuplexStream {}
impl Cork for TcpStream {}
impl Cork for UnixStream {}

impl<T: AsyncRead + AsyncWrite + Unpin> Cork for client::TlsStream<T> {
    fn set_room(&mut self, bytes: usize) {
        self.get_mut().1.set_buffer_limit(Some(bytes));
    }

    fn take(&mut self, bufs: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        Some(self.get_mut().1.writer().write_vectored(bufs))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (io, session) = self.get_mut();
        poll_send(io, session, cx)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Cork for server::TlsStream<T> {
    fn set_room(&mut self, bytes: usize) {
        self.get_mut().1.set_buffer_limit(Some(bytes));
    }

    fn take(&mut self, bufs: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        Some(self.get_mut().1.writer().write_vectored(bufs))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let (io, session) = self.get_mut();
        poll_send(io, session, cx)
    }
}

fn poll_send<D: SideData>(
    io: &mut (impl AsyncWrite + Unpin),
    session: &mut ConnectionCommon<D>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    while session.wants_write() {
        match session.write_tls(&mut Blocking { io, cx }) {
            Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            Err(error) => return Poll::Ready(Err(error)),
        }
    }
    // Another layer of TLS, of a proxy in between, may hold something as well.
    Pin::new(io).poll_flush(cx)
}

/// For rustls, which writes like a thread that may not block.
struct Blocking<'a, 'b, T> {
    io: &'a mut T,
    cx: &'a mut Context<'b>,
}

impl<T: AsyncWrite + Unpin> Write for Blocking<'_, '_, T> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        unless_pending(Pin::new(&mut *self.io).poll_write(self.cx, buf))
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        unless_pending(Pin::new(&mut *self.io).poll_write_vectored(self.cx, bufs))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn unless_pending<V>(polled: Poll<io::Result<V>>) -> io::Result<V> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// A corked transport, for `h2`. Until its [`Tap`] is first used it sends at once.
#[derive(Debug)]
pub struct Corked<T>(Rc<RefCell<Held<T>>>);

/// Sends what its [`Corked`] has taken; for the driver of the connection.
#[derive(Debug)]
pub struct Tap<T>(Rc<RefCell<Held<T>>>);

#[derive(Debug)]
struct Held<T> {
    io: T,
    /// Somebody sends behind each poll.
    is_tapped: bool,
    /// The transport did not take all at last.
    is_slow: bool,
}

/// Corks `io`.
#[must_use]
pub fn cork<T: Cork>(mut io: T) -> (Corked<T>, Tap<T>) {
    io.set_room(HELD);
    let held = Rc::new(RefCell::new(Held {
        io,
        is_tapped: false,
        is_slow: false,
    }));
    (Corked(held.clone()), Tap(held))
}

impl<T: Cork> Tap<T> {
    /// To be called each time the connection has been polled, or what it has written stays here. That the transport has failed, reading
    /// tells.
    pub fn send(&self, cx: &mut Context<'_>) {
        let mut held = self.0.borrow_mut();
        held.is_tapped = true;
        // Pending: the task is woken when there is room, and comes here again.
        drop(held.poll_send(cx));
    }
}

impl<T: Cork> AsyncRead for Corked<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().io).poll_read(cx, buf)
    }
}

impl<T: Cork> Held<T> {
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        loop {
            match self.io.take(bufs) {
                None => return Pin::new(&mut self.io).poll_write_vectored(cx, bufs),
                Some(Ok(0)) => ready!(self.poll_send(cx))?,
                Some(taken) => return Poll::Ready(taken),
            }
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = self.io.poll_send(cx);
        if self.is_slow != polled.is_pending() {
            self.is_slow = polled.is_pending();
            self.io
                .set_room(if self.is_slow { HELD_BACK } else { HELD });
        }
        polled
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

impl<T: Cork> AsyncWrite for Corked<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.borrow().io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = self.0.borrow_mut();
        if held.is_tapped {
            return Poll::Ready(Ok(()));
        }
        held.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = self.0.borrow_mut();
        ready!(held.poll_flush(cx))?;
        Pin::new(&mut held.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
