//! What is dialled. Each listens on loopback, on a port of the kernel's choice, until it is dropped.

mod black_hole;
mod slow;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};

pub use black_hole::BlackHole;
pub use slow::Slow;

use crate::payload::{Payload, Received};

/// Connections of a sink whose results nobody has taken yet.
const MAX_RESULTS: usize = 4096;

/// A running target.
#[derive(Debug)]
pub struct Target {
    address: SocketAddr,
    counters: Arc<Counters>,
    _tasks: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicUsize,
    open: AtomicUsize,
}

impl Target {
    /// Hands every connection to `handle`, each in a task of its own. An error ends the connection and nothing else.
    ///
    /// # Errors
    /// If it cannot listen on `host`.
    pub async fn serve<F, H>(host: &str, handle: H) -> Result<Self>
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
        H: Fn(TcpStream) -> F + Send + 'static,
    {
        let listener = TcpListener::bind((host, 0))
            .await
            .with_context(|| format!("listen on {host}"))?;
        let address = listener.local_addr()?;
        let counters = Arc::new(Counters::default());
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&counters);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        // Out of descriptors, which is for the test to notice.
                        let Ok((stream, _)) = accepted else { continue };
                        shared.accepted.fetch_add(1, Ordering::Relaxed);
                        let open = Open::new(Arc::clone(&shared));
                        let connection = handle(stream);
                        connections.spawn(async move {
                            connection.await.ok();
                            drop(open);
                        });
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self {
            address,
            counters,
            _tasks: tasks,
        })
    }

    /// Gives back what it gets.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn echo() -> Result<Self> {
        Self::echo_on("127.0.0.1").await
    }

    /// The same, on another address of loopback.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn echo_on(host: &str) -> Result<Self> {
        Self::serve(host, async |mut stream| {
            stream.set_nodelay(true)?;
            let (mut read, mut write) = stream.split();
            copy(&mut read, &mut write).await?;
            write.shutdown().await
        })
        .await
    }

    /// Sends `greeting` as soon as it is connected, then gives back what it gets.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn greeter(greeting: &'static [u8]) -> Result<Self> {
        Self::serve("127.0.0.1", async move |mut stream: TcpStream| {
            stream.set_nodelay(true)?;
            stream.write_all(greeting).await?;
            let (mut read, mut write) = stream.split();
            copy(&mut read, &mut write).await?;
            write.shutdown().await
        })
        .await
    }

    /// Asked by one byte, sends a payload and closes at once. It does not speak first, so that a client which stands still for
    /// a moment does not get the answer to its dial and these bytes in one read.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn source(payload: Payload) -> Result<Self> {
        Self::serve("127.0.0.1", move |mut stream| async move {
            stream.read_u8().await?;
            payload.write_to(stream).await
        })
        .await
    }

    /// Asked by one byte, sends for ever.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn endless() -> Result<Self> {
        Self::serve("127.0.0.1", async |mut stream: TcpStream| {
            stream.read_u8().await?;
            let bytes = vec![b'e'; 64 * 1024];
            loop {
                stream.write_all(&bytes).await?;
            }
        })
        .await
    }

    /// Accepts and never reads.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn never_reading() -> Result<Self> {
        Self::serve("127.0.0.1", async |stream| {
            let never = std::future::pending::<io::Result<()>>().await;
            drop(stream);
            never
        })
        .await
    }

    /// Reads everything and reports what came. With a `pause` it is slow: so long after every 16 KiB.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn sink(pause: Option<Duration>) -> Result<(Self, mpsc::Receiver<Received>)> {
        let (results, received) = mpsc::channel(MAX_RESULTS);
        let target = Self::serve("127.0.0.1", move |stream| {
            let results = results.clone();
            async move {
                let came = match pause {
                    None => Received::read(stream).await,
                    Some(pause) => Received::read(Slow::new(stream, pause)).await,
                };
                results.send(came).await.map_err(io::Error::other)
            }
        })
        .await?;
        Ok((target, received))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as a target to dial.
    #[must_use]
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    /// The same under the name `localhost`.
    #[must_use]
    pub fn local_name(&self) -> String {
        format!("localhost:{}", self.address.port())
    }

    /// Connections that ever came.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.counters.accepted.load(Ordering::Relaxed)
    }

    /// Connections whose handlers still run.
    #[must_use]
    pub fn open(&self) -> usize {
        self.counters.open.load(Ordering::Relaxed)
    }
}

/// Counts a connection for as long as it lives.
struct Open(Arc<Counters>);

impl Open {
    fn new(counters: Arc<Counters>) -> Self {
        counters.open.fetch_add(1, Ordering::Relaxed);
        Self(counters)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where nobody listens: a dial is refused.
///
/// # Errors
/// If no port is free.
pub fn refusing() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, crate::harness::free_port()?).into())
}
