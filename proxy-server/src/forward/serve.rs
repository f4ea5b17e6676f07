//! One forward of an agent, from its name to the end of its connection.

use std::{cell::Cell, fmt::Display, future::Future, rc::Rc, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use tunnel::{
    connection::Connection,
    copy::{Options, copy},
    dial::DialError,
    drain::Tasks,
    stream::IncomingForward,
};

use super::{ForwardRefusal, ForwardTargets, Target, VerifiedNames, connect::Connector};
use crate::{
    metrics::{ForwardFailure, Gauged, Metrics},
    registry::AgentId,
};

/// How long an agent may take to answer the stream of a forward that it has asked for, once the target is there.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What an agent's tunnel gives for a connection that it asks for. Dropped without an answer, it is refused.
pub trait ForwardRequest: 'static {
    /// Why there is no connection after all; for this server's log.
    type Error: Display;

    /// The target's name, as the agent wrote it.
    fn name(&self) -> &str;

    /// Resolves when the agent does not want the connection any more, or is gone. Cancel safe.
    fn cancelled(&mut self) -> impl Future<Output = ()>;

    /// Tells the agent why there is none.
    fn refuse(self, reason: String);

    /// The connection; its other end is what the agent forwards. Dropped before it resolves, the agent is told to give up.
    fn connect(self) -> impl Future<Output = Result<Connection, Self::Error>>;
}

impl ForwardRequest for IncomingForward {
    type Error = DialError;

    fn name(&self) -> &str {
        self.name()
    }

    async fn cancelled(&mut self) {
        self.cancelled().await;
    }

    fn refuse(self, reason: String) {
        self.refuse(reason);
    }

    async fn connect(self) -> Result<Connection, DialError> {
        self.connect().await.map(Connection::from)
    }
}

/// What serves the forwards of all agents.
#[derive(Debug)]
pub struct Forwarder {
    targets: ForwardTargets,
    max_connections: usize,
    metrics: Arc<Metrics>,
    tasks: Tasks,
    stop: CancellationToken,
    connector: Connector,
    /// [`ANSWER_LIMIT`], but for tests.
    answer_limit: Duration,
}

/// The forwards of one tunnel.
#[derive(Debug)]
pub struct AgentForwards {
    agent: AgentId,
    names: VerifiedNames,
    /// Under way: dials and connections.
    open: Cell<usize>,
    /// Whether the operator has heard of a refusal. The agent hears of each.
    has_warned: Cell<bool>,
}

impl AgentForwards {
    /// None yet. `names` decide what the agent may have; `agent` is for the log alone.
    #[must_use]
    pub fn new(agent: AgentId, names: VerifiedNames) -> Rc<Self> {
        Rc::new(Self {
            agent,
            names,
            open: Cell::new(0),
            has_warned: Cell::new(false),
        })
    }

    /// Dials and connections that are under way.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.get()
    }
}

/// One forward that counts, until it is dropped.
#[derive(Debug)]
struct Open {
    agent: Rc<AgentForwards>,
    _gauge: Gauged,
}

impl Open {
    fn new(agent: Rc<AgentForwards>, metrics: &Metrics) -> Self {
        agent.open.set(agent.open.get() + 1);
        Self {
            agent,
            _gauge: Gauged::new(&metrics.forward_connections),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.agent.open.set(self.agent.open.get().saturating_sub(1));
    }
}

/// Why a forward is not even tried.
#[derive(Clone, Copy, Debug)]
enum Refused {
    Target(ForwardRefusal),
    Limit(usize),
    ShuttingDown,
}

impl Refused {
    /// What the agent is told.
    fn reason(self, name: &str, names: &VerifiedNames) -> String {
        match self {
            Self::Target(refusal) => refusal.reason(name, names),
            Self::Limit(most) => format!(
                "this agent has {most} forwarded connections through this server already, the most that --forward-max-connections of the server allows"
            ),
            Self::ShuttingDown => "proxy server is shutting down".to_owned(),
        }
    }

    /// What this server's operator is told.
    fn cause(self) -> &'static str {
        match self {
            Self::Target(refusal) => refusal.cause(),
            Self::Limit(_) => "it has as many as --forward-max-connections allows",
            Self::ShuttingDown => "proxy server is shutting down",
        }
    }

    fn counts_as(self) -> ForwardFailure {
        match self {
            Self::Target(ForwardRefusal::Unknown) => ForwardFailure::Unknown,
            Self::Target(ForwardRefusal::NotAllowed) => ForwardFailure::NotAllowed,
            Self::Limit(_) => ForwardFailure::Limit,
            Self::ShuttingDown => ForwardFailure::ShuttingDown,
        }
    }
}

impl Forwarder {
    /// Serves `targets`, at most `max_connections` for each tunnel. Connections run on `tasks`; once `stop` is cancelled there are no new
    /// ones.
    #[must_use]
    pub fn new(
        targets: ForwardTargets,
        max_connections: usize,
        metrics: Arc<Metrics>,
        tasks: Tasks,
        stop: CancellationToken,
    ) -> Rc<Self> {
        Rc::new(Self {
            targets,
            max_connections,
            metrics,
            tasks,
            stop,
            connector: Connector::default(),
            answer_limit: ANSWER_LIMIT,
        })
    }

    /// Answers a request of `agent`: refuses it at once, or spawns what serves it.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub fn accept<R: ForwardRequest>(self: &Rc<Self>, request: R, agent: &Rc<AgentForwards>) {
        match self.check(request.name(), agent) {
            Ok(target) => {
                let span = tracing::debug_span!("forward", agent = %agent.agent, name = target.name(), %target);
                let open = Open::new(agent.clone(), &self.metrics);
                let serve = self.clone().serve(request, target, open);
                self.tasks.spawn(serve.instrument(span));
            }
            Err(refused) => {
                self.metrics.forward_failed(refused.counts_as());
                let reason = refused.reason(request.name(), &agent.names);
                agent.warn(request.name(), refused.cause());
                request.refuse(reason);
            }
        }
    }

    fn check(&self, name: &str, agent: &AgentForwards) -> Result<Arc<Target>, Refused> {
        if self.stop.is_cancelled() {
            return Err(Refused::ShuttingDown);
        }
        let target = self.targets.check(name, &agent.names);
        let target = target.map_err(Refused::Target)?;
        if agent.open() >= self.max_connections {
            return Err(Refused::Limit(self.max_connections));
        }
        Ok(target.clone())
    }

    async fn serve<R: ForwardRequest>(
        self: Rc<Self>,
        mut request: R,
        target: Arc<Target>,
        _open: Open,
    ) {
        let connected = tokio::select! {
            biased;
            () = request.cancelled() => {
                self.metrics.forward_failed(ForwardFailure::Abandoned);
                return tracing::debug!("agent gave its forward up");
            }
            connected = self.connector.connect(&target) => connected,
        };
        let (socket, address) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                self.metrics.forward_failed(ForwardFailure::Dial);
                tracing::debug!(%error, "forward failed");
                return request.refuse(error.to_string());
            }
        };
        let connection = match timeout(self.answer_limit, request.connect()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                self.metrics.forward_failed(ForwardFailure::Abandoned);
                return tracing::debug!(%error, "agent did not take its forward");
            }
            Err(_) => {
                self.metrics.forward_failed(ForwardFailure::Abandoned);
                return tracing::debug!(after = ?self.answer_limit, "agent did not take its forward in time");
            }
        };
        let started = Instant::now();
        let copied = Box::pin(copy(socket, connection, Options::default())).await;
        tracing::debug!(
            %address,
            to_agent = copied.sent,
            from_agent = copied.received,
            end = ?copied.end,
            after = ?started.elapsed(),
            "forward over"
        );
    }
}

impl AgentForwards {
    /// The first refusal of a tunnel is worth a warning; an agent that asks again and again must not fill the log.
    fn warn(&self, name: &str, cause: &str) {
        let name: String = name.chars().take(super::targets::MAX_NAME).collect();
        if self.has_warned.replace(true) {
            tracing::debug!(agent = %self.agent, ?name, cause, "refused a forward");
        } else {
            tracing::warn!(agent = %self.agent, verified = %self.names, ?name, cause, "refused a forward; further ones of this tunnel are told at debug level");
        }
    }
}

#[cfg(test)]
mod tests;
