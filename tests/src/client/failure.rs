//! Why a dial gave no connection.

use std::{io, time::Duration};

/// Why a dial gave no connection, as seen by kube-apiserver.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialFailure {
    /// The server was not reached, or the connection to it broke before an answer.
    #[error("connect to the proxy server")]
    Connect(#[source] io::Error),
    /// The server answered CONNECT with another status than 200.
    #[error("{status} {reason}: {body:?}")]
    Status {
        /// Status code.
        status: u16,
        /// Reason phrase.
        reason: String,
        /// Everything behind the head, up to the end of the connection.
        body: String,
    },
    /// DIAL_RSP had an error.
    #[error("DIAL_RSP: {text}")]
    Response {
        /// Its text.
        text: String,
    },
    /// The stream ended, or the connection was closed, without an answer.
    #[error("closed without an answer: {how}")]
    Closed {
        /// How it ended.
        how: String,
    },
    /// Target bytes came right behind the answer, which kube-apiserver does not survive.
    #[error("unexpected {bytes} bytes of buffered data behind the answer")]
    EarlyBytes {
        /// How many.
        bytes: usize,
    },
    /// The answer is not one that the protocol has.
    #[error("not an answer: {0}")]
    Malformed(String),
    /// There was none in time.
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
}

impl DialFailure {
    /// The status of an answer to CONNECT.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// What the server or the agent gave as the cause: the body, or DIAL_RSP's error; empty if neither came.
    #[must_use]
    pub fn cause(&self) -> &str {
        match self {
            Self::Status { body, .. } => body,
            Self::Response { text } => text,
            _ => "",
        }
    }
}
