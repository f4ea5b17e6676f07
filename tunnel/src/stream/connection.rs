//! One HTTP/2 stream as a connection of the tunnel.
//!
//! ```text
//! sending:    Open --finish--> Finished                 receiving: Open --END_STREAM--> Ended
//!               \--the peer, or reset--> Closed                      \--RST_STREAM, or the tunnel--> Failed
//! ```
//!
//! What comes is taken out of HTTP/2 at once and charged; its window is given back only as it is delivered, so the peer has at most
//! a window outstanding, whoever reads or does not.

use std::{
    fmt,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};

use super::{
    linger::Linger,
    piece::{Backlog, Piece},
    session::{Session, Slot},
    shrink::Registered,
    window::{self, Taken},
};
use crate::{
    conn::Ended,
    connection::Closed,
    ledger::Account,
    packet::{ConnectId, PacketKind},
    queue::ByteQueue,
};

/// What HTTP/2 may hold of one stream's payload, in bytes, within the stream's window.
pub const SEND_BUFFER: usize = 128 * 1024;

/// Room that is asked for at once: one long read of a socket.
const ROOM: usize = 64 * 1024;

/// The same while the budget is nearly gone: what each connection may add to it.
const TIGHT_ROOM: usize = window::SMALLEST as usize;

/// A connection of a stream tunnel, for the one task that owns its local side.
///
/// Dropping it finishes sending (what was accepted is still sent) and discards what comes in; the peer learns that nobody reads any more
/// when it has got everything.
pub struct Connection {
    /// There until it is dropped.
    core: Option<Box<Core>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

/// What is left of a connection when its local side has gone is the same, see [`Linger`].
pub(super) struct Core {
    pub(super) session: Rc<Session>,
    pub(super) id: ConnectId,
    pub(super) send: SendStream<Piece>,
    pub(super) recv: RecvStream,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) backlog: Rc<Backlog>,
    inbound: ByteQueue,
    /// Popped and not delivered.
    in_flight: usize,
    account: Account,
    taken: Taken,
    /// Nobody reads any more: what comes is dropped.
    discards: bool,
    is_full: bool,
    _slot: Slot,
    _window: Registered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    Open,
    /// We have ended it.
    Finished,
    /// The peer takes no more, or the stream is gone.
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    Open,
    Ended,
    Failed(Ended),
}

impl Connection {
    pub(super) fn new(
        session: Rc<Session>,
        send: SendStream<Piece>,
        mut recv: RecvStream,
        slot: Slot,
    ) -> Self {
        let ledger = session.ledger();
        let id = ConnectId(send.stream_id().as_u32().into());
        let window = session.windows.add(id, recv.flow_control().clone());
        let core = Core {
            id,
            backlog: Backlog::new(ledger.clone()),
            account: Account::whole(ledger.clone()),
            session,
            send,
            recv,
            sending: Sending::Open,
            receiving: Receiving::Open,
            inbound: ByteQueue::default(),
            in_flight: 0,
            taken: Taken::default(),
            discards: false,
            is_full: false,
            _slot: slot,
            _window: window,
        };
        Self {
            core: Some(Box::new(core)),
        }
    }

    #[expect(clippy::expect_used, reason = "taken by drop alone")]
    fn core(&self) -> &Core {
        self.core.as_ref().expect("it has not been dropped")
    }

    #[expect(clippy::expect_used, reason = "taken by drop alone")]
    fn core_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("it has not been dropped")
    }

    /// Its HTTP/2 stream id, which is its id on the tunnel.
    #[must_use]
    pub fn id(&self) -> ConnectId {
        self.core().id
    }

    /// Ready with the room in bytes for [`Self::send`], or with [`Closed`] when nothing would be sent any more.
    pub fn poll_send_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Closed>> {
        let core = self.core_mut();
        core.take_in(cx);
        let ready = core.poll_room(cx);
        core.set_full(ready.is_pending());
        ready
    }

    /// Sends bytes to the peer. What goes beyond the room waits, at the cost of the byte budget.
    pub fn send(&mut self, bytes: Bytes) {
        let core = self.core_mut();
        if core.sending == Sending::Open && !bytes.is_empty() {
            let observer = core.session.observer();
            observer.sent(PacketKind::Data);
            observer.data_sent(bytes.len());
            core.hand_over(bytes, false);
        }
    }

    /// Nothing more will be sent; the peer hears of it behind what was. Receiving goes on.
    pub fn finish(&mut self) {
        self.core_mut().finish();
    }

    /// Ready when [`Self::poll_recv`] is.
    pub fn poll_recv_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let core = self.core_mut();
        core.take_in(cx);
        if core.inbound.is_empty() && core.receiving == Receiving::Open {
            return Poll::Pending;
        }
        Poll::Ready(())
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
        let core = self.core_mut();
        core.take_in(cx);
        if let Some(bytes) = core.inbound.pop(max) {
            core.in_flight += bytes.len();
            return Poll::Ready(Ok(Some(bytes)));
        }
        match core.receiving {
            Receiving::Open => Poll::Pending,
            Receiving::Ended => Poll::Ready(Ok(None)),
            Receiving::Failed(ended) => Poll::Ready(Err(ended)),
        }
    }

    /// Whether nothing more will be received; what was is still there to be read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.core().receiving != Receiving::Open
    }

    /// Has the task woken by whatever happens to the connection, which a task that has no use for more bytes hears of in no
    /// other way. Never ready: a stream tunnel resets no connection because its reader stalls.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.core_mut().take_in(cx);
        Poll::Pending
    }

    /// Reports that `len` received bytes have left this process, and how long they had to wait for a reader with room.
    pub fn delivered(&mut self, len: usize, waited: Duration) {
        let core = self.core_mut();
        core.session.observer().delivered(waited);
        core.in_flight = core.in_flight.saturating_sub(len);
        core.session.on_taken(&mut core.taken, len);
        core.charge();
        core.release(len);
    }

    /// Ends both sides at once, and drops what has not been written: the local side broke, or is given up.
    pub fn reset(&mut self) {
        self.core_mut().reset(Reason::CONNECT_ERROR);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Some(mut core) = self.core.take() else {
            return;
        };
        core.close();
        if !core.is_over() && !core.session.is_lost() {
            let session = core.session.clone();
            session.linger(Linger::new(core));
        }
    }
}

impl Core {
    /// Whether there is nothing left to do for either side.
    pub(super) fn is_over(&self) -> bool {
        self.sending != Sending::Open
            && self.receiving != Receiving::Open
            && self.backlog.is_empty()
    }

    /// Takes everything that has come out of HTTP/2, and has the task of `cx` woken when more does.
    pub(super) fn take_in(&mut self, cx: &mut Context<'_>) {
        let mut has_come = false;
        while self.receiving == Receiving::Open {
            match self.recv.poll_data(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(bytes))) => {
                    has_come = true;
                    self.on_bytes(bytes);
                }
                Poll::Ready(Some(Err(error))) => {
                    self.receiving = Receiving::Failed(ended(&error));
                    self.sending = Sending::Closed;
                }
                Poll::Ready(None) => {
                    self.receiving = Receiving::Ended;
                    let (_, theirs) = self.session.close_kinds();
                    self.session.observer().received(Some(theirs));
                }
            }
        }
        if has_come {
            self.session.on_sign();
            self.charge();
        }
    }

    fn on_bytes(&mut self, bytes: Bytes) {
        let len = bytes.len();
        if len == 0 {
            // The end's own frame; others HTTP/2 keeps to itself, and counts.
            return;
        }
        let observer = self.session.observer();
        observer.received(Some(PacketKind::Data));
        observer.data_received(len);
        if self.discards {
            self.release(len);
        } else {
            self.inbound.push(bytes);
        }
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, Closed>> {
        if self.sending == Sending::Open && self.send.poll_reset(cx).is_ready() {
            // Behind the peer's end: it reads no more. Otherwise receiving has failed as well.
            self.sending = Sending::Closed;
        }
        if self.sending != Sending::Open {
            return Poll::Ready(Err(Closed));
        }
        // A slow tunnel must not fill the budget with what waits for it.
        let is_tight = self.session.ledger().is_tight();
        if is_tight && !self.backlog.is_empty() {
            self.backlog.register(cx);
            return Poll::Pending;
        }
        let most = if is_tight { TIGHT_ROOM } else { ROOM };
        self.send.reserve_capacity(most);
        loop {
            let room = self.send.capacity().min(most);
            if room > 0 {
                return Poll::Ready(Ok(room));
            }
            match self.send.poll_capacity(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => {
                    self.sending = Sending::Closed;
                    return Poll::Ready(Err(Closed));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn hand_over(&mut self, bytes: Bytes, ends: bool) {
        let piece = Piece::new(bytes, &self.backlog);
        if self.send.send_data(piece, ends).is_err() {
            self.sending = Sending::Closed;
        }
    }

    fn finish(&mut self) {
        if self.sending == Sending::Open {
            self.sending = Sending::Finished;
            let (ours, _) = self.session.close_kinds();
            self.session.observer().sent(ours);
            self.hand_over(Bytes::new(), true);
        }
    }

    /// The local side has gone.
    fn close(&mut self) {
        self.finish();
        self.set_full(false);
        self.discards = true;
        let held = self.inbound.len() + std::mem::take(&mut self.in_flight);
        self.inbound.clear();
        self.charge();
        self.release(held);
    }

    /// Ends both sides at once.
    pub(super) fn reset(&mut self, reason: Reason) {
        if !self.is_over() {
            self.send.send_reset(reason);
        }
        self.sending = Sending::Closed;
        if self.receiving == Receiving::Open {
            self.receiving = Receiving::Failed(Ended::Reset);
        }
    }

    fn charge(&mut self) {
        self.account.set(self.inbound.cost() + self.in_flight);
        self.session.on_charge();
    }

    fn release(&mut self, len: usize) {
        if len > 0 {
            // Fails only for more than was received, or on a stream that is gone.
            drop(self.recv.flow_control().release_capacity(len));
        }
    }

    fn set_full(&mut self, is_full: bool) {
        if self.is_full != is_full {
            self.is_full = is_full;
            self.session.count_full(is_full);
        }
    }
}

/// What an error of a stream means for its connection.
fn ended(error: &h2::Error) -> Ended {
    // A stream's own reset; everything else is the tunnel's.
    if error.is_reset() && error.is_remote() {
        match error.reason() {
            Some(Reason::ENHANCE_YOUR_CALM) => Ended::Stalled,
            _ => Ended::Reset,
        }
    } else if error.is_reset() {
        Ended::Reset
    } else {
        Ended::TunnelLost
    }
}
