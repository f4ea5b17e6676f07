//! Health, readiness and metrics: a small HTTP/1.1 server on a thread of its own (wire-protocol.md 8).
//!
//! The thread has its own single-threaded runtime, so a probe is answered while the workers are busy with connections,
//! and says so if they are not. Handlers are plain closures over a request's head and must not block: they read atomics
//! and render metrics. Request bodies are never read.
//!
//! Anyone who reaches the port may send anything, so everything is bounded: connections ([`MAX_CONNECTIONS`]), a head's
//! size ([`MAX_HEAD_BYTES`]) and time ([`HEAD_TIMEOUT`], which ends an idle connection too), and a connection's life
//! ([`MAX_CONNECTION_LIFE`]), for clients that don't read what they asked for.

mod connection;
mod router;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accept::AcceptBackoff;
use crate::listen::{ListenError, listen};

pub use router::{
    METRICS_CONTENT_TYPE, Router, TEXT_CONTENT_TYPE, is_verbose, metrics_handler,
    moved_permanently, not_found, text,
};

/// Connections that are served at once; more wait in the kernel's queue until one ends.
pub const MAX_CONNECTIONS: usize = 256;

/// Largest request head. Upstream takes 1 MiB; no prober or scraper comes near this, and it bounds the memory of all
/// connections to 16 MiB.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// How long a request head may take to arrive, counted from the end of the response before it, as upstream.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a connection may last: then it ends behind the response it is in, at the latest [`CUT_AFTER`] later.
pub const MAX_CONNECTION_LIFE: Duration = Duration::from_secs(300);

/// How long a response may still take when its connection is to end, at shutdown too.
pub const CUT_AFTER: Duration = Duration::from_secs(5);

/// A listener that is bound and not yet served.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl AdminServer {
    /// Binds; `flag` is named in errors, the address is as for [`listen`].
    ///
    /// # Errors
    ///
    /// As [`listen`].
    pub fn bind(flag: &str, host: &str, port: u16) -> Result<Self, ListenError> {
        let listener = listen(flag, host, port)?;
        let address = listener.local_addr().map_err(|cause| ListenError::Bind {
            flag: flag.to_owned(),
            address: SocketAddr::from(([0, 0, 0, 0], port)),
            cause,
        })?;
        Ok(Self { listener, address })
    }

    /// The address it listens on; tells the port if 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Starts the thread, called `name` (at most 15 bytes are shown), and serves until `shutdown` is cancelled: then no
    /// connection is accepted, idle ones are closed and responses under way get [`CUT_AFTER`].
    ///
    /// # Errors
    ///
    /// If the thread or its runtime cannot be made.
    pub fn serve(
        self,
        name: &str,
        router: Router,
        shutdown: CancellationToken,
    ) -> io::Result<AdminThread> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(self.listener)?
        };
        let router = Arc::new(router);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || runtime.block_on(accept_loop(listener, router, shutdown)))?;
        Ok(AdminThread {
            thread,
            address: self.address,
        })
    }
}

/// A server under way. Dropping this leaves it to its `shutdown` token.
#[derive(Debug)]
pub struct AdminThread {
    thread: JoinHandle<()>,
    address: SocketAddr,
}

impl AdminThread {
    /// The address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether the thread has ended; before `shutdown` is cancelled that is a fault, for the process to end with.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the server has ended, which takes up to [`CUT_AFTER`] from the cancelling of `shutdown`. Blocks the
    /// thread.
    ///
    /// # Errors
    ///
    /// If the server's thread panicked.
    pub fn join(self) -> io::Result<()> {
        self.thread
            .join()
            .map_err(|_| io::Error::other("the admin thread panicked"))
    }
}

async fn accept_loop(
    listener: tokio::net::TcpListener,
    router: Arc<Router>,
    shutdown: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let tasks = TaskTracker::new();
    let mut backoff = AcceptBackoff::default();
    let mut full = false;
    loop {
        match slots.available_permits() {
            0 if !full => {
                full = true;
                tracing::warn!(
                    limit = MAX_CONNECTIONS,
                    "all admin connections are taken; probes have to wait"
                );
            }
            // Not at the first that ends, or a client could fill the log.
            free if free > MAX_CONNECTIONS / 2 => full = false,
            _ => {}
        }
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = async {
                let slot = Arc::clone(&slots).acquire_owned().await;
                (slot, listener.accept().await)
            } => accepted,
        };
        match accepted {
            (Ok(slot), Ok((socket, _))) => {
                backoff.on_success();
                let serving = connection::serve(socket, Arc::clone(&router), shutdown.clone());
                tasks.spawn(async move {
                    serving.await;
                    drop(slot);
                });
            }
            (_, Err(error)) => {
                let first = !backoff.is_pausing();
                let pause = backoff.on_error(&error);
                if first && backoff.is_pausing() {
                    tracing::warn!(%error, "cannot accept admin connections; trying again");
                }
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = tokio::time::sleep(pause) => {}
                }
            }
            (Err(_), _) => break, // the semaphore is never closed
        }
    }
    drop(listener);
    tasks.close();
    tasks.wait().await;
}

#[cfg(test)]
mod tests;
