//! All agents, and which one a dial goes to.

pub mod strategy;

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    fmt,
    rc::Rc,
    sync::Arc,
};

use tunnel::mux::Mux;

use crate::metrics::Metrics;

/// What an agent calls itself. A claim: never a key for anything but counting and choosing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AgentId(Arc<str>);

impl AgentId {
    /// As the agent sent it.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One agent stream. Two streams of one agent are two backends: a backend is known by its tunnel.
#[derive(Debug)]
pub struct Backend {
    /// What the agent calls itself.
    pub agent: AgentId,
    /// Its tunnel.
    pub tunnel: Rc<Mux>,
    is_draining: Cell<bool>,
}

impl Backend {
    /// A backend that may be chosen.
    #[must_use]
    pub fn new(agent: AgentId, tunnel: Rc<Mux>) -> Rc<Self> {
        Rc::new(Self {
            agent,
            tunnel,
            is_draining: Cell::new(false),
        })
    }

    /// The agent wants no new dials: it gets them only when there is nobody else.
    pub fn drain(&self) {
        self.is_draining.set(true);
    }

    /// How willing a backend is; lower is better.
    fn rank(&self) -> (bool, bool) {
        (self.is_draining.get(), self.tunnel.is_paced())
    }

    fn load(&self) -> usize {
        self.tunnel.connections() + self.tunnel.pending_dials()
    }
}

/// The backends of this server.
#[derive(Debug)]
pub struct Registry {
    backends: RefCell<Vec<Rc<Backend>>>,
    metrics: Arc<Metrics>,
}

impl Registry {
    /// No backends yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Rc<Self> {
        Rc::new(Self {
            backends: RefCell::default(),
            metrics,
        })
    }

    /// Adds a backend, until the guard is dropped.
    pub fn add(self: &Rc<Self>, backend: Rc<Backend>) -> Registered {
        self.backends.borrow_mut().push(backend.clone());
        self.update_metrics();
        Registered {
            registry: self.clone(),
            backend,
        }
    }

    /// The backend for a dial: of two random ones that are most willing (not draining, not paced), the less loaded.
    #[must_use]
    pub fn choose(&self) -> Option<Rc<Backend>> {
        let backends = self.backends.borrow();
        let best = backends.iter().map(|backend| backend.rank()).min()?;
        let eligible: Vec<_> = backends
            .iter()
            .filter(|backend| backend.rank() == best)
            .collect();
        let one = eligible.get(fastrand::usize(..eligible.len()))?;
        let other = eligible.get(fastrand::usize(..eligible.len()))?;
        Some(Rc::clone(if other.load() < one.load() {
            other
        } else {
            one
        }))
    }

    /// Number of backends.
    #[must_use]
    pub fn len(&self) -> usize {
        self.backends.borrow().len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.backends.borrow().is_empty()
    }

    /// Dials that wait for an answer, over all backends.
    #[must_use]
    pub fn pending_dials(&self) -> usize {
        self.backends
            .borrow()
            .iter()
            .map(|backend| backend.tunnel.pending_dials())
            .sum()
    }

    fn remove(&self, backend: &Rc<Backend>) {
        self.backends
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, backend));
        self.update_metrics();
    }

    fn update_metrics(&self) {
        let agents = self
            .backends
            .borrow()
            .iter()
            .map(|backend| backend.agent.clone())
            .collect::<HashSet<_>>()
            .len();
        let agents = i64::try_from(agents).unwrap_or(i64::MAX);
        self.metrics.ready_backends.set(agents);
        self.metrics.ready_backend_connections.set(agents);
    }
}

/// A backend's place in the registry.
#[derive(Debug)]
pub struct Registered {
    registry: Rc<Registry>,
    backend: Rc<Backend>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.remove(&self.backend);
    }
}

#[cfg(test)]
mod tests {
    use tunnel::{conn::Role, ledger::Ledger, observe::Unobserved};

    use super::*;

    fn backend(agent: &str) -> Rc<Backend> {
        let ledger = Rc::new(Ledger::new(tunnel::ledger::DEFAULT_BUDGET));
        Backend::new(
            AgentId::new(agent),
            Mux::new(Role::Server, ledger, Rc::new(Unobserved)),
        )
    }

    fn registry() -> Rc<Registry> {
        Registry::new(Metrics::new(certs::Current::fixed(Arc::default())).unwrap())
    }

    #[test]
    fn a_draining_backend_is_chosen_only_when_there_is_no_other() {
        let registry = registry();
        assert!(registry.choose().is_none());
        let (draining, fresh) = (backend("a"), backend("b"));
        let _draining = registry.add(draining.clone());
        draining.drain();
        assert!(Rc::ptr_eq(&registry.choose().unwrap(), &draining));
        let _fresh = registry.add(fresh.clone());
        for _ in 0..100 {
            assert!(Rc::ptr_eq(&registry.choose().unwrap(), &fresh));
        }
    }

    #[test]
    fn two_streams_of_one_agent_are_counted_once_and_removed_apart() {
        let registry = registry();
        let (one, two) = (backend("a"), backend("a"));
        let first = registry.add(one);
        let _second = registry.add(two.clone());
        assert_eq!(
            (registry.len(), registry.metrics.ready_backends.get()),
            (2, 1)
        );
        drop(first);
        assert_eq!(
            (registry.len(), registry.metrics.ready_backends.get()),
            (1, 1)
        );
        assert!(Rc::ptr_eq(&registry.choose().unwrap(), &two));
    }

    #[test]
    fn the_less_loaded_of_two_gets_clearly_more_dials() {
        let registry = registry();
        let (busy, idle) = (backend("busy"), backend("idle"));
        let dials: Vec<_> = (0..50)
            .map(|_| busy.tunnel.dial("tcp", "target:1"))
            .collect();
        let _guards = (registry.add(busy), registry.add(idle.clone()));
        let to_idle = (0..400)
            .filter(|_| Rc::ptr_eq(&registry.choose().unwrap(), &idle))
            .count();
        assert!(to_idle > 250, "{to_idle} of 400");
        assert_eq!(registry.pending_dials(), dials.len());
    }
}
