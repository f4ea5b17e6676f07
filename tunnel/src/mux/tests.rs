//! Both ends of a tunnel in memory: what one sends, the other gets.

mod close;
mod credit;
mod dial;
mod incoming;
mod packets;
mod policy;
mod random;

use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};

use super::{Connection, Dial, DialError, Event, Mux};
use crate::{
    codec::{self, Decoded},
    conn::{Ended, Role},
    grpc::{self, MessageReader},
    ledger::{DEFAULT_BUDGET, Ledger},
    observe::{Limit, Observe},
    packet::{ConnectId, DialId, Packet, PacketKind},
};

/// What a mux has told whoever counts.
#[derive(Debug, Default)]
struct Seen {
    unknown: Cell<usize>,
    violations: Cell<usize>,
    stalled: Cell<usize>,
    limits: RefCell<Vec<Limit>>,
    data_received: Cell<usize>,
    data_sent: Cell<usize>,
    waited: RefCell<Vec<Duration>>,
    unrecognized: Cell<usize>,
}

impl Observe for Seen {
    fn received(&self, kind: Option<PacketKind>) {
        self.unknown
            .update(|count| count + usize::from(kind.is_none()));
    }

    fn data_received(&self, bytes: usize) {
        self.data_received.update(|all| all + bytes);
    }

    fn data_sent(&self, bytes: usize) {
        self.data_sent.update(|all| all + bytes);
    }

    fn delivered(&self, waited: Duration) {
        self.waited.borrow_mut().push(waited);
    }

    fn unrecognized_answer(&self) {
        self.unrecognized.update(|count| count + 1);
    }

    fn violation(&self) {
        self.violations.update(|count| count + 1);
    }

    fn stalled(&self) {
        self.stalled.update(|count| count + 1);
    }

    fn limited(&self, limit: Limit) {
        self.limits.borrow_mut().push(limit);
    }
}

/// One end of a tunnel and what a link would keep for it.
struct End {
    mux: Rc<Mux>,
    ledger: Rc<Ledger>,
    seen: Rc<Seen>,
    reader: MessageReader,
    /// Bytes that came in, and how many of them the peer has got back as window.
    received: usize,
    released: usize,
}

impl End {
    fn new(role: Role) -> Self {
        Self::with_budget(role, DEFAULT_BUDGET)
    }

    fn with_budget(role: Role, budget: usize) -> Self {
        let ledger = Rc::new(Ledger::new(budget));
        let seen = Rc::new(Seen::default());
        Self {
            mux: Mux::new(role, ledger.clone(), seen.clone()),
            ledger,
            seen,
            reader: MessageReader::new(grpc::MAX_MESSAGE),
            received: 0,
            released: 0,
        }
    }

    /// Takes one chunk of DATA as a link does.
    fn feed_chunk(&mut self, chunk: Bytes) -> Vec<Event> {
        self.received += chunk.len();
        self.mux.on_chunk(chunk.len());
        self.reader.push(chunk);
        let mut events = Vec::new();
        while let Some(message) = self.reader.next_message().unwrap() {
            events.extend(self.mux.on_message(&message).unwrap());
        }
        self.release();
        events
    }

    fn release(&mut self) {
        self.released += self.mux.take_window();
        assert!(self.released <= self.received);
    }

    /// Takes one packet in a chunk of its own.
    fn feed(&mut self, packet: &Packet) -> Vec<Event> {
        let mut wire = BytesMut::new();
        codec::put_packet(&mut wire, packet);
        self.feed_chunk(wire.freeze())
    }

    /// Everything that waits to be sent, as it goes over the wire.
    fn wire(&self) -> Bytes {
        let mut wire = BytesMut::new();
        while self.mux.has_outgoing() {
            if let Some(batch) = self.mux.next_batch() {
                wire.extend_from_slice(&bytes_of(batch));
            }
        }
        wire.freeze()
    }

    /// Everything that waits to be sent, as packets.
    fn sent(&self) -> Vec<Packet> {
        packets_of(self.wire())
    }

    /// Opens connection `id` at a server's end without an agent.
    fn open(&mut self, id: i64) -> Connection {
        let dial = self.mux.dial("tcp", "a:1");
        let sent = self.sent();
        let [Packet::DialRequest { dial: asked, .. }] = sent[..] else {
            panic!("{sent:?} instead of a dial");
        };
        self.feed(&success(id, asked));
        outcome(dial).unwrap()
    }

    /// Opens the next connection of an agent's end without a server.
    fn open_as_agent(&mut self) -> Connection {
        let connection = self.mux.accept(DialId(1)).unwrap();
        assert!(matches!(self.sent()[..], [Packet::DialResponse { .. }]));
        connection
    }
}

/// A server and its agent.
struct Pair {
    server: End,
    agent: End,
    /// Longest piece in which bytes arrive.
    chunk: usize,
}

impl Pair {
    fn new() -> Self {
        Self {
            server: End::new(Role::Server),
            agent: End::new(Role::Agent),
            chunk: 16 * 1024,
        }
    }

    /// Carries bytes both ways until there are none; what the agent's owner must act on.
    fn pump(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while self.server.mux.has_outgoing() || self.agent.mux.has_outgoing() {
            events.extend(carry(&self.server, &mut self.agent, self.chunk));
            let from_agent = carry(&self.agent, &mut self.server, self.chunk);
            assert_eq!(from_agent, [], "an agent has nothing to ask for here");
        }
        events
    }

    /// Dials, accepts and answers.
    fn connect(&mut self) -> (Connection, Connection) {
        let dial = self.server.mux.dial("tcp", "10.0.0.1:443");
        let events = self.pump();
        let [Event::Dial { dial: asked, .. }] = events[..] else {
            panic!("{events:?} instead of a dial");
        };
        let at_agent = self.agent.mux.accept(asked).unwrap();
        assert_eq!(self.pump(), []);
        (outcome(dial).unwrap(), at_agent)
    }
}

fn carry(from: &End, to: &mut End, chunk: usize) -> Vec<Event> {
    let mut wire = from.wire();
    let mut events = Vec::new();
    while !wire.is_empty() {
        events.extend(to.feed_chunk(wire.split_to(chunk.min(wire.len()))));
    }
    events
}

fn bytes_of(mut batch: impl Buf) -> Bytes {
    batch.copy_to_bytes(batch.remaining())
}

fn packets_of(wire: Bytes) -> Vec<Packet> {
    let mut reader = MessageReader::new(grpc::MAX_MESSAGE);
    reader.push(wire);
    let mut packets = Vec::new();
    while let Some(message) = reader.next_message().unwrap() {
        match codec::decode(&message) {
            Ok(Decoded::Packet(packet)) => packets.push(packet),
            other => panic!("sent {other:?}"),
        }
    }
    reader.finish().unwrap();
    packets
}

fn success(id: i64, dial: DialId) -> Packet {
    Packet::DialResponse {
        error: String::new(),
        conn: ConnectId(id),
        dial,
    }
}

fn data(id: i64, payload: impl Into<Bytes>) -> Packet {
    Packet::Data {
        conn: ConnectId(id),
        payload: payload.into(),
    }
}

fn close_request(id: i64) -> Packet {
    Packet::CloseRequest {
        conn: ConnectId(id),
    }
}

fn close_response(id: i64, error: &str) -> Packet {
    Packet::CloseResponse {
        error: error.to_owned(),
        conn: ConnectId(id),
    }
}

fn cx() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// What a dial has come to; it must have been answered.
fn outcome(mut dial: Dial) -> Result<Connection, DialError> {
    match poll_dial(&mut dial) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("{dial:?} has no answer"),
    }
}

fn poll_dial(dial: &mut Dial) -> Poll<Result<Connection, DialError>> {
    Pin::new(dial).poll(&mut cx())
}

/// Reads everything that is there, as a prompt reader; how it ended, if it has.
fn read_all(connection: &Connection) -> (Vec<u8>, Option<Result<(), Ended>>) {
    let mut got = Vec::new();
    loop {
        match connection.poll_recv(&cx(), usize::MAX) {
            Poll::Ready(Ok(Some(bytes))) => {
                connection.delivered(bytes.len(), Duration::ZERO);
                got.extend_from_slice(&bytes);
            }
            Poll::Ready(Ok(None)) => return (got, Some(Ok(()))),
            Poll::Ready(Err(ended)) => return (got, Some(Err(ended))),
            Poll::Pending => return (got, None),
        }
    }
}

/// Bytes that differ from their neighbours and from other seeds'.
fn pattern(seed: usize, len: usize) -> Bytes {
    (0..len)
        .map(|i| u8::try_from((i * 31 + seed * 7 + i / 251) % 256).unwrap())
        .collect()
}
