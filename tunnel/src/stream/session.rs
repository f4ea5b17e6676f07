//! One end of a stream tunnel, as everybody on it shares it. No socket: [`super::link`] drives HTTP/2 and acts on what is
//! queued here.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt,
    rc::Rc,
    task::Waker,
};

use bytes::Bytes;
use h2::{RecvStream, client::SendRequest, server::SendResponse};
use http::Request;
use tokio::time::Instant;

use super::{
    connect::{Connect, ConnectError},
    control::{ToAgent, ToServer},
    dial::{Dial, IncomingDial, refuse},
    forward::Forwards,
    linger::Linger,
    piece::Piece,
    shrink::Windows,
    window::{self, Need, Taken},
};
use crate::{
    conn::Role,
    dial::{DialError, Refusal, RefusalKind},
    event::Event,
    ledger::Ledger,
    mux::{MAX_ADDRESS, MAX_CONNECTIONS, MAX_PENDING_DIALS},
    observe::{Limit, Observe},
    packet::PacketKind,
    probe::Probe,
};

/// Control messages that may wait to be sent; more are dropped.
pub const MAX_OUTBOX: usize = 1_024;

/// Stream ids are used once (RFC 9113, section 5.1.1): from here on, at seven eighths of them, the agent is asked for a new tunnel.
const WORN_FROM: u32 = 0x7000_0000;

/// One end of a stream tunnel.
pub struct Session {
    role: Role,
    ledger: Rc<Ledger>,
    observer: Rc<dyn Observe>,
    probe: Probe,
    /// The server's: what opens streams.
    requests: Option<SendRequest<Piece>>,
    counts: Counts,
    pub(super) forwards: Forwards,
    pub(super) windows: Windows,
    state: RefCell<State>,
}

/// Who is on the tunnel.
#[derive(Debug, Default)]
struct Counts {
    connections: Cell<usize>,
    dials: Cell<usize>,
    /// Connections that take nothing more from their sockets.
    full: Cell<usize>,
    /// What the agent said of itself last: connections and dials, over all its tunnels.
    reported: Cell<Option<usize>>,
    signs: Cell<u64>,
    violations: Cell<u64>,
    is_lost: Cell<bool>,
    is_worn: Cell<bool>,
    /// The window that is in use.
    window: Cell<u32>,
    /// It is smaller than the last, which the peer may not have acknowledged.
    is_shrinking: Cell<bool>,
}

#[derive(Default)]
struct State {
    link: Option<Waker>,
    events: VecDeque<Event>,
    outbox: VecDeque<Message>,
    lingering: Vec<Linger>,
    need: Need,
}

/// What a control stream carries.
#[derive(Debug)]
pub(super) enum Message {
    ToAgent(ToAgent),
    ToServer(ToServer),
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("role", &self.role)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(
        role: Role,
        ledger: Rc<Ledger>,
        observer: Rc<dyn Observe>,
        probe: Probe,
        requests: Option<SendRequest<Piece>>,
    ) -> Rc<Self> {
        let session = Self {
            role,
            ledger,
            observer,
            probe,
            requests,
            counts: Counts::default(),
            forwards: Forwards::default(),
            windows: Windows::default(),
            state: RefCell::default(),
        };
        session.counts.window.set(window::BASE);
        Rc::new(session)
    }

    // For whoever uses the tunnel.

    /// Asks the agent for a connection. Resolves with the agent's answer; dropping it gives the dial up. Of a server's end.
    pub fn dial(self: &Rc<Self>, network: &str, address: &str) -> Dial {
        if network.len() + address.len() > MAX_ADDRESS {
            return Dial::failed(DialError::AddressTooLong);
        }
        let connect = Connect::Dial {
            network: network.to_owned(),
            address: address.to_owned(),
        };
        self.open(&connect)
    }

    /// Opens a stream for `connect`.
    pub(super) fn open(self: &Rc<Self>, connect: &Connect) -> Dial {
        let Some(requests) = self.requests.as_ref().filter(|_| !self.is_lost()) else {
            return Dial::failed(DialError::TunnelLost);
        };
        if self.pending_dials() >= MAX_PENDING_DIALS {
            self.observer.limited(Limit::PendingDials);
            return Dial::failed(DialError::TooManyDials);
        }
        let streams = self.connections() + self.pending_dials();
        // One is the control stream.
        let most = MAX_CONNECTIONS.min(requests.current_max_send_streams().saturating_sub(1));
        if streams >= most {
            self.observer.limited(Limit::Connections);
            return Dial::failed(DialError::TooManyConnections);
        }
        let Ok(request) = connect.to_request() else {
            return Dial::failed(DialError::AddressTooLong);
        };
        // A handle of its own: one that waits for its stream would refuse the next.
        match requests.clone().send_request(request, false) {
            Ok((response, send)) => {
                self.observer.sent(PacketKind::DialRequest);
                self.wear(send.stream_id().as_u32());
                Dial::asking(self.clone(), response, send)
            }
            Err(error) => {
                tracing::debug!(%error, "no stream for a dial");
                Dial::failed(DialError::TunnelLost)
            }
        }
    }

    /// Tells the peer that no new dials are wanted here.
    pub fn send_drain(&self) {
        self.observer.sent(PacketKind::Drain);
        self.tell(match self.role {
            Role::Server => Message::ToAgent(ToAgent::Drain),
            Role::Agent => Message::ToServer(ToServer::Drain),
        });
    }

    /// Tells the agent how many servers there are. Of a server's end.
    pub fn send_server_count(&self, count: u32) {
        self.tell(Message::ToAgent(ToAgent::ServerCount { count }));
    }

    /// Tells the server what the whole agent carries. Of an agent's end.
    pub fn send_load(&self, connections: u32, dials: u32) {
        self.tell(Message::ToServer(ToServer::Load { connections, dials }));
    }

    /// Connections on the tunnel, those included whose last bytes have yet to be written.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.counts.connections.get()
    }

    /// Dials waiting for an answer.
    #[must_use]
    pub fn pending_dials(&self) -> usize {
        self.counts.dials.get()
    }

    /// Connections that take nothing more from their sockets until some of it has been sent.
    #[must_use]
    pub fn full_connections(&self) -> usize {
        self.counts.full.get()
    }

    /// Connections and dials of the whole agent, as it said last. Of a server's end.
    #[must_use]
    pub fn reported_load(&self) -> Option<usize> {
        self.counts.reported.get()
    }

    /// The receive window of each stream, in bytes.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.counts.window.get()
    }

    /// Moves with everything that comes from the peer.
    #[must_use]
    pub fn signs(&self) -> u64 {
        self.counts.signs.get()
    }

    /// Whether control messages wait to be sent.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        !self.state.borrow().outbox.is_empty()
    }

    /// Whether the tunnel is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.counts.is_lost.get()
    }

    // For connections, dials and forwards.

    pub(super) fn role(&self) -> Role {
        self.role
    }

    pub(super) fn ledger(&self) -> &Rc<Ledger> {
        &self.ledger
    }

    pub(super) fn observer(&self) -> &Rc<dyn Observe> {
        &self.observer
    }

    /// The peer has given a sign of life.
    pub(super) fn on_sign(&self) {
        self.counts.signs.update(|signs| signs.wrapping_add(1));
    }

    pub(super) fn on_taken(&self, taken: &mut Taken, bytes: usize) {
        self.state.borrow_mut().need.on_taken(taken, bytes);
    }

    /// The budget has more or less in it.
    pub(super) fn on_charge(&self) {
        if self.wanted_window() != self.window() {
            self.wake_link();
        }
    }

    pub(super) fn count_full(&self, is_full: bool) {
        self.counts.full.update(|count| {
            if is_full {
                count + 1
            } else {
                count.saturating_sub(1)
            }
        });
    }

    pub(super) fn linger(&self, linger: Linger) {
        self.state.borrow_mut().lingering.push(linger);
        self.wake_link();
    }

    /// Queues a control message, unless too many wait.
    pub(super) fn tell(&self, message: Message) {
        if self.is_lost() {
            return;
        }
        let mut state = self.state.borrow_mut();
        if state.outbox.len() >= MAX_OUTBOX {
            return self.observer.limited(Limit::ControlQueue);
        }
        state.outbox.push_back(message);
        drop(state);
        self.wake_link();
    }

    pub(super) fn emit(&self, event: Event) {
        self.state.borrow_mut().events.push_back(event);
    }

    /// Counts nonsense from the peer; logs it at the powers of two.
    pub(super) fn violation(&self, what: &dyn fmt::Display) {
        self.observer.violation();
        self.counts.violations.update(|count| count + 1);
        let times = self.counts.violations.get();
        if times.is_power_of_two() {
            tracing::warn!(times, "ignored what is against the protocol: {what}");
        }
    }

    // For the link.

    pub(super) fn set_link(&self, waker: &Waker) {
        let link = &mut self.state.borrow_mut().link;
        if !link.as_ref().is_some_and(|link| link.will_wake(waker)) {
            *link = Some(waker.clone());
        }
    }

    pub(super) fn take_event(&self) -> Option<Event> {
        self.state.borrow_mut().events.pop_front()
    }

    pub(super) fn take_lingering(&self) -> Vec<Linger> {
        std::mem::take(&mut self.state.borrow_mut().lingering)
    }

    pub(super) fn next_message(&self) -> Option<Message> {
        self.state.borrow_mut().outbox.pop_front()
    }

    /// The window that streams should have; pings for it are asked for here.
    pub(super) fn poll_window(&self) -> u32 {
        let need = &mut self.state.borrow_mut().need;
        if need.poll(Instant::now(), self.probe.pongs()) {
            self.probe.ask();
        }
        let room = window::room(&self.ledger, self.window());
        need.window().min(room)
    }

    pub(super) fn set_window(&self, window: u32) {
        let last = self.counts.window.replace(window);
        self.counts.is_shrinking.set(window < last);
    }

    pub(super) fn is_shrinking(&self) -> bool {
        self.counts.is_shrinking.get()
    }

    /// The peer has acknowledged the last window.
    pub(super) fn on_acknowledged(&self) {
        if self.counts.is_shrinking.take() {
            self.windows.on_shrunk();
        }
    }

    /// A stream that the server has opened. Of an agent's end. Gives it back if it is the control stream's.
    pub(super) fn on_request(
        self: &Rc<Self>,
        request: Request<RecvStream>,
        respond: SendResponse<Piece>,
    ) -> Option<(RecvStream, SendResponse<Piece>)> {
        self.on_sign();
        let (head, body) = request.into_parts();
        if head.method == http::Method::POST && head.uri.path() == super::connect::CONTROL_PATH {
            return Some((body, respond));
        }
        match Connect::from_request(&head) {
            Ok(Connect::Dial { network, address }) => {
                self.observer.received(Some(PacketKind::DialRequest));
                if let Err(refusal) = self.check_room() {
                    refuse(respond, &refusal);
                } else {
                    let dial = IncomingDial::new(self.clone(), network, address, respond, body);
                    self.emit(Event::Dial(dial.into()));
                }
            }
            Ok(Connect::Forward(id)) => self.on_forwarded(id, respond, body),
            Err(error) => {
                self.violation(&error);
                let text = match error {
                    ConnectError::Method => error.to_string(),
                    error => format!("dial: {error}"),
                };
                let kind = RefusalKind::Malformed;
                refuse(respond, &Refusal { kind, text });
            }
        }
        None
    }

    fn check_room(&self) -> Result<(), Refusal> {
        let (limit, text) = if self.pending_dials() >= MAX_PENDING_DIALS {
            (
                Limit::PendingDials,
                "dial: too many dials in progress on this agent".to_owned(),
            )
        } else if self.connections() >= MAX_CONNECTIONS {
            (
                Limit::Connections,
                DialError::TooManyConnections.to_string(),
            )
        } else {
            return Ok(());
        };
        self.observer.limited(limit);
        let kind = RefusalKind::TooMany;
        Err(Refusal { kind, text })
    }

    /// A message of the agent.
    pub(super) fn on_message_from_agent(self: &Rc<Self>, message: ToServer) {
        self.on_sign();
        match message {
            ToServer::Drain => self.on_drain(),
            ToServer::Load { connections, dials } => {
                let load = u64::from(connections) + u64::from(dials);
                let load = usize::try_from(load).unwrap_or(usize::MAX);
                self.counts.reported.set(Some(load));
            }
            ToServer::Forward { id, name } => self.on_forward(id, name),
            ToServer::ForwardGivenUp { id } => self.forwards.on_given_up(id),
        }
    }

    /// A message of the server.
    pub(super) fn on_message_from_server(&self, message: ToAgent) {
        self.on_sign();
        match message {
            ToAgent::Drain => self.on_drain(),
            ToAgent::ServerCount { count } => self.emit(Event::ServerCount(count)),
            ToAgent::ForwardRefused { id, reason } => self.forwards.on_refused(id, reason),
        }
    }

    fn on_drain(&self) {
        self.observer.received(Some(PacketKind::Drain));
        self.emit(Event::Drain);
    }

    /// The tunnel is gone. Streams hear of it from HTTP/2.
    pub(super) fn on_lost(&self) {
        self.counts.is_lost.set(true);
        self.forwards.on_lost();
        let mut state = self.state.borrow_mut();
        state.outbox.clear();
        let lingering = std::mem::take(&mut state.lingering);
        let events = std::mem::take(&mut state.events);
        drop(state);
        drop(lingering);
        drop(events);
    }

    /// What the end of our side would be as a packet, and that of the peer's.
    pub(super) fn close_kinds(&self) -> (PacketKind, PacketKind) {
        let (server, agent) = (PacketKind::CloseRequest, PacketKind::CloseResponse);
        match self.role {
            Role::Server => (server, agent),
            Role::Agent => (agent, server),
        }
    }

    fn wanted_window(&self) -> u32 {
        let need = self.state.borrow().need.window();
        need.min(window::room(&self.ledger, self.window()))
    }

    fn wear(&self, stream: u32) {
        if stream >= WORN_FROM && !self.counts.is_worn.replace(true) {
            tracing::info!(
                "the tunnel has used most of its stream ids, the agent is asked for another"
            );
            self.send_drain();
        }
    }

    fn wake_link(&self) {
        let link = self.state.borrow_mut().link.take();
        if let Some(link) = link {
            link.wake();
        }
    }
}

/// A dial or a connection, as long as it lives.
#[derive(Debug)]
pub(super) struct Slot {
    session: Rc<Session>,
    is_dial: bool,
}

impl Slot {
    pub(super) fn dial(session: &Rc<Session>) -> Self {
        session.counts.dials.update(|count| count + 1);
        Self {
            session: session.clone(),
            is_dial: true,
        }
    }

    /// The dial has become a connection.
    pub(super) fn connected(mut self) -> Self {
        if std::mem::take(&mut self.is_dial) {
            let counts = &self.session.counts;
            counts.dials.update(|count| count.saturating_sub(1));
            counts.connections.update(|count| count + 1);
        }
        self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let counts = &self.session.counts;
        let count = if self.is_dial {
            &counts.dials
        } else {
            &counts.connections
        };
        count.update(|count| count.saturating_sub(1));
    }
}

/// The bytes of a control message.
impl Message {
    pub(super) fn encode(&self) -> Option<Bytes> {
        let encoded = match self {
            Self::ToAgent(message) => message.encode(),
            Self::ToServer(message) => message.encode(),
        };
        match encoded {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                // None of ours is too long.
                tracing::error!(%error, ?self, "a control message cannot be written");
                None
            }
        }
    }
}
