//! What is dialled.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use e2e::targets::Target;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_buf},
    net::TcpStream,
    runtime,
};

/// What a connection is for. Its client says so first: the kind in a byte, then a number of bytes, big-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Takes so many bytes and answers with one: a transfer up.
    Take(u64),
    /// Sends so many bytes: a transfer down.
    Send(u64),
    /// Gives back what comes.
    Echo,
}

/// Bytes of a [`Job`] on the wire.
pub const JOB: usize = 9;

/// What is read or written in one piece.
pub const PIECE: usize = 256 * 1024;

impl Job {
    /// What the client sends.
    #[must_use]
    pub fn encode(self) -> [u8; JOB] {
        let (kind, len) = match self {
            Self::Take(len) => (b't', len),
            Self::Send(len) => (b's', len),
            Self::Echo => (b'e', 0),
        };
        let mut bytes = [kind; JOB];
        if let Some(rest) = bytes.get_mut(1..) {
            rest.copy_from_slice(&len.to_be_bytes());
        }
        bytes
    }

    async fn read(stream: &mut TcpStream) -> io::Result<Self> {
        let kind = stream.read_u8().await?;
        let len = stream.read_u64().await?;
        match kind {
            b't' => Ok(Self::Take(len)),
            b's' => Ok(Self::Send(len)),
            b'e' => Ok(Self::Echo),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A target that does every [`Job`], on a thread of its own until it is dropped.
#[derive(Debug)]
pub struct Worker {
    name: String,
    address: SocketAddr,
    sent: Arc<AtomicU64>,
    _target: Target,
    runtime: Option<runtime::Runtime>,
}

impl Worker {
    /// Listens on loopback. Not within another runtime.
    ///
    /// # Errors
    /// If it cannot listen, or start a thread.
    pub fn start() -> Result<Self> {
        Self::on("127.0.0.1")
    }

    /// Listens on `host`, on a port of the kernel's choice.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn on(host: &str) -> Result<Self> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("start the targets' thread")?;
        let sent = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&sent);
        let target = runtime.block_on(Target::serve(host, move |stream| {
            serve(stream, Arc::clone(&counter))
        }))?;
        Ok(Self {
            name: target.name(),
            address: target.address(),
            sent,
            _target: target,
            runtime: Some(runtime),
        })
    }

    /// `host:port`, to dial.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same as an address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that the kernel has taken of all [`Job::Send`] so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Dropped within another runtime, it must not be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(mut stream: TcpStream, sent: Arc<AtomicU64>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match Job::read(&mut stream).await? {
        Job::Take(len) => {
            let mut buffer = vec![0; PIECE];
            let mut left = len;
            while left > 0 {
                match stream.read(&mut buffer).await? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    read => left = left.saturating_sub(read as u64),
                }
            }
            stream.write_u8(b't').await?;
            // The client ends it.
            stream.read_u8().await.map(drop)
        }
        Job::Send(len) => {
            let buffer = vec![0x5a; PIECE];
            let mut left = len;
            while left > 0 {
                let piece = buffer
                    .get(..usize::try_from(left).unwrap_or(PIECE).min(PIECE))
                    .unwrap_or_default();
                let written = stream.write(piece).await? as u64;
                sent.fetch_add(written, Ordering::Relaxed);
                left -= written;
            }
            // The client ends it.
            stream.read_u8().await.map(drop)
        }
        Job::Echo => {
            let (read, mut write) = stream.split();
            copy_buf(
                &mut tokio::io::BufReader::with_capacity(16 * 1024, read),
                &mut write,
            )
            .await?;
            write.shutdown().await
        }
    }
}
