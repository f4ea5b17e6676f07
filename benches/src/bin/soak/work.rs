//! The load.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, ensure};
use benches::load::{
    bulk::{self, Direction},
    dialer::Dialer,
    dials,
    echo::{self, Enough},
    target::Job,
};
use tokio::{
    io::AsyncReadExt,
    task::JoinSet,
    time::{sleep, timeout},
};

/// Dials at once, and the pause of each behind one.
const DIALLERS: usize = 4;
const DIAL_PAUSE: Duration = Duration::from_millis(40);

/// Transfers at once each way, of a length between one byte and this, and the pause behind one.
const TRANSFERS: usize = 2;
const TRANSFER: u64 = 64 << 20;
const TRANSFER_PAUSE: Duration = Duration::from_millis(300);

/// Idle connections, opened anew after a while.
const IDLE: usize = 100;
const IDLE_TIME: Duration = Duration::from_secs(20);

/// Readers that stall, for so long; then every second one reads a while before it is cut.
const STALLED: usize = 8;
const STALL_TIME: Duration = Duration::from_secs(5);

/// Connections that exchange a little, one behind the other, and how long one of them lives.
const ECHOES: usize = 8;
const ECHO: Enough = Enough {
    count: 5_000,
    time: Duration::from_secs(10),
    limit: Duration::from_secs(30),
};
const ECHO_PAUSE: Duration = Duration::from_millis(50);

/// Connections cut in the middle of a transfer, a moment after it began.
const RESETS: usize = 2;
const RESET_AFTER: Duration = Duration::from_millis(30);

/// How often everything was done.
#[derive(Debug, Default)]
struct Counts {
    dials: AtomicU64,
    transfers: AtomicU64,
    bytes: AtomicU64,
    idle: AtomicU64,
    stalled: AtomicU64,
    echoes: AtomicU64,
    resets: AtomicU64,
    failures: AtomicU64,
}

/// Load that goes on until it is stopped.
#[derive(Debug)]
pub(crate) struct Work {
    tasks: JoinSet<()>,
    counts: Arc<Counts>,
    last: Arc<std::sync::Mutex<String>>,
}

impl Work {
    pub(crate) fn start(dialer: &Dialer) -> Self {
        let mut work = Self {
            tasks: JoinSet::new(),
            counts: Arc::default(),
            last: Arc::default(),
        };
        for _ in 0..DIALLERS {
            work.repeat(
                dialer,
                |counts| &counts.dials,
                DIAL_PAUSE,
                |dialer| async move { dials::run(&dialer, 1, 1).await.map(|_| 0) },
            );
        }
        for direction in [Direction::Up, Direction::Down] {
            for _ in 0..TRANSFERS {
                work.repeat(
                    dialer,
                    |counts| &counts.transfers,
                    TRANSFER_PAUSE,
                    move |dialer| async move {
                        let len = 1 + TRANSFER / fastrand::u64(1..=64);
                        Ok(bulk::transfer(&dialer, direction, len).await?.bytes)
                    },
                );
            }
        }
        work.repeat(
            dialer,
            |counts| &counts.idle,
            Duration::ZERO,
            |dialer| async move {
                let open = dials::idle(&dialer, IDLE, 8).await?;
                sleep(IDLE_TIME).await;
                drop(open);
                Ok(0)
            },
        );
        for number in 0..STALLED {
            work.repeat(
                dialer,
                |counts| &counts.stalled,
                Duration::ZERO,
                move |dialer| async move { stall(&dialer, number % 2 == 0).await },
            );
        }
        for _ in 0..ECHOES {
            work.repeat(
                dialer,
                |counts| &counts.echoes,
                ECHO_PAUSE,
                |dialer| async move {
                    let times = echo::closed_loop(&dialer, ECHO).await?;
                    ensure!(times.max() < 30_000_000_000, "an echo stood still");
                    Ok(0)
                },
            );
        }
        for _ in 0..RESETS {
            work.repeat(
                dialer,
                |counts| &counts.resets,
                RESET_AFTER,
                |dialer| async move {
                    let transfer = bulk::transfer(&dialer, Direction::Down, u64::MAX);
                    // Dropped in the middle of it.
                    drop(timeout(RESET_AFTER, transfer).await);
                    Ok(0)
                },
            );
        }
        work
    }

    fn repeat<F, W>(
        &mut self,
        dialer: &Dialer,
        count: fn(&Counts) -> &AtomicU64,
        pause: Duration,
        work: W,
    ) where
        F: Future<Output = Result<u64>> + Send,
        W: Fn(Dialer) -> F + Send + 'static,
    {
        let (dialer, counts, last) = (
            dialer.clone(),
            Arc::clone(&self.counts),
            Arc::clone(&self.last),
        );
        self.tasks.spawn(async move {
            loop {
                match work(dialer.clone()).await {
                    Ok(bytes) => {
                        count(&counts).fetch_add(1, Ordering::Relaxed);
                        counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                    }
                    Err(error) => {
                        counts.failures.fetch_add(1, Ordering::Relaxed);
                        if let Ok(mut last) = last.lock() {
                            *last = format!("{error:#}");
                        }
                    }
                }
                sleep(pause).await;
            }
        });
    }

    /// Whether all went well so far: a failure now and then would be hidden by the mass.
    pub(crate) fn check(&self) -> Result<()> {
        let failures = self.counts.failures.load(Ordering::Relaxed);
        let last = self
            .last
            .lock()
            .map(|last| last.clone())
            .unwrap_or_default();
        ensure!(failures == 0, "{failures} failures, the last: {last}");
        Ok(())
    }

    /// Cuts what is open.
    pub(crate) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

async fn stall(dialer: &Dialer, then_reads: bool) -> Result<u64> {
    let mut stream = dialer.ask(Job::Send(u64::MAX)).await?;
    sleep(STALL_TIME).await;
    let mut read = 0;
    if then_reads {
        let mut buffer = vec![0; 64 * 1024];
        while read < 32 << 20 {
            match stream.read(&mut buffer).await? {
                0 => break,
                len => read += len as u64,
            }
        }
    }
    Ok(read)
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        write!(
            f,
            "{} dials, {} transfers, {:.1} GiB, {} x {IDLE} idle, {} stalls, {} rows of echoes, {} resets, {} failures",
            count(&counts.dials),
            count(&counts.transfers),
            count(&counts.bytes) as f64 / f64::from(1 << 30),
            count(&counts.idle),
            count(&counts.stalled),
            count(&counts.echoes),
            count(&counts.resets),
            count(&counts.failures),
        )
    }
}
