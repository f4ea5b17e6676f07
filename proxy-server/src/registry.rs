//! All agents, and which one a dial goes to.
//!
//! Each strategy has a table of the backends that it may choose. A dial asks the tables in the order of
//! `--proxy-strategies`; within a table the most willing backends come first ([`Rank`]), and of two random ones the less loaded.
//! Suspects come last, behind all that any table has. Nothing here looks at every backend for a dial unless most of them
//! are unwilling.

mod agents;
mod backend;
pub mod host;
pub mod identifiers;
mod pool;
pub mod strategy;
mod table;
#[cfg(test)]
mod tests;

use std::{cell::RefCell, rc::Rc, sync::Arc};

use crate::metrics::{AgentState, Metrics};
use agents::Agents;
pub use agents::PROBATION;
pub use backend::{AgentId, Backend, Rank, Signs};
use host::Destination;
use strategy::Strategies;
use table::Table;

/// The backends of this server.
#[derive(Debug)]
pub struct Registry {
    state: RefCell<State>,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct State {
    agents: Agents,
    /// In the order in which they are asked.
    tables: Vec<Table>,
}

impl State {
    /// To be called when an agent's tunnels have changed.
    fn settle(&mut self, agent: &AgentId) {
        for backend in self.agents.settle(agent) {
            for table in &mut self.tables {
                table.sort_in(&backend);
            }
        }
    }
}

impl Registry {
    /// No backends yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, strategies: &Strategies) -> Rc<Self> {
        Rc::new(Self {
            state: RefCell::new(State {
                agents: Agents::default(),
                tables: strategies.iter().map(Table::new).collect(),
            }),
            metrics,
        })
    }

    /// Adds a backend, until the guard is dropped. Once it is [proven](Registered::prove) it is preferred to other tunnels of its agent.
    pub fn add(self: &Rc<Self>, backend: Rc<Backend>) -> Registered {
        let mut state = self.state.borrow_mut();
        state.agents.add(&backend);
        for table in &mut state.tables {
            if table.add(&backend) {
                self.tell(table);
            }
        }
        state.settle(&backend.agent);
        drop(state);
        Registered {
            registry: self.clone(),
            backend,
        }
    }

    /// The backend for a dial to `to`; none that is in `tried`.
    #[must_use]
    pub fn choose(&self, to: &Destination, tried: &[Rc<Backend>]) -> Option<Rc<Backend>> {
        self.choose_alive(to, tried)
            .or_else(|| self.ask(to, tried, Rank::Suspect))
    }

    /// As [`Self::choose`], without suspects.
    #[must_use]
    pub fn choose_alive(&self, to: &Destination, tried: &[Rc<Backend>]) -> Option<Rc<Backend>> {
        self.ask(to, tried, Rank::Leaving)
    }

    fn ask(&self, to: &Destination, tried: &[Rc<Backend>], worst: Rank) -> Option<Rc<Backend>> {
        let state = self.state.borrow();
        let mut tables = state.tables.iter();
        tables.find_map(|table| table.choose(to, tried, worst))
    }

    /// Number of backends.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.borrow().agents.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Dials that wait for an answer, over all backends.
    #[must_use]
    pub fn pending_dials(&self) -> usize {
        let state = self.state.borrow();
        let backends = state.agents.iter();
        backends.map(|backend| backend.tunnel.pending_dials()).sum()
    }

    /// Tells every agent that there will be no more dials from here.
    pub fn send_drain(&self) {
        for backend in self.state.borrow().agents.iter() {
            backend.tunnel.send_drain();
        }
    }

    /// Tells every agent that can hear it how many servers there are.
    pub fn send_server_count(&self, count: u32) {
        for backend in self.state.borrow().agents.iter() {
            backend.tunnel.send_server_count(count);
        }
    }

    /// Brings up to date what is cheaper to look at from time to time than to count: tunnels by state, as a suspect clears
    /// itself by a sign of life, and who is not read because a queue is full.
    pub fn update_gauges(&self) {
        let state = self.state.borrow();
        for agent_state in AgentState::ALL {
            let backends = state.agents.iter();
            let tunnels = backends.filter(|backend| backend.state() == agent_state);
            self.metrics.set_agents(agent_state, tunnels.count());
        }
        let backends = || state.agents.iter().map(|backend| &backend.tunnel);
        let clients: usize = backends().map(|tunnel| tunnel.full_connections()).sum();
        let agents = backends().filter(|tunnel| tunnel.is_withholding()).count();
        self.metrics.set_full_channels(clients, agents);
    }

    fn drain(&self, backend: &Rc<Backend>) -> bool {
        if backend.is_draining.replace(true) {
            return false;
        }
        let mut state = self.state.borrow_mut();
        for table in &mut state.tables {
            table.sort_in(backend);
        }
        state.settle(&backend.agent);
        true
    }

    fn prove(&self, backend: &Rc<Backend>) {
        if backend.is_proven.replace(true) {
            return;
        }
        let mut state = self.state.borrow_mut();
        state.settle(&backend.agent);
    }

    fn remove(&self, backend: &Rc<Backend>) {
        let mut state = self.state.borrow_mut();
        if !state.agents.remove(backend) {
            return;
        }
        for table in &mut state.tables {
            if table.remove(backend) {
                self.tell(table);
            }
        }
        state.settle(&backend.agent);
    }

    /// What upstream tells at each change of a table.
    fn tell(&self, table: &Table) {
        self.metrics.set_backends(table.strategy, table.len());
    }
}

/// A backend's place in the registry.
#[derive(Debug)]
pub struct Registered {
    registry: Rc<Registry>,
    backend: Rc<Backend>,
}

impl Registered {
    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &Rc<Backend> {
        &self.backend
    }

    /// The tunnel has lived for [`PROBATION`].
    pub fn prove(&self) {
        self.registry.prove(&self.backend);
    }

    /// The agent wants no new dials: it gets them only when there is nobody else. Whether that is news.
    pub fn drain(&self) -> bool {
        self.registry.drain(&self.backend)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.remove(&self.backend);
    }
}
