//! One gRPC stream over `h2` as the carrier of one [`Mux`]: the tunnel's only task.
//!
//! Each poll reads everything that has come, gives window back, and hands out batches while HTTP/2 takes them. Because
//! producers run on the same thread and only append to queues, a burst of small packets costs one wake and one batch, and no
//! timer ever delays a packet.

use std::{
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use h2::{Ping, PingPong, RecvStream, SendStream};
use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval, sleep_until};

use crate::{
    batch::Batch,
    codec::DecodeError,
    grpc::{Code, FramingError, MAX_MESSAGE, MessageReader, Status},
    keepalive::{Action, Keepalive},
    mux::{Event, Mux, PACE, TICK},
    probe::Probe,
};

/// Receive window of a tunnel, stream and connection alike: the tunnel is the connection's only stream.
pub const TUNNEL_WINDOW: u32 = 4 * 1024 * 1024;

/// What HTTP/2 may hold of ours ahead of the scheduler.
pub const SEND_BUFFER: usize = 128 * 1024;

/// Budget for small DATA frames that `h2` has received and we have not read. A tunnel is made of small frames; ours are read
/// at every poll, so this is only a bound on one burst.
pub const SMALL_FRAME_BUDGET: usize = 8 * 1024 * 1024;

/// Bytes read in one poll before other tasks of the thread get their turn.
const READ_BUDGET: usize = 256 * 1024;

/// Batches handed out in one poll; HTTP/2's send buffer ends it sooner.
const BATCH_BUDGET: usize = 32;

/// How a tunnel ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkEnd {
    /// The peer ended the stream; with a status if it is the server's end.
    #[error("peer ended the stream{}", .0.as_ref().map(|status| format!(": {status}")).unwrap_or_default())]
    Peer(Option<Status>),
    /// The connection or the stream broke.
    #[error("connection broke")]
    Broken(#[from] h2::Error),
    /// The peer sent what no peer of this protocol sends.
    #[error("protocol error: {0}")]
    Protocol(Status),
}

impl LinkEnd {
    /// The code that the end counts as; `None` for an orderly one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Peer(status) => status
                .as_ref()
                .map(|status| status.code)
                .filter(|code| *code != Code::Ok),
            Self::Broken(error) => Some(error.reason().map_or(Code::Unavailable, Code::from_reset)),
            Self::Protocol(status) => Some(status.code),
        }
    }
}

impl From<FramingError> for LinkEnd {
    fn from(error: FramingError) -> Self {
        Self::Protocol(error.to_status())
    }
}

impl From<DecodeError> for LinkEnd {
    fn from(error: DecodeError) -> Self {
        let cause = match error {
            DecodeError::Malformed(malformed) => malformed.to_string(),
            DecodeError::Mismatch(_) => error.to_string(),
        };
        Self::Protocol(Status::new(
            Code::Internal,
            format!("malformed packet: {cause}"),
        ))
    }
}

/// The carrier of one tunnel.
#[derive(Debug)]
pub struct Link {
    mux: Rc<Mux>,
    send: SendStream<Batch>,
    recv: RecvStream,
    reader: MessageReader,
    window: usize,
    tick: Interval,
    pace: Option<Interval>,
}

impl Link {
    /// Carries `mux` over a stream whose receive window is [`TUNNEL_WINDOW`].
    #[must_use]
    pub fn new(mux: Rc<Mux>, send: SendStream<Batch>, recv: RecvStream) -> Self {
        Self {
            mux,
            send,
            recv,
            reader: MessageReader::new(MAX_MESSAGE),
            window: TUNNEL_WINDOW as usize,
            tick: lazy_interval(TICK),
            pace: None,
        }
    }

    /// Carries packets until the stream ends; then ends the tunnel's connections and dials. `on_event` hears what the mux
    /// cannot do itself.
    ///
    /// Not cancel safe in that, if nobody runs it again, the tunnel is over, but its connections are not told: use [`Self::close`].
    /// What was read stays in `self`, so it may be run again.
    pub async fn run(&mut self, mut on_event: impl FnMut(Event)) -> LinkEnd {
        let end = poll_fn(|cx| self.poll(cx, &mut on_event)).await;
        self.mux.on_lost();
        end
    }

    /// Ends the stream with `status` in the trailers. Of a server's end only.
    pub fn close(&mut self, status: &Status) {
        self.mux.on_lost();
        if self.send.send_trailers(status.to_headers()).is_err() {
            self.send.send_reset(h2::Reason::CANCEL);
        }
    }

    /// Ends our direction of the stream behind everything that was handed out; the peer then ends its own. Of an agent's end, with
    /// no connections left. [`run`](Self::run) again to see the peer's end.
    pub fn finish(&mut self) {
        // Fails only on a stream that has ended already.
        drop(self.send.send_data(Batch::default(), true));
    }

    fn poll(&mut self, cx: &mut Context<'_>, on_event: &mut impl FnMut(Event)) -> Poll<LinkEnd> {
        self.mux.set_link(cx.waker());
        // Twice at most: the second time registers for the next tick, which is a whole period away.
        while self.mux.connections() > 0 && self.tick.poll_tick(cx).is_ready() {
            self.mux.tick(Instant::now());
        }
        if let Poll::Ready(end) = self.poll_receive(cx, on_event) {
            return Poll::Ready(end);
        }
        self.poll_pace(cx);
        self.release();
        match self.poll_send(cx) {
            Poll::Ready(end) => Poll::Ready(end),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        on_event: &mut impl FnMut(Event),
    ) -> Poll<LinkEnd> {
        let mut read = 0;
        while read < READ_BUDGET {
            let Some(chunk) = ready!(self.recv.poll_data(cx)) else {
                let trailers = match ready!(self.recv.poll_trailers(cx)) {
                    Ok(trailers) => trailers,
                    Err(error) => return Poll::Ready(error.into()),
                };
                let status = trailers.as_ref().and_then(Status::from_headers);
                return Poll::Ready(match self.reader.finish() {
                    Err(error) if status.is_none() => error.into(),
                    _ => LinkEnd::Peer(status),
                });
            };
            match chunk {
                Ok(chunk) => {
                    read += chunk.len();
                    if let Err(end) = self.on_chunk(chunk, on_event) {
                        return Poll::Ready(end);
                    }
                }
                Err(error) => return Poll::Ready(error.into()),
            }
            self.release();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn on_chunk(&mut self, chunk: Bytes, on_event: &mut impl FnMut(Event)) -> Result<(), LinkEnd> {
        self.mux.on_chunk(chunk.len());
        self.reader.push(chunk);
        while let Some(message) = self.reader.next_message()? {
            if let Some(event) = self.mux.on_message(&message)? {
                on_event(event);
            }
        }
        Ok(())
    }

    fn poll_pace(&mut self, cx: &mut Context<'_>) {
        if !self.mux.update_pace(self.window) {
            self.pace = None;
            return;
        }
        let pace = self.pace.get_or_insert_with(|| lazy_interval(PACE));
        while pace.poll_tick(cx).is_ready() {
            self.mux.pace();
        }
    }

    fn release(&mut self) {
        let window = self.mux.take_window();
        if window > 0 {
            // Fails only for more than was received, which the mux does not give back.
            let released = self.recv.flow_control().release_capacity(window);
            debug_assert!(
                released.is_ok(),
                "released {window} bytes that were never received"
            );
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<LinkEnd> {
        for _ in 0..BATCH_BUDGET {
            if !self.mux.has_outgoing() {
                return Poll::Pending;
            }
            self.send.reserve_capacity(SEND_BUFFER);
            while self.send.capacity() == 0 {
                match ready!(self.send.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(error.into()),
                    None => return Poll::Ready(LinkEnd::Peer(None)),
                }
            }
            if let Some(batch) = self.mux.next_batch()
                && let Err(error) = self.send.send_data(batch, false)
            {
                return Poll::Ready(error.into());
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// An interval whose first tick is a period from now and that does not catch up.
fn lazy_interval(period: std::time::Duration) -> Interval {
    let mut interval = interval(period);
    interval.reset();
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Pings the peer of an HTTP/2 connection until it is dead. Resolves when a ping stays unanswered; never when the
/// connection ends otherwise. Cancel safe.
pub async fn watch(ping_pong: PingPong, keepalive: Keepalive) {
    watch_probed(ping_pong, keepalive, &Probe::default()).await;
}

/// As [`watch`], and pings whenever `probe` is asked to, still one at a time.
pub async fn watch_probed(mut ping_pong: PingPong, mut keepalive: Keepalive, probe: &Probe) {
    let mut timer: Pin<Box<Sleep>> = Box::pin(sleep_until(Instant::now()));
    poll_fn(|cx| {
        loop {
            match ping_pong.poll_pong(cx) {
                Poll::Ready(Ok(_)) => {
                    probe.on_pong();
                    keepalive.on_pong(Instant::now());
                }
                // The connection has ended by itself: no timer of ours is to say that it is dead.
                Poll::Ready(Err(_)) => return Poll::Pending,
                Poll::Pending => {}
            }
            if probe.take_wanted(cx.waker()) {
                keepalive.hurry(Instant::now());
            }
            match keepalive.poll(Instant::now()) {
                Action::Dead => return Poll::Ready(()),
                // Fails only when the connection is gone, which its own task notices.
                Action::Ping => drop(ping_pong.send_ping(Ping::opaque())),
                Action::WaitUntil(until) => {
                    timer.as_mut().reset(until);
                    ready!(timer.as_mut().poll(cx));
                }
            }
        }
    })
    .await;
}

/// Settings of the HTTP/2 connection that carries a tunnel, at the server's end.
#[must_use]
pub fn server_builder() -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(TUNNEL_WINDOW)
        .initial_connection_window_size(TUNNEL_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .data_frame_budget(SMALL_FRAME_BUDGET)
        .max_header_list_size(64 * 1024);
    builder
}

/// Settings of the HTTP/2 connection that carries a tunnel, at the agent's end.
#[must_use]
pub fn client_builder() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(TUNNEL_WINDOW)
        .initial_connection_window_size(TUNNEL_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .data_frame_budget(SMALL_FRAME_BUDGET)
        .max_header_list_size(64 * 1024)
        .enable_push(false);
    builder
}
