use std::{cell::Cell, future::poll_fn, task::Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Holds up to 10 bytes, and writes to the inside of a pipe how often it was asked to send.
#[derive(Debug)]
struct Holder {
    io: DuplexStream,
    held: Vec<u8>,
    sends: Rc<Cell<usize>>,
}

const ROOM: usize = 10;

impl Holder {
    fn new(pipe: usize) -> (Self, DuplexStream, Rc<Cell<usize>>) {
        let (io, far) = tokio::io::duplex(pipe);
        let sends = Rc::new(Cell::new(0));
        let holder = Self {
            io,
            held: Vec::new(),
            sends: sends.clone(),
        };
        (holder, far, sends)
    }
}

impl AsyncRead for Holder {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Holder {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        unreachable!("it takes everything")
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl Cork for Holder {
    fn take(&mut self, bufs: &[IoSlice<'_>]) -> Option<io::Result<usize>> {
        let before = self.held.len();
        for byte in bufs.iter().flat_map(|buf| buf.iter()) {
            if self.held.len() < ROOM {
                self.held.push(*byte);
            }
        }
        Some(Ok(self.held.len() - before))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() {
            self.sends.set(self.sends.get() + 1);
        }
        while !self.held.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.held))?;
            self.held.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

async fn send<T: Cork>(tap: &Tap<T>) {
    poll_fn(|cx| {
        tap.send(cx);
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn what_is_written_and_flushed_leaves_with_the_tap_in_one_piece() {
    let (holder, mut far, sends) = Holder::new(100);
    let (mut corked, tap) = cork(holder);
    send(&tap).await;
    for piece in [b"abc", b"def", b"ghi"] {
        corked.write_all(piece).await.unwrap();
        corked.flush().await.unwrap();
    }
    assert_eq!(sends.get(), 0);
    send(&tap).await;
    assert_eq!(sends.get(), 1);
    let mut came = [0; 9];
    far.read_exact(&mut came).await.unwrap();
    assert_eq!(&came, b"abcdefghi");
}

#[tokio::test]
async fn without_a_tap_a_flush_is_one() {
    let (holder, mut far, _) = Holder::new(100);
    let (mut corked, _tap) = cork(holder);
    corked.write_all(b"preface").await.unwrap();
    corked.flush().await.unwrap();
    let mut came = [0; 7];
    far.read_exact(&mut came).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_held_is_sent_and_waits_for_the_peer() {
    let (holder, mut far, _) = Holder::new(ROOM);
    let (mut corked, tap) = cork(holder);
    send(&tap).await;
    // Held, and in the pipe.
    corked.write_all(&[1; 2 * ROOM]).await.unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(Pin::new(&mut corked).poll_write(&mut cx, b"2").is_pending());
    tap.send(&mut cx);
    let mut came = [0; ROOM];
    far.read_exact(&mut came).await.unwrap();
    tap.send(&mut cx);
    corked.write_all(b"2").await.unwrap();
    far.read_exact(&mut came).await.unwrap();
    send(&tap).await;
    assert_eq!(far.read_u8().await.unwrap(), b'2');
}

#[tokio::test]
async fn shutting_down_sends_what_is_held_first() {
    let (holder, mut far, _) = Holder::new(100);
    let (mut corked, tap) = cork(holder);
    send(&tap).await;
    corked.write_all(b"last").await.unwrap();
    corked.shutdown().await.unwrap();
    let mut came = Vec::new();
    far.read_to_end(&mut came).await.unwrap();
    assert_eq!(came, b"last");
}

#[tokio::test]
async fn what_holds_nothing_back_sends_at_once() {
    let (near, mut far) = tokio::io::duplex(100);
    let (mut corked, tap) = cork(near);
    send(&tap).await;
    corked.write_all(b"now").await.unwrap();
    let mut came = [0; 3];
    far.read_exact(&mut came).await.unwrap();
}
