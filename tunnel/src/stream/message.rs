//! Messages of the stream tunnel beside its connections: what both ends say before HTTP/2 ([`super::hello`]) and on the control stream
//! ([`super::control`]).
//!
//! ```text
//! 4 bytes: length, big-endian | so many bytes: one JSON object (RFC 8259) in UTF-8
//! ```
//!
//! An object whose fields are not all known is read all the same, so that either end can learn new words first.

use std::{fmt, io, marker::PhantomData};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::error::Category;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::grpc::{Code, Status};

/// Length in front of every message, in bytes.
pub const LENGTH_LEN: usize = 4;

/// Longest description of what is wrong with JSON, in bytes.
const MAX_WORDS: usize = 256;

/// How far a message's buffer may run ahead of the bytes that have come, so that a length alone costs little memory.
const FIRST_STEP: usize = 1024;

/// Why there is no message. None of its words are the peer's: a hello has a token in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The peer closed the connection between messages.
    #[error("peer closed the connection without a word")]
    Closed,
    /// The peer closed the connection inside a message.
    #[error("peer closed the connection after {got} of {wanted} bytes of a message")]
    Truncated {
        /// Bytes that came, those of the length included.
        got: usize,
        /// Bytes that were to come, as far as was known then.
        wanted: usize,
    },
    /// Longer than the receiver takes, or the sender may send.
    #[error("message of {len} bytes is longer than {limit}")]
    TooLong {
        /// Length of the message, in bytes.
        len: usize,
        /// Longest that is allowed, in bytes.
        limit: usize,
    },
    /// No message is empty.
    #[error("message of no bytes")]
    Empty,
    /// Not the JSON that it should be.
    #[error("message is not the JSON it should be: {0}")]
    Json(String),
    /// A field has a value that it may not have.
    #[error("{field} {problem}")]
    Field {
        /// Its name.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The connection broke.
    #[error("connection broke")]
    Io(#[source] io::Error),
}

impl MessageError {
    /// A field that is longer than it may be.
    pub(super) fn too_long(field: &'static str, len: usize, limit: usize) -> Self {
        Self::Field {
            field,
            problem: format!("of {len} bytes is longer than {limit}"),
        }
    }

    /// What the peer is told, if it still listens.
    #[must_use]
    pub fn to_status(&self) -> Status {
        let code = match self {
            Self::TooLong { .. } | Self::Field { .. } => Code::ResourceExhausted,
            Self::Empty | Self::Json(_) => Code::Internal,
            Self::Closed | Self::Truncated { .. } | Self::Io(_) => Code::Unavailable,
        };
        Status::new(code, self.to_string())
    }
}

/// `message` with its length in front.
///
/// # Errors
/// [`MessageError::TooLong`] if its JSON has more than `limit` bytes.
pub fn encode<T: Serialize>(message: &T, limit: usize) -> Result<Bytes, MessageError> {
    let mut out = BytesMut::new();
    out.put_u32(0);
    serde_json::to_writer((&mut out).writer(), message).map_err(|error| unreadable(&error))?;
    let len = out.len() - LENGTH_LEN;
    let too_long = MessageError::TooLong { len, limit };
    if len > limit {
        return Err(too_long);
    }
    let Ok(prefix) = u32::try_from(len) else {
        return Err(too_long);
    };
    if let Some(dst) = out.first_chunk_mut() {
        *dst = prefix.to_be_bytes();
    }
    Ok(out.freeze())
}

/// Reads the JSON of one message, which is an object.
///
/// # Errors
/// [`MessageError::Json`]
pub fn decode<T: DeserializeOwned>(message: &[u8]) -> Result<T, MessageError> {
    let read: Result<Object<T>, _> = serde_json::from_slice(message);
    match read {
        Ok(Object(message)) => Ok(message),
        Err(error) => Err(unreadable(&error)),
    }
}

/// A message that was read as an object and nothing else: serde takes an array for a struct too.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// serde's words without the values in them.
fn unreadable(error: &serde_json::Error) -> MessageError {
    let said = error.to_string();
    let is_ours = said.starts_with("missing field ") || said.starts_with("duplicate field ");
    let words = match error.classify() {
        // Says what JSON wants, and where.
        Category::Syntax | Category::Eof | Category::Io => said,
        Category::Data if is_ours => said,
        // `invalid type: string "…", expected u32 at line 1 column 2`
        Category::Data => match said.rsplit_once(", expected ") {
            Some((found, expected)) => {
                let kind = found.split(['"', '`']).next().unwrap_or_default();
                format!("{}, expected {expected}", kind.trim_end())
            }
            None => format!("at line {} column {}", error.line(), error.column()),
        },
    };
    MessageError::Json(shortened(&words, MAX_WORDS).to_owned())
}

/// At most `limit` bytes of `text`, whole characters.
pub(super) fn shortened(text: &str, limit: usize) -> &str {
    // `str::floor_char_boundary` is younger than our compiler floor.
    let end = (0..=limit.min(text.len())).rev();
    end.filter_map(|end| text.get(..end))
        .next()
        .unwrap_or_default()
}

/// Checks the length that stands in front of a message.
fn check_len(prefix: [u8; LENGTH_LEN], limit: usize) -> Result<usize, MessageError> {
    let len = usize::try_from(u32::from_be_bytes(prefix)).unwrap_or(usize::MAX);
    match len {
        0 => Err(MessageError::Empty),
        len if len > limit => Err(MessageError::TooLong { len, limit }),
        len => Ok(len),
    }
}

/// Cuts received bytes into messages, whatever the borders of the pieces that they come in.
///
/// Holds one piece and one message at most, if all messages are read before the next piece is pushed.
#[derive(Debug)]
pub struct Reader {
    limit: usize,
    bytes: BytesMut,
}

impl Reader {
    /// Reads messages whose JSON has up to `limit` bytes each.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: BytesMut::new(),
        }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: Bytes) {
        self.bytes.extend_from_slice(&piece);
    }

    /// The JSON of the next whole message; `None` when more must come first.
    ///
    /// # Errors
    /// [`MessageError::Empty`] and [`MessageError::TooLong`], both for good: nobody knows where the next message begins.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, MessageError> {
        let Some(&prefix) = self.bytes.first_chunk() else {
            return Ok(None);
        };
        let len = check_len(prefix, self.limit)?;
        if self.bytes.len() - LENGTH_LEN < len {
            return Ok(None);
        }
        self.bytes.advance(LENGTH_LEN);
        Ok(Some(self.bytes.split_to(len).freeze()))
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// [`MessageError::Truncated`] if it ends inside a message.
    pub fn finish(&self) -> Result<(), MessageError> {
        let got = self.bytes.len();
        let wanted = match self.bytes.first_chunk() {
            None if got == 0 => return Ok(()),
            None => LENGTH_LEN,
            Some(&prefix) => LENGTH_LEN + check_len(prefix, self.limit)?,
        };
        Err(MessageError::Truncated { got, wanted })
    }
}

/// Reads the JSON of one message of up to `limit` bytes, and not a byte of what follows it. Its memory grows with what comes, not
/// with the length that is claimed. Takes as long as the peer does: the caller has a deadline.
///
/// Not cancel safe: what has been read is lost with it, and `io` is of no more use.
///
/// # Errors
/// [`MessageError`], all but its `Json` and `Field`.
pub async fn read_message<R>(io: &mut R, limit: usize) -> Result<Vec<u8>, MessageError>
where
    R: AsyncRead + Unpin + ?Sized,
{
    let mut prefix = Vec::with_capacity(LENGTH_LEN);
    fill(io, &mut prefix, LENGTH_LEN).await?;
    let Some(&chunk) = prefix.first_chunk() else {
        return Err(match prefix.len() {
            0 => MessageError::Closed,
            got => MessageError::Truncated {
                got,
                wanted: LENGTH_LEN,
            },
        });
    };
    let len = check_len(chunk, limit)?;
    let mut message = Vec::with_capacity(len.min(FIRST_STEP));
    fill(io, &mut message, len).await?;
    if message.len() < len {
        return Err(MessageError::Truncated {
            got: LENGTH_LEN + message.len(),
            wanted: LENGTH_LEN + len,
        });
    }
    Ok(message)
}

/// Reads until `out` has `len` bytes, or the peer has closed the connection.
async fn fill<R>(io: &mut R, out: &mut Vec<u8>, len: usize) -> Result<(), MessageError>
where
    R: AsyncRead + Unpin + ?Sized,
{
    let limit = u64::try_from(len).unwrap_or(u64::MAX);
    match io.take(limit).read_to_end(out).await {
        Ok(_) => Ok(()),
        // TLS: a connection that was closed without saying so.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => Err(MessageError::Io(error)),
    }
}

/// Sends one message, and whatever `io` holds back.
///
/// Not cancel safe: part of it may have been sent.
///
/// # Errors
/// [`MessageError::TooLong`], with nothing sent, and [`MessageError::Io`].
pub async fn write_message<W, T>(io: &mut W, message: &T, limit: usize) -> Result<(), MessageError>
where
    W: AsyncWrite + Unpin + ?Sized,
    T: Serialize,
{
    let bytes = encode(message, limit)?;
    io.write_all(&bytes).await.map_err(MessageError::Io)?;
    io.flush().await.map_err(MessageError::Io)
}

#[cfg(test)]
mod tests;
