//! A dial that waits for the agent's answer.

use std::{
    cell::RefCell,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use super::{Connection, Mux};
use crate::{dial::DialError, packet::DialId};

/// Where the answer is put.
#[derive(Debug, Default)]
pub(super) struct PendingDial {
    outcome: RefCell<Option<Result<Connection, DialError>>>,
    waker: RefCell<Option<Waker>>,
}

impl PendingDial {
    pub(super) fn resolve(&self, outcome: Result<Connection, DialError>) {
        *self.outcome.borrow_mut() = Some(outcome);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// A pending dial. Resolves once; dropped before that, the agent is told to give it up, and a connection that it has made
/// meanwhile is closed.
#[derive(Debug)]
#[must_use = "dropping a dial gives it up"]
pub struct Dial {
    mux: Rc<Mux>,
    /// `None` when the dial failed before it was sent.
    id: Option<DialId>,
    pending: Rc<PendingDial>,
}

impl Dial {
    pub(super) fn pending(mux: Rc<Mux>, id: DialId, pending: Rc<PendingDial>) -> Self {
        Self {
            mux,
            id: Some(id),
            pending,
        }
    }

    pub(super) fn failed(mux: Rc<Mux>, error: DialError) -> Self {
        let pending = PendingDial::default();
        pending.resolve(Err(error));
        Self {
            mux,
            id: None,
            pending: Rc::new(pending),
        }
    }
}

impl Dial {
    /// The id it has on the wire, for both ends' logs; `None` if it failed before it was sent.
    #[must_use]
    pub fn id(&self) -> Option<DialId> {
        self.id
    }
}

impl Future for Dial {
    type Output = Result<Connection, DialError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.pending.outcome.borrow_mut().take() {
            return Poll::Ready(outcome);
        }
        *self.pending.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.mux.give_up(id);
        }
    }
}
