//! Lets requests through to h2 whose `:authority` the `http` crate can't parse.
//!
//! kube-apiserver dials the gRPC frontend's Unix socket with grpc-go, which sends the percent-encoded path of the
//! socket as `:authority` (`%2Frun%2Fx.sock`; older versions the raw path). h2 resets such a stream with
//! `PROTOCOL_ERROR` before anybody sees the request. [`AuthorityRewriter`] sits between the socket and h2's server
//! and puts `localhost` in its place (wire-protocol.md, T1 and section 9.2; egress-selector.md, E1).
//!
//! # How
//!
//! The adapter walks over frame heads and touches only header blocks: `HEADERS` and `CONTINUATION`, trailers
//! included. It keeps the client's HPACK table, decodes each block, and hands h2 the same fields as literals without
//! indexing, so that h2's own table stays empty and both stay in step. Fields that were never-indexed stay so.
//! Everything else passes as it is, in the caller's buffer: the payload of `DATA` isn't copied or looked at. Only
//! what follows a header block's start within one read takes the way through a buffer of the adapter's own
//! ([`AuthorityRewriter::moved_bytes`] counts it).
//!
//! An authority that parses is kept, and so is an unparsable one of a `CONNECT` request, where it says what to
//! connect to and h2 is right to refuse it.
//!
//! # Limits
//!
//! - [`MAX_BLOCK_BYTES`] for a header block on the wire, [`MAX_LIST_BYTES`] for its fields, checked while it is
//!   decoded.
//! - 4,096 bytes of HPACK table and 16,384 bytes of payload in a header frame: HTTP/2's initial values. A server
//!   behind the adapter must not advertise a larger `SETTINGS_HEADER_TABLE_SIZE`. A larger `SETTINGS_MAX_FRAME_SIZE`
//!   is fine as long as clients keep their header frames to 16,384 bytes, as grpc-go does.
//! - Memory of a connection: the table, and while header blocks come in, one block, its rewritten form and the rest
//!   of one read.
//!
//! # Violations
//!
//! A client that breaks the rules for header blocks or HPACK, or passes a limit, ends its connection the way h2 ends
//! one: the adapter shows h2 a frame that can't stand there, followed by the end of the stream, and h2 sends `GOAWAY`
//! (`FRAME_SIZE_ERROR` for a header frame that is too long, `PROTOCOL_ERROR` for all else, as h2 does for compression
//! errors). What it was is logged at debug level. What isn't HTTP/2 at all, by the first 24 bytes, passes as it is
//! for h2 to refuse. If the client's stream ends within a header block, h2 sees it end before the block.
//!
//! # Why our own HPACK
//!
//! h2 doesn't export its decoder. Of the crates that were tried, httlib-hpack panics on the one-byte block `7f` (an
//! integer cut off) and on one in twenty short random blocks, and takes any Huffman padding. hpack, fluke-hpack and
//! loona-hpack are one code base: it passes RFC 7541's examples and didn't panic in seven million random blocks, but
//! it offers no way to stop while it decodes (a block of 64 KiB gave a list of 240 MB), builds its Huffman table anew
//! for each string (0.7 s for a block of 64 KiB, optimised), accepts size updates anywhere in a block, and doesn't
//! say which fields were never-indexed.

mod block;
mod frame;
mod hpack;

use std::{
    fmt, io, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use block::{Block, Violation};
use frame::{HEAD_BYTES, Head, MAX_FRAME_BYTES, flag, kind};
use hpack::Decoder;

/// Largest header block on the wire in bytes, heads of its frames included. grpc-go's takes some 200 bytes.
pub const MAX_BLOCK_BYTES: usize = 64 * 1024;

/// Largest header list in bytes, as RFC 9113, section 6.5.2 counts them: 32 for each field besides its name and
/// value. Also the most that a block can grow to by rewriting, frame heads aside.
pub const MAX_LIST_BYTES: usize = 64 * 1024;

/// What every HTTP/2 client sends first (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A client's connection as h2's server can read it; see the [module's documentation](self).
///
/// Reading gives the client's bytes with header blocks rewritten. Writing, also vectored, goes straight through.
///
/// Both are cancel safe: nothing that was read is held by a future.
pub struct AuthorityRewriter<T> {
    io: T,
    state: State,
    decoder: Decoder,
    /// Read, but neither passed nor taken into a block. Between reads at most part of a frame head.
    raw: BytesMut,
    /// Ready for the caller, ahead of `raw`: a rewritten block or a frame head.
    out: BytesMut,
    moved_bytes: u64,
}

/// Where the next byte of the client belongs.
///
/// ```text
/// Preface --24 bytes--> Between --other head--> Passing --payload--> Between
///    |                    |  ^
///    |                    |  +--END_HEADERS-------------------+
///    |                    +--HEADERS head--> Block <--> BetweenFrames
///    +--anything else--> Foreign                (either way: CONTINUATION)
/// ```
///
/// The end of the stream and violations end in `Ended`, from anywhere.
enum State {
    Preface {
        seen: usize,
    },
    Between,
    Passing {
        left: usize,
    },
    /// In the payload of a header frame with this head.
    Block {
        block: Block,
        head: Head,
        left: usize,
    },
    /// A `CONTINUATION` must come.
    BetweenFrames {
        block: Block,
    },
    Foreign,
    Ended,
}

impl<T> AuthorityRewriter<T> {
    /// Wraps the server's end of a connection from which nothing has been read yet.
    pub fn new(io: T) -> Self {
        Self {
            io,
            state: State::Preface { seen: 0 },
            decoder: Decoder::new(),
            raw: BytesMut::new(),
            out: BytesMut::new(),
            moved_bytes: 0,
        }
    }

    /// How many bytes from the client went through the adapter's own buffer instead of straight to the caller's:
    /// header blocks, what came behind one in the same read, and frame heads that reads cut apart.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Walks over `bytes`, which continue the client's stream, as far as they may pass as they are. Returns how many
    /// that is.
    fn walk(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while !rest.is_empty() {
            let passed = match &mut self.state {
                State::Preface { seen } => {
                    let expected = PREFACE.get(*seen..).unwrap_or_default();
                    let len = expected.len().min(rest.len());
                    *seen += len;
                    if rest.get(..len) != expected.get(..len) {
                        self.state = State::Foreign;
                    } else if *seen == PREFACE.len() {
                        self.state = State::Between;
                    }
                    len
                }
                State::Between => match Head::parse(rest) {
                    Some(head) if !head.carries_header_block() => {
                        self.state = State::passing(head.len);
                        HEAD_BYTES
                    }
                    _ => break,
                },
                State::Passing { left } => {
                    let len = rest.len().min(*left);
                    self.state = State::passing(*left - len);
                    len
                }
                State::Foreign => rest.len(),
                State::Block { .. } | State::BetweenFrames { .. } | State::Ended => break,
            };
            rest = rest.get(passed..).unwrap_or_default();
        }
        bytes.len() - rest.len()
    }

    /// Fills `buf` with what is at hand, as far as it goes.
    fn deliver(&mut self, buf: &mut ReadBuf<'_>) {
        loop {
            give(&mut self.out, buf, usize::MAX);
            if buf.remaining() == 0 || self.raw.is_empty() {
                break;
            }
            match mem::replace(&mut self.state, State::Ended) {
                State::Passing { left } => {
                    let given = give(&mut self.raw, buf, left);
                    self.state = State::passing(left - given);
                }
                State::Block {
                    mut block,
                    head,
                    left,
                } => {
                    let taken = self.raw.split_to(left.min(self.raw.len()));
                    block.push(&taken);
                    self.state = State::Block {
                        block,
                        head,
                        left: left - taken.len(),
                    };
                    self.end_frame();
                }
                state @ (State::Between | State::BetweenFrames { .. }) => {
                    let Some(head) = Head::parse(&self.raw) else {
                        self.state = state;
                        break;
                    };
                    let bytes = self.raw.split_to(HEAD_BYTES);
                    self.begin_frame(state, head, &bytes);
                }
                // Both pass all bytes in place, so none are left over.
                state @ (State::Preface { .. } | State::Foreign) => {
                    self.state = state;
                    break;
                }
                State::Ended => self.raw.clear(),
            }
        }
        // Connections are many and header blocks few: hold no memory until the next one.
        for buffer in [&mut self.raw, &mut self.out] {
            if buffer.is_empty() {
                *buffer = BytesMut::new();
            }
        }
    }

    /// Goes from `state`, in which a frame starts, into the frame with this head, which came as `bytes`.
    fn begin_frame(&mut self, state: State, head: Head, bytes: &[u8]) {
        let block = match (state, head.kind) {
            // Ahead of all else, as in h2.
            _ if head.carries_header_block() && head.len > MAX_FRAME_BYTES => {
                Err(Violation::FrameTooLong { len: head.len })
            }
            (State::BetweenFrames { block }, _) => block.resume(head),
            (_, kind::HEADERS) => Block::open(head),
            (_, kind::CONTINUATION) => Err(Violation::StrayContinuation {
                stream: head.stream,
            }),
            (_, kind::PUSH_PROMISE) => Err(Violation::PushPromise),
            (_, _) => {
                self.out.extend_from_slice(bytes);
                self.state = State::passing(head.len);
                return;
            }
        };
        match block {
            Ok(block) => {
                self.state = State::Block {
                    block,
                    head,
                    left: head.len,
                };
                self.end_frame();
            }
            Err(violation) => self.refuse(&violation, head),
        }
    }

    /// Leaves the current header frame if its payload is complete, and with the last one the block.
    fn end_frame(&mut self) {
        match mem::replace(&mut self.state, State::Ended) {
            State::Block {
                mut block,
                head,
                left: 0,
            } => match block.end_frame(head) {
                Ok(()) if head.has(flag::END_HEADERS) => {
                    match block.rewrite(&mut self.decoder, &mut self.out) {
                        Ok(()) => self.state = State::Between,
                        Err(violation) => self.refuse(&violation, head),
                    }
                }
                Ok(()) => self.state = State::BetweenFrames { block },
                Err(violation) => self.refuse(&violation, head),
            },
            state => self.state = state,
        }
    }

    /// Ends the stream with a frame for which h2 sends the right `GOAWAY`.
    fn refuse(&mut self, violation: &Violation, head: Head) {
        tracing::debug!(
            error = violation as &dyn std::error::Error,
            "client broke HTTP/2's rules for header blocks"
        );
        let frame = match violation {
            Violation::FrameTooLong { .. } => head,
            // h2 sees only whole blocks, so this can't belong to one.
            _ => Head {
                len: 0,
                kind: kind::CONTINUATION,
                flags: flag::END_HEADERS,
                stream: 1,
            },
        };
        self.out.extend_from_slice(&frame.to_bytes());
        self.raw.clear();
        self.state = State::Ended;
    }
}

impl State {
    /// The state with `left` bytes to go of a payload that passes.
    fn passing(left: usize) -> Self {
        if left == 0 {
            Self::Between
        } else {
            Self::Passing { left }
        }
    }
}

impl<T: AsyncRead + Unpin> AuthorityRewriter<T> {
    /// Reads once: into `buf` what may pass as it is, into `raw` what follows. All that `raw` held before, part of a
    /// frame head, comes first.
    fn fill(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (start, held) = (buf.filled().len(), self.raw.len());
        if buf.remaining() <= held {
            return self.fill_head(cx);
        }
        buf.put_slice(&self.raw);
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if !matches!(read, Poll::Ready(Ok(()))) {
            buf.set_filled(start);
            return read;
        }
        let bytes = buf.filled().get(start..).unwrap_or_default();
        if bytes.len() <= held {
            // Whatever the end cuts apart, h2 sees it cut, but for header blocks, of which it sees all or nothing.
            if matches!(self.state, State::BetweenFrames { .. }) {
                buf.set_filled(start);
            }
            self.raw.clear();
            self.state = State::Ended;
            return read;
        }
        let passed = self.walk(bytes);
        let rest = bytes.get(passed..).unwrap_or_default();
        self.raw.clear();
        self.raw.extend_from_slice(rest);
        self.moved_bytes += rest.len() as u64;
        buf.set_filled(start + passed);
        read
    }

    /// Reads no more than the rest of a frame head, for a caller whose buffer is too small to continue it in place.
    fn fill_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut head = [0; HEAD_BYTES];
        let missing = HEAD_BYTES.saturating_sub(self.raw.len());
        let mut head = ReadBuf::new(head.get_mut(..missing).unwrap_or_default());
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut head))?;
        if head.filled().is_empty() {
            if matches!(self.state, State::Between) {
                self.out = mem::take(&mut self.raw);
            }
            self.raw.clear();
            self.state = State::Ended;
        }
        self.raw.extend_from_slice(head.filled());
        self.moved_bytes += head.filled().len() as u64;
        Poll::Ready(Ok(()))
    }
}

/// Moves up to `max` bytes from `source` to `buf` and returns how many.
fn give(source: &mut BytesMut, buf: &mut ReadBuf<'_>, max: usize) -> usize {
    let given = source.split_to(source.len().min(buf.remaining()).min(max));
    buf.put_slice(&given);
    given.len()
}

impl<T: AsyncRead + Unpin> AsyncRead for AuthorityRewriter<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let start = buf.filled().len();
        loop {
            this.deliver(buf);
            let is_done = buf.filled().len() > start || buf.remaining() == 0;
            if is_done || matches!(this.state, State::Ended) {
                return Poll::Ready(Ok(()));
            }
            ready!(this.fill(cx, buf))?;
            if buf.filled().len() > start {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for AuthorityRewriter<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

/// Shows no bytes of the connection.
impl<T: fmt::Debug> fmt::Debug for AuthorityRewriter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityRewriter")
            .field("io", &self.io)
            .field("decoder", &self.decoder)
            .field("raw", &self.raw.len())
            .field("out", &self.out.len())
            .field("moved_bytes", &self.moved_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
