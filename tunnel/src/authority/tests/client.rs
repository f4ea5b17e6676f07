//! A client under the tests' control: HPACK representations and frames of their choice, and a socket that delivers
//! them in pieces.

use std::collections::VecDeque;

use super::*;
use crate::authority::hpack::{Field, encode_integer, huffman};

/// How to write a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// As an index if a table has it, else with incremental indexing: what grpc-go does.
    Indexed,
    Incremental,
    Unindexed,
    NeverIndexed,
}

/// What a client writes, starting with preface and an empty SETTINGS.
pub(super) struct Client {
    pub(super) bytes: Vec<u8>,
    huffman: bool,
    /// Mirror of the client's own table: it decodes what was written.
    table: Decoder,
}

impl Client {
    pub(super) fn new() -> Self {
        let mut client = Self {
            bytes: PREFACE.to_vec(),
            huffman: true,
            table: Decoder::new(),
        };
        client.frame(0x4, 0, 0, &[]);
        client
    }

    pub(super) fn without_huffman() -> Self {
        Self {
            huffman: false,
            ..Self::new()
        }
    }

    pub(super) fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> &mut Self {
        let head = Head {
            len: payload.len(),
            kind,
            flags,
            stream,
        };
        self.bytes.extend(head.to_bytes());
        self.bytes.extend(payload);
        self
    }

    /// Codes a header list and follows it in the table. The block must be sent before the next one.
    pub(super) fn block(&mut self, list: &[(&str, &str, Form)]) -> Vec<u8> {
        let mut block = Vec::new();
        for &(name, value, form) in list {
            let start = block.len();
            self.field(name.as_bytes(), value.as_bytes(), form, &mut block);
            self.table
                .decode(&block[start..], usize::MAX, |_| {})
                .unwrap();
        }
        block
    }

    fn field(&self, name: &[u8], value: &[u8], form: Form, block: &mut Vec<u8>) {
        if let (Form::Indexed, Some(index)) = (form, self.find(|entry| entry == (name, value))) {
            return encode_integer(index, 7, 0x80, block);
        }
        let (prefix_bits, pattern) = match form {
            Form::Indexed | Form::Incremental => (6, 0x40),
            Form::Unindexed => (4, 0x00),
            Form::NeverIndexed => (4, 0x10),
        };
        match self.find(|entry| entry.0 == name) {
            Some(index) => encode_integer(index, prefix_bits, pattern, block),
            None => {
                block.push(pattern);
                self.string(name, block);
            }
        }
        self.string(value, block);
    }

    /// The index of the first entry of the tables that is wanted.
    fn find(&self, wanted: impl Fn((&[u8], &[u8])) -> bool) -> Option<usize> {
        let mut entries = (1..).map_while(|index| Some((index, self.table.entry(index)?)));
        entries
            .find(|(_, entry)| wanted(*entry))
            .map(|(index, _)| index)
    }

    fn string(&self, octets: &[u8], block: &mut Vec<u8>) {
        if self.huffman {
            let coded = huffman::encode(octets);
            encode_integer(coded.len(), 7, 0x80, block);
            block.extend(coded);
        } else {
            encode_integer(octets.len(), 7, 0x00, block);
            block.extend(octets);
        }
    }

    /// The request grpc-go sends for a tunnel, as one HEADERS with these flags besides END_HEADERS.
    pub(super) fn grpc_request(&mut self, stream: u32, flags: u8, authority: &str) -> &mut Self {
        let block = self.block(&grpc_list(authority));
        self.frame(kind::HEADERS, flags | flag::END_HEADERS, stream, &block)
    }
}

/// The header list grpc-go sends for a tunnel.
pub(super) fn grpc_list(authority: &str) -> Vec<(&str, &str, Form)> {
    [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/ProxyService/Proxy"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.81.1"),
        ("te", "trailers"),
        ("grpc-accept-encoding", "gzip"),
    ]
    .map(|(name, value)| (name, value, Form::Indexed))
    .to_vec()
}

/// A socket whose peer has sent these pieces. Each read gives at most one; before each it is pending once.
#[derive(Debug)]
pub(super) struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    is_ready: bool,
    /// After the last piece: end of stream, or silence.
    ends: bool,
    pub(super) reads: usize,
    pub(super) written: Vec<u8>,
}

impl Pieces {
    pub(super) fn new(pieces: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let pieces = pieces
            .into_iter()
            .filter(|piece| !piece.is_empty())
            .collect();
        Self {
            pieces,
            is_ready: false,
            ends: true,
            reads: 0,
            written: Vec::new(),
        }
    }

    /// Stays silent after the last piece instead of ending.
    pub(super) fn then_silent(self) -> Self {
        Self {
            ends: false,
            ..self
        }
    }
}

impl AsyncRead for Pieces {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.is_ready = !this.is_ready;
        if this.is_ready {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match this.pieces.front_mut() {
            Some(piece) => {
                let rest = piece.split_off(piece.len().min(buf.remaining()));
                buf.put_slice(piece);
                *piece = rest;
                if piece.is_empty() {
                    this.pieces.pop_front();
                }
                this.reads += 1;
                Poll::Ready(Ok(()))
            }
            None if this.ends => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }
}

impl AsyncWrite for Pieces {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written.extend(buf);
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What came out of an adapter, and the adapter.
pub(super) struct Rewritten {
    pub(super) bytes: Vec<u8>,
    pub(super) adapter: AuthorityRewriter<Pieces>,
    /// The most the adapter held between two reads of the caller.
    pub(super) held: usize,
}

/// Reads `pieces` through an adapter into buffers of `buf_bytes` up to the end of the stream.
pub(super) fn rewrite(pieces: impl IntoIterator<Item = Vec<u8>>, buf_bytes: usize) -> Rewritten {
    let mut adapter = AuthorityRewriter::new(Pieces::new(pieces));
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let (mut bytes, mut held) = (Vec::new(), 0);
    let mut space = vec![0; buf_bytes];
    loop {
        let mut buf = ReadBuf::new(&mut space);
        let read = Pin::new(&mut adapter).poll_read(&mut cx, &mut buf);
        held = held.max(adapter.raw.len() + adapter.out.len());
        match read {
            Poll::Ready(Ok(())) if buf.filled().is_empty() => {
                return Rewritten {
                    bytes,
                    adapter,
                    held,
                };
            }
            Poll::Ready(Ok(())) => bytes.extend(buf.filled()),
            Poll::Ready(Err(error)) => panic!("{error}"),
            Poll::Pending => assert!(buf.filled().is_empty()),
        }
    }
}

/// The frames behind the preface; panics if the last isn't whole.
pub(super) fn frames(bytes: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let mut rest = bytes.strip_prefix(PREFACE).unwrap();
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let head = Head::parse(rest).unwrap();
        frames.push((head, rest[HEAD_BYTES..HEAD_BYTES + head.len].to_vec()));
        rest = &rest[HEAD_BYTES + head.len..];
    }
    frames
}

/// A field as text, and whether it is never-indexed.
pub(super) type OwnedField = (String, String, bool);

/// The header list of each block in rewritten bytes. Panics unless each block stands for itself, without a table.
pub(super) fn lists(bytes: &[u8]) -> Vec<Vec<OwnedField>> {
    let (mut lists, mut block) = (Vec::new(), Vec::new());
    for (head, payload) in frames(bytes) {
        if !head.carries_header_block() {
            continue;
        }
        let skip = if head.has(flag::PRIORITY) { 5 } else { 0 };
        block.extend(&payload[skip..]);
        if head.has(flag::END_HEADERS) {
            let mut list = Vec::new();
            let mut decoder = Decoder::new();
            let text = |octets: &[u8]| String::from_utf8(octets.to_vec()).unwrap();
            decoder
                .decode(
                    &mem::take(&mut block),
                    usize::MAX,
                    |Field {
                         name,
                         value,
                         never_indexed,
                     }| {
                        list.push((text(name), text(value), never_indexed));
                    },
                )
                .unwrap();
            assert_eq!(decoder.table().0, 0, "the rewritten block uses the table");
            lists.push(list);
        }
    }
    lists
}
