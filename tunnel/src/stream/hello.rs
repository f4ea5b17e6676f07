//! What both ends say before HTTP/2: the agent who it is, the server that it is welcome, or why not.
//!
//! Versions negotiate down: an agent says the highest that it speaks, a server answers with the lower of both. What a later version
//! adds are fields, which an earlier one ignores.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use super::message::{self, MessageError, Object, shortened};
use crate::grpc::{Code, Status};

/// The version that this code speaks.
pub const VERSION: u32 = 1;

/// The lowest version that it still speaks.
pub const MIN_VERSION: u32 = 1;

/// Longest JSON of a hello and of an answer, in bytes.
pub const MAX_HELLO: usize = 64 * 1024;

/// The only role that says hello.
pub const ROLE_AGENT: &str = "agent";

/// Feature of an end that carries connections from the agent's side to the server's.
pub const FORWARD: &str = "forward";

/// Longest agent id and server id, in bytes.
pub const MAX_ID: usize = 256;

/// Longest identifiers of an agent, in bytes.
pub const MAX_IDENTIFIERS: usize = 16 * 1024;

/// Longest token, in bytes; a service account's has about one thousand.
pub const MAX_TOKEN: usize = 16 * 1024;

/// Longest name of a peer's software, in bytes.
pub const MAX_SOFTWARE: usize = 256;

/// Most features, known or not.
pub const MAX_FEATURES: usize = 64;

/// Longest name of a feature, in bytes.
pub const MAX_FEATURE: usize = 64;

/// Longest reason of a refusal, in bytes.
pub const MAX_REASON: usize = 4 * 1024;

/// What is repeated of a role that is none, in bytes.
const MAX_QUOTED: usize = 64;

/// A service account's token: nothing but [`Token::expose`] shows it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(String);

impl Token {
    /// Wraps a token.
    pub fn new(token: impl Into<String>) -> Self {
        Self(token.into())
    }

    /// The token itself, for who reviews it. Never for a log or an error.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The agent's first message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Highest version that the agent speaks.
    pub version: u32,
    /// What it is: [`ROLE_AGENT`].
    pub role: String,
    /// What the agent calls itself. May be empty.
    pub agent_id: String,
    /// What it serves, as in upstream's header: `host=node-1&ipv4=10.0.0.7`.
    #[serde(default)]
    pub identifiers: String,
    /// A token that proves who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<Token>,
    /// Name and version of its software, for logs: log it as `Debug`, it is the peer's.
    #[serde(default)]
    pub software: String,
    /// What it can do beyond the version, such as [`FORWARD`].
    #[serde(default)]
    pub features: Vec<String>,
}

impl Hello {
    /// Checks what was received, and gives the version to speak. Whether this agent may have a tunnel is not decided here.
    ///
    /// # Errors
    /// The status to refuse it with: a wrong role, a version that is too old, a field beyond its limit.
    pub fn check(&self) -> Result<u32, Status> {
        // First, as another version may mean anything by the rest.
        if self.version < MIN_VERSION {
            return Err(Status::new(
                Code::Unimplemented,
                format!(
                    "agent speaks version {} of the stream tunnel, this server {MIN_VERSION} to {VERSION}",
                    self.version
                ),
            ));
        }
        if self.role != ROLE_AGENT {
            let role = shortened(&self.role, MAX_QUOTED);
            return Err(Status::new(
                Code::Unimplemented,
                format!("this port is for agents, not for the role {role:?}"),
            ));
        }
        let token = self.token.as_ref().map_or(0, |token| token.0.len());
        check_len("agent_id", self.agent_id.len(), MAX_ID)
            .and_then(|()| check_len("identifiers", self.identifiers.len(), MAX_IDENTIFIERS))
            .and_then(|()| check_len("token", token, MAX_TOKEN))
            .and_then(|()| check_peer(&self.software, &self.features))
            .map_err(|error| error.to_status())?;
        Ok(self.version.min(VERSION))
    }

    /// Whether the agent has `feature`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|name| name == feature)
    }
}

/// The server takes the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version to speak: the lower of both ends'.
    pub version: u32,
    /// Which server this is.
    pub server_id: String,
    /// How many servers there are.
    pub server_count: u32,
    /// Name and version of its software, for logs: log it as `Debug`, it is the peer's.
    #[serde(default)]
    pub software: String,
    /// What it can do beyond the version, such as [`FORWARD`].
    #[serde(default)]
    pub features: Vec<String>,
}

impl Welcome {
    fn check(&self) -> Result<(), MessageError> {
        if !(MIN_VERSION..=VERSION).contains(&self.version) {
            return Err(MessageError::Field {
                field: "version",
                problem: format!(
                    "{} was not offered: {MIN_VERSION} to {VERSION} was",
                    self.version
                ),
            });
        }
        check_len("server_id", self.server_id.len(), MAX_ID)?;
        check_peer(&self.software, &self.features)
    }

    /// Whether the server has `feature`.
    #[must_use]
    pub fn has(&self, feature: &str) -> bool {
        self.features.iter().any(|name| name == feature)
    }
}

fn check_len(field: &'static str, len: usize, limit: usize) -> Result<(), MessageError> {
    if len > limit {
        return Err(MessageError::too_long(field, len, limit));
    }
    Ok(())
}

fn check_peer(software: &str, features: &[String]) -> Result<(), MessageError> {
    check_len("software", software.len(), MAX_SOFTWARE)?;
    if features.len() > MAX_FEATURES {
        return Err(MessageError::Field {
            field: "features",
            problem: format!("are {}, more than {MAX_FEATURES}", features.len()),
        });
    }
    let longest = features.iter().map(String::len).max().unwrap_or(0);
    check_len("a name in features", longest, MAX_FEATURE)
}

/// The server's answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// HTTP/2 follows.
    Welcome(Welcome),
    /// Nothing follows.
    Refused(Status),
}

/// [`Answer`] as written: one of both fields.
#[derive(Serialize, Deserialize)]
struct WireAnswer {
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "object"
    )]
    welcome: Option<Welcome>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "object"
    )]
    refused: Option<WireStatus>,
}

#[derive(Serialize, Deserialize)]
struct WireStatus {
    code: String,
    #[serde(default)]
    reason: String,
}

/// A field that is there: an object.
fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Object::deserialize(deserializer).map(|object| Some(object.0))
}

impl From<&Answer> for WireAnswer {
    fn from(answer: &Answer) -> Self {
        match answer {
            Answer::Welcome(welcome) => Self {
                welcome: Some(welcome.clone()),
                refused: None,
            },
            Answer::Refused(status) => Self {
                welcome: None,
                refused: Some(WireStatus {
                    code: code_name(status.code).to_owned(),
                    reason: shortened(&status.message, MAX_REASON).to_owned(),
                }),
            },
        }
    }
}

impl TryFrom<WireAnswer> for Answer {
    type Error = MessageError;

    fn try_from(wire: WireAnswer) -> Result<Self, MessageError> {
        match (wire.welcome, wire.refused) {
            (Some(welcome), None) => {
                welcome.check()?;
                Ok(Self::Welcome(welcome))
            }
            (None, Some(refused)) => {
                check_len("reason", refused.reason.len(), MAX_REASON)?;
                Ok(Self::Refused(Status::new(
                    code_of(&refused.code),
                    refused.reason,
                )))
            }
            _ => Err(MessageError::Json(
                "one of the fields `welcome` and `refused` must be there".to_owned(),
            )),
        }
    }
}

/// Every code that a refusal may have, with its name in gRPC (<https://grpc.github.io/grpc/core/md_doc_statuscodes.html>). None
/// refuses with [`Code::Ok`].
const CODES: [(Code, &str); 8] = [
    (Code::Canceled, "CANCELLED"),
    (Code::Unknown, "UNKNOWN"),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    (Code::Unimplemented, "UNIMPLEMENTED"),
    (Code::Internal, "INTERNAL"),
    (Code::Unavailable, "UNAVAILABLE"),
    (Code::Unauthenticated, "UNAUTHENTICATED"),
];

fn code_name(code: Code) -> &'static str {
    let known = CODES.iter().find(|(known, _)| *known == code);
    known.map_or("UNKNOWN", |(_, name)| name)
}

fn code_of(name: &str) -> Code {
    let known = CODES.iter().find(|(_, known)| *known == name);
    known.map_or(Code::Unknown, |(code, _)| *code)
}

impl Hello {
    /// Reads a hello's JSON, as it is: [`Self::check`] comes next.
    ///
    /// # Errors
    /// [`MessageError::Json`]
    pub fn decode(message: &[u8]) -> Result<Self, MessageError> {
        message::decode(message)
    }
}

impl Answer {
    /// Reads an answer's JSON.
    ///
    /// # Errors
    /// [`MessageError::Json`], [`MessageError::Field`]: a field beyond its limit, a version that was not offered.
    pub fn decode(message: &[u8]) -> Result<Self, MessageError> {
        message::decode::<WireAnswer>(message)?.try_into()
    }
}

/// Says hello. Not cancel safe: part of it may have been sent.
///
/// # Errors
/// [`MessageError::TooLong`], with nothing sent, and [`MessageError::Io`].
pub async fn send_hello<W>(io: &mut W, hello: &Hello) -> Result<(), MessageError>
where
    W: AsyncWrite + Unpin + ?Sized,
{
    message::write_message(io, hello, MAX_HELLO).await
}

/// Reads a hello, and not a byte behind it. [`Hello::check`] comes next. Takes as long as the agent does: the caller has a
/// deadline. Not cancel safe: what has been read is lost.
///
/// # Errors
/// [`MessageError`]; the agent may be told its [`MessageError::to_status`].
pub async fn receive_hello<R>(io: &mut R) -> Result<Hello, MessageError>
where
    R: AsyncRead + Unpin + ?Sized,
{
    Hello::decode(&message::read_message(io, MAX_HELLO).await?)
}

/// Answers a hello; the reason of a refusal is cut to [`MAX_REASON`]. Not cancel safe: part of it may have been sent.
///
/// # Errors
/// [`MessageError::TooLong`], with nothing sent, and [`MessageError::Io`].
pub async fn send_answer<W>(io: &mut W, answer: &Answer) -> Result<(), MessageError>
where
    W: AsyncWrite + Unpin + ?Sized,
{
    message::write_message(io, &WireAnswer::from(answer), MAX_HELLO).await
}

/// Reads the server's answer, and not a byte of the HTTP/2 behind it. Takes as long as the server does: the caller has a deadline.
/// Not cancel safe: what has been read is lost.
///
/// # Errors
/// [`MessageError`]
pub async fn receive_answer<R>(io: &mut R) -> Result<Answer, MessageError>
where
    R: AsyncRead + Unpin + ?Sized,
{
    Answer::decode(&message::read_message(io, MAX_HELLO).await?)
}

#[cfg(test)]
mod tests;
