//! A long way between two processes: what comes in goes out as long after as light would take. No netem is needed, and so no privilege; what
//! this does not do is lose packets, or share a bandwidth.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Bytes on their way in one direction of one connection; more than any window here.
const ON_THE_WAY: usize = 64 << 20;

/// Pieces on their way.
const PIECES: usize = 64 * 1024;

/// What is read in one piece.
const PIECE: usize = 64 * 1024;

/// Passes TCP connections on to an address, on a thread of its own until it is dropped.
#[derive(Debug)]
pub struct Delay {
    address: SocketAddr,
    runtime: Option<runtime::Runtime>,
}

impl Delay {
    /// Every byte takes `one_way` in each direction. Not within another runtime's thread that may not block.
    ///
    /// # Errors
    /// If it cannot listen, or start a thread.
    pub fn to(target: SocketAddr, one_way: Duration) -> Result<Self> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("start the delay's thread")?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").context("listen")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let _inside = runtime.enter();
        let listener = TcpListener::from_std(listener)?;
        runtime.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((stream, _)) = accepted else { continue };
                        connections.spawn(carry(stream, target, one_way));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self {
            address,
            runtime: Some(runtime),
        })
    }

    /// Where to connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn carry(near: TcpStream, target: SocketAddr, one_way: Duration) -> io::Result<()> {
    let far = TcpStream::connect(target).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    // One broken direction ends both.
    tokio::try_join!(
        pass(near_read, far_write, one_way),
        pass(far_read, near_write, one_way),
    )
    .map(drop)
}

/// A piece, when it is due, and its share of what may be on the way.
type OnTheWay = (Instant, Bytes, Option<OwnedSemaphorePermit>);

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    one_way: Duration,
) -> io::Result<()> {
    let room = Arc::new(Semaphore::new(ON_THE_WAY));
    let (sender, mut receiver) = mpsc::channel::<OnTheWay>(PIECES);
    let read = async move {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(PIECE);
            let len = from.read_buf(&mut buffer).await?;
            if len == 0 {
                return io::Result::Ok(());
            }
            let share = u32::try_from(len).unwrap_or(u32::MAX);
            let permit = Arc::clone(&room).acquire_many_owned(share).await.ok();
            let due = Instant::now() + one_way;
            if sender
                .send((due, buffer.split().freeze(), permit))
                .await
                .is_err()
            {
                return Ok(());
            }
        }
    };
    let write = async {
        while let Some((due, piece, _permit)) = receiver.recv().await {
            sleep_until(due).await;
            to.write_all(&piece).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(drop)
}
