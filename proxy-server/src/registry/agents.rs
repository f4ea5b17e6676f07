//! The tunnels of each agent: the newest that has proved itself is preferred, the others go on until they end.

use std::{collections::HashMap, rc::Rc, time::Duration};

use tokio::time::Instant;

use super::backend::{AgentId, Backend};

/// So often within [`CONTEST_TIME`] has an agent a new tunnel from another address while the old one lives, before the
/// operator is told. An agent that moves or renews its certificates does it once or twice.
const CONTEST_TIMES: u32 = 3;

/// See [`CONTEST_TIMES`].
const CONTEST_TIME: Duration = Duration::from_secs(600);

/// How long a further tunnel of an agent must live before it takes the older one's place. An agent that looks for servers behind a
/// load balancer opens many that it ends at once, as it has a tunnel to this server; upstream's with `--sync-forever` does so
/// every second. Dials that went to those would be lost.
pub const PROBATION: Duration = Duration::from_secs(1);

/// All backends, by agent.
#[derive(Debug, Default)]
pub(super) struct Agents {
    tunnels: HashMap<AgentId, Tunnels>,
    len: usize,
}

#[derive(Debug, Default)]
struct Tunnels {
    /// Oldest first; not empty.
    backends: Vec<Rc<Backend>>,
    contest: Option<Contest>,
}

#[derive(Debug)]
struct Contest {
    since: Instant,
    times: u32,
    is_told: bool,
}

impl Agents {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Rc<Backend>> {
        self.tunnels.values().flat_map(|tunnels| &tunnels.backends)
    }

    #[cfg(test)]
    pub(super) fn is_contested(&self, agent: &str) -> bool {
        let tunnels = self.tunnels.get(&AgentId::new(agent));
        tunnels.is_some_and(|tunnels| tunnels.contest.as_ref().is_some_and(|it| it.is_told))
    }

    /// Adds the newest tunnel of its agent.
    pub(super) fn add(&mut self, backend: &Rc<Backend>) {
        let tunnels = self.tunnels.entry(backend.agent.clone()).or_default();
        tunnels.contest(backend);
        tunnels.backends.push(backend.clone());
        self.len += 1;
    }

    /// Takes this very tunnel out, whatever others its agent has. Whether it was there.
    pub(super) fn remove(&mut self, backend: &Rc<Backend>) -> bool {
        let Some(tunnels) = self.tunnels.get_mut(&backend.agent) else {
            return false;
        };
        let backends = &mut tunnels.backends;
        let Some(at) = backends.iter().position(|other| Rc::ptr_eq(other, backend)) else {
            return false;
        };
        backends.remove(at);
        if backends.is_empty() {
            self.tunnels.remove(&backend.agent);
        }
        self.len -= 1;
        true
    }

    /// Lets one tunnel of an agent supersede the others: of those that do not drain the newest that is proven, or else the oldest.
    /// Returns those for which that changed whether they are preferred.
    pub(super) fn settle(&self, agent: &AgentId) -> Vec<Rc<Backend>> {
        let Some(tunnels) = self.tunnels.get(agent) else {
            return Vec::new();
        };
        let backends = &tunnels.backends;
        let stays = |backend: &&Rc<Backend>| !backend.is_draining.get();
        let mut newest_first = backends.iter().rev().filter(stays);
        let preferred = newest_first
            .clone()
            .find(|backend| backend.is_proven.get())
            .or_else(|| newest_first.next_back());
        let mut changed = Vec::new();
        for backend in backends {
            let was_preferred = backend.is_preferred();
            let is_superseded = preferred.is_some_and(|preferred| !Rc::ptr_eq(preferred, backend));
            backend.is_superseded.set(is_superseded);
            if backend.is_preferred() != was_preferred {
                changed.push(backend.clone());
            }
        }
        changed
    }
}

impl Tunnels {
    /// Tells the operator, once, when two that live at different addresses go by one id.
    fn contest(&mut self, newcomer: &Backend) {
        let rival = self.backends.iter().rev().find(|backend| {
            !backend.is_draining.get() && backend.peer != newcomer.peer && backend.peer.is_some()
        });
        let Some((rival, newcomer_peer)) = rival.and_then(|rival| rival.peer).zip(newcomer.peer)
        else {
            return;
        };
        let now = Instant::now();
        let fresh = || Contest {
            since: now,
            times: 0,
            is_told: false,
        };
        let contest = self.contest.get_or_insert_with(fresh);
        if now.duration_since(contest.since) > CONTEST_TIME {
            (contest.since, contest.times) = (now, 0);
        }
        contest.times += 1;
        if contest.times >= CONTEST_TIMES && !contest.is_told {
            contest.is_told = true;
            tracing::warn!(
                agent = %newcomer.agent,
                peers = ?[rival, newcomer_peer],
                "tunnels from different addresses replace each other under one agent id: every agent needs its own --agent-id"
            );
        }
    }
}
