//! How much of an HTTP/2 connection is read before those who take its bytes have their turn.
//!
//! `h2` reads as long as there is something to read, and keeps what it has read for tasks that cannot run meanwhile. After a pause of this
//! process or of the network that is all that the kernel holds: 115 000 frames of one byte, 1.2 MB, would spend
//! [`SMALL_FRAME_BUDGET`] and end a tunnel whose readers all read.

use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

use crate::link::SMALL_FRAME_BUDGET;

/// Bytes that are read in one turn. Less is more turns for a busy connection, more a longer wait for everybody else.
pub const RATION: u32 = 512 * 1024;

/// What `h2` charges for a frame with one byte of payload, the most that it charges for any.
const FRAME_COST: usize = 255;

/// What that frame takes of a ration.
const FRAME_BYTES: usize = 10;

// A reader may be a turn late, whatever the frames are.
const _: () = assert!(2 * (RATION as usize / FRAME_BYTES + 1) * FRAME_COST <= SMALL_FRAME_BUDGET);

/// A connection that, each time [`RATION`] has been read, has nothing to read once and wakes the task at once.
#[derive(Debug)]
pub struct Rationed<T> {
    io: Take<T>,
    spent: Spent,
}

/// For whom may have the same connection read again in the same turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent(Rc<Cell<bool>>);

impl Spent {
    /// Whether a ration has been spent since the last call. The task has been woken for the next.
    pub(crate) fn take(&self) -> bool {
        self.0.take()
    }
}

impl<T: AsyncRead> Rationed<T> {
    /// Rations `io`.
    #[must_use]
    pub fn new(io: T) -> Self {
        Self {
            io: io.take(RATION.into()),
            spent: Spent::default(),
        }
    }

    pub(crate) fn spent(&self) -> Spent {
        self.spent.clone()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Rationed<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.io.limit() == 0 {
            this.io.set_limit(RATION.into());
            this.spent.0.set(true);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut this.io).poll_read(cx, buf)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Rationed<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().io.get_mut()).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().io.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().io.get_mut()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.get_mut().io.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.get_ref().is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Wake, Waker},
    };

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_turn_is_a_ration_and_the_next_one_comes_by_itself() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let len = 3 * RATION as usize / 2;
        let bytes = vec![1; len];
        let mut io = Rationed::new(&bytes[..]);
        let spent = io.spent();
        let mut read = |max: usize| {
            let mut space = vec![0; max];
            let mut buf = ReadBuf::new(&mut space);
            let polled = Pin::new(&mut io).poll_read(&mut cx, &mut buf);
            polled.map(|read| read.map(|()| buf.filled().len()).unwrap())
        };
        assert_eq!(read(1_000), Poll::Ready(1_000));
        assert_eq!(read(len), Poll::Ready(RATION as usize - 1_000));
        assert!(!spent.take());
        assert_eq!(read(len), Poll::Pending);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(spent.take() && !spent.take());
        assert_eq!(read(len), Poll::Ready(RATION as usize / 2));
        // The end, not a pause.
        assert_eq!(read(len), Poll::Ready(0));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    }
}
