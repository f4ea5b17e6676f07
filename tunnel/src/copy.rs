//! A socket on one side, a connection of the tunnel on the other: bytes both ways, closes in order.
//!
//! One task and one allocation a connection; nothing is held while it is idle. What was accepted from one side is delivered
//! to the other before its side is closed, with bounds on the waiting: [`FLUSH_LIMIT`], [`CLOSING_LIMIT`], [`LINGER`]. Where the tunnel
//! keeps half-close, the end of one side is passed on and the other goes on, see [`HALF_CLOSED_LIMIT`].

mod limits;
mod read_buffer;

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, Ready},
    net::{TcpStream, UnixStream},
    time::{Instant, Sleep, sleep},
};

use crate::{
    conn::Ended,
    connection::{Closed, Connection},
};
use limits::{Limits, Regime};
use read_buffer::ReadBuffer;

/// After one side has closed: how long the other may take not a single byte before the rest is dropped.
pub const FLUSH_LIMIT: Duration = Duration::from_secs(30);

/// After one side has closed: how long the whole delivery of what is left may take.
pub const CLOSING_LIMIT: Duration = Duration::from_secs(600);

/// After everything is delivered and our side shut down: how long we go on reading, and dropping, what the socket's peer still
/// sends. Closing with unread data would reset the connection and could destroy what was just delivered.
pub const LINGER: Duration = Duration::from_secs(5);

/// While one side has ended in order and the other has not: how long the other may say nothing. As long as a proxy of TCP usually
/// lets a connection be idle; a peer that has gone without a word is noticed by the kernel long before.
pub const HALF_CLOSED_LIMIT: Duration = Duration::from_secs(3600);

/// How often a socket that the tunnel takes nothing from, or whose peer has ended its side, is looked at.
pub const HANG_UP_CHECK: Duration = Duration::from_secs(5);

/// Bytes moved in one direction before other tasks of the thread get their turn.
const COPY_BUDGET: usize = 256 * 1024;

/// Pieces of one write.
const MAX_SLICES: usize = 16;

/// A socket that can be ended rudely.
pub trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Makes the coming close a reset where the transport has one, so that the peer cannot take a truncated stream for a
    /// whole one.
    fn abort(&mut self);

    /// Whether the peer has closed its sending side, although what it sent before has not all been read. `false` where that
    /// cannot be known.
    fn is_hung_up(&self) -> bool {
        false
    }

    /// Whether the peer has closed both its sides: it reads no more either. `false` where that cannot be known, as with TCP, where
    /// the end of one side looks the same.
    fn is_gone(&self) -> bool {
        false
    }
}

/// Asks the reactor what it knows of a socket; nobody is woken.
fn is_read_closed(ready: impl Future<Output = io::Result<Ready>>) -> bool {
    match pin!(ready).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(ready)) => ready.is_read_closed(),
        // The next write says so itself.
        Poll::Ready(Err(_)) | Poll::Pending => false,
    }
}

impl Socket for TcpStream {
    fn abort(&mut self) {
        // An error means that the socket is gone already.
        drop(self.set_zero_linger());
    }

    fn is_hung_up(&self) -> bool {
        is_read_closed(self.ready(Interest::READABLE))
    }
}

impl Socket for UnixStream {
    fn abort(&mut self) {}

    fn is_hung_up(&self) -> bool {
        is_read_closed(self.ready(Interest::READABLE))
    }

    fn is_gone(&self) -> bool {
        let ready = pin!(self.ready(Interest::READABLE | Interest::WRITABLE));
        match ready.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(ready)) => ready.is_write_closed(),
            Poll::Ready(Err(_)) | Poll::Pending => false,
        }
    }
}

/// How to start.
#[derive(Debug, Default)]
pub struct Options {
    /// Bytes that have been read off the socket already.
    pub early: Bytes,
    /// Hold received bytes back until the socket's peer has sent something, at most this long. Zero: not at all; must be less
    /// than [`FLUSH_LIMIT`].
    pub hold: Duration,
    /// Look every [`HANG_UP_CHECK`] whether the socket's peer has closed while the tunnel takes nothing from it, and treat that as
    /// its close. For a frontend, whose end nobody else tells of; an agent hears of it from its server, and must keep what a
    /// target left for a client that only pauses.
    pub watch_for_hang_up: bool,
}

/// What ended a connection.
#[derive(Debug)]
pub enum End {
    /// The socket's peer, or both, in order.
    Closed,
    /// The tunnel's peer or the tunnel, other than by a close.
    Ended(Ended),
    /// The socket broke.
    Socket(io::Error),
    /// The rest could not be delivered within the limits.
    NotFlushed,
    /// One side had ended, and the other said nothing for [`HALF_CLOSED_LIMIT`].
    HalfClosed,
}

/// A connection that is over.
#[derive(Debug)]
pub struct Copied {
    /// Bytes from the socket to the tunnel.
    pub sent: u64,
    /// Bytes from the tunnel to the socket.
    pub received: u64,
    /// Why it is over.
    pub end: End,
}

/// Copies until both directions are over. Dropping the future drops the socket and the connection: what was accepted from the
/// socket is still sent, what was queued for it is lost.
pub async fn copy<S: Socket>(
    socket: S,
    connection: impl Into<Connection>,
    options: Options,
) -> Copied {
    let mut copy = Copy::new(socket, connection.into(), options);
    let end = poll_fn(|cx| copy.poll(cx)).await;
    // A side that is cut must not look like one that has ended.
    match end {
        End::Closed => {}
        End::Socket(_) => copy.connection.reset(),
        End::Ended(_) | End::NotFlushed | End::HalfClosed => {
            copy.connection.reset();
            copy.socket.abort();
        }
    }
    Copied {
        sent: copy.sent,
        received: copy.received,
        end,
    }
}

struct Copy<S> {
    socket: S,
    connection: Connection,
    reading: Reading,
    buffer: ReadBuffer,
    writing: Writing,
    pieces: VecDeque<Bytes>,
    /// Since when the first piece waits for the socket.
    waiting: Option<Instant>,
    needs_flush: bool,
    hold: Option<Pin<Box<Sleep>>>,
    hang_up: HangUp,
    limits: Limits,
    sent: u64,
    received: u64,
}

/// What is known of a peer that we cannot read from because the tunnel takes nothing.
enum HangUp {
    /// Nobody asks.
    Unwatched,
    /// We read, or have only just stopped.
    NoReason,
    /// To be looked at again.
    Suspected(Pin<Box<Sleep>>),
    /// It has closed.
    Certain,
}

/// The socket's side that we read from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Open,
    /// The tunnel takes no more; what comes is dropped.
    Draining,
    /// End of file.
    Done,
}

/// The socket's side that we write to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    Open,
    /// The tunnel has ended like this; what is queued is still to be written.
    Flushing(Result<(), Ended>),
    /// Shut down.
    Done,
}

impl<S: Socket> Copy<S> {
    fn new(socket: S, mut connection: Connection, options: Options) -> Self {
        let sent = options.early.len() as u64;
        if sent > 0 {
            connection.send(options.early);
        }
        Self {
            socket,
            connection,
            reading: Reading::Open,
            buffer: ReadBuffer::default(),
            writing: Writing::Open,
            pieces: VecDeque::new(),
            waiting: None,
            needs_flush: false,
            hold: (!options.hold.is_zero()).then(|| Box::pin(sleep(options.hold))),
            hang_up: if options.watch_for_hang_up {
                HangUp::NoReason
            } else {
                HangUp::Unwatched
            },
            limits: Limits::default(),
            sent,
            received: 0,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if self.connection.poll_reset(cx).is_ready() {
            // What is left waits for a reader that does not read.
            return Poll::Ready(End::Ended(Ended::Stalled));
        }
        let before = (self.sent, self.received);
        if let Poll::Ready(Err(error)) = self.poll_read(cx) {
            return Poll::Ready(End::Socket(error));
        }
        match self.poll_write(cx) {
            Poll::Ready(Ok(end)) => return Poll::Ready(end),
            Poll::Ready(Err(error)) => return Poll::Ready(End::Socket(error)),
            Poll::Pending => {}
        }
        let has_left = self.reading == Reading::Open && self.poll_hang_up(cx).is_ready();
        if self.reading == Reading::Open && self.writing == Writing::Open && !has_left {
            self.limits = Limits::default();
            return Poll::Pending;
        }
        let has_progressed = before != (self.sent, self.received);
        let regime = if has_left {
            Regime::Flushing
        } else {
            self.regime()
        };
        let (socket, hang_up) = (&self.socket, &self.hang_up);
        // Only a frontend's end has nobody else who tells of it.
        let is_gone = || !matches!(hang_up, HangUp::Unwatched) && socket.is_gone();
        self.limits.poll(cx, regime, has_progressed, is_gone)
    }

    /// What is left to do once a side has ended.
    fn regime(&self) -> Regime {
        let is_half_closed = match (self.reading, self.writing) {
            (Reading::Done, Writing::Open) => Some(true),
            (Reading::Open, Writing::Done) => Some(false),
            _ => None,
        };
        match is_half_closed {
            Some(by_socket) if self.connection.keeps_half_close() => {
                Regime::HalfClosed { by_socket }
            }
            _ if self.writing == Writing::Done => Regime::Lingering,
            _ => Regime::Flushing,
        }
    }

    /// Ready while the tunnel takes nothing from a peer that has closed.
    fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(self.hang_up, HangUp::Unwatched) {
            return Poll::Pending;
        }
        if self.connection.poll_send_ready(cx).is_ready() {
            self.hang_up = HangUp::NoReason;
            return Poll::Pending;
        }
        loop {
            match &mut self.hang_up {
                HangUp::Unwatched => return Poll::Pending,
                HangUp::Certain => return Poll::Ready(()),
                HangUp::NoReason => {
                    self.hang_up = HangUp::Suspected(Box::pin(sleep(HANG_UP_CHECK)));
                }
                HangUp::Suspected(timer) => {
                    ready!(timer.as_mut().poll(cx));
                    let is_over = if self.connection.keeps_half_close() {
                        self.socket.is_gone()
                    } else {
                        self.socket.is_hung_up()
                    };
                    self.hang_up = if is_over {
                        HangUp::Certain
                    } else {
                        HangUp::NoReason
                    };
                }
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut budget = COPY_BUDGET;
        while self.reading != Reading::Done {
            let mut room = usize::MAX;
            if self.reading == Reading::Open {
                match ready!(self.connection.poll_send_ready(cx)) {
                    Ok(bytes) => room = bytes,
                    Err(Closed) => self.reading = Reading::Draining,
                }
            }
            let bytes = ready!(self.buffer.poll_read(&mut self.socket, cx, room))?;
            if bytes.is_empty() {
                self.connection.finish();
                self.reading = Reading::Done;
                break;
            }
            self.hold = None;
            let Some(left) = budget.checked_sub(bytes.len()) else {
                self.accept(bytes);
                cx.waker().wake_by_ref();
                return Poll::Pending;
            };
            budget = left;
            self.accept(bytes);
        }
        Poll::Ready(Ok(()))
    }

    fn accept(&mut self, bytes: Bytes) {
        if self.reading == Reading::Open {
            self.sent += bytes.len() as u64;
            self.connection.send(bytes);
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<End>> {
        let mut budget = COPY_BUDGET;
        loop {
            self.fill(cx);
            if let Some(hold) = &mut self.hold
                && !self.pieces.is_empty()
            {
                ready!(hold.as_mut().poll(cx));
                self.hold = None;
            }
            if !self.pieces.is_empty() {
                let since = *self.waiting.get_or_insert_with(Instant::now);
                let written = ready!(self.poll_write_pieces(cx))?;
                self.waiting = None;
                self.received += written as u64;
                self.connection.delivered(written, since.elapsed());
                self.needs_flush = true;
                let Some(left) = budget.checked_sub(written) else {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                };
                budget = left;
            } else if self.needs_flush {
                ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
                self.needs_flush = false;
            } else {
                match self.writing {
                    Writing::Open => return Poll::Pending,
                    Writing::Flushing(Err(ended)) => return Poll::Ready(Ok(End::Ended(ended))),
                    Writing::Flushing(Ok(())) => {
                        ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
                        self.writing = Writing::Done;
                    }
                    Writing::Done if self.reading == Reading::Done => {
                        return Poll::Ready(Ok(End::Closed));
                    }
                    Writing::Done => return Poll::Pending,
                }
            }
        }
    }

    /// Takes what has come, up to what one write takes.
    fn fill(&mut self, cx: &mut Context<'_>) {
        while self.writing == Writing::Open && self.pieces.len() < MAX_SLICES {
            match self.connection.poll_recv(cx, COPY_BUDGET) {
                Poll::Ready(Ok(Some(bytes))) => self.pieces.push_back(bytes),
                Poll::Ready(Ok(None)) => self.writing = Writing::Flushing(Ok(())),
                Poll::Ready(Err(ended)) => self.writing = Writing::Flushing(Err(ended)),
                Poll::Pending => break,
            }
        }
    }

    fn poll_write_pieces(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let socket = Pin::new(&mut self.socket);
        let written = if self.pieces.len() > 1 && socket.is_write_vectored() {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let mut filled = 0;
            for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
                *slot = IoSlice::new(piece);
                filled += 1;
            }
            ready!(socket.poll_write_vectored(cx, slices.get(..filled).unwrap_or_default()))?
        } else {
            ready!(
                socket.poll_write(
                    cx,
                    self.pieces
                        .front()
                        .map(|piece| &piece[..])
                        .unwrap_or_default()
                )
            )?
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let mut left = written;
        while let Some(front) = self.pieces.front_mut() {
            let of_front = left.min(front.len());
            front.advance(of_front);
            left -= of_front;
            if !front.is_empty() {
                break;
            }
            self.pieces.pop_front();
        }
        Poll::Ready(Ok(written))
    }
}
