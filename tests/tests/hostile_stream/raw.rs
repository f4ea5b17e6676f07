//! A peer made by hand.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use e2e::{client::Socket, harness::PATIENCE};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split},
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time::timeout,
};

use super::frames::{
    ACK, DATA, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, frame, settings,
};

/// Pieces of a flood that wait to be written.
const QUEUE: usize = 4;

/// Answers that wait to be written. Each end asks for one at a time.
const REPLIES: usize = 64;

/// What is sent at once.
const PIECE: usize = 32 * 1024;

/// What the other end has sent so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Answers to SETTINGS and to PING.
    pub(crate) acks: HashMap<u8, usize>,
    /// Streams with HEADERS, in their order, and the header block of each.
    pub(crate) heads: Vec<(u32, Vec<u8>)>,
    /// Streams that were reset, and the code.
    pub(crate) resets: HashMap<u32, u32>,
    /// Payload of each stream.
    pub(crate) data: HashMap<u32, Vec<u8>>,
    /// The last GOAWAY's code.
    pub(crate) goaway: Option<u32>,
    /// The connection has ended.
    pub(crate) is_over: bool,
}

impl Seen {
    /// Whether there was HEADERS or RST_STREAM on `stream`.
    pub(crate) fn has_answered(&self, stream: u32) -> bool {
        self.resets.contains_key(&stream) || self.heads.iter().any(|head| head.0 == stream)
    }
}

/// A peer that speaks HTTP/2 in either role: it acknowledges SETTINGS, answers PING, and does nothing else by itself.
#[derive(Debug)]
pub(crate) struct Raw {
    send: mpsc::Sender<Vec<u8>>,
    seen: watch::Receiver<Seen>,
    reader: AbortHandle,
    _tasks: JoinSet<()>,
}

impl Raw {
    /// Attacks a server, whose welcome has come.
    pub(crate) async fn agent(mut socket: Socket) -> Result<Self> {
        let mut preface = [0; PREFACE.len()];
        timeout(PATIENCE, socket.read_exact(&mut preface))
            .await
            .context("no HTTP/2")??;
        ensure!(preface == PREFACE, "{preface:?}");
        Self::start(socket, settings(3, 65_537)).await
    }

    /// Attacks an agent, which has been told that it is welcome.
    pub(crate) async fn server(socket: Socket) -> Result<Self> {
        Self::start(socket, [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await
    }

    async fn start(mut socket: Socket, first: Vec<u8>) -> Result<Self> {
        // In front of any answer.
        socket.write_all(&first).await?;
        socket.flush().await?;
        let (read, write) = split(socket);
        let (send, sent) = mpsc::channel(QUEUE);
        let (reply, replies) = mpsc::channel(REPLIES);
        let (shown, seen) = watch::channel(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(writing(write, sent, replies));
        let reader = tasks.spawn(async move {
            // However it ends.
            reading(read, reply, &shown).await.ok();
            shown.send_modify(|seen| seen.is_over = true);
        });
        Ok(Self {
            send,
            seen,
            reader,
            _tasks: tasks,
        })
    }

    /// Reads nothing more, and so answers nothing.
    pub(crate) fn stop_reading(&self) {
        self.reader.abort();
    }

    /// Whether it was taken to be sent; not if the other end has hung up.
    pub(crate) async fn send(&self, bytes: Vec<u8>) -> bool {
        let mut seen = self.seen.clone();
        tokio::select! {
            biased;
            // Fails when nothing is read any more; then writing fails, sooner or later.
            Ok(_) = seen.wait_for(|seen| seen.is_over) => false,
            sent = self.send.send(bytes) => sent.is_ok(),
        }
    }

    /// Sends all of it, or until the other end hangs up.
    pub(crate) async fn pour(&self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            if !self.send(piece.to_vec()).await {
                return;
            }
        }
    }

    /// Sends `flood` again and again, `least` times and until `meanwhile` is over; or until the other end hangs up.
    pub(crate) async fn flood(
        &self,
        flood: &[u8],
        least: usize,
        meanwhile: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let times = (PIECE / flood.len().max(1)).max(1);
        let piece = flood.repeat(times);
        let (is_over, over) = watch::channel(false);
        let flooding = async {
            let mut count = 0;
            while count < least || !*over.borrow() {
                if !self.send(piece.clone()).await {
                    return;
                }
                count += times;
            }
        };
        let meanwhile = async {
            let outcome = meanwhile.await;
            is_over.send_replace(true);
            outcome
        };
        let both = async { tokio::join!(flooding, meanwhile) };
        let ((), outcome) = timeout(2 * PATIENCE, both).await.context("it hangs")?;
        outcome
    }

    /// Waits until the other end has sent what `is_there` looks for.
    pub(crate) async fn until(&self, what: &str, is_there: impl Fn(&Seen) -> bool) -> Result<()> {
        let mut seen = self.seen.clone();
        let waiting = seen.wait_for(|seen| seen.is_over || is_there(seen));
        let seen = timeout(PATIENCE, waiting)
            .await
            .with_context(|| format!("never: {what}"))??;
        if !is_there(&seen) {
            bail!("it has hung up (GOAWAY {:?}) before: {what}", seen.goaway);
        }
        Ok(())
    }

    /// Waits for the end of the connection, and says with which GOAWAY it came.
    pub(crate) async fn end(&self) -> Result<Option<u32>> {
        let mut seen = self.seen.clone();
        let seen = timeout(PATIENCE, seen.wait_for(|seen| seen.is_over))
            .await
            .context("the tunnel does not end")??;
        Ok(seen.goaway)
    }

    /// What it has seen.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.borrow())
    }
}

/// Replies go first: a flood must not delay the answer to a ping.
async fn writing(
    mut write: WriteHalf<Socket>,
    mut sent: mpsc::Receiver<Vec<u8>>,
    mut replies: mpsc::Receiver<Vec<u8>>,
) {
    loop {
        let bytes = tokio::select! {
            biased;
            Some(reply) = replies.recv() => reply,
            sent = sent.recv() => match sent {
                Some(bytes) => bytes,
                None => return,
            },
        };
        if write.write_all(&bytes).await.is_err() || write.flush().await.is_err() {
            return;
        }
    }
}

async fn reading(
    mut read: ReadHalf<Socket>,
    reply: mpsc::Sender<Vec<u8>>,
    shown: &watch::Sender<Seen>,
) -> Result<()> {
    loop {
        let mut head = [0; 9];
        read.read_exact(&mut head).await?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let stream = u32::from_be_bytes(stream);
        let len = u32::from_be_bytes([0, a, b, c]);
        let mut payload = vec![0; usize::try_from(len)?];
        read.read_exact(&mut payload).await?;
        let number = |at: usize| {
            let bytes = payload.get(at..).and_then(|bytes| bytes.first_chunk());
            u32::from_be_bytes(bytes.copied().unwrap_or_default())
        };
        let (first, second) = (number(0), number(4));
        if matches!(kind, SETTINGS | PING) && flags & ACK == 0 {
            let answer: &[u8] = if kind == PING { &payload } else { &[] };
            reply.send(frame(kind, ACK, 0, answer)).await.ok();
            continue;
        }
        shown.send_modify(|seen| match kind {
            SETTINGS | PING => *seen.acks.entry(kind).or_default() += 1,
            HEADERS => seen.heads.push((stream, payload)),
            RST_STREAM => {
                seen.resets.insert(stream, first);
            }
            DATA => seen.data.entry(stream).or_default().extend(payload),
            GOAWAY => seen.goaway = Some(second),
            _ => {}
        });
    }
}
