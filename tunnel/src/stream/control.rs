//! What both ends tell each other on the control stream of a tunnel, in messages of [`super::message`].
//!
//! A message of a type that is not known is none, and no error: a later version may have more of them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::message::{self, MessageError, shortened};

/// Longest JSON of a control message, in bytes.
pub const MAX_CONTROL_MESSAGE: usize = 4 * 1024;

/// Longest name of a forward's target, in bytes.
pub const MAX_NAME: usize = 253;

/// From the server to its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToAgent {
    /// There will be no new dials here: the server leaves, find another.
    Drain,
    /// How many servers there are, when that has changed.
    ServerCount {
        /// The number.
        count: u32,
    },
    /// There is no connection for a forward.
    ForwardRefused {
        /// The agent's number of the forward.
        id: u64,
        /// Why, for the agent's log: log it as `Debug`, it is the peer's. Cut when it is sent, to what a message has room for.
        reason: String,
    },
}

/// From the agent to its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToServer {
    /// No new dials, please: the agent leaves.
    Drain,
    /// What the agent carries, on all its tunnels.
    Load {
        /// Established connections.
        connections: u32,
        /// Dials in progress.
        dials: u32,
    },
    /// Asks for a connection to the target of that name at the server.
    Forward {
        /// The agent's number of it, used once on a tunnel.
        id: u64,
        /// At most [`MAX_NAME`] bytes.
        name: String,
    },
    /// Nobody waits for this forward any more.
    ForwardGivenUp {
        /// The agent's number of it.
        id: u64,
    },
}

/// What every message has.
#[derive(Deserialize)]
struct Kind {
    r#type: String,
}

#[derive(Deserialize)]
struct Count {
    count: u32,
}

#[derive(Deserialize)]
struct Load {
    connections: u32,
    dials: u32,
}

#[derive(Deserialize)]
struct Id {
    id: u64,
}

#[derive(Deserialize)]
struct Forward {
    id: u64,
    name: String,
}

#[derive(Deserialize)]
struct Refusal {
    id: u64,
    #[serde(default)]
    reason: String,
}

impl ToAgent {
    /// Its bytes, length included.
    ///
    /// # Errors
    /// None that these messages lead to: what is too long is cut.
    pub fn encode(&self) -> Result<Bytes, MessageError> {
        let Self::ForwardRefused { id, reason } = self else {
            return message::encode(self, MAX_CONTROL_MESSAGE);
        };
        // JSON may need up to six bytes for one.
        let mut limit = reason.len().min(MAX_CONTROL_MESSAGE);
        loop {
            let reason = shortened(reason, limit).to_owned();
            let cut = Self::ForwardRefused { id: *id, reason };
            match message::encode(&cut, MAX_CONTROL_MESSAGE) {
                Err(MessageError::TooLong { .. }) if limit > 0 => limit /= 2,
                encoded => return encoded,
            }
        }
    }

    /// Reads a message's JSON; `None` if its type is unknown.
    ///
    /// # Errors
    /// [`MessageError::Json`]: no object, or not the fields of its type.
    pub fn decode(json: &[u8]) -> Result<Option<Self>, MessageError> {
        let Kind { r#type } = message::decode(json)?;
        Ok(Some(match r#type.as_str() {
            "drain" => Self::Drain,
            "server_count" => {
                let Count { count } = message::decode(json)?;
                Self::ServerCount { count }
            }
            "forward_refused" => {
                let Refusal { id, reason } = message::decode(json)?;
                Self::ForwardRefused { id, reason }
            }
            _ => return Ok(None),
        }))
    }
}

impl ToServer {
    /// Its bytes, length included.
    ///
    /// # Errors
    /// [`MessageError::Field`] for a name longer than [`MAX_NAME`].
    pub fn encode(&self) -> Result<Bytes, MessageError> {
        if let Self::Forward { name, .. } = self {
            check_name(name)?;
        }
        message::encode(self, MAX_CONTROL_MESSAGE)
    }

    /// Reads a message's JSON; `None` if its type is unknown.
    ///
    /// # Errors
    /// [`MessageError::Json`]: no object, or not the fields of its type. [`MessageError::Field`] for a name longer than
    /// [`MAX_NAME`].
    pub fn decode(json: &[u8]) -> Result<Option<Self>, MessageError> {
        let Kind { r#type } = message::decode(json)?;
        Ok(Some(match r#type.as_str() {
            "drain" => Self::Drain,
            "load" => {
                let Load { connections, dials } = message::decode(json)?;
                Self::Load { connections, dials }
            }
            "forward" => {
                let Forward { id, name } = message::decode(json)?;
                check_name(&name)?;
                Self::Forward { id, name }
            }
            "forward_given_up" => {
                let Id { id } = message::decode(json)?;
                Self::ForwardGivenUp { id }
            }
            _ => return Ok(None),
        }))
    }
}

fn check_name(name: &str) -> Result<(), MessageError> {
    if name.len() > MAX_NAME {
        return Err(MessageError::too_long("name", name.len(), MAX_NAME));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
