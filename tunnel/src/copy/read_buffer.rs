//! Reads of the right size: nothing held while idle, large for bulk.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

/// Size of the thread's scratch buffer; what is read into it is copied out exactly.
const SCRATCH: usize = 16 * 1024;

/// A scratch read of this much makes the next one a bulk read.
const BULK_FROM: usize = 8 * 1024;

/// Size of a buffer for bulk: what one connection may have outstanding towards the tunnel.
const BULK: usize = 64 * 1024;

thread_local! {
    /// Shared by all connections of the worker: idle ones have no buffer of their own.
    static SCRATCH_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH]);
}

/// How one connection reads.
#[derive(Debug, Default)]
pub(super) struct ReadBuffer {
    is_bulk: bool,
    /// Only while `is_bulk`, and only while data keeps coming.
    bulk: BytesMut,
}

impl ReadBuffer {
    /// Reads what is there, at most `max` bytes, which are at least one; empty at end of file.
    pub(super) fn poll_read<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut R,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<Bytes>> {
        if self.is_bulk {
            self.poll_bulk(reader, cx, max)
        } else {
            self.poll_scratch(reader, cx, max)
        }
    }

    fn poll_scratch<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut R,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<Bytes>> {
        SCRATCH_BUFFER.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(scratch.get_mut(..max.min(SCRATCH)).unwrap_or_default());
            ready!(Pin::new(reader).poll_read(cx, &mut buf))?;
            self.is_bulk = buf.filled().len() >= BULK_FROM;
            Poll::Ready(Ok(Bytes::copy_from_slice(buf.filled())))
        })
    }

    fn poll_bulk<R: AsyncRead + Unpin>(
        &mut self,
        reader: &mut R,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<Bytes>> {
        if self.bulk.capacity() < SCRATCH {
            self.bulk = BytesMut::with_capacity(BULK);
        }
        match poll_read_buf(Pin::new(reader), cx, &mut (&mut self.bulk).limit(max)) {
            Poll::Ready(Ok(len)) => {
                // A short read must not pin a long buffer.
                if len < BULK_FROM {
                    let bytes = Bytes::copy_from_slice(&self.bulk);
                    *self = Self::default();
                    return Poll::Ready(Ok(bytes));
                }
                Poll::Ready(Ok(self.bulk.split().freeze()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                *self = Self::default();
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn bytes_come_in_order_through_every_size_and_idle_holds_nothing() {
        let (mut far, mut near) = tokio::io::duplex(256 * 1024);
        let mut buffer = ReadBuffer::default();
        for size in [1, 7_000, 16_384, 100_000, 3, 65_536, 65_536, 1] {
            let sent: Vec<u8> = (0..size).map(|i| u8::try_from(i % 251).unwrap()).collect();
            far.write_all(&sent).await.unwrap();
            let mut got = Vec::new();
            while got.len() < size {
                got.extend_from_slice(
                    &poll_fn(|cx| buffer.poll_read(&mut near, cx, usize::MAX))
                        .await
                        .unwrap(),
                );
            }
            assert_eq!(got, sent);
        }
        poll_fn(|cx| {
            assert!(buffer.poll_read(&mut near, cx, usize::MAX).is_pending());
            Poll::Ready(())
        })
        .await;
        assert_eq!(buffer.bulk.capacity(), 0);
        drop(far);
        assert!(
            poll_fn(|cx| buffer.poll_read(&mut near, cx, usize::MAX))
                .await
                .unwrap()
                .is_empty()
        );
    }
}
