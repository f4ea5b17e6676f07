//! Deletes Leases that servers left behind.
//!
//! Upstream deletes what is not valid by its own clock: a server whose clock is half a minute ahead deletes the Leases of all
//! others, again and again. Ours deletes what is not valid *and* was not renewed before our own eyes for as long as it may
//! last, so no clock can make us delete the Lease of a server that lives. A Lease that cannot become valid, such as one
//! without a duration, goes by the same rule.

use std::{sync::Arc, time::Duration};

use cluster::{
    ApiError, Labels, Leases,
    lease::{Lease, Sightings},
};
use daemon::metrics::ApiCalls;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

use super::Clock;
use crate::metrics::Metrics;

pub(super) struct Collector {
    leases: Leases,
    /// This server's, which nobody but the renewer deletes.
    own: String,
    selector: String,
    metrics: Arc<Metrics>,
    clock: Clock,
    sightings: Sightings,
    live: watch::Sender<u32>,
    is_failing: bool,
}

impl Collector {
    pub(super) fn new(
        leases: Leases,
        own: &str,
        labels: &Labels,
        metrics: Arc<Metrics>,
        clock: Clock,
        live: watch::Sender<u32>,
    ) -> Self {
        Self {
            leases,
            own: own.to_owned(),
            selector: labels.to_selector(),
            metrics,
            clock,
            sightings: Sightings::default(),
            live,
            is_failing: false,
        }
    }

    /// Collects at once and then every `period`, for ever. Cancel safe.
    pub(super) async fn run(mut self, period: Duration) {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.collect().await;
        }
    }

    async fn collect(&mut self) {
        let start = Instant::now();
        let list = self.leases.list(&self.selector).await;
        count(&self.metrics.lease_lists, &list, start);
        let list = match list {
            Ok(list) => list,
            Err(error) if self.is_failing => {
                return tracing::debug!(%error, "could not list Leases");
            }
            Err(error) => {
                self.is_failing = true;
                return tracing::warn!(%error, "could not list Leases, trying again");
            }
        };
        self.is_failing = false;
        let now = Instant::now();
        self.sightings.see_all(&list.leases, now);
        let is_live =
            |lease: &Lease| lease.is_valid((self.clock)()) || !self.sightings.is_silent(lease, now);
        // This one lives, whatever its Lease says.
        let (others, dead): (Vec<_>, Vec<_>) = list
            .leases
            .iter()
            .filter(|lease| lease.name != self.own)
            .partition(|lease| is_live(lease));
        let live = u32::try_from(others.len() + 1).unwrap_or(u32::MAX);
        self.live
            .send_if_modified(|told| std::mem::replace(told, live) != live);
        for lease in dead {
            let start = Instant::now();
            // If it was renewed since, it stays.
            let deleted = self.leases.delete(&lease.name, Some(&lease.version)).await;
            count(&self.metrics.lease_deletes, &deleted, start);
            match deleted {
                Ok(()) => {
                    self.metrics.culled_leases.inc();
                    tracing::info!(
                        lease = lease.name,
                        "deleted a Lease that a server left behind"
                    );
                }
                Err(error) if error.is_not_found() || error.is_conflict() => {
                    tracing::debug!(%error, lease = lease.name, "somebody was faster");
                }
                Err(error) => {
                    tracing::warn!(%error, lease = lease.name, "could not delete a Lease")
                }
            }
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
