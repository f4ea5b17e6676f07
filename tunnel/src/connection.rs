//! A connection of a tunnel, as its local side uses it, whatever carries it.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;

use crate::{conn::Ended, mux, packet::ConnectId, stream};

/// Sending is over: the peer has closed, or the tunnel is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// An established connection, for the one task that owns its local side.
///
/// Dropping it finishes sending (what was accepted is still sent) and discards what comes in.
#[derive(Debug)]
pub enum Connection {
    /// Packets of a stream that all share.
    Packet(mux::Connection),
    /// A stream of its own.
    Stream(stream::Connection),
}

impl From<mux::Connection> for Connection {
    fn from(connection: mux::Connection) -> Self {
        Self::Packet(connection)
    }
}

impl From<stream::Connection> for Connection {
    fn from(connection: stream::Connection) -> Self {
        Self::Stream(connection)
    }
}

impl Connection {
    /// Its id on the tunnel.
    #[must_use]
    pub fn id(&self) -> ConnectId {
        match self {
            Self::Packet(connection) => connection.id(),
            Self::Stream(connection) => connection.id(),
        }
    }

    /// Whether one side may end and the other go on. Where it cannot, the end of one is that of both.
    #[must_use]
    pub fn keeps_half_close(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Ready with the room in bytes for one [`Self::send`], or with [`Closed`] when nothing would be sent any more.
    pub fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Closed>> {
        match self {
            // It takes what one read gives.
            Self::Packet(connection) => connection.poll_send_ready(cx).map_ok(|()| usize::MAX),
            Self::Stream(connection) => connection.poll_send_ready(cx),
        }
    }

    /// Sends bytes to the peer. Takes them even without room, at the cost of the byte budget.
    pub fn send(&mut self, bytes: Bytes) {
        match self {
            Self::Packet(connection) => connection.send(bytes),
            Self::Stream(connection) => connection.send(bytes),
        }
    }

    /// Nothing more will be sent; the peer hears of it behind what was.
    pub fn finish(&mut self) {
        match self {
            Self::Packet(connection) => connection.finish(),
            Self::Stream(connection) => connection.finish(),
        }
    }

    /// Ready when [`Self::poll_recv`] is.
    pub fn poll_recv_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Packet(connection) => connection.poll_recv_ready(cx),
            Self::Stream(connection) => connection.poll_recv_ready(cx),
        }
    }

    /// The next received bytes, at most `max`. `None`: the peer has ended its side and everything has been read.
    ///
    /// Every byte must be reported to [`Self::delivered`] once it is out of this process.
    ///
    /// # Errors
    /// [`Ended`], after everything that was received before it.
    pub fn poll_recv(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, Ended>> {
        match self {
            Self::Packet(connection) => connection.poll_recv(cx, max),
            Self::Stream(connection) => connection.poll_recv(cx, max),
        }
    }

    /// Whether nothing more will be received; what was is still there to be read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match self {
            Self::Packet(connection) => connection.has_ended(),
            Self::Stream(connection) => connection.has_ended(),
        }
    }

    /// Ready when the tunnel has reset the connection because its reader stalled: nothing more is to be delivered. Otherwise the
    /// task is woken by whatever else ends it, also if it reads nothing. To be called at every turn of the task.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Packet(connection) => connection.poll_reset(cx),
            Self::Stream(connection) => connection.poll_reset(cx),
        }
    }

    /// Reports that `len` received bytes have left this process, and how long they had to wait for a reader with room.
    pub fn delivered(&mut self, len: usize, waited: Duration) {
        match self {
            Self::Packet(connection) => connection.delivered(len, waited),
            Self::Stream(connection) => connection.delivered(len, waited),
        }
    }

    /// The local side broke, or is given up: ends both sides at once. Packets know no reset: there the drop that follows does it, and
    /// does it in order.
    pub fn reset(&mut self) {
        match self {
            Self::Packet(_) => {}
            Self::Stream(connection) => connection.reset(),
        }
    }
}
