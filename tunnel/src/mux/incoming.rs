//! The dials that a server asks its agent for on a packet tunnel, from request to answer.

use std::{cell::RefCell, rc::Rc};

use hashbrown::HashMap;
use tokio_util::sync::CancellationToken;

use super::{Connection, DialError, Event, MAX_PENDING_DIALS, Mux};
use crate::{event, observe::Limit, packet::DialId};

/// The dials under way of an agent's end. Dropped, it gives them up: the tunnel is gone.
#[derive(Debug)]
pub struct IncomingDials {
    mux: Rc<Mux>,
    pending: Pending,
    lost: CancellationToken,
}

/// By what gives them up.
type Pending = Rc<RefCell<HashMap<DialId, CancellationToken>>>;

impl IncomingDials {
    /// Those of `mux`.
    #[must_use]
    pub fn new(mux: Rc<Mux>) -> Self {
        Self {
            mux,
            pending: Pending::default(),
            lost: CancellationToken::new(),
        }
    }

    /// What the owner of the tunnel must do about `event`; nothing if it has been done.
    pub fn on_event(&self, event: Event) -> Option<event::Event> {
        match event {
            Event::Dial {
                dial,
                protocol,
                address,
            } => self
                .on_dial(dial, protocol, address)
                .map(event::Event::Dial),
            Event::CancelDial(dial) => {
                if let Some(cancel) = self.pending.borrow().get(&dial) {
                    cancel.cancel();
                }
                None
            }
            Event::Drain => Some(event::Event::Drain),
        }
    }

    fn on_dial(
        &self,
        dial: DialId,
        network: String,
        address: String,
    ) -> Option<crate::dial::IncomingDial> {
        let mut pending = self.pending.borrow_mut();
        if pending.len() >= MAX_PENDING_DIALS {
            self.mux.observer.limited(Limit::PendingDials);
            drop(pending);
            self.mux.refuse(
                dial,
                format!("dial {network}: too many dials in progress on this agent"),
            );
            return None;
        }
        if pending.contains_key(&dial) {
            // Its answer would be taken for that of the first.
            tracing::debug!(
                dial = dial.0,
                "ignored a second dial under an id that is being dialled"
            );
            return None;
        }
        let cancel = self.lost.child_token();
        pending.insert(dial, cancel.clone());
        let incoming = IncomingDial {
            mux: self.mux.clone(),
            pending: self.pending.clone(),
            dial,
            network,
            address,
            cancel,
            is_answered: false,
        };
        Some(incoming.into())
    }
}

impl Drop for IncomingDials {
    fn drop(&mut self) {
        self.lost.cancel();
    }
}

/// A dial of a packet tunnel, at the agent's end. Dropped without an answer, it is refused.
#[derive(Debug)]
pub struct IncomingDial {
    mux: Rc<Mux>,
    pending: Pending,
    dial: DialId,
    network: String,
    address: String,
    cancel: CancellationToken,
    is_answered: bool,
}

impl IncomingDial {
    /// The server's id of it.
    #[must_use]
    pub fn id(&self) -> DialId {
        self.dial
    }

    /// Go network name, not checked.
    #[must_use]
    pub fn network(&self) -> &str {
        &self.network
    }

    /// `host:port`, not checked.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Resolves when nobody waits for it any more. Cancel safe.
    pub async fn cancelled(&mut self) {
        self.cancel.cancelled().await;
    }

    /// Tells the server that there is a connection.
    ///
    /// # Errors
    /// As [`Mux::accept`].
    pub fn accept(mut self) -> Result<Connection, DialError> {
        self.is_answered = true;
        self.mux.accept(self.dial)
    }

    /// Tells the server why there is none.
    pub fn refuse(mut self, text: String) {
        self.is_answered = true;
        self.mux.refuse(self.dial, text);
    }
}

impl Drop for IncomingDial {
    fn drop(&mut self) {
        self.pending.borrow_mut().remove(&self.dial);
        // What was given up has no answer.
        if !self.is_answered && !self.cancel.is_cancelled() {
            let text = DialError::Abandoned.to_string();
            self.mux.refuse(self.dial, text);
        }
    }
}
