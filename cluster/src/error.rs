//! What a request to the API can end in, in one line that an operator can act on.

use std::{fmt, time::Duration};

/// Longest text of the API server that an error repeats, in bytes.
const MAX_MESSAGE: usize = 300;

/// A request that gave nothing: `create tokenreviews: 503 ServiceUnavailable: etcd is down`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{verb} {resource}: {cause}")]
pub struct ApiError {
    /// What was asked for: `get`, `list`, `watch`, `create`, `update` or `delete`.
    pub verb: &'static str,
    /// Of what, in the plural.
    pub resource: &'static str,
    /// Why it gave nothing.
    pub cause: Cause,
}

/// Why a request gave nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The API server refused.
    #[error("{0}")]
    Status(Refusal),
    /// Our own rate limit: `--kubeconfig-qps`, `--kubeconfig-burst`.
    #[error("the client's own rate limit leaves no request for the next {:.1} s", wait.as_secs_f64())]
    Limited {
        /// How long the request would have had to wait, more than it has time.
        wait: Duration,
    },
    /// No answer in time.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// The time it had.
        after: Duration,
    },
    /// No connection, no TLS, or the connection broke.
    #[error("{0}")]
    Transport(String),
    /// Our credentials cannot be had.
    #[error("credentials: {0}")]
    Credentials(String),
    /// More than we are ready to hold.
    #[error("the answer is larger than {limit} bytes")]
    TooLarge {
        /// The bound.
        limit: usize,
    },
    /// The answer is not what the API promises.
    #[error("the answer makes no sense: {0}")]
    Malformed(String),
}

/// An answer that is an error: `metav1.Status`, as far as it was one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status, or in an event of a watch the code that stands for it.
    pub code: u16,
    /// `Status.reason`, such as `Conflict`; may be empty.
    pub reason: String,
    /// `Status.message`, cut, on one line; may be empty.
    pub message: String,
    /// When the API server wants to be asked again.
    pub retry_after: Option<Duration>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, " {}", self.reason)?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl ApiError {
    /// The HTTP status of an answer that was an error.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match &self.cause {
            Cause::Status(refusal) => Some(refusal.code),
            _ => None,
        }
    }

    /// Code and reason for a metric: those of the answer, or 0 and a word of ours where there was none that could be used.
    #[must_use]
    pub fn labels(&self) -> (u16, &str) {
        match &self.cause {
            Cause::Status(refusal) => (refusal.code, &refusal.reason),
            Cause::Limited { .. } => (0, "RateLimited"),
            Cause::TimedOut { .. } => (0, "TimedOut"),
            Cause::Transport(_) => (0, "Transport"),
            Cause::Credentials(_) => (0, "Credentials"),
            Cause::TooLarge { .. } => (0, "TooLarge"),
            Cause::Malformed(_) => (0, "Malformed"),
        }
    }

    /// Whether there is no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(404)
    }

    /// Whether the object has changed since we saw it, or exists already.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    /// Whether the version that a watch was to start from is forgotten.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.code() == Some(410)
    }
}

/// `text` on one line and not too long, whatever a peer made of it.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(MAX_MESSAGE));
    for c in text.chars() {
        if line.len() >= MAX_MESSAGE {
            line.push('…');
            break;
        }
        line.push(if c.is_control() { ' ' } else { c });
    }
    line
}

/// `error` with all of its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Many of the crates below repeat their cause in their own text.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    one_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_which_and_why_in_one_line() {
        let error = ApiError {
            verb: "create",
            resource: "tokenreviews",
            cause: Cause::Status(Refusal {
                code: 503,
                reason: "ServiceUnavailable".to_owned(),
                message: one_line("etcd\nis down"),
                retry_after: None,
            }),
        };
        assert_eq!(
            error.to_string(),
            "create tokenreviews: 503 ServiceUnavailable: etcd is down"
        );
        let bare = Cause::Status(Refusal {
            code: 500,
            ..Refusal::default()
        });
        assert_eq!(bare.to_string(), "500");
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let line = one_line(&"é".repeat(1000));
        assert!(
            line.len() <= MAX_MESSAGE + 4 && line.ends_with('…'),
            "{line}"
        );
    }
}
