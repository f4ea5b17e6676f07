//! One `Proxy` stream.
//!
//! ```text
//! Idle --DIAL_REQ--> Dialing --success--> Open --CLOSE_REQ, or the target's end--> Over
//!   ^                  |  |                                                          ^
//!   +-----DIAL_CLS-----+  +--failure-------------------------------------------------+
//! ```
//!
//! `Over` keeps reading until the client ends the stream, as upstream does, but not for ever. Reading never stops; a target
//! that does not read holds the client by the stream's window.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use tokio::time::{Instant, Sleep, sleep};
use tunnel::{
    batch::Batch,
    codec::{self, DecodeError, Decoded},
    connection::Connection,
    copy::FLUSH_LIMIT,
    grpc::{Code, MAX_MESSAGE, MessageReader, Status},
    packet::{ConnectId, DialId, Packet},
};

use super::super::FIRST_BYTES_PAUSE;
use crate::{
    dial::{Core, DialError, Dialled, Established},
    metrics::Segment,
};

/// How long a client may keep a stream whose dial has failed or whose connection is over.
const OVER_LIMIT: Duration = Duration::from_secs(30);

/// Payload of one DATA towards the client. Its library queues ten packets and drops the connection when those are not read
/// within 10 s, so the larger they are, the longer a reader may pause.
const MAX_PAYLOAD: usize = 64 * 1024;

/// Answers that may wait for the client to take them; a client that provokes more is against the protocol.
const MAX_ANSWERS: usize = 64;

/// Batches in one poll before other tasks get their turn.
const SEND_BUDGET: usize = 16;

type Attempt = Pin<Box<dyn Future<Output = Result<Dialled, DialError>>>>;

enum State {
    Idle,
    Dialing { dial: DialId, attempt: Attempt },
    Open(Box<Open>),
    Over { limit: Pin<Box<Sleep>> },
}

struct Open {
    connection: Connection,
    id: ConnectId,
    /// Until it passes or the client has spoken, what the target says is held back.
    hold: Option<Pin<Box<Sleep>>>,
    /// Since when what was received waits for room in the stream.
    waiting: Option<Instant>,
    /// Once the target has closed: when the client must have taken something of what is left.
    flush: Option<Pin<Box<Sleep>>>,
    _counted: Established,
}

impl Open {
    /// Ready when what was received waits for a client that does not read: the tunnel has reset the connection for it, or
    /// the target has closed and [`FLUSH_LIMIT`] has passed without progress.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.connection.poll_reset(cx).is_ready() {
            return Poll::Ready(());
        }
        if !self.connection.has_ended() {
            return Poll::Pending;
        }
        let flush = self
            .flush
            .get_or_insert_with(|| Box::pin(sleep(FLUSH_LIMIT)));
        flush.as_mut().poll(cx)
    }
}

/// See the module.
pub(super) struct Stream {
    send: SendStream<Batch>,
    recv: RecvStream,
    reader: MessageReader,
    /// Received bytes whose window the client has not got back.
    unreleased: usize,
    answers: VecDeque<Packet>,
    state: State,
    core: Rc<Core>,
}

/// How a stream ended.
enum End {
    /// The client closed it.
    Client,
    /// We close it, with this status.
    Refused(Status),
    /// The client does not take what it is sent.
    Stalled,
    /// It broke.
    Broken(h2::Error),
}

impl Stream {
    pub(super) fn new(send: SendStream<Batch>, recv: RecvStream, core: Rc<Core>) -> Self {
        Self {
            send,
            recv,
            reader: MessageReader::new(MAX_MESSAGE),
            unreleased: 0,
            answers: VecDeque::new(),
            state: State::Idle,
            core,
        }
    }

    /// Serves until the stream ends. What the client had sent for the target is delivered all the same.
    pub(super) async fn run(mut self) {
        let status = match poll_fn(|cx| self.poll(cx)).await {
            End::Client => Status::ok(),
            End::Refused(status) => {
                self.core
                    .metrics
                    .stream_failed(Segment::FromClient, status.code);
                tracing::debug!(%status, "ended a client's stream");
                status
            }
            End::Stalled => {
                self.core
                    .metrics
                    .stream_failed(Segment::ToClient, Code::ResourceExhausted);
                tracing::debug!("reset a client's stream: it does not read");
                // Not a status: that would wait behind what the client does not read.
                return self.send.send_reset(h2::Reason::ENHANCE_YOUR_CALM);
            }
            End::Broken(error) => {
                let code = error.reason().map_or(Code::Unavailable, Code::from_reset);
                // A cancelled stream is how a client ends a dial.
                if code != Code::Canceled {
                    self.core.metrics.stream_failed(Segment::FromClient, code);
                }
                return tracing::debug!(%error, "client's stream over");
            }
        };
        if self.send.send_trailers(status.to_headers()).is_err() {
            self.send.send_reset(h2::Reason::CANCEL);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if let Poll::Ready(end) = self.poll_receive(cx) {
            return Poll::Ready(end);
        }
        self.poll_dial(cx);
        if let Poll::Ready(end) = self.poll_send(cx) {
            return Poll::Ready(end);
        }
        if let State::Open(open) = &mut self.state
            && open.poll_stalled(cx).is_ready()
        {
            return Poll::Ready(End::Stalled);
        }
        self.release(cx);
        if let State::Over { limit } = &mut self.state {
            ready!(limit.as_mut().poll(cx));
            return Poll::Ready(End::Refused(Status::ok()));
        }
        Poll::Pending
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            match ready!(self.recv.poll_data(cx)) {
                Some(Ok(chunk)) => {
                    self.unreleased += chunk.len();
                    self.reader.push(chunk);
                    if let Err(status) = self.read_messages() {
                        return Poll::Ready(End::Refused(status));
                    }
                    // At once, or a message that is longer than the window would never be whole.
                    self.release(cx);
                }
                Some(Err(error)) => return Poll::Ready(End::Broken(error)),
                None => {
                    return Poll::Ready(match self.reader.finish() {
                        Ok(()) => End::Client,
                        Err(error) => End::Refused(error.to_status()),
                    });
                }
            }
        }
    }

    fn read_messages(&mut self) -> Result<(), Status> {
        while let Some(message) = self
            .reader
            .next_message()
            .map_err(|error| error.to_status())?
        {
            match codec::decode(&message) {
                Ok(Decoded::Packet(packet)) => {
                    self.core.from_client.count(Some(packet.kind()));
                    self.on_packet(packet);
                }
                Ok(Decoded::Unknown(_)) => self.core.from_client.count(None),
                Err(error @ DecodeError::Mismatch(kind)) => {
                    self.core.from_client.count(Some(kind));
                    self.violation(&error);
                }
                Err(error) => {
                    return Err(Status::new(
                        Code::Internal,
                        format!("{error}: {}", source(&error)),
                    ));
                }
            }
            if self.answers.len() > MAX_ANSWERS {
                return Err(Status::new(
                    Code::ResourceExhausted,
                    "too many packets that need an answer",
                ));
            }
        }
        Ok(())
    }

    fn on_packet(&mut self, packet: Packet) {
        match packet {
            Packet::DialRequest {
                protocol,
                address,
                dial,
            } => self.on_dial(protocol, address, dial),
            Packet::CloseDial { dial } => {
                if matches!(&self.state, State::Dialing { dial: pending, .. } if *pending == dial) {
                    self.state = State::Idle;
                }
            }
            Packet::Data { conn, payload } => self.on_data(conn, payload),
            Packet::CloseRequest { conn } => self.on_close(conn),
            packet @ (Packet::DialResponse { .. }
            | Packet::CloseResponse { .. }
            | Packet::Drain) => {
                self.violation(&format_args!("{} from a client", packet.kind()));
            }
        }
    }

    fn on_dial(&mut self, protocol: String, address: String, dial: DialId) {
        match self.state {
            State::Idle => {
                let core = self.core.clone();
                let attempt = Box::pin(async move { core.dial(&protocol, &address).await });
                self.state = State::Dialing { dial, attempt };
            }
            State::Over { .. } => {}
            State::Dialing { .. } | State::Open(_) => {
                let error = "a stream carries one dial".to_owned();
                self.answers.push_back(Packet::DialResponse {
                    error,
                    conn: ConnectId::NONE,
                    dial,
                });
            }
        }
    }

    fn on_data(&mut self, conn: ConnectId, payload: Bytes) {
        match &mut self.state {
            State::Open(open) if open.id == conn => {
                open.hold = None;
                open.connection.send(payload);
            }
            State::Open(open) if conn != ConnectId::NONE => {
                let ids = [open.id, conn];
                for conn in ids {
                    self.answers.push_back(Packet::CloseResponse {
                        error: "mismatched connection IDs".to_owned(),
                        conn,
                    });
                }
                self.over();
            }
            State::Idle => {
                self.answers.push_back(Packet::CloseResponse {
                    error: "backend not initialized".to_owned(),
                    conn,
                });
                self.over();
            }
            // Nobody has a connection of that id: dropped, as upstream's agent would.
            State::Open(_) | State::Dialing { .. } | State::Over { .. } => {}
        }
    }

    fn on_close(&mut self, conn: ConnectId) {
        let error = match &self.state {
            State::Open(open) if open.id == conn => "",
            State::Open(_) | State::Dialing { .. } => "Unknown connectID",
            // Upstream goes on after this one.
            State::Idle => {
                self.answers.push_back(Packet::CloseResponse {
                    error: "backend uninitialized".to_owned(),
                    conn,
                });
                return;
            }
            State::Over { .. } => return,
        };
        // At once: the client's closing caller waits for it. What it sent before goes on to the target.
        self.answers.push_back(Packet::CloseResponse {
            error: error.to_owned(),
            conn,
        });
        self.over();
    }

    fn over(&mut self) {
        self.state = State::Over {
            limit: Box::pin(sleep(OVER_LIMIT)),
        };
    }

    fn poll_dial(&mut self, cx: &mut Context<'_>) {
        let State::Dialing { dial, attempt } = &mut self.state else {
            return;
        };
        let Poll::Ready(outcome) = attempt.as_mut().poll(cx) else {
            return;
        };
        let dial = *dial;
        match outcome {
            Ok(Dialled {
                connection, guard, ..
            }) => {
                let id = connection.id();
                self.answers.push_back(Packet::DialResponse {
                    error: String::new(),
                    conn: id,
                    dial,
                });
                self.state = State::Open(Box::new(Open {
                    connection,
                    id,
                    hold: Some(Box::pin(sleep(FIRST_BYTES_PAUSE))),
                    waiting: None,
                    flush: None,
                    _counted: guard,
                }));
            }
            Err(error) => {
                self.answers.push_back(Packet::DialResponse {
                    error: error.to_string(),
                    conn: ConnectId::NONE,
                    dial,
                });
                self.over();
            }
        }
    }

    /// Sends what there is while HTTP/2 takes it, and keeps no claim on the window that streams of a connection share.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..SEND_BUDGET {
            if !self.has_outgoing(cx) {
                self.send.reserve_capacity(0);
                return Poll::Pending;
            }
            self.send.reserve_capacity(MAX_PAYLOAD);
            while self.send.capacity() == 0 {
                match ready!(self.send.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(End::Broken(error)),
                    None => return Poll::Ready(End::Client),
                }
            }
            let Some(batch) = self.next_batch(cx) else {
                self.send.reserve_capacity(0);
                return Poll::Pending;
            };
            if let Err(error) = self.send.send_data(batch, false) {
                return Poll::Ready(End::Broken(error));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether there is something to send: answers, or what an open connection has received and may pass on.
    fn has_outgoing(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.answers.is_empty() {
            return true;
        }
        let State::Open(open) = &mut self.state else {
            return false;
        };
        if let Some(hold) = &mut open.hold {
            if hold.as_mut().poll(cx).is_pending() {
                return false;
            }
            open.hold = None;
        }
        let is_ready = open.connection.poll_recv_ready(cx).is_ready();
        if is_ready {
            open.waiting.get_or_insert_with(Instant::now);
        }
        is_ready
    }

    fn next_batch(&mut self, cx: &mut Context<'_>) -> Option<Batch> {
        if let Some(answer) = self.answers.pop_front() {
            self.core.to_client.count(Some(answer.kind()));
            return Some(Batch::packet(&answer));
        }
        let State::Open(open) = &mut self.state else {
            return None;
        };
        let room = self.send.capacity().min(MAX_PAYLOAD);
        let mut pieces = VecDeque::new();
        let mut len = 0;
        let end = loop {
            if len >= room {
                break None;
            }
            match open.connection.poll_recv(cx, room - len) {
                Poll::Ready(Ok(Some(piece))) => {
                    len += piece.len();
                    pieces.push_back(piece);
                }
                Poll::Ready(Ok(None)) => break Some(String::new()),
                Poll::Ready(Err(ended)) => break Some(ended.to_string()),
                Poll::Pending => break None,
            }
        };
        let id = open.id;
        // HTTP/2 holds at most its send buffer of a stream; from there on it is the client's pace.
        let waited = open
            .waiting
            .take()
            .map_or(Duration::ZERO, |at| at.elapsed());
        if len > 0 {
            open.connection.delivered(len, waited);
            open.flush = None;
        }
        if let Some(error) = end {
            self.answers
                .push_back(Packet::CloseResponse { error, conn: id });
            self.over();
        }
        if pieces.is_empty() {
            return self.answers.pop_front().map(|answer| {
                self.core.to_client.count(Some(answer.kind()));
                Batch::packet(&answer)
            });
        }
        self.core
            .to_client
            .count(Some(tunnel::packet::PacketKind::Data));
        Some(Batch::data(id, pieces))
    }

    /// Gives window back, unless the target has enough to read.
    fn release(&mut self, cx: &mut Context<'_>) {
        if let State::Open(open) = &mut self.state
            && open.connection.poll_send_ready(cx).is_pending()
        {
            return;
        }
        let window = std::mem::take(&mut self.unreleased);
        if window > 0 {
            // Fails only for more than was received.
            let released = self.recv.flow_control().release_capacity(window);
            debug_assert!(
                released.is_ok(),
                "released {window} bytes that were never received"
            );
        }
    }

    fn violation(&self, what: &dyn std::fmt::Display) {
        self.core.metrics.violations.inc();
        tracing::debug!("ignored a client's packet against the protocol: {what}");
    }
}

/// What is wrong with a message, without the words around it.
fn source(error: &DecodeError) -> String {
    std::error::Error::source(error)
        .map(ToString::to_string)
        .unwrap_or_default()
}
