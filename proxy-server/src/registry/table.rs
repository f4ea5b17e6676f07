//! What one strategy knows of the backends (wire-protocol, section 5.4).

use std::{collections::HashMap, rc::Rc};

use super::{
    backend::{AgentId, Backend, Rank},
    host::Destination,
    pool::Pool,
    strategy::Strategy,
};

/// The backends that a strategy may choose, by its keys. A choice costs a few look-ups, however many there are.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) strategy: Strategy,
    keys: Keys,
}

#[derive(Debug)]
enum Keys {
    /// By agent, with the number of its backends; any of them will do.
    Agents(HashMap<AgentId, usize>, Pool),
    /// By what an agent says it reaches.
    Destinations(HashMap<Destination, Pool>),
}

impl Table {
    pub(super) fn new(strategy: Strategy) -> Self {
        let keys = match strategy {
            Strategy::Default | Strategy::DefaultRoute => {
                Keys::Agents(HashMap::new(), Pool::default())
            }
            Strategy::DestHost => Keys::Destinations(HashMap::new()),
        };
        Self { strategy, keys }
    }

    /// Number of keys, which is what upstream's metrics and readiness count.
    pub(super) fn len(&self) -> usize {
        match &self.keys {
            Keys::Agents(agents, _) => agents.len(),
            Keys::Destinations(destinations) => destinations.len(),
        }
    }

    /// Offers a backend. Whether the strategy has a use for it.
    pub(super) fn add(&mut self, backend: &Rc<Backend>) -> bool {
        if !self.takes(backend) {
            return false;
        }
        match &mut self.keys {
            Keys::Agents(agents, pool) => {
                *agents.entry(backend.agent.clone()).or_default() += 1;
                pool.insert(backend);
            }
            Keys::Destinations(destinations) => {
                for destination in &backend.destinations {
                    let pool = destinations.entry(destination.clone()).or_default();
                    pool.insert(backend);
                }
            }
        }
        true
    }

    /// Takes a backend out. Whether it was there.
    pub(super) fn remove(&mut self, backend: &Rc<Backend>) -> bool {
        match &mut self.keys {
            Keys::Agents(agents, pool) => {
                if !pool.remove(backend) {
                    return false;
                }
                if let Some(count) = agents.get_mut(&backend.agent) {
                    *count -= 1;
                    if *count == 0 {
                        agents.remove(&backend.agent);
                    }
                }
                true
            }
            Keys::Destinations(destinations) => {
                let mut was_there = false;
                for destination in &backend.destinations {
                    if let Some(pool) = destinations.get_mut(destination) {
                        was_there |= pool.remove(backend);
                        if pool.is_empty() {
                            destinations.remove(destination);
                        }
                    }
                }
                was_there
            }
        }
    }

    /// To be called when a backend has begun or ceased to be preferred.
    pub(super) fn sort_in(&mut self, backend: &Rc<Backend>) {
        match &mut self.keys {
            Keys::Agents(_, pool) => pool.sort_in(backend),
            Keys::Destinations(destinations) => {
                for destination in &backend.destinations {
                    if let Some(pool) = destinations.get_mut(destination) {
                        pool.sort_in(backend);
                    }
                }
            }
        }
    }

    /// See [`Pool::choose`]. An agent that names the port of `to` comes before those that name its host alone.
    pub(super) fn choose(
        &self,
        to: &Destination,
        tried: &[Rc<Backend>],
        worst: Rank,
    ) -> Option<Rc<Backend>> {
        match &self.keys {
            Keys::Agents(_, pool) => pool.choose(tried, worst),
            Keys::Destinations(destinations) => {
                let choose = |to: &Destination| destinations.get(to)?.choose(tried, worst);
                choose(to).or_else(|| choose(&to.without_port()))
            }
        }
    }

    fn takes(&self, backend: &Backend) -> bool {
        match self.strategy {
            Strategy::Default => true,
            Strategy::DestHost => !backend.destinations.is_empty(),
            Strategy::DefaultRoute => backend.identifiers.is_default_route(),
        }
    }
}
