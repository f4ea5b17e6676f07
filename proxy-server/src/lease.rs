//! This server's Lease, and the collection of those that were left behind (wire-protocol.md 5.10).
//!
//! Everything runs on the thread "kubernetes" and holds up neither start nor readiness. At the end the renewer stops first and
//! the Lease is deleted then, so that none comes back (upstream's renewer can bring it back, W25).

mod collect;
mod renew;

use std::{sync::Arc, time::Duration};

use cluster::{Labels, Leases, Timestamp};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use collect::Collector;
use renew::Renewer;

use crate::metrics::Metrics;

/// How often the Lease is renewed, a random part of up to 4 % more.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(15);

/// How often Leases that were left behind are looked for.
pub const COLLECT_INTERVAL: Duration = Duration::from_secs(15);

/// `spec.leaseDurationSeconds`.
pub const DURATION_SECONDS: i32 = 30;

/// What to publish, from `--lease-namespace`, `--lease-label` and `--server-id`; with `--enable-lease-controller` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where.
    pub namespace: String,
    /// All labels that the Lease has; they also say whose garbage is collected.
    pub labels: Labels,
    /// Holder, and a part of the name, see [`name`].
    pub server_id: String,
}

/// A server id that makes no object name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--server-id {server_id:?} cannot be used with --enable-lease-controller: as a Lease's name, {name:?} {reason}"
)]
pub struct InvalidName {
    server_id: String,
    name: String,
    reason: String,
}

/// The Lease's name: `konnectivity-proxy-server-` and the server's id.
///
/// # Errors
/// If that is no name of an object, so that the API server would refuse it for ever.
pub fn name(server_id: &str) -> Result<String, InvalidName> {
    let name = format!("konnectivity-proxy-server-{server_id}");
    match cluster::selector::check_object_name(&name) {
        Ok(()) => Ok(name),
        Err(reason) => Err(InvalidName {
            server_id: server_id.to_owned(),
            name,
            reason,
        }),
    }
}

/// The time by the wall; not the system's in tests of wrong clocks.
type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

#[derive(Clone, Copy, Debug)]
struct Timing {
    renew: Duration,
    collect: Duration,
}

/// A Lease that is kept alive until [`withdraw`](Self::withdraw), or until the thread stops.
#[derive(Debug)]
pub struct Published {
    stop: CancellationToken,
    gone: oneshot::Receiver<()>,
}

impl Published {
    /// Publishes and collects on `thread`. Call when agents can connect: it is then that a Lease is true. `live` is told how many
    /// servers there are by their Leases, this one included, at each look at them.
    ///
    /// # Errors
    /// [`InvalidName`]
    pub fn start(
        thread: &cluster::Thread,
        options: Options,
        metrics: Arc<Metrics>,
        live: watch::Sender<u32>,
    ) -> Result<Self, InvalidName> {
        let timing = Timing {
            renew: RENEW_INTERVAL,
            collect: COLLECT_INTERVAL,
        };
        let clock: Clock = Arc::new(Timestamp::now);
        Self::start_with(thread, options, metrics, timing, clock, live)
    }

    fn start_with(
        thread: &cluster::Thread,
        options: Options,
        metrics: Arc<Metrics>,
        timing: Timing,
        clock: Clock,
        live: watch::Sender<u32>,
    ) -> Result<Self, InvalidName> {
        let name = name(&options.server_id)?;
        let leases = Leases::new(thread.client(), &options.namespace);
        let stop = thread.stop().child_token();
        let (is_gone, gone) = oneshot::channel();
        let collector = Collector::new(
            leases.clone(),
            &name,
            &options.labels,
            metrics,
            clock.clone(),
            live,
        );
        let renewer = Renewer::new(leases, name, options, clock);
        thread.spawn({
            let stop = stop.clone();
            async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = collector.run(timing.collect) => {}
                }
            }
        });
        thread.spawn({
            let stop = stop.clone();
            async move {
                renewer.run(timing.renew, &stop).await;
                // Nobody waits if the process ends without `withdraw`.
                drop(is_gone);
            }
        });
        Ok(Self { stop, gone })
    }

    /// Stops renewing, and resolves when the Lease is deleted or cannot be; within twice the deadline of a request. Cancel
    /// safe: it goes on while the thread lives.
    pub async fn withdraw(self) {
        self.stop.cancel();
        // Its sender is dropped at the end.
        drop(self.gone.await);
    }
}

#[cfg(test)]
mod tests;
