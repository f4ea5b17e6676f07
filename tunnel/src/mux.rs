//! All connections of one packet tunnel: who gets which packet, what is sent next, and what window the peer gets back.
//!
//! No socket and no clock: [`crate::link`] feeds messages in and takes batches out; connections are used through
//! [`Connection`] by tasks of the same thread. `pressure` has what a slow reader costs.
//!
//! A little over 600 lines: what is left here is one table and the packets that change it; its policies have files of their own.

mod connection;
mod dial;
mod incoming;
mod pressure;
mod table;

use std::{cell::RefCell, collections::VecDeque, rc::Rc, task::Waker};

use bytes::{Bytes, BytesMut};
use hashbrown::HashMap;

pub use connection::Connection;
pub use dial::Dial;
pub use incoming::{IncomingDial, IncomingDials};
pub use pressure::{
    CLOSE_LIMIT, PACE, STALL_LIMIT, STALL_LIMIT_WHEN_TIGHT, TICK, UNSENT_LIMIT,
    UNSENT_LIMIT_TO_TARGET,
};
pub use table::ConnectionTable;

use crate::{
    batch::Batch,
    codec::{self, DecodeError, Decoded},
    conn::{Conn, Outgoing, Role},
    credit::{self, Credit},
    dial::{DialError, Refusal},
    ledger::Ledger,
    observe::{Limit, Observe},
    packet::{ConnectId, DialId, Packet, PacketKind},
    scheduler::Scheduler,
};
use connection::Lane;
use dial::PendingDial;
use pressure::Window;

/// Connections that one tunnel carries at most; more are refused.
pub const MAX_CONNECTIONS: usize = 65_536;

/// Dials that may wait for an answer on one tunnel; more are refused.
pub const MAX_PENDING_DIALS: usize = 10_000;

/// Control packets that may wait to be sent; beyond it those that a peer can do without are dropped.
pub const MAX_CONTROL: usize = 4 * MAX_PENDING_DIALS;

/// Longest address that is dialled, in bytes with its network name; a DNS name has at most 253.
pub const MAX_ADDRESS: usize = 1024;

/// What is passed on of a dial error, in bytes: its sender may fill a message of 4 MiB with it.
const MAX_ERROR: usize = 4 * 1024;

/// Payload of a DATA message at most: with its head it fills one HTTP/2 frame of the default size and one TLS record.
pub const MAX_DATA: usize = 16 * 1024 - 64;

/// A payload this long is not copied behind its head but chained to it.
const CHAIN_FROM: usize = 4 * 1024;

/// What a batch may hold of copied messages.
const MAX_BATCH: usize = 32 * 1024;

/// Room that a batch begins with: for the head of one long payload, or for a few control packets.
const FIRST_HEAD: usize = 128;

/// What packets ask the owner of the tunnel for; [`IncomingDials`] makes [`crate::event::Event`]s of it.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// To an agent: dial this. Answer with [`Mux::accept`] or [`Mux::refuse`].
    Dial {
        /// To be given back in the answer.
        dial: DialId,
        /// Go network name.
        protocol: String,
        /// `host:port`.
        address: String,
    },
    /// To an agent: nobody waits for this dial any more.
    CancelDial(DialId),
    /// The peer wants no new dials. To a server: choose another agent. To an agent, by our servers alone: find another server.
    Drain,
}

/// One end of a packet tunnel.
#[derive(Debug)]
pub struct Mux {
    role: Role,
    ledger: Rc<Ledger>,
    observer: Rc<dyn Observe>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    lanes: ConnectionTable<Rc<Lane>>,
    scheduler: Scheduler<Rc<Lane>>,
    control: VecDeque<Packet>,
    /// Grants to be sent; few, as each stands for half a window delivered.
    grants: VecDeque<Credit>,
    /// What the peer takes of a new connection, if it speaks [`crate::credit`].
    credit: Option<u32>,
    dials: HashMap<DialId, Rc<PendingDial>>,
    last_dial: i64,
    last_conn: i64,
    window: Window,
    link: Option<Waker>,
    violations: u64,
    chunks: u64,
    is_lost: bool,
}

impl State {
    fn wake_link(&mut self) {
        if let Some(waker) = self.link.take() {
            waker.wake();
        }
    }

    fn free_window(&mut self, bytes: usize) {
        if bytes > 0 {
            self.window.withheld = self.window.withheld.saturating_sub(bytes);
            self.window.drained += bytes;
            self.wake_link();
        }
    }

    /// Grants to the peer what is due.
    fn grant(&mut self, conn: &mut Conn) {
        if let Some(bytes) = conn.take_grant() {
            self.grants.push_back(Credit {
                conn: conn.id(),
                bytes: bytes as u64,
            });
            self.wake_link();
        }
    }

    /// Puts a connection into the scheduler if it has something to send and is not there.
    fn schedule(&mut self, lane: &Rc<Lane>) {
        if !lane.is_scheduled.replace(true) {
            self.scheduler.push(lane.clone());
        }
        self.wake_link();
    }
}

impl Mux {
    /// One end of a tunnel. `ledger` is that of the worker that owns the tunnel.
    #[must_use]
    pub fn new(role: Role, ledger: Rc<Ledger>, observer: Rc<dyn Observe>) -> Rc<Self> {
        let state = State {
            // Unpredictable to other tunnels' peers, though nothing relies on it.
            last_dial: fastrand::i64(0..1 << 32),
            ..State::default()
        };
        Rc::new(Self {
            role,
            ledger,
            observer,
            state: RefCell::new(state),
        })
    }

    // For the owner.

    /// The peer takes `window` bytes of each connection and grants more, as we do. To be called before there is any.
    pub fn use_credit(&self, window: u32) {
        self.state.borrow_mut().credit = Some(window);
    }

    /// Whether the peer is one of ours, see [`Self::use_credit`].
    pub fn uses_credit(&self) -> bool {
        self.state.borrow().credit.is_some()
    }

    /// Asks the agent for a connection. Resolves with the agent's answer; dropping it gives the dial up.
    pub fn dial(self: &Rc<Self>, protocol: &str, address: &str) -> Dial {
        let mut state = self.state.borrow_mut();
        if state.is_lost {
            return Dial::failed(self.clone(), DialError::TunnelLost);
        }
        if state.dials.len() >= MAX_PENDING_DIALS || state.control.len() >= MAX_CONTROL {
            self.observer.limited(Limit::PendingDials);
            return Dial::failed(self.clone(), DialError::TooManyDials);
        }
        if protocol.len() + address.len() > MAX_ADDRESS {
            return Dial::failed(self.clone(), DialError::AddressTooLong);
        }
        state.last_dial = state.last_dial.wrapping_add(1) & i64::MAX;
        let dial = DialId(state.last_dial);
        let pending = Rc::new(PendingDial::default());
        state.dials.insert(dial, pending.clone());
        state.control.push_back(Packet::DialRequest {
            protocol: protocol.to_owned(),
            address: address.to_owned(),
            dial,
        });
        state.wake_link();
        Dial::pending(self.clone(), dial, pending)
    }

    /// Tells the server that its dial succeeded.
    ///
    /// # Errors
    /// If the tunnel is lost or carries [`MAX_CONNECTIONS`]; the server has then been told, as far as it can be.
    pub fn accept(self: &Rc<Self>, dial: DialId) -> Result<Connection, DialError> {
        let mut state = self.state.borrow_mut();
        if state.is_lost {
            return Err(DialError::TunnelLost);
        }
        if state.lanes.len() >= MAX_CONNECTIONS {
            self.observer.limited(Limit::Connections);
            drop(state);
            self.refuse(dial, DialError::TooManyConnections.to_string());
            return Err(DialError::TooManyConnections);
        }
        state.last_conn += 1;
        let conn = ConnectId(state.last_conn);
        let lane = self.insert(&mut state, conn);
        state.control.push_back(Packet::DialResponse {
            error: String::new(),
            conn,
            dial,
        });
        state.wake_link();
        Ok(Connection::new(self.clone(), lane))
    }

    /// Tells the server why its dial failed.
    pub fn refuse(&self, dial: DialId, error: String) {
        // An empty error would read as success.
        let error = if error.is_empty() {
            "dial failed".to_owned()
        } else {
            error
        };
        self.send_optional(Packet::DialResponse {
            error: shortened(error),
            conn: ConnectId::NONE,
            dial,
        });
    }

    /// Tells the peer that no new dials are wanted here. Upstream's agents ignore it.
    pub fn send_drain(&self) {
        self.send_control(Packet::Drain);
    }

    /// Connections established now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.state.borrow().lanes.len()
    }

    /// Dials waiting for an answer.
    #[must_use]
    pub fn pending_dials(&self) -> usize {
        self.state.borrow().dials.len()
    }

    /// Connections that take nothing more from their sockets until some of it has been sent. Looks at each.
    pub fn full_connections(&self) -> usize {
        let state = self.state.borrow();
        let lanes = state.lanes.values();
        lanes.filter(|lane| !lane.conn.borrow().has_room()).count()
    }

    /// Whether the tunnel holds back its peer because readers hold most of its window.
    #[must_use]
    pub fn is_paced(&self) -> bool {
        self.state.borrow().window.is_paced
    }

    /// How often bytes have come from the peer: it moves as long as the peer is alive and has something to say.
    #[must_use]
    pub fn chunks_received(&self) -> u64 {
        self.state.borrow().chunks
    }

    /// Whether the tunnel is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.state.borrow().is_lost
    }

    // For the link.

    /// Counts DATA of `len` bytes as received. Call before [`Self::on_message`] for what is in it.
    pub fn on_chunk(&self, len: usize) {
        let mut state = self.state.borrow_mut();
        state.window.unreleased += len;
        state.chunks = state.chunks.wrapping_add(1);
    }

    /// Takes one message.
    ///
    /// # Errors
    /// [`DecodeError::Malformed`]: the peer does not speak the protocol, the stream is to be ended. Whatever else is wrong
    /// with a packet is counted and ignored here.
    pub fn on_message(self: &Rc<Self>, message: &Bytes) -> Result<Option<Event>, DecodeError> {
        match codec::decode(message) {
            Ok(Decoded::Packet(mut packet)) => {
                self.observer.received(Some(packet.kind()));
                if let Packet::Data { payload, .. } = &mut packet {
                    self.observer.data_received(payload.len());
                    unpin(payload, message.len());
                }
                Ok(match self.role {
                    Role::Server => self.on_packet_from_agent(packet),
                    Role::Agent => self.on_packet_from_server(packet),
                })
            }
            Ok(Decoded::Unknown(credit::PACKET_TYPE)) => {
                self.observer.received(None);
                if let Some(credit) = credit::decode(message)? {
                    self.on_credit(credit);
                }
                Ok(None)
            }
            Ok(Decoded::Unknown(number)) => {
                self.observer.received(None);
                tracing::trace!(number, "ignored a packet of unknown type");
                Ok(None)
            }
            Err(error @ DecodeError::Mismatch(kind)) => {
                self.observer.received(Some(kind));
                self.violation(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn on_packet_from_agent(self: &Rc<Self>, packet: Packet) -> Option<Event> {
        match packet {
            Packet::Data { conn, payload } => self.on_data(conn, payload),
            Packet::DialResponse { error, conn, dial } => self.on_dial_response(error, conn, dial),
            Packet::CloseResponse { conn, error } => {
                let lane = self.state.borrow_mut().lanes.remove(conn);
                if let Some(lane) = lane {
                    if !error.is_empty() {
                        tracing::debug!(conn = conn.0, %error, "agent closed the connection with an error");
                    }
                    lane.conn.borrow_mut().on_close(!error.is_empty());
                    lane.wake_both();
                }
            }
            Packet::CloseDial { dial } => {
                if let Some(pending) = self.state.borrow_mut().dials.remove(&dial) {
                    pending.resolve(Err(DialError::Abandoned));
                }
            }
            Packet::Drain => return Some(Event::Drain),
            packet @ (Packet::DialRequest { .. } | Packet::CloseRequest { .. }) => {
                self.violation(&format_args!("{} from an agent", packet.kind()));
            }
        }
        None
    }

    fn on_packet_from_server(self: &Rc<Self>, packet: Packet) -> Option<Event> {
        match packet {
            Packet::Data { conn, payload } => self.on_data(conn, payload),
            Packet::DialRequest {
                protocol,
                address,
                dial,
            } => {
                if protocol.len() + address.len() > MAX_ADDRESS {
                    self.refuse(dial, DialError::AddressTooLong.to_string());
                    return None;
                }
                return Some(Event::Dial {
                    dial,
                    protocol,
                    address,
                });
            }
            Packet::CloseDial { dial } => return Some(Event::CancelDial(dial)),
            Packet::CloseRequest { conn } => {
                let mut state = self.state.borrow_mut();
                if let Some(lane) = state.lanes.get(conn).cloned() {
                    lane.conn.borrow_mut().on_close(false);
                    lane.wake_both();
                    state.schedule(&lane);
                } else {
                    drop(state);
                    // Upstream's words; its server drops this answer.
                    self.send_optional(Packet::CloseResponse {
                        error: "Unknown connectID".to_owned(),
                        conn,
                    });
                }
            }
            Packet::Drain => return Some(Event::Drain),
            packet @ (Packet::DialResponse { .. } | Packet::CloseResponse { .. }) => {
                self.violation(&format_args!("{} from a server", packet.kind()));
            }
        }
        None
    }

    fn on_data(&self, conn: ConnectId, payload: Bytes) {
        if conn == ConnectId::NONE {
            self.violation(&"DATA for connection 0");
            return;
        }
        let mut state = self.state.borrow_mut();
        let Some(lane) = state.lanes.get(conn).cloned() else {
            drop(state);
            self.send_optional(match self.role {
                Role::Server => Packet::CloseRequest { conn },
                Role::Agent => Packet::CloseResponse {
                    error: "unrecognized connectID".to_owned(),
                    conn,
                },
            });
            return;
        };
        if payload.is_empty() {
            return;
        }
        let tunnel_is_over =
            state.window.withheld > 0 && self.ledger.used() > self.ledger.budget() / 4;
        let mut receiver = lane.conn.borrow_mut();
        state.window.withheld += receiver.on_data(payload, tunnel_is_over);
        // Only what nobody wants has been delivered already.
        state.grant(&mut receiver);
        drop(receiver);
        drop(state);
        lane.wake_receiver();
    }

    fn on_credit(&self, credit: Credit) {
        let mut state = self.state.borrow_mut();
        // What has just ended may still be granted to.
        if let Some(lane) = state.lanes.get(credit.conn).cloned() {
            let bytes = usize::try_from(credit.bytes).unwrap_or(usize::MAX);
            let mut conn = lane.conn.borrow_mut();
            conn.on_grant(bytes);
            if conn.is_ready() {
                state.schedule(&lane);
            }
        }
    }

    fn on_dial_response(self: &Rc<Self>, error: String, conn: ConnectId, dial: DialId) {
        let mut state = self.state.borrow_mut();
        let pending = state.dials.remove(&dial);
        if pending.is_none() {
            self.observer.unrecognized_answer();
        }
        if !error.is_empty() {
            if let Some(pending) = pending {
                pending.resolve(Err(DialError::Refused(Refusal::failed(shortened(error)))));
            }
            return;
        }
        let is_valid = conn != ConnectId::NONE && !state.lanes.contains(conn);
        let Some(pending) = pending else {
            // Nobody waits: given up, timed out, or never asked for. An id that is in use stays in use.
            if is_valid {
                drop(state);
                self.send_optional(Packet::CloseRequest { conn });
            }
            return;
        };
        let outcome = if !is_valid {
            Err(DialError::InvalidConnectId(conn))
        } else if state.lanes.len() >= MAX_CONNECTIONS {
            self.observer.limited(Limit::Connections);
            Err(DialError::TooManyConnections)
        } else {
            let lane = self.insert(&mut state, conn);
            Ok(Connection::new(self.clone(), lane))
        };
        drop(state);
        match &outcome {
            Err(error @ DialError::InvalidConnectId(_)) => self.violation(error),
            Err(_) => self.send_optional(Packet::CloseRequest { conn }),
            Ok(_) => {}
        }
        pending.resolve(outcome);
    }

    fn insert(&self, state: &mut State, conn: ConnectId) -> Rc<Lane> {
        let end = Conn::new(conn, self.role, self.ledger.clone());
        let end = match state.credit {
            Some(window) => end.with_credit(window as usize),
            None => end,
        };
        let lane = Rc::new(Lane::new(end));
        state.lanes.insert(conn, lane.clone());
        lane
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        let state = self.state.borrow();
        !state.control.is_empty() || !state.grants.is_empty() || !state.scheduler.is_empty()
    }

    /// The next messages to send: control packets first, then connections in the scheduler's order.
    pub fn next_batch(&self) -> Option<Batch> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let mut head = BytesMut::with_capacity(FIRST_HEAD);
        while head.len() < MAX_BATCH
            && let Some(packet) = state.control.pop_front()
        {
            codec::put_packet(&mut head, &packet);
            self.observer.sent(packet.kind());
        }
        while head.len() < MAX_BATCH
            && let Some(credit) = state.grants.pop_front()
        {
            credit::put(&mut head, credit);
        }
        let mut payload = Bytes::new();
        while head.len() < MAX_BATCH
            && payload.is_empty()
            && let Some(turn) = state.scheduler.pick()
        {
            let lane = turn.key.clone();
            let mut conn = lane.conn.borrow_mut();
            let had_room = conn.has_room();
            let sent = match conn.next_outgoing(MAX_DATA) {
                Some(Outgoing::Data(bytes)) => {
                    let sent = bytes.len();
                    codec::put_data_head(&mut head, conn.id(), sent);
                    if sent < CHAIN_FROM {
                        head.extend_from_slice(&bytes);
                    } else {
                        payload = bytes;
                    }
                    self.observer.sent(PacketKind::Data);
                    self.observer.data_sent(sent);
                    sent
                }
                Some(Outgoing::Close(packet)) => {
                    if self.role == Role::Agent {
                        state.lanes.remove(conn.id());
                    }
                    codec::put_packet(&mut head, &packet);
                    self.observer.sent(packet.kind());
                    lane.wake_receiver();
                    0
                }
                None => 0,
            };
            let more = conn.is_ready();
            let has_room = conn.has_room();
            drop(conn);
            lane.is_scheduled
                .set(state.scheduler.done(turn, sent, more));
            if has_room && !had_room {
                lane.wake_sender();
            }
        }
        if head.is_empty() {
            None
        } else {
            Some(Batch::new(head, payload))
        }
    }

    /// The tunnel is gone: ends every connection and every dial.
    pub fn on_lost(&self) {
        let mut state = self.state.borrow_mut();
        state.is_lost = true;
        state.control.clear();
        state.grants.clear();
        let scheduler = std::mem::take(&mut state.scheduler);
        let lanes = std::mem::take(&mut state.lanes);
        let dials = std::mem::take(&mut state.dials);
        drop(state);
        drop(scheduler);
        for lane in lanes.values() {
            lane.conn.borrow_mut().on_tunnel_lost();
            lane.wake_both();
        }
        for pending in dials.values() {
            pending.resolve(Err(DialError::TunnelLost));
        }
    }

    /// Registers the task to wake when there is something to send or window to give back.
    pub fn set_link(&self, waker: &Waker) {
        let link = &mut self.state.borrow_mut().link;
        if !link.as_ref().is_some_and(|link| link.will_wake(waker)) {
            *link = Some(waker.clone());
        }
    }

    // For connections and dials.

    fn give_up(&self, dial: DialId) {
        if self.state.borrow_mut().dials.remove(&dial).is_some() {
            self.send_optional(Packet::CloseDial { dial });
        }
    }

    /// Queues a control packet that the peer waits for.
    fn send_control(&self, packet: Packet) {
        let mut state = self.state.borrow_mut();
        if !state.is_lost {
            state.control.push_back(packet);
            state.wake_link();
        }
    }

    /// Queues a control packet unless too many wait: a peer that provokes answers and reads none gets none.
    fn send_optional(&self, packet: Packet) {
        if self.state.borrow().control.len() < MAX_CONTROL {
            self.send_control(packet);
        } else {
            self.observer.limited(Limit::ControlQueue);
        }
    }

    /// Counts nonsense from the peer; logs it at the powers of two.
    fn violation(&self, what: &dyn std::fmt::Display) {
        self.observer.violation();
        let mut state = self.state.borrow_mut();
        state.violations += 1;
        if state.violations.is_power_of_two() {
            tracing::warn!(
                times = state.violations,
                "ignored a packet against the protocol: {what}"
            );
        }
    }
}

/// Copies a payload that is a small part of a long message: queued as a slice, it would keep all of the message, whose unknown
/// fields may be 4 MiB, and be charged for itself alone.
fn unpin(payload: &mut Bytes, message_len: usize) {
    // What one HTTP/2 frame holds is pinned by the chunk already, and counted so by the queue.
    if message_len > 16 * 1024 && payload.len() < message_len / 4 {
        *payload = Bytes::copy_from_slice(payload);
    }
}

/// At most [`MAX_ERROR`] bytes of a peer's or resolver's words.
fn shortened(mut error: String) -> String {
    if error.len() <= MAX_ERROR {
        return error;
    }
    let end = (0..=MAX_ERROR).rev().find(|&at| error.is_char_boundary(at));
    error.truncate(end.unwrap_or(0));
    error
}

#[cfg(test)]
mod tests;
