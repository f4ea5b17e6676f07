//! List, watch, count, and from the start again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cluster::{ApiError, Event, Lease, Leases, Selector, lease::Sightings, leases::Watch};
use daemon::metrics::ApiCalls;
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tunnel::backoff::Backoff;

use super::{Clock, LeaseCount, Pauses};
use crate::metrics::Metrics;

/// How long a watch goes on, in seconds, and up to so many more at random; then all is listed anew.
const WATCH_SECONDS: u32 = 240;
const WATCH_SPREAD: u32 = 60;

/// How long after its end a watch may still be silent about it.
const WATCH_GRACE: Duration = Duration::from_secs(10);

/// Leases are listed anew up to so long after one of them ran out, at random, as all agents see the same end at once.
const EXPIRY_SPREAD: Duration = Duration::from_secs(1);

/// Leases that are held at once. Nobody has so many servers; a selector that selects everything could.
const MAX_LEASES: usize = 10_000;

/// Why a watch is over.
enum End {
    /// A Lease has run out, or it was time.
    Over,
    Failed(ApiError),
}

pub(super) struct Counter {
    leases: Leases,
    selector: Selector,
    metrics: Arc<Metrics>,
    clock: Clock,
    counts: watch::Sender<LeaseCount>,
    /// By name.
    known: HashMap<String, Lease>,
    sightings: Sightings,
    is_failing: bool,
    has_warned_of_none: bool,
}

impl Counter {
    pub(super) fn new(
        leases: Leases,
        selector: Selector,
        metrics: Arc<Metrics>,
        clock: Clock,
        counts: watch::Sender<LeaseCount>,
    ) -> Self {
        Self {
            leases,
            selector,
            metrics,
            clock,
            counts,
            known: HashMap::new(),
            sightings: Sightings::default(),
            is_failing: false,
            has_warned_of_none: false,
        }
    }

    /// Counts for ever. Cancel safe.
    pub(super) async fn run(mut self, pauses: Pauses) {
        let mut backoff = Backoff::new(pauses.first, pauses.longest);
        loop {
            let failure = match self.list().await {
                Ok(version) => match self.follow(&version, &mut backoff).await {
                    End::Over => continue,
                    // History that is forgotten is nobody's fault, but must not lead to a busy loop.
                    End::Failed(error) => error,
                },
                Err(error) => error,
            };
            self.failed(&failure);
            sleep(backoff.next_delay()).await;
        }
    }

    /// Brings everything up to date; the version that a watch goes on from.
    async fn list(&mut self) -> Result<String, ApiError> {
        let start = Instant::now();
        let list = self.leases.list(self.selector.as_str()).await;
        count(&self.metrics.lease_lists, &list, start);
        let mut list = list?;
        if list.leases.len() > MAX_LEASES {
            tracing::warn!(
                found = list.leases.len(),
                MAX_LEASES,
                "--lease-label-selector selects too many Leases"
            );
            list.leases.truncate(MAX_LEASES);
        }
        self.sightings.see_all(&list.leases, Instant::now());
        self.known = list
            .leases
            .into_iter()
            .map(|lease| (lease.name.clone(), lease))
            .collect();
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("server Leases can be listed again");
        }
        self.publish();
        Ok(list.version)
    }

    async fn follow(&mut self, version: &str, backoff: &mut Backoff) -> End {
        let seconds = WATCH_SECONDS + fastrand::u32(..WATCH_SPREAD);
        let start = Instant::now();
        let watch = self
            .leases
            .watch(self.selector.as_str(), version, seconds)
            .await;
        count(&self.metrics.lease_watches, &watch, start);
        let mut watch = match watch {
            Ok(watch) => watch,
            // Whoever may list but not watch lists ever more seldom.
            Err(error) => return End::Failed(error),
        };
        backoff.reset();
        let end = Instant::now() + Duration::from_secs(seconds.into()) + WATCH_GRACE;
        match timeout_at(end, self.hear(&mut watch)).await {
            Ok(end) => end,
            Err(_) => End::Over,
        }
    }

    /// Applies what the watch tells until it ends, or until a Lease that counts has run out.
    async fn hear(&mut self, watch: &mut Watch) -> End {
        let spread = EXPIRY_SPREAD.mul_f64(fastrand::f64());
        loop {
            let next_end = self.next_end();
            let event = tokio::select! {
                event = watch.next() => event,
                () = async {
                    match next_end {
                        Some(at) => sleep_until(at + spread).await,
                        None => std::future::pending().await,
                    }
                } => return End::Over,
            };
            match event {
                Ok(Some(Event::Applied(lease))) => {
                    if self.known.len() >= MAX_LEASES && !self.known.contains_key(&lease.name) {
                        continue;
                    }
                    self.sightings.see(&lease, Instant::now());
                    self.known.insert(lease.name.clone(), lease);
                }
                Ok(Some(Event::Deleted(lease))) => {
                    self.sightings.forget(&lease.name);
                    self.known.remove(&lease.name);
                }
                Ok(Some(Event::Bookmark(_))) => {}
                // The API server ends watches when their time is over, and early when it is about to go.
                Ok(None) => {
                    // What ends each at once must not make us busy.
                    sleep(EXPIRY_SPREAD + spread).await;
                    return End::Over;
                }
                Err(error) => return End::Failed(error),
            }
            self.publish();
        }
    }

    /// Until when this Lease counts; nothing if it does not.
    fn counts_until(&self, lease: &Lease, now: Instant) -> Option<Instant> {
        let wall = (self.clock)();
        let by_clock = lease
            .ends()
            .filter(|end| *end > wall)
            .and_then(|end| Duration::try_from(end.duration_since(wall)).ok())
            // What lasts longer than an Instant can tell is looked at again with the next list.
            .and_then(|left| now.checked_add(left));
        let by_sight = self
            .sightings
            .lives_until(lease)
            .filter(|until| *until > now);
        by_clock.max(by_sight)
    }

    fn next_end(&self) -> Option<Instant> {
        let now = Instant::now();
        self.known
            .values()
            .filter_map(|lease| self.counts_until(lease, now))
            .min()
    }

    fn publish(&mut self) {
        let now = Instant::now();
        let valid = self
            .known
            .values()
            .filter(|lease| self.counts_until(lease, now).is_some())
            .count();
        if valid > 0 {
            self.has_warned_of_none = false;
        } else if !self.has_warned_of_none {
            self.has_warned_of_none = true;
            tracing::warn!(
                found = self.known.len(),
                "no server's Lease is valid, so one server is assumed"
            );
        }
        let count = LeaseCount {
            count: valid.max(1),
            known: true,
        };
        self.counts.send_if_modified(|last| {
            let has_changed = *last != count;
            if has_changed {
                tracing::info!(
                    servers = count.count,
                    before = last.count,
                    "servers by their Leases"
                );
                *last = count;
            }
            has_changed
        });
    }

    fn failed(&mut self, error: &ApiError) {
        let servers = self.counts.borrow().count;
        if self.is_failing || error.is_gone() {
            tracing::debug!(%error, servers, "server Leases cannot be followed");
        } else {
            self.is_failing = true;
            tracing::warn!(%error, servers, "server Leases cannot be followed, the last count stays");
        }
    }
}

fn count<T>(calls: &ApiCalls, result: &Result<T, ApiError>, start: Instant) {
    let (code, reason) = match result {
        Ok(_) => (200, ""),
        Err(error) => error.labels(),
    };
    calls.answered(code, reason, start.elapsed());
}
