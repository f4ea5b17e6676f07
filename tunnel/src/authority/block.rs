//! One header block: collected from the client's frames, rewritten, and laid out in frames again.

use std::ops::Range;

use bytes::BytesMut;

use super::{
    MAX_BLOCK_BYTES, MAX_LIST_BYTES,
    frame::{HEAD_BYTES, Head, MAX_FRAME_BYTES, flag, kind},
    hpack::{Decoder, Field, HpackError, encode_literal},
};

/// What stands in for an `:authority` that isn't one.
const REPLACEMENT: &[u8] = b"localhost";

/// Bytes of a `HEADERS` frame's priority fields (RFC 9113, section 6.2).
const PRIORITY_BYTES: usize = 5;

/// What a client did that makes its connection unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum Violation {
    #[error(
        "frame of type {kind:#04x} on stream {stream} within the header block of stream {open}"
    )]
    Interleaved { kind: u8, stream: u32, open: u32 },
    #[error("CONTINUATION on stream {stream} without a header block")]
    StrayContinuation { stream: u32 },
    #[error("PUSH_PROMISE from a client")]
    PushPromise,
    #[error("HEADERS on stream 0")]
    StreamZero,
    #[error("header frame of {len} bytes, more than {MAX_FRAME_BYTES}")]
    FrameTooLong { len: usize },
    #[error("HEADERS of {len} bytes without room for its padding or priority")]
    Layout { len: usize },
    #[error("header block of more than {MAX_BLOCK_BYTES} bytes on stream {stream}")]
    BlockTooLarge { stream: u32 },
    #[error("decode the header block of stream {stream}")]
    Hpack {
        stream: u32,
        #[source]
        source: HpackError,
    },
}

/// A header block of which at least one frame's head has come.
pub(super) struct Block {
    stream: u32,
    /// `END_STREAM` and `PRIORITY`, the flags of the first frame that the rewritten block keeps.
    flags: u8,
    /// Bytes of the block on the wire, frame heads included, so that empty frames count too.
    wire_bytes: usize,
    priority: Option<[u8; PRIORITY_BYTES]>,
    /// The coded fields; while `HEADERS` comes in, with its padding and priority.
    fragment: Vec<u8>,
}

impl Block {
    /// Starts a block with the head of its `HEADERS`.
    pub(super) fn open(head: Head) -> Result<Self, Violation> {
        if head.stream == 0 {
            return Err(Violation::StreamZero);
        }
        let flags = head.flags & (flag::END_STREAM | flag::PRIORITY);
        let block = Self {
            stream: head.stream,
            flags,
            wire_bytes: 0,
            priority: None,
            fragment: Vec::new(),
        };
        block.announce(head)
    }

    /// Goes on with the head of another frame, which must be this block's `CONTINUATION`.
    pub(super) fn resume(self, head: Head) -> Result<Self, Violation> {
        if head.kind != kind::CONTINUATION || head.stream != self.stream {
            return Err(Violation::Interleaved {
                kind: head.kind,
                stream: head.stream,
                open: self.stream,
            });
        }
        self.announce(head)
    }

    /// Counts a frame before its payload is there, so that the payload needs no check.
    fn announce(mut self, head: Head) -> Result<Self, Violation> {
        self.wire_bytes += HEAD_BYTES + head.len;
        if self.wire_bytes > MAX_BLOCK_BYTES {
            return Err(Violation::BlockTooLarge {
                stream: self.stream,
            });
        }
        Ok(self)
    }

    /// Adds a piece of the announced payload.
    pub(super) fn push(&mut self, payload: &[u8]) {
        self.fragment.extend_from_slice(payload);
    }

    /// Ends the frame of `head`, whose payload is complete.
    pub(super) fn end_frame(&mut self, head: Head) -> Result<(), Violation> {
        if head.kind != kind::HEADERS {
            return Ok(());
        }
        let malformed = Violation::Layout { len: head.len };
        let mut rest = self.fragment.as_slice();
        let mut padding = 0;
        if head.has(flag::PADDED) {
            let Some((&len, behind)) = rest.split_first() else {
                return Err(malformed);
            };
            (padding, rest) = (usize::from(len), behind);
        }
        if head.has(flag::PRIORITY) {
            let Some((&priority, behind)) = rest.split_first_chunk() else {
                return Err(malformed);
            };
            (self.priority, rest) = (Some(priority), behind);
        }
        let Some(len) = rest.len().checked_sub(padding) else {
            return Err(malformed);
        };
        let start = self.fragment.len() - rest.len();
        self.fragment.truncate(start + len);
        self.fragment.drain(..start);
        Ok(())
    }

    /// Decodes the complete block and appends its frames for h2 to `out`: at most [`MAX_LIST_BYTES`] and five frames'
    /// heads.
    pub(super) fn rewrite(
        self,
        decoder: &mut Decoder,
        out: &mut BytesMut,
    ) -> Result<(), Violation> {
        let mut list = List::default();
        decoder
            .decode(&self.fragment, MAX_LIST_BYTES, |field| list.push(field))
            .map_err(|source| Violation::Hpack {
                stream: self.stream,
                source,
            })?;
        self.lay_out(&list.finish(), out);
        Ok(())
    }

    /// Splits `fields` into `HEADERS` and as many `CONTINUATION` as it takes.
    fn lay_out(&self, fields: &[u8], out: &mut BytesMut) {
        let priority = self
            .priority
            .as_ref()
            .map_or([].as_slice(), |priority| priority);
        let (mut kind, mut flags, mut prefix, mut rest) =
            (kind::HEADERS, self.flags, priority, fields);
        loop {
            let (piece, behind) = rest.split_at(rest.len().min(MAX_FRAME_BYTES - prefix.len()));
            if behind.is_empty() {
                flags |= flag::END_HEADERS;
            }
            let head = Head {
                len: prefix.len() + piece.len(),
                kind,
                flags,
                stream: self.stream,
            };
            out.extend_from_slice(&head.to_bytes());
            out.extend_from_slice(prefix);
            out.extend_from_slice(piece);
            if behind.is_empty() {
                return;
            }
            (kind, flags, prefix, rest) = (kind::CONTINUATION, 0, &[], behind);
        }
    }
}

/// Fields as literals, with a note of what matters for the authority.
#[derive(Default)]
struct List {
    fields: Vec<u8>,
    /// Whether an `:authority` has come. Another is left alone; h2 refuses it.
    saw_authority: bool,
    /// Where the first `:authority` stands and whether it is never-indexed, if `http` can't parse it.
    unparsable: Option<(Range<usize>, bool)>,
    is_connect: bool,
}

impl List {
    fn push(&mut self, field: Field<'_>) {
        let start = self.fields.len();
        encode_literal(field, &mut self.fields);
        match field.name {
            b":authority" if !self.saw_authority => {
                self.saw_authority = true;
                if http::uri::Authority::try_from(field.value).is_err() {
                    self.unparsable = Some((start..self.fields.len(), field.never_indexed));
                }
            }
            b":method" => self.is_connect |= field.value == b"CONNECT",
            _ => {}
        }
    }

    /// The fields for h2.
    fn finish(mut self) -> Vec<u8> {
        // The authority of a CONNECT is where to connect to (RFC 9113, section 8.5). There h2's refusal is right.
        if let Some((place, never_indexed)) = self.unparsable.filter(|_| !self.is_connect) {
            let mut field = Vec::new();
            encode_literal(
                Field {
                    name: b":authority",
                    value: REPLACEMENT,
                    never_indexed,
                },
                &mut field,
            );
            self.fields.splice(place, field);
        }
        self.fields
    }
}
