//! What both frontends ask for: a connection to a target, in time or with the reason why not.

use std::{cell::Cell, rc::Rc, sync::Arc, time::Duration};

use http::StatusCode;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tunnel::{
    ledger::Ledger,
    mux::{self, Connection},
};

use crate::{
    metrics::{DialFailure, Gauged, Metrics, PacketCounters, Timed},
    registry::{AgentId, Registry},
};

/// Longest reason phrase of a refused CONNECT, in bytes; it is what the user of kubectl gets to see.
const MAX_REASON: usize = 200;

/// Why a dial gave no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// No agent is there. Upstream's words.
    #[error("No agent available")]
    NoAgent,
    /// This server is shutting down.
    #[error("proxy server is shutting down")]
    ShuttingDown,
    /// The agent answered that it could not connect; its own words first.
    #[error("{reason} (agent {agent})")]
    Refused {
        /// Which agent.
        agent: AgentId,
        /// In the style of Go's dialler.
        reason: String,
    },
    /// The agent did not answer. Upstream's words first.
    #[error(
        "timed out waiting for backend dial: agent {agent} gave no answer for {target} within {after:?}"
    )]
    TimedOut {
        /// Which agent.
        agent: AgentId,
        /// What was to be dialled.
        target: String,
        /// How long it had.
        after: Duration,
    },
    /// The tunnel was lost or the agent gave up.
    #[error("{cause} (agent {agent})")]
    Lost {
        /// Which agent.
        agent: AgentId,
        /// What happened to the dial.
        #[source]
        cause: mux::DialError,
    },
    /// What was asked for is no address.
    #[error("{cause}")]
    BadTarget {
        /// What is wrong with it.
        #[source]
        cause: mux::DialError,
    },
    /// A bound was hit.
    #[error("{cause} (agent {agent})")]
    Limit {
        /// Which agent.
        agent: AgentId,
        /// Which bound.
        #[source]
        cause: mux::DialError,
    },
}

impl DialError {
    fn new(agent: AgentId, cause: mux::DialError) -> Self {
        match cause {
            mux::DialError::Refused(reason) => Self::Refused { agent, reason },
            mux::DialError::AddressTooLong => Self::BadTarget { cause },
            mux::DialError::TooManyDials | mux::DialError::TooManyConnections => {
                Self::Limit { agent, cause }
            }
            cause => Self::Lost { agent, cause },
        }
    }

    /// The status of the CONNECT that asked.
    #[must_use]
    pub fn http_status(&self) -> StatusCode {
        match self {
            Self::NoAgent | Self::ShuttingDown | Self::Limit { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::TimedOut { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::BadTarget { .. } => StatusCode::BAD_REQUEST,
            Self::Lost { .. } => StatusCode::BAD_GATEWAY,
            Self::Refused { reason, .. } => status_of_reason(reason),
        }
    }

    /// The body of the CONNECT's answer, with upstream's lead-ins.
    #[must_use]
    pub fn http_body(&self) -> String {
        match self {
            Self::NoAgent => format!("currently no tunnels available: {self}"),
            Self::TimedOut { .. } => format!("Backend dial timeout: {self}"),
            Self::Lost { .. } => format!("Backend context error: {self}"),
            _ => self.to_string(),
        }
    }

    /// The reason phrase of the CONNECT's answer: one printable line.
    #[must_use]
    pub fn http_reason(&self) -> String {
        let text = self.to_string();
        let printable = text
            .chars()
            .map(|c| if (' '..='~').contains(&c) { c } else { '?' });
        printable.take(MAX_REASON).collect()
    }

    fn metric(&self) -> DialFailure {
        match self {
            Self::NoAgent | Self::ShuttingDown => DialFailure::NoAgent,
            Self::Refused { .. } => DialFailure::ErrorResponse,
            Self::TimedOut { .. } => DialFailure::BackendDialTimeout,
            Self::Lost { .. } => DialFailure::BackendClose,
            Self::BadTarget { .. } | Self::Limit { .. } => DialFailure::Limit,
        }
    }
}

/// Upstream's table (`mapDialErrorToHTTPStatus`): time-outs, then exhausted descriptors, and all else is the gateway's.
///
/// The one place where text is looked at: an agent has no other way to say what happened.
fn status_of_reason(reason: &str) -> StatusCode {
    let reason = reason.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if has(&["timeout", "deadline exceeded"]) {
        StatusCode::GATEWAY_TIMEOUT
    } else if has(&["too many open files"]) {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::BAD_GATEWAY
    }
}

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
    /// How long a dial may take.
    pub dial_timeout: Duration,
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
        let attempt = Attempt {
            metrics: &self.metrics,
            is_over: Cell::new(false),
        };
        let outcome = self.try_dial(protocol, address).await;
        attempt.is_over.set(true);
        if let Err(error) = &outcome {
            self.metrics.dial_failed(error.metric());
            tracing::debug!(target = address, "dial failed: {error}");
        }
        outcome
    }

    async fn try_dial(&self, protocol: &str, address: &str) -> Result<Dialled, DialError> {
        if self.stop.is_cancelled() {
            return Err(DialError::ShuttingDown);
        }
        let backend = self.registry.choose().ok_or(DialError::NoAgent)?;
        let agent = backend.agent.clone();
        let since = Instant::now();
        let _pending = Gauged::new(&self.metrics.pending_dials);
        let connection =
            match timeout(self.dial_timeout, backend.tunnel.dial(protocol, address)).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(cause)) => return Err(DialError::new(agent, cause)),
                Err(_) => {
                    return Err(DialError::TimedOut {
                        agent,
                        target: address.to_owned(),
                        after: self.dial_timeout,
                    });
                }
            };
        self.metrics
            .dial_duration
            .observe(since.elapsed().as_secs_f64());
        let guard = Established {
            _established: Gauged::new(&self.metrics.established),
            _duration: Timed::new(&self.metrics.connection_duration),
        };
        Ok(Dialled {
            connection,
            agent,
            guard,
        })
    }
}

/// Counts a dial whose asker went away.
struct Attempt<'a> {
    metrics: &'a Metrics,
    is_over: Cell<bool>,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.is_over.get() {
            self.metrics.dial_failed(DialFailure::FrontendClose);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: &str) -> DialError {
        DialError::Refused {
            agent: AgentId::new("a"),
            reason: reason.to_owned(),
        }
    }

    #[test]
    fn an_agents_words_become_upstreams_status() {
        for (reason, status) in [
            ("dial tcp 192.0.2.1:80: i/o timeout", 504),
            ("context deadline exceeded", 504),
            ("dial tcp 192.0.2.1:80: socket: too many open files", 503),
            ("dial tcp 127.0.0.1:1: connect: connection refused", 502),
            ("dial tcp: lookup nowhere.invalid: no such host", 502),
            ("something new", 502),
        ] {
            assert_eq!(refused(reason).http_status().as_u16(), status, "{reason}");
        }
        // The agent's id is no part of its words.
        let id = DialError::Refused {
            agent: AgentId::new("timeout-1"),
            reason: "connection refused".to_owned(),
        };
        assert_eq!(id.http_status().as_u16(), 502);
    }

    #[test]
    fn every_failure_has_its_status() {
        let agent = || AgentId::new("a");
        assert_eq!(DialError::NoAgent.http_status().as_u16(), 503);
        assert_eq!(
            DialError::new(agent(), mux::DialError::TunnelLost)
                .http_status()
                .as_u16(),
            502
        );
        assert_eq!(
            DialError::new(agent(), mux::DialError::TooManyDials)
                .http_status()
                .as_u16(),
            503
        );
        assert_eq!(
            DialError::new(agent(), mux::DialError::AddressTooLong)
                .http_status()
                .as_u16(),
            400
        );
        let timed_out = DialError::TimedOut {
            agent: agent(),
            target: "t:1".into(),
            after: Duration::from_secs(15),
        };
        assert_eq!(timed_out.http_status().as_u16(), 504);
        assert!(
            timed_out
                .to_string()
                .starts_with("timed out waiting for backend dial")
        );
    }

    #[test]
    fn a_reason_phrase_is_one_short_printable_line() {
        let reason = refused(&format!("a\r\nb\u{fc}{}", "x".repeat(500))).http_reason();
        assert!(reason.starts_with("a??b?x") && reason.len() == MAX_REASON);
    }
}
