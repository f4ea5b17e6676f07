//! What both frontends ask for: a connection to a target, in time or with the reason why not.
//!
//! A dial has one deadline and up to [`MAX_TRIES`] agents: when a tunnel is lost before its answer, or its agent gives no sign of
//! life, another one that may serve the dial gets it. An answer is final, whatever it says; so is the silence of an agent that
//! answers pings, as then it is the target that is slow.

mod error;
#[cfg(test)]
mod tests;

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use egress_policy::Policy;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tunnel::{
    connection::Connection,
    dial::{self, RefusalKind},
    ledger::Ledger,
};

use crate::{
    metrics::{DialFailure, DialRetry, Gauged, Metrics, PacketCounters, Timed},
    registry::{AgentId, Backend, Registry, host::Destination},
};
pub use error::DialError;

/// Agents that one dial is sent to at most.
pub const MAX_TRIES: usize = 3;

/// Where a deadline is that the clock cannot hold.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// After so long without an answer to a dial, or anything else from its agent, the agent is asked for a sign of life; after as long
/// again without any, it is a suspect.
pub const SILENCE: Duration = Duration::from_secs(1);

/// What the frontends share.
#[derive(Debug)]
pub struct Core {
    /// The agents.
    pub registry: Rc<Registry>,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// Packets from clients of the gRPC frontend.
    pub from_client: PacketCounters,
    /// Packets to them.
    pub to_client: PacketCounters,
    /// The byte budget.
    pub ledger: Rc<Ledger>,
    /// Cancelled when no new dials are wanted.
    pub stop: CancellationToken,
    /// How long a dial may take, all tries together.
    pub dial_timeout: Duration,
    /// What may be dialled.
    pub egress: Policy,
}

/// A connection, and what counts it.
#[derive(Debug)]
pub struct Dialled {
    /// The connection.
    pub connection: Connection,
    /// Through which agent.
    pub agent: AgentId,
    /// Drops when the connection is over.
    pub guard: Established,
}

/// Counts a connection for as long as it lives.
#[derive(Debug)]
pub struct Established {
    _established: Gauged,
    _duration: Timed,
}

impl Core {
    /// Dials `address` through an agent.
    ///
    /// Dropping the future gives the dial up: the agent is told, and it counts as the frontend's doing.
    ///
    /// # Errors
    /// [`DialError`], within the dial timeout.
    pub async fn dial(&self, protocol: &str, address: &str) -> Result<Dialled, DialError> {
        let counted = Counted {
            metrics: &self.metrics,
            since: Instant::now(),
            is_over: Cell::new(false),
        };
        let outcome = self.try_dial(protocol, address, counted.since).await;
        counted.is_over.set(true);
        let counts_as = outcome.as_ref().map(|_| ()).map_err(DialError::metric);
        self.metrics.dial_ended(counts_as, counted.since.elapsed());
        if let Err(error) = &outcome {
            tracing::debug!(target = address, "dial failed: {error}");
        }
        outcome
    }

    async fn try_dial(
        &self,
        protocol: &str,
        address: &str,
        since: Instant,
    ) -> Result<Dialled, DialError> {
        if self.stop.is_cancelled() {
            return Err(DialError::ShuttingDown);
        }
        let request = Request {
            protocol,
            address,
            to: Destination::read(address),
            deadline: since.checked_add(self.dial_timeout).unwrap_or(since + FAR),
        };
        self.check_policy(&request)?;
        let _pending = Gauged::new(&self.metrics.pending_dials);
        let mut tried = Vec::new();
        let mut failure = DialError::NoAgent;
        let mut retry = None;
        while tried.len() < MAX_TRIES {
            let Some(backend) = self.registry.choose(&request.to, &tried) else {
                break;
            };
            if let Some(retry) = retry {
                self.metrics.dial_retried(retry);
                tracing::debug!(target = address, agent = %backend.agent, "trying another agent: {failure}");
            }
            let agent = backend.agent.clone();
            retry = match self.attempt(&backend, &request, &tried).await {
                Answer::Connected(connection) => return Ok(self.dialled(connection, agent)),
                Answer::Failed(cause) => {
                    let retry = retry_after(&cause);
                    failure = DialError::new(agent, cause);
                    retry
                }
                Answer::Silent => {
                    failure = self.timed_out(agent, &request);
                    Some(DialRetry::NoSignOfLife)
                }
                Answer::TimedOut => return Err(self.timed_out(agent, &request)),
            };
            if retry.is_none() {
                break;
            }
            tried.push(backend);
        }
        Err(failure)
    }

    fn check_policy(&self, request: &Request<'_>) -> Result<(), DialError> {
        if self.egress.is_unrestricted() {
            return Ok(());
        }
        // An agent may know a name for a port, which no rule knows.
        let port = request.to.port;
        let port = port.ok_or_else(|| DialError::NoPort(request.address.to_owned()))?;
        let host = request.to.host.to_string();
        Ok(self.egress.check_unresolved(&host, port)?)
    }

    /// Asks one agent. Dropping the future tells it that nobody waits any more.
    async fn attempt(
        &self,
        backend: &Rc<Backend>,
        request: &Request<'_>,
        tried: &[Rc<Backend>],
    ) -> Answer {
        let mut dial = backend.tunnel.dial(request.protocol, request.address);
        let mut heard = backend.signs();
        let mut is_asked = false;
        loop {
            let check = request.deadline.min(Instant::now() + SILENCE);
            match timeout_at(check, &mut dial).await {
                Ok(Ok(connection)) => return Answer::Connected(connection),
                Ok(Err(cause)) => return Answer::Failed(cause),
                Err(_) if Instant::now() >= request.deadline => return Answer::TimedOut,
                Err(_) => {}
            }
            let signs = backend.signs();
            if signs != heard {
                (heard, is_asked) = (signs, false);
            } else if is_asked || backend.is_suspect() {
                backend.suspect();
                if self.has_other(backend, request, tried) {
                    return Answer::Silent;
                }
            } else {
                backend.ask_for_sign();
                is_asked = true;
            }
        }
    }

    /// Whether a dial may leave `backend` for an agent that is not suspect itself.
    fn has_other(
        &self,
        backend: &Rc<Backend>,
        request: &Request<'_>,
        tried: &[Rc<Backend>],
    ) -> bool {
        let mut without = tried.to_vec();
        without.push(backend.clone());
        let other = self.registry.choose_alive(&request.to, &without);
        without.len() < MAX_TRIES && other.is_some()
    }

    fn dialled(&self, connection: Connection, agent: AgentId) -> Dialled {
        let guard = Established {
            _established: Gauged::new(&self.metrics.established),
            _duration: Timed::new(&self.metrics.connection_duration),
        };
        Dialled {
            connection,
            agent,
            guard,
        }
    }

    fn timed_out(&self, agent: AgentId, request: &Request<'_>) -> DialError {
        DialError::TimedOut {
            agent,
            target: request.address.to_owned(),
            after: self.dial_timeout,
        }
    }
}

/// What a frontend asked for.
struct Request<'a> {
    protocol: &'a str,
    address: &'a str,
    to: Destination,
    deadline: Instant,
}

/// What came of asking one agent.
enum Answer {
    Connected(Connection),
    Failed(dial::DialError),
    /// It gave no sign of life, and there is another.
    Silent,
    /// The deadline of all tries has passed.
    TimedOut,
}

/// Why another agent may be asked after this failure; `None` if the agent has tried, or would not be the only one to refuse.
fn retry_after(cause: &dial::DialError) -> Option<DialRetry> {
    match cause {
        dial::DialError::TunnelLost => Some(DialRetry::TunnelLost),
        dial::DialError::TooManyDials => Some(DialRetry::Limit),
        dial::DialError::Refused(refusal) if refusal.kind == RefusalKind::TooMany => {
            Some(DialRetry::Limit)
        }
        _ => None,
    }
}

/// Counts a dial whose asker went away.
struct Counted<'a> {
    metrics: &'a Metrics,
    since: Instant,
    is_over: Cell<bool>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !self.is_over.get() {
            let outcome = Err(DialFailure::FrontendClose);
            self.metrics.dial_ended(outcome, self.since.elapsed());
        }
    }
}
