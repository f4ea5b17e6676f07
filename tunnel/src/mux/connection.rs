//! A connection as its local side uses it.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use tokio::time::{Duration, Instant};

use super::Mux;
use crate::{
    conn::{Conn, Ended},
    connection::Closed,
    packet::ConnectId,
};

/// What the tunnel keeps of one connection.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) conn: RefCell<Conn>,
    /// Whether it stands in a list of the scheduler.
    pub(super) is_scheduled: Cell<bool>,
    sender: RefCell<Option<Waker>>,
    receiver: RefCell<Option<Waker>>,
    watch: Cell<Option<Watch>>,
}

/// Since when a connection that is being watched has delivered nothing.
#[derive(Clone, Copy, Debug)]
struct Watch {
    since: Instant,
    delivered: u64,
}

impl Lane {
    pub(super) fn new(conn: Conn) -> Self {
        Self {
            conn: RefCell::new(conn),
            is_scheduled: Cell::new(false),
            sender: RefCell::default(),
            receiver: RefCell::default(),
            watch: Cell::default(),
        }
    }

    pub(super) fn wake_sender(&self) {
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
    }

    pub(super) fn wake_receiver(&self) {
        if let Some(waker) = self.receiver.take() {
            waker.wake();
        }
    }

    pub(super) fn wake_both(&self) {
        self.wake_sender();
        self.wake_receiver();
    }

    /// For how long a watched connection has delivered nothing, as far as regular calls can tell.
    pub(super) fn idle_for(&self, now: Instant, delivered: u64, is_watched: bool) -> Duration {
        if !is_watched {
            self.watch.set(None);
            return Duration::ZERO;
        }
        match self.watch.get() {
            Some(watch) if watch.delivered == delivered => {
                now.saturating_duration_since(watch.since)
            }
            _ => {
                self.watch.set(Some(Watch {
                    since: now,
                    delivered,
                }));
                Duration::ZERO
            }
        }
    }
}

fn register(slot: &RefCell<Option<Waker>>, cx: &Context<'_>) {
    let mut slot = slot.borrow_mut();
    if !slot
        .as_ref()
        .is_some_and(|waker| waker.will_wake(cx.waker()))
    {
        *slot = Some(cx.waker().clone());
    }
}

/// An established connection of a tunnel, for the one task that owns its local side.
///
/// Dropping it finishes sending (what was accepted is still sent) and discards what comes in.
#[derive(Debug)]
pub struct Connection {
    mux: Rc<Mux>,
    lane: Rc<Lane>,
}

impl Connection {
    pub(super) fn new(mux: Rc<Mux>, lane: Rc<Lane>) -> Self {
        Self { mux, lane }
    }

    /// Its id on the tunnel.
    #[must_use]
    pub fn id(&self) -> ConnectId {
        self.lane.conn.borrow().id()
    }

    /// Ready when [`Self::send`] may be called once, or with [`Closed`] when nothing would be sent any more.
    pub fn poll_send_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Closed>> {
        let conn = self.lane.conn.borrow();
        if conn.is_send_closed() {
            return Poll::Ready(Err(Closed));
        }
        if conn.has_room() {
            return Poll::Ready(Ok(()));
        }
        register(&self.lane.sender, cx);
        Poll::Pending
    }

    /// Sends bytes to the peer. Takes them even without room: what one read gave fits always.
    pub fn send(&self, bytes: Bytes) {
        let mut conn = self.lane.conn.borrow_mut();
        conn.push(bytes);
        self.schedule(conn.is_ready());
    }

    /// Nothing more will be sent; the peer hears of it behind what was.
    pub fn finish(&self) {
        let mut conn = self.lane.conn.borrow_mut();
        conn.finish();
        self.schedule(conn.is_ready());
    }

    /// Ready when [`Self::poll_recv`] is.
    pub fn poll_recv_ready(&self, cx: &Context<'_>) -> Poll<()> {
        let conn = self.lane.conn.borrow();
        if conn.has_received() || conn.end().is_some() {
            return Poll::Ready(());
        }
        register(&self.lane.receiver, cx);
        Poll::Pending
    }

    /// The next received bytes, at most `max`. `None`: the peer closed and everything has been read.
    ///
    /// Every byte must be reported to [`Self::delivered`] once it is out of this process.
    ///
    /// # Errors
    /// [`Ended`], after everything that was received before it.
    pub fn poll_recv(&self, cx: &Context<'_>, max: usize) -> Poll<Result<Option<Bytes>, Ended>> {
        let mut conn = self.lane.conn.borrow_mut();
        if let Some(bytes) = conn.pop(max) {
            return Poll::Ready(Ok(Some(bytes)));
        }
        match conn.end() {
            Some(Ok(())) => Poll::Ready(Ok(None)),
            Some(Err(ended)) => Poll::Ready(Err(ended)),
            None => {
                register(&self.lane.receiver, cx);
                Poll::Pending
            }
        }
    }

    /// Whether nothing more will be received; what was is still there to be read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.lane.conn.borrow().end().is_some()
    }

    /// Whether the tunnel has reset the connection because its reader stalled: nothing more is to be delivered.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.lane.conn.borrow().end() == Some(Err(Ended::Stalled))
    }

    /// Ready when [`Self::is_reset`]. Otherwise the task is woken by any end of the connection, which a task that has no
    /// use for more bytes hears of in no other way.
    pub fn poll_reset(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_reset() {
            return Poll::Ready(());
        }
        // Woken by every end and by room, but not by each received byte.
        register(&self.lane.sender, cx);
        Poll::Pending
    }

    /// Reports that `len` received bytes have left this process, and how long they had to wait for a reader with room.
    pub fn delivered(&self, len: usize, waited: Duration) {
        self.mux.observer.delivered(waited);
        let mut conn = self.lane.conn.borrow_mut();
        let freed = conn.delivered(len);
        let mut state = self.mux.state.borrow_mut();
        state.free_window(freed);
        state.grant(&mut conn);
    }

    fn schedule(&self, is_ready: bool) {
        if is_ready {
            self.mux.state.borrow_mut().schedule(&self.lane);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut conn = self.lane.conn.borrow_mut();
        let freed = conn.abandon();
        let is_ready = conn.is_ready();
        let mut state = self.mux.state.borrow_mut();
        state.free_window(freed);
        state.grant(&mut conn);
        drop(conn);
        if is_ready && !state.is_lost {
            state.schedule(&self.lane);
        }
    }
}
