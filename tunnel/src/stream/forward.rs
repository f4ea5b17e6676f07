//! Connections that an agent asks its server for.
//!
//! An HTTP/2 server opens no streams, and the agent is one. So it asks on the control stream, and the server, once it has reached
//! the target, opens the stream that answers ([`super::connect::FORWARD`]).

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use h2::{RecvStream, server::SendResponse};
use hashbrown::HashMap;

use super::{
    connect::{self, Connect},
    connection::Connection,
    control::{ToAgent, ToServer},
    dial::{Dial, refuse},
    piece::Piece,
    session::{Message, Session, Slot},
};
use crate::{
    dial::{Refusal, RefusalKind},
    event::Event,
    observe::Limit,
};

/// Forwards of one tunnel that may wait for their connection; more are refused.
pub const MAX_PENDING_FORWARDS: usize = 1_024;

/// Why a forward gave no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The server's reason.
    #[error("{0}")]
    Refused(String),
    /// The tunnel went away before there was an answer.
    #[error("tunnel to the server was lost")]
    TunnelLost,
    /// A packet tunnel carries no forwards.
    #[error("the server does not forward")]
    Unsupported,
    /// [`MAX_PENDING_FORWARDS`]
    #[error("too many connections wait for the server")]
    TooMany,
}

/// The forwards of one tunnel, at either end: each has those that it has asked for, or was asked for.
#[derive(Debug, Default)]
pub(super) struct Forwards {
    last: Cell<u64>,
    asked: RefCell<HashMap<u64, Rc<Pending>>>,
    incoming: RefCell<HashMap<u64, Rc<Incoming>>>,
}

/// Where the answer to a forward of ours is put.
#[derive(Debug, Default)]
struct Pending {
    outcome: RefCell<Option<Result<Connection, ForwardError>>>,
    waker: RefCell<Option<Waker>>,
}

impl Pending {
    fn resolve(&self, outcome: Result<Connection, ForwardError>) {
        *self.outcome.borrow_mut() = Some(outcome);
        let waker = self.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Whether the peer has given a forward up.
#[derive(Debug, Default)]
struct Incoming {
    is_given_up: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Incoming {
    fn give_up(&self) {
        self.is_given_up.set(true);
        let waker = self.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Forwards {
    pub(super) fn on_refused(&self, id: u64, reason: String) {
        let pending = self.asked.borrow_mut().remove(&id);
        if let Some(pending) = pending {
            pending.resolve(Err(ForwardError::Refused(reason)));
        }
    }

    pub(super) fn on_given_up(&self, id: u64) {
        let incoming = self.incoming.borrow_mut().remove(&id);
        if let Some(incoming) = incoming {
            incoming.give_up();
        }
    }

    pub(super) fn on_lost(&self) {
        let asked = self.asked.take();
        for pending in asked.values() {
            pending.resolve(Err(ForwardError::TunnelLost));
        }
        let incoming = self.incoming.take();
        for incoming in incoming.values() {
            incoming.give_up();
        }
    }
}

/// A forward that waits for the server. Dropped before it resolves, it is given up.
#[derive(Debug)]
#[must_use = "dropping a forward gives it up"]
pub struct Forward {
    session: Rc<Session>,
    id: u64,
    pending: Rc<Pending>,
}

impl Future for Forward {
    type Output = Result<Connection, ForwardError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.pending.outcome.borrow_mut().take() {
            return Poll::Ready(outcome);
        }
        *self.pending.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let pending = self.session.forwards.asked.borrow_mut().remove(&self.id);
        if pending.is_some() {
            let message = ToServer::ForwardGivenUp { id: self.id };
            self.session.tell(Message::ToServer(message));
        }
    }
}

/// A forward that the agent asks for. Dropped without an answer, it is refused.
#[derive(Debug)]
pub struct IncomingForward {
    session: Rc<Session>,
    id: u64,
    name: String,
    incoming: Rc<Incoming>,
    is_answered: bool,
}

impl IncomingForward {
    /// The target's name, not checked.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Resolves when the agent does not wait for it any more. Cancel safe.
    pub async fn cancelled(&mut self) {
        poll_fn(|cx| {
            if self.incoming.is_given_up.get() {
                return Poll::Ready(());
            }
            *self.incoming.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Tells the agent why there is no connection.
    pub fn refuse(mut self, reason: String) {
        self.send_refusal(reason);
    }

    /// The connection; its other end is what the agent forwards.
    pub fn connect(mut self) -> Dial {
        self.is_answered = true;
        self.session.open(&Connect::Forward(self.id))
    }

    fn send_refusal(&mut self, reason: String) {
        if !self.is_answered && !self.incoming.is_given_up.get() {
            let message = ToAgent::ForwardRefused {
                id: self.id,
                reason,
            };
            self.session.tell(Message::ToAgent(message));
        }
        self.is_answered = true;
    }
}

impl Drop for IncomingForward {
    fn drop(&mut self) {
        self.send_refusal("server gave the forward up".to_owned());
        self.session.forwards.incoming.borrow_mut().remove(&self.id);
    }
}

impl Session {
    /// Asks the server for a connection to its target of that name; dropping it gives it up. Of an agent's end.
    ///
    /// # Errors
    /// [`ForwardError::TunnelLost`], [`ForwardError::TooMany`]
    pub fn forward(self: &Rc<Self>, name: &str) -> Result<Forward, ForwardError> {
        if self.is_lost() {
            return Err(ForwardError::TunnelLost);
        }
        let mut asked = self.forwards.asked.borrow_mut();
        if asked.len() >= MAX_PENDING_FORWARDS {
            self.observer().limited(Limit::PendingDials);
            return Err(ForwardError::TooMany);
        }
        let id = self.forwards.last.get() + 1;
        self.forwards.last.set(id);
        let pending = Rc::new(Pending::default());
        asked.insert(id, pending.clone());
        drop(asked);
        let name = name.to_owned();
        self.tell(Message::ToServer(ToServer::Forward { id, name }));
        Ok(Forward {
            session: self.clone(),
            id,
            pending,
        })
    }

    /// The agent asks for a connection.
    pub(super) fn on_forward(self: &Rc<Self>, id: u64, name: String) {
        let mut known = self.forwards.incoming.borrow_mut();
        if known.contains_key(&id) {
            drop(known);
            return self.violation(&"a second forward under an id that is in use");
        }
        if known.len() >= MAX_PENDING_FORWARDS {
            drop(known);
            self.observer().limited(Limit::PendingDials);
            let reason = ForwardError::TooMany.to_string();
            return self.tell(Message::ToAgent(ToAgent::ForwardRefused { id, reason }));
        }
        let incoming = Rc::new(Incoming::default());
        known.insert(id, incoming.clone());
        drop(known);
        self.emit(Event::Forward(IncomingForward {
            session: self.clone(),
            id,
            name,
            incoming,
            is_answered: false,
        }));
    }

    /// The server has opened the stream of a forward.
    pub(super) fn on_forwarded(
        self: &Rc<Self>,
        id: u64,
        mut respond: SendResponse<Piece>,
        body: RecvStream,
    ) {
        let pending = self.forwards.asked.borrow_mut().remove(&id);
        let Some(pending) = pending else {
            // Given up meanwhile, or never asked for.
            let kind = RefusalKind::Failed;
            let text = "nobody waits for this forward".to_owned();
            return refuse(respond, &Refusal { kind, text });
        };
        let outcome = match respond.send_response(connect::connected(), false) {
            Ok(send) => {
                let slot = Slot::dial(self).connected();
                Ok(Connection::new(self.clone(), send, body, slot))
            }
            Err(_) => Err(ForwardError::Refused(
                "server gave the forward up".to_owned(),
            )),
        };
        pending.resolve(outcome);
    }
}
