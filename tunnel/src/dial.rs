//! A dial, from both ends, whatever carries it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use crate::{
    connection::Connection,
    mux,
    packet::{ConnectId, DialId},
    stream,
};

/// Why a dial gave no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The agent could not connect; its own words, in Go's style.
    #[error("{}", .0.text)]
    Refused(Refusal),
    /// The agent gave the dial up without an answer.
    #[error("agent gave the dial up")]
    Abandoned,
    /// The tunnel went away before the agent answered.
    #[error("tunnel to the agent was lost during the dial")]
    TunnelLost,
    /// [`mux::MAX_ADDRESS`]
    #[error("address is too long")]
    AddressTooLong,
    /// [`mux::MAX_PENDING_DIALS`]
    #[error("too many dials are pending on the tunnel to the agent")]
    TooManyDials,
    /// [`mux::MAX_CONNECTIONS`]
    #[error("too many connections on the tunnel to the agent")]
    TooManyConnections,
    /// The agent answered with an id that names nothing or is in use.
    #[error("agent answered with the unusable connection id {0}")]
    InvalidConnectId(ConnectId),
}

/// A dial that waits for the agent's answer. Resolves once; dropped before that, the agent is told to give it up, and a connection
/// that it has made meanwhile is closed.
#[derive(Debug)]
#[must_use = "dropping a dial gives it up"]
pub enum Dial {
    /// On a packet tunnel.
    Packet(mux::Dial),
    /// On a stream tunnel.
    Stream(stream::Dial),
}

impl Dial {
    /// The id it has on the wire, for both ends' logs; `None` if it failed before it was sent.
    #[must_use]
    pub fn id(&self) -> Option<DialId> {
        match self {
            Self::Packet(dial) => dial.id(),
            Self::Stream(dial) => dial.id(),
        }
    }
}

impl Future for Dial {
    type Output = Result<Connection, DialError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Packet(dial) => Pin::new(dial).poll(cx).map_ok(Connection::from),
            Self::Stream(dial) => Pin::new(dial).poll(cx).map_ok(Connection::from),
        }
    }
}

/// Why an agent gives no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of reason; a packet tunnel has no room for it, so that it arrives as [`RefusalKind::Failed`].
    pub kind: RefusalKind,
    /// The reason, in the words of Go's dialler.
    pub text: String,
}

impl Refusal {
    /// Of the kind that tells no more than its words.
    pub fn failed(text: impl Into<String>) -> Self {
        Self {
            kind: RefusalKind::Failed,
            text: text.into(),
        }
    }
}

/// Kinds of reasons for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The target could not be reached.
    Failed,
    /// It did not answer in time.
    TimedOut,
    /// A rule forbids it.
    Forbidden,
    /// The address is none.
    Malformed,
    /// A limit was hit.
    TooMany,
}

/// A dial that a server asks its agent for. Dropped without an answer, it is refused.
#[derive(Debug)]
pub enum IncomingDial {
    /// Of a packet tunnel.
    Packet(mux::IncomingDial),
    /// Of a stream tunnel.
    Stream(stream::IncomingDial),
}

impl From<mux::IncomingDial> for IncomingDial {
    fn from(dial: mux::IncomingDial) -> Self {
        Self::Packet(dial)
    }
}

impl From<stream::IncomingDial> for IncomingDial {
    fn from(dial: stream::IncomingDial) -> Self {
        Self::Stream(dial)
    }
}

impl IncomingDial {
    /// The id it has on the wire.
    #[must_use]
    pub fn id(&self) -> DialId {
        match self {
            Self::Packet(dial) => dial.id(),
            Self::Stream(dial) => dial.id(),
        }
    }

    /// Go network name, not checked.
    #[must_use]
    pub fn network(&self) -> &str {
        match self {
            Self::Packet(dial) => dial.network(),
            Self::Stream(dial) => dial.network(),
        }
    }

    /// `host:port`, not checked.
    #[must_use]
    pub fn address(&self) -> &str {
        match self {
            Self::Packet(dial) => dial.address(),
            Self::Stream(dial) => dial.address(),
        }
    }

    /// Resolves when the server has given it up, or the tunnel is gone. Cancel safe.
    pub async fn cancelled(&mut self) {
        match self {
            Self::Packet(dial) => dial.cancelled().await,
            Self::Stream(dial) => dial.cancelled().await,
        }
    }

    /// Tells the server that there is a connection.
    ///
    /// # Errors
    /// If nobody wants it any more, or the tunnel takes no more; the server has then been told, as far as it can be.
    pub fn accept(self) -> Result<Connection, DialError> {
        match self {
            Self::Packet(dial) => dial.accept().map(Connection::from),
            Self::Stream(dial) => dial.accept().map(Connection::from),
        }
    }

    /// Tells the server why there is none.
    pub fn refuse(self, refusal: Refusal) {
        match self {
            Self::Packet(dial) => dial.refuse(refusal.text),
            Self::Stream(dial) => dial.refuse(&refusal),
        }
    }
}
