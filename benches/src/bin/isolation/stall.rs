//! Connections that nobody reads.
//!
//! Whoever pushes writes until it is told to stop and then ends its side; whoever stalls reads nothing until then, and then all.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use e2e::{
    client::Client,
    harness::{PATIENCE, eventually},
    say,
    targets::Target,
};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::cli::Direction;

/// What the kernel may hold at the target's end of a connection: thousands of its default would fill the machine's share for TCP, and
/// that would be what is measured.
const SOCKET_BUFFER: usize = 32 * 1024;

/// Dials under way at the same time.
const AT_ONCE: usize = 50;

/// When no byte more has been taken of anybody for so long, they are as full as they get.
const STILL: Duration = Duration::from_millis(1_500);

/// How long that may take.
const FILL_LIMIT: Duration = Duration::from_secs(180);

/// Stalled connections, as full as they get. Dropped, they are cut.
#[derive(Debug)]
pub(crate) struct Stalled {
    count: usize,
    shared: Arc<Shared>,
    clients: JoinSet<Result<()>>,
    target: Target,
}

/// What came of them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Delivered {
    /// Those that delivered all and ended as they should.
    pub(crate) whole: usize,
    /// Pushed into all of them together, and what came out.
    pub(crate) pushed: u64,
    pub(crate) read: u64,
}

#[derive(Debug, Default)]
struct Shared {
    open: AtomicUsize,
    pushed: AtomicU64,
    read: AtomicU64,
    broken: AtomicUsize,
    /// Readers read, pushers stop.
    go_on: CancellationToken,
    pattern: Pattern,
}

impl Stalled {
    /// Opens `count` connections and pushes until nothing moves.
    pub(crate) async fn open(client: &Client, direction: Direction, count: usize) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_target = Arc::clone(&shared);
        let target = Target::serve("127.0.0.1", move |stream| {
            let shared = Arc::clone(&of_target);
            async move {
                let outcome = serve(stream, direction, &shared).await;
                shared.count_broken(outcome)
            }
        })
        .await?;
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut clients = JoinSet::new();
        for _ in 0..count {
            let (client, name, shared) = (client.clone(), target.name(), Arc::clone(&shared));
            let permits = Arc::clone(&permits);
            clients.spawn(async move {
                let permit = permits.acquire_owned().await?;
                let mut stream = client.dial(&name).await?;
                drop(permit);
                shared.open.fetch_add(1, Ordering::Relaxed);
                let outcome = ask(&mut stream, direction, &shared).await;
                Ok(shared.count_broken(outcome)?)
            });
        }
        let stalled = Self {
            count,
            shared,
            clients,
            target,
        };
        if count > 0 {
            stalled.fill().await?;
        }
        Ok(stalled)
    }

    async fn fill(&self) -> Result<()> {
        let mut last = (u64::MAX, Instant::now());
        eventually("all is as full as it gets", FILL_LIMIT, async || {
            let open = self.shared.open.load(Ordering::Relaxed);
            ensure!(open == self.count, "{open} of {} are open", self.count);
            let pushed = self.shared.pushed.load(Ordering::Relaxed);
            if pushed != last.0 {
                last = (pushed, Instant::now());
            }
            ensure!(last.1.elapsed() >= STILL, "{pushed} bytes and more");
            Ok(())
        })
        .await
    }

    /// How many have not been ended by anybody, as far as their pushers know.
    pub(crate) fn alive(&self) -> usize {
        let broken = self.shared.broken.load(Ordering::Relaxed);
        self.count.saturating_sub(broken)
    }

    /// Bytes that were taken of all of them, by kernels and processes together.
    pub(crate) fn pushed(&self) -> u64 {
        self.shared.pushed.load(Ordering::Relaxed)
    }

    /// Has everybody read again, to the end.
    pub(crate) async fn deliver(mut self) -> Result<Delivered> {
        self.shared.go_on.cancel();
        let mut whole = 0;
        let all = async {
            while let Some(done) = self.clients.join_next().await {
                whole += usize::from(done?.is_ok());
            }
            anyhow::Ok(())
        };
        // Those that do not end count as not delivered.
        if let Ok(joined) = timeout(2 * PATIENCE, all).await {
            joined.context("a client of a stalled connection")?;
        }
        // On a packet tunnel a client sees the end before its target has read all: there is no half-close.
        let ended = eventually("targets have ended", PATIENCE, async || {
            let open = self.target.open();
            ensure!(open == 0, "{open} are open");
            Ok(())
        });
        if let Err(error) = ended.await {
            say!("  {error:#}");
        }
        Ok(Delivered {
            whole,
            pushed: self.pushed(),
            read: self.shared.read.load(Ordering::Relaxed),
        })
    }
}

/// The target's end.
async fn serve(mut stream: TcpStream, direction: Direction, shared: &Shared) -> io::Result<()> {
    let socket = SockRef::from(&stream);
    socket.set_recv_buffer_size(SOCKET_BUFFER)?;
    socket.set_send_buffer_size(SOCKET_BUFFER)?;
    match direction {
        Direction::Up => shared.read_late(&mut stream).await,
        Direction::Down => {
            // kube-apiserver's kind of client fails a dial whose answer comes with the target's bytes.
            stream.read_u8().await?;
            shared.push(&mut stream).await?;
            ended(&mut stream).await
        }
    }
}

/// The client's end.
async fn ask<S>(stream: &mut S, direction: Direction, shared: &Shared) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    match direction {
        Direction::Up => {
            shared.push(stream).await?;
            ended(stream).await
        }
        Direction::Down => {
            stream.write_all(b"?").await?;
            stream.flush().await?;
            shared.read_late(stream).await
        }
    }
}

/// Waits for the peer's end.
async fn ended<R: AsyncRead + Unpin>(reader: &mut R) -> io::Result<()> {
    match reader.read(&mut [0]).await? {
        0 => Ok(()),
        _ => Err(io::Error::other("bytes where none were sent")),
    }
}

impl Shared {
    fn count_broken(&self, outcome: io::Result<()>) -> io::Result<()> {
        if outcome.is_err() {
            self.broken.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    async fn push<W: AsyncWrite + Unpin>(&self, writer: &mut W) -> io::Result<()> {
        let mut offset = 0;
        loop {
            tokio::select! {
                biased;
                () = self.go_on.cancelled() => break,
                // Cancelled, it has written nothing.
                written = writer.write(self.pattern.from(offset)) => {
                    let written = written? as u64;
                    offset += written;
                    self.pushed.fetch_add(written, Ordering::Relaxed);
                }
            }
        }
        writer.flush().await?;
        writer.shutdown().await
    }

    async fn read_late<R: AsyncRead + Unpin>(&self, reader: &mut R) -> io::Result<()> {
        self.go_on.cancelled().await;
        let mut buffer = vec![0; PIECE];
        let mut offset = 0;
        loop {
            let count = reader.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            let (came, wanted) = (buffer.get(..count), self.pattern.from(offset).get(..count));
            if came != wanted {
                return Err(io::Error::other(format!("wrong bytes from {offset} on")));
            }
            offset += count as u64;
            self.read.fetch_add(count as u64, Ordering::Relaxed);
        }
    }
}

/// Bytes of one write, at most.
const PIECE: usize = 64 * 1024;

/// Bytes that depend on their place, so that none can be missing. A prime, which no buffer's size is a multiple of.
const PERIOD: usize = 251;

#[derive(Debug)]
struct Pattern(Vec<u8>);

impl Default for Pattern {
    fn default() -> Self {
        Self((0..=250).cycle().take(PIECE + PERIOD).collect())
    }
}

impl Pattern {
    /// The bytes from `offset` on, [`PIECE`] or a few more.
    fn from(&self, offset: u64) -> &[u8] {
        let start = usize::try_from(offset % PERIOD as u64).unwrap_or_default();
        self.0.get(start..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_goes_on_where_a_write_ended() {
        let pattern = Pattern::default();
        let first = pattern.from(0);
        assert_eq!(first[1_000], pattern.from(1_000)[0]);
        assert_eq!(first[1_001], pattern.from(999)[2]);
        assert!(pattern.from(250).len() >= PIECE);
    }
}
