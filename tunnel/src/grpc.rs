//! gRPC over HTTP/2 DATA: the 5-byte prefix, statuses and the headers of a streaming call.
//!
//! Source: <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>. No compression, no deadlines: upstream's
//! peers send neither.

use std::fmt;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request};

/// Compression flag and big-endian length, in front of every message.
pub const PREFIX_LEN: usize = 5;

/// Largest message that grpc-go takes by default, in bytes without the prefix; ours takes as much and sends far less.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;

/// `content-type` of a call and its answer.
pub const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// How far a message's buffer may run ahead of the bytes that have come, so that a length alone costs little memory.
const ASSEMBLY_STEP: usize = 64 * 1024;

/// Writes the prefix of an uncompressed message of `len` bytes.
///
/// # Panics
/// In debug builds, if `len` is more than [`MAX_MESSAGE`].
#[inline]
pub fn put_prefix(dst: &mut BytesMut, len: usize) {
    debug_assert!(
        len <= MAX_MESSAGE,
        "a message of {len} bytes kills the stream of every upstream receiver"
    );
    dst.put_u8(0);
    dst.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
}

/// gRPC status codes that occur here, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// The stream ended as it should.
    Ok = 0,
    /// The caller gave the call up.
    Canceled = 1,
    /// Whatever upstream's handlers return as a plain error.
    Unknown = 2,
    /// A deadline passed.
    DeadlineExceeded = 4,
    /// A limit was passed, such as that of a message's size.
    ResourceExhausted = 8,
    /// No such service or method, or a compressed message.
    Unimplemented = 12,
    /// The bytes make no sense.
    Internal = 13,
    /// The server is going away.
    Unavailable = 14,
    /// The peer may not do this.
    Unauthenticated = 16,
}

impl Code {
    /// grpc-go's name of the code, as it stands in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Canceled => "Canceled",
            Self::Unknown => "Unknown",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::Unimplemented => "Unimplemented",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
            Self::Unauthenticated => "Unauthenticated",
        }
    }

    fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Ok,
            1 => Self::Canceled,
            4 => Self::DeadlineExceeded,
            8 => Self::ResourceExhausted,
            12 => Self::Unimplemented,
            13 => Self::Internal,
            14 => Self::Unavailable,
            16 => Self::Unauthenticated,
            _ => Self::Unknown,
        }
    }

    /// The code that a stream reset counts as (the gRPC protocol's table of HTTP/2 error codes).
    #[must_use]
    pub fn from_reset(reason: h2::Reason) -> Self {
        match reason {
            h2::Reason::NO_ERROR => Self::Internal,
            h2::Reason::REFUSED_STREAM => Self::Unavailable,
            h2::Reason::CANCEL => Self::Canceled,
            h2::Reason::ENHANCE_YOUR_CALM => Self::ResourceExhausted,
            _ => Self::Internal,
        }
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// For the operator of the other side; may be empty.
    pub message: String,
}

impl Status {
    /// A status with a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    /// The orderly end.
    #[must_use]
    pub fn ok() -> Self {
        Self::new(Code::Ok, "")
    }

    /// `grpc-status` and `grpc-message`.
    #[must_use]
    pub fn to_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(2);
        headers.insert("grpc-status", HeaderValue::from(u16::from(self.code as u8)));
        if !self.message.is_empty()
            && let Ok(message) = HeaderValue::try_from(percent_encode(&self.message))
        {
            headers.insert("grpc-message", message);
        }
        headers
    }

    /// Reads `grpc-status` and `grpc-message`; `None` if there is no status in `headers`.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let number = headers
            .get("grpc-status")?
            .to_str()
            .ok()?
            .parse::<u8>()
            .unwrap_or(2);
        let message = headers
            .get("grpc-message")
            .map(|value| percent_decode(value.as_bytes()))
            .unwrap_or_default();
        Some(Self {
            code: Code::from_number(number),
            message,
        })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code.name())?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

/// Why a stream of messages cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FramingError {
    /// The sender compressed a message; nothing here announces a compression.
    #[error("compressed message, and no compression was agreed on")]
    Compressed,
    /// Longer than the receiver takes.
    #[error("grpc: received message larger than max ({len} vs. {max})")]
    TooLong {
        /// Length that the prefix claims, in bytes.
        len: usize,
        /// What the receiver takes.
        max: usize,
    },
    /// The stream ended inside a message.
    #[error("stream ended inside a message")]
    Truncated,
}

impl FramingError {
    /// The status that the sender is told.
    #[must_use]
    pub fn to_status(self) -> Status {
        let code = match self {
            Self::Compressed => Code::Unimplemented,
            Self::TooLong { .. } => Code::ResourceExhausted,
            Self::Truncated => Code::Internal,
        };
        Status::new(code, self.to_string())
    }
}

/// Cuts received DATA into messages, whatever the borders of its chunks.
///
/// A message that lies within one chunk is a slice of it; one that straddles chunks is assembled once. Holds at most one
/// message of the limit and one chunk.
#[derive(Debug)]
pub struct MessageReader {
    max_message: usize,
    chunk: Bytes,
    prefix: [u8; PREFIX_LEN],
    /// Bytes of the prefix seen, while it straddles chunks.
    prefix_len: usize,
    partial: Option<Partial>,
}

#[derive(Debug)]
struct Partial {
    len: usize,
    bytes: BytesMut,
}

impl MessageReader {
    /// Reads messages of up to `max_message` bytes each.
    #[must_use]
    pub fn new(max_message: usize) -> Self {
        Self {
            max_message,
            chunk: Bytes::new(),
            prefix: [0; PREFIX_LEN],
            prefix_len: 0,
            partial: None,
        }
    }

    /// Takes the next chunk. The messages of the chunk before must have been read.
    ///
    /// # Panics
    /// In debug builds, if they have not.
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(
            self.chunk.is_empty(),
            "read all messages before the next chunk"
        );
        self.chunk = chunk;
    }

    /// The next whole message, without its prefix; `None` when the chunk is used up.
    ///
    /// # Errors
    /// [`FramingError::Compressed`] and [`FramingError::TooLong`], both final: the stream must be ended.
    pub fn next_message(&mut self) -> Result<Option<Bytes>, FramingError> {
        if let Some(partial) = &mut self.partial {
            let wanted = partial.len - partial.bytes.len();
            let part = self.chunk.split_to(wanted.min(self.chunk.len()));
            partial.reserve_for(part.len());
            partial.bytes.extend_from_slice(&part);
            if part.len() < wanted {
                return Ok(None);
            }
            return Ok(self.partial.take().map(|partial| partial.bytes.freeze()));
        }
        let Some(len) = self.next_len()? else {
            return Ok(None);
        };
        if self.chunk.len() >= len {
            return Ok(Some(self.chunk.split_to(len)));
        }
        let mut partial = Partial {
            len,
            bytes: BytesMut::new(),
        };
        let part = self.chunk.split_to(self.chunk.len());
        partial.reserve_for(part.len());
        partial.bytes.extend_from_slice(&part);
        self.partial = Some(partial);
        Ok(None)
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// [`FramingError::Truncated`] if it ends inside a message.
    pub fn finish(&self) -> Result<(), FramingError> {
        if self.partial.is_none() && self.prefix_len == 0 {
            Ok(())
        } else {
            Err(FramingError::Truncated)
        }
    }

    fn next_len(&mut self) -> Result<Option<usize>, FramingError> {
        let wanted = PREFIX_LEN - self.prefix_len;
        let part = wanted.min(self.chunk.len());
        if let Some(dst) = self.prefix.get_mut(self.prefix_len..self.prefix_len + part) {
            self.chunk.copy_to_slice(dst);
        }
        self.prefix_len += part;
        if self.prefix_len < PREFIX_LEN {
            return Ok(None);
        }
        self.prefix_len = 0;
        let [flag, a, b, c, d] = self.prefix;
        if flag != 0 {
            return Err(FramingError::Compressed);
        }
        let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if len > self.max_message {
            return Err(FramingError::TooLong {
                len,
                max: self.max_message,
            });
        }
        Ok(Some(len))
    }
}

impl Partial {
    fn reserve_for(&mut self, part: usize) {
        let room = self.bytes.capacity() - self.bytes.len();
        if room < part {
            let wanted = self.len - self.bytes.len();
            // Doubling keeps the copies linear, the step keeps a mere claim of 4 MiB cheap.
            self.bytes
                .reserve(part.max(self.bytes.len()).max(ASSEMBLY_STEP).min(wanted));
        }
    }
}

/// The request of a streaming call to `path`, as grpc-go sends it.
///
/// # Errors
/// If `authority` is no authority or `path` is no path.
pub fn request(authority: &str, path: &str, user_agent: &'static str) -> http::Result<Request<()>> {
    let uri = http::Uri::builder()
        .scheme("https")
        .authority(authority)
        .path_and_query(path)
        .build()?;
    Request::builder()
        .method(Method::POST)
        .uri(uri)
        .header(header::CONTENT_TYPE, CONTENT_TYPE)
        .header(header::TE, "trailers")
        .header(header::USER_AGENT, user_agent)
        .body(())
}

/// The response that opens an answer of messages.
#[must_use]
pub fn response() -> Response<()> {
    let mut response = Response::new(());
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// The response that is a status and nothing else ("trailers-only").
#[must_use]
pub fn refusal(status: &Status) -> Response<()> {
    let mut response = response();
    response.headers_mut().extend(status.to_headers());
    response
}

/// Checks that `head` is a call to `path`.
///
/// # Errors
/// The response to refuse it with: 405 and 415 as grpc-go's server does, or a trailers-only `Unimplemented`.
pub fn check_request(head: &request::Parts, path: &str) -> Result<(), Box<Response<()>>> {
    if head.method != Method::POST {
        return Err(Box::new(http_error(StatusCode::METHOD_NOT_ALLOWED)));
    }
    let content_type = head
        .headers
        .get(header::CONTENT_TYPE)
        .map(HeaderValue::as_bytes)
        .unwrap_or_default();
    // `application/grpc`, `application/grpc+proto`, `application/grpc;charset=…`.
    let is_grpc = match content_type.strip_prefix(b"application/grpc") {
        Some(rest) => matches!(rest.first(), None | Some(b'+' | b';')),
        None => false,
    };
    if !is_grpc {
        return Err(Box::new(http_error(StatusCode::UNSUPPORTED_MEDIA_TYPE)));
    }
    if head.uri.path() != path {
        let status = Status::new(
            Code::Unimplemented,
            format!(
                "unknown method {}, this port serves {path}",
                head.uri.path()
            ),
        );
        return Err(Box::new(refusal(&status)));
    }
    Ok(())
}

fn http_error(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}

/// `grpc-message` is percent-encoded UTF-8: all but 0x20–0x7E, and `%` itself.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | ..0x20 | 0x7f.. => {
                let digit = |value: u8| {
                    char::from_digit(value.into(), 16)
                        .unwrap_or_default()
                        .to_ascii_uppercase()
                };
                out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
            byte => out.push(char::from(byte)),
        }
    }
    out
}

fn percent_decode(text: &[u8]) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = tail
            .get(..2)
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (byte, escaped) {
            (b'%', Some(value)) => {
                out.push(value);
                rest = tail.get(2..).unwrap_or_default();
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests;
