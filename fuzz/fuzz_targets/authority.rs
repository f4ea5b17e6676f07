//! Any bytes, cut anywhere, through `tunnel::authority`.

#![no_main]

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};
use tokio::io::{AsyncRead, ReadBuf};
use tunnel::authority::{AuthorityRewriter, MAX_LIST_BYTES};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Sizes of reads from the socket, used round and round.
    reads: [u8; 8],
    /// Size of the caller's buffer.
    buf_bytes: u16,
    /// Whether HTTP/2's preface goes ahead.
    is_http2: bool,
    stream: &'a [u8],
}

fuzz_target!(|input: Input<'_>| {
    let preface: &[u8] = if input.is_http2 {
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    } else {
        &[]
    };
    let stream = [preface, input.stream].concat();

    let output = rewrite(&stream, &[usize::MAX], 1 << 16);
    // Every header block has at least one frame's head.
    assert!(output.len() <= stream.len() + stream.len() / 9 * (MAX_LIST_BYTES + 50));

    let reads = input.reads.map(|size| usize::from(size) + 1);
    let pieces = rewrite(&stream, &reads, usize::from(input.buf_bytes) + 1);
    assert!(pieces == output, "depends on how the input is cut");

    // Without more than this no list is near the limit, which `localhost` could then pass.
    if output.len() < 6_000 {
        assert!(
            rewrite(&output, &[usize::MAX], 1 << 16) == output,
            "rewriting again changes something"
        );
    }
});

/// What a caller with a buffer of `buf_bytes` reads of `stream`.
fn rewrite(stream: &[u8], reads: &[usize], buf_bytes: usize) -> Vec<u8> {
    let mut adapter = AuthorityRewriter::new(Pieces {
        rest: stream,
        reads: reads.iter().cycle(),
    });
    let mut cx = Context::from_waker(Waker::noop());
    let mut space = vec![0; buf_bytes];
    let mut output = Vec::new();
    loop {
        let mut buf = ReadBuf::new(&mut space);
        match Pin::new(&mut adapter).poll_read(&mut cx, &mut buf) {
            Poll::Ready(Ok(())) if buf.filled().is_empty() => return output,
            Poll::Ready(Ok(())) => output.extend_from_slice(buf.filled()),
            other => panic!("{other:?}"),
        }
    }
}

/// A socket that is always ready, with reads of given sizes.
struct Pieces<'a, I> {
    rest: &'a [u8],
    reads: I,
}

impl<'a, I: Iterator<Item = &'a usize> + Unpin> AsyncRead for Pieces<'a, I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let size = self.reads.next().copied().unwrap_or(1);
        let (piece, rest) = self
            .rest
            .split_at(size.min(self.rest.len()).min(buf.remaining()));
        buf.put_slice(piece);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}
