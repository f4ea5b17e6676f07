//! A reader that takes its time.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Sleep, sleep},
};

/// What is read between two pauses at most, in bytes.
const PIECE: usize = 16 * 1024;

/// Pauses before every read, and reads little at once.
#[derive(Debug)]
pub struct Slow<R> {
    reader: R,
    pause: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl<R> Slow<R> {
    /// Reads from `reader`, 16 KiB at most after every `pause`.
    pub fn new(reader: R, pause: Duration) -> Self {
        Self {
            reader,
            pause,
            sleep: Box::pin(sleep(pause)),
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Slow<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.sleep.as_mut().poll(cx));
        let mut piece = [0; PIECE];
        let room = piece.len().min(buf.remaining());
        let mut piece = ReadBuf::new(piece.get_mut(..room).unwrap_or_default());
        ready!(Pin::new(&mut this.reader).poll_read(cx, &mut piece))?;
        buf.put_slice(piece.filled());
        this.sleep.set(sleep(this.pause));
        Poll::Ready(Ok(()))
    }
}
