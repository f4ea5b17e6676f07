//! How many servers there are, by their Leases (wire-protocol.md 4.3).
//!
//! A task on the thread "kubernetes" lists and watches the Leases that the selector selects, and only those (upstream's agent
//! holds all Leases of the namespace, W24). It holds up neither start nor health (W23).
//!
//! A Lease counts while it is valid by our clock, or is renewed before our own eyes: an agent whose clock is ahead still
//! counts the servers that live. Before the count falls because Leases have run out, they are listed anew: one that
//! was only not heard of, as the API server is away or its watch is stuck, goes on to count.

mod counter;

use std::{sync::Arc, time::Duration};

use cluster::{Leases, Selector, Timestamp};
use tokio::sync::watch;

use counter::Counter;

use crate::metrics::Metrics;

/// Which Leases count, from `--lease-namespace` and `--lease-label-selector`; with `--count-server-leases` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where they are.
    pub namespace: String,
    /// Which of them; applied by the API server.
    pub selector: Selector,
}

/// What is known of the number of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseCount {
    /// At least 1: valid Leases, 1 if there are none, and the last count while the API cannot be asked.
    pub count: usize,
    /// Whether the API has ever answered; until then `count` is the initial 1.
    pub known: bool,
}

impl LeaseCount {
    /// What upstream assumes until it knows.
    pub const INITIAL: Self = Self {
        count: 1,
        known: false,
    };
}

/// The time by the wall; not the system's in tests of wrong clocks.
type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Pauses after a list or a watch that failed.
#[derive(Clone, Copy, Debug)]
struct Pauses {
    first: Duration,
    longest: Duration,
}

const PAUSES: Pauses = Pauses {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};

/// Counts on `thread` until that stops, and gives the count as it changes. After the thread's end the last one stays.
#[must_use]
pub fn start(
    thread: &cluster::Thread,
    options: Options,
    metrics: Arc<Metrics>,
) -> watch::Receiver<LeaseCount> {
    start_with(thread, options, metrics, PAUSES, Arc::new(Timestamp::now))
}

fn start_with(
    thread: &cluster::Thread,
    options: Options,
    metrics: Arc<Metrics>,
    pauses: Pauses,
    clock: Clock,
) -> watch::Receiver<LeaseCount> {
    let (sender, receiver) = watch::channel(LeaseCount::INITIAL);
    let leases = Leases::new(thread.client(), &options.namespace);
    let stop = thread.stop().clone();
    let counter = Counter::new(leases, options.selector, metrics, clock, sender);
    thread.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = counter.run(pauses) => {}
        }
    });
    receiver
}

#[cfg(test)]
mod tests;
