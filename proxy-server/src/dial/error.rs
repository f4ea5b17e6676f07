//! Why a dial gave no connection, and what each frontend says then.

use std::time::Duration;

use egress_policy::EgressRefused;
use http::StatusCode;
use tunnel::dial::{self, Refusal, RefusalKind};

use crate::{metrics::DialFailure, registry::AgentId};

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
    #[error("{} (agent {agent})", .refusal.text)]
    Refused {
        /// Which agent.
        agent: AgentId,
        /// In the style of Go's dialler.
        refusal: Refusal,
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
        cause: dial::DialError,
    },
    /// What was asked for is no address.
    #[error("{cause}")]
    BadTarget {
        /// What is wrong with it.
        #[source]
        cause: dial::DialError,
    },
    /// The egress policy of this server.
    #[error("refused by egress policy of the proxy server: {0}")]
    Denied(#[from] EgressRefused),
    /// There is an egress policy, and what was asked for has no port that it could look at.
    #[error("refused by egress policy of the proxy server: {0} has no port number")]
    NoPort(String),
    /// A bound was hit.
    #[error("{cause} (agent {agent})")]
    Limit {
        /// Which agent.
        agent: AgentId,
        /// Which bound.
        #[source]
        cause: dial::DialError,
    },
}

impl DialError {
    pub(super) fn new(agent: AgentId, cause: dial::DialError) -> Self {
        match cause {
            dial::DialError::Refused(refusal) => Self::Refused { agent, refusal },
            dial::DialError::AddressTooLong => Self::BadTarget { cause },
            dial::DialError::TooManyDials | dial::DialError::TooManyConnections => {
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
            Self::Denied(_) | Self::NoPort(_) => StatusCode::FORBIDDEN,
            Self::Lost { .. } => StatusCode::BAD_GATEWAY,
            Self::Refused { refusal, .. } => status_of(refusal),
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

    /// What it counts as.
    #[must_use]
    pub fn metric(&self) -> DialFailure {
        match self {
            Self::NoAgent => DialFailure::NoAgent,
            Self::ShuttingDown => DialFailure::ShuttingDown,
            Self::Refused { .. } => DialFailure::ErrorResponse,
            Self::TimedOut { .. } => DialFailure::BackendDialTimeout,
            Self::Lost {
                cause: dial::DialError::Abandoned,
                ..
            } => DialFailure::GivenUp,
            Self::Lost { .. } => DialFailure::BackendClose,
            Self::BadTarget { .. } => DialFailure::BadTarget,
            Self::Denied(_) | Self::NoPort(_) => DialFailure::Policy,
            Self::Limit { .. } => DialFailure::Limit,
        }
    }
}

/// What an agent of ours has told where the words of upstream's mean the same, or else what its words mean: a frontend cannot tell
/// tunnels apart.
fn status_of(refusal: &Refusal) -> StatusCode {
    match refusal.kind {
        RefusalKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        RefusalKind::TooMany => StatusCode::SERVICE_UNAVAILABLE,
        RefusalKind::Failed | RefusalKind::Forbidden | RefusalKind::Malformed => {
            status_of_reason(&refusal.text)
        }
    }
}

/// Upstream's table (`mapDialErrorToHTTPStatus`): time-outs, then exhausted descriptors, and all else is the gateway's.
///
/// The one place where text is looked at: on a packet tunnel an agent has no other way to say what happened.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: &str) -> DialError {
        DialError::Refused {
            agent: AgentId::new("a"),
            refusal: Refusal::failed(reason),
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
        for (kind, status) in [
            (RefusalKind::TimedOut, 504),
            (RefusalKind::Forbidden, 502),
            (RefusalKind::Malformed, 502),
            (RefusalKind::TooMany, 503),
        ] {
            let refused = DialError::Refused {
                agent: AgentId::new("a"),
                refusal: Refusal {
                    kind,
                    text: "something".to_owned(),
                },
            };
            assert_eq!(refused.http_status().as_u16(), status, "{kind:?}");
        }
        // The agent's id is no part of its words.
        let id = DialError::Refused {
            agent: AgentId::new("timeout-1"),
            refusal: Refusal::failed("connection refused"),
        };
        assert_eq!(id.http_status().as_u16(), 502);
    }

    #[test]
    fn every_failure_has_its_status() {
        let agent = || AgentId::new("a");
        assert_eq!(DialError::NoAgent.http_status().as_u16(), 503);
        assert_eq!(
            DialError::new(agent(), dial::DialError::TunnelLost)
                .http_status()
                .as_u16(),
            502
        );
        assert_eq!(
            DialError::new(agent(), dial::DialError::TooManyDials)
                .http_status()
                .as_u16(),
            503
        );
        assert_eq!(
            DialError::new(agent(), dial::DialError::AddressTooLong)
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
