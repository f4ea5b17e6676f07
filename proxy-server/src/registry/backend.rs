//! One agent stream, as the registry sees it.

use std::{cell::Cell, collections::HashSet, fmt, net::IpAddr, rc::Rc, sync::Arc};

use tunnel::{Tunnel, probe::Probe};

use super::{host::Destination, identifiers::Identifiers};
use crate::metrics::AgentState;

/// What an agent calls itself. A claim: never a key for anything but counting and choosing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentId(Arc<str>);

impl AgentId {
    /// As the agent sent it.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self(id.into())
    }

    /// As the agent sent it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How willing a backend is to take a dial; lower is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Nothing is against it.
    Willing,
    /// Its slow readers hold most of the tunnel's window.
    Paced,
    /// It drains, or another tunnel of the same agent is preferred.
    Leaving,
    /// It gave no sign of life when a dial waited for one, and has given none since.
    Suspect,
}

#[cfg(test)]
thread_local! {
    /// How often this thread's test has asked a backend for its rank.
    pub(super) static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// How much has come from an agent; moves with every byte and every answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signs {
    heard: u64,
    pongs: u64,
}

/// One agent stream. Two streams of one agent are two backends: a backend is known by its tunnel.
#[derive(Debug)]
pub struct Backend {
    /// What the agent calls itself.
    pub agent: AgentId,
    /// What it says it reaches.
    pub identifiers: Identifiers,
    /// Where it comes from; `None` in tests.
    pub peer: Option<IpAddr>,
    /// Its tunnel.
    pub tunnel: Tunnel,
    pub(super) destinations: HashSet<Destination>,
    pub(super) is_draining: Cell<bool>,
    pub(super) is_superseded: Cell<bool>,
    /// Whether it has lived for [`PROBATION`](super::PROBATION).
    pub(super) is_proven: Cell<bool>,
    probe: Probe,
    silent_at: Cell<Option<Signs>>,
}

impl Backend {
    /// A backend that may be chosen. `probe` is that of its connection.
    #[must_use]
    pub fn new(
        agent: AgentId,
        identifiers: Identifiers,
        peer: Option<IpAddr>,
        tunnel: impl Into<Tunnel>,
        probe: Probe,
    ) -> Rc<Self> {
        Rc::new(Self {
            agent,
            destinations: identifiers.destinations(),
            identifiers,
            peer,
            tunnel: tunnel.into(),
            probe,
            is_draining: Cell::new(false),
            is_superseded: Cell::new(false),
            is_proven: Cell::new(false),
            silent_at: Cell::new(None),
        })
    }

    /// How willing it is now.
    #[must_use]
    pub fn rank(&self) -> Rank {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        if self.is_suspect() {
            Rank::Suspect
        } else if !self.is_preferred() {
            Rank::Leaving
        } else if self.tunnel.is_paced() {
            Rank::Paced
        } else {
            Rank::Willing
        }
    }

    /// What it is good for, for the operator.
    #[must_use]
    pub fn state(&self) -> AgentState {
        if self.is_suspect() {
            AgentState::Suspect
        } else if self.is_draining.get() {
            AgentState::Draining
        } else if self.is_superseded.get() {
            AgentState::Superseded
        } else {
            AgentState::Ready
        }
    }

    /// What has come from the agent so far.
    #[must_use]
    pub fn signs(&self) -> Signs {
        Signs {
            heard: self.tunnel.signs(),
            pongs: self.probe.pongs(),
        }
    }

    /// Asks the agent for a sign of life.
    pub fn ask_for_sign(&self) {
        self.probe.ask();
    }

    /// The agent gave no sign of life when it was asked for one: until the next it is chosen last.
    pub fn suspect(&self) {
        if !self.is_suspect() {
            tracing::warn!(agent = %self.agent, "agent gives no sign of life: other agents come first until it does");
        }
        self.silent_at.set(Some(self.signs()));
    }

    /// Whether it was last asked for a sign of life and has given none.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.silent_at.get() == Some(self.signs())
    }

    /// Neither draining nor superseded. Changes only by the registry, which keeps the two kinds apart.
    pub(super) fn is_preferred(&self) -> bool {
        !self.is_draining.get() && !self.is_superseded.get()
    }

    pub(super) fn load(&self) -> usize {
        let own = self.tunnel.connections() + self.tunnel.pending_dials();
        // What the agent carries for other servers counts as well, where it says so.
        self.tunnel.reported_load().map_or(own, |all| all.max(own))
    }
}
