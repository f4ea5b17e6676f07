//! Keeps this server's Lease alive (component-helpers' lease controller).

use std::time::Duration;

use cluster::{ApiError, Leases};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Clock, DURATION_SECONDS, Options};

/// How much longer than the interval a pause may be, at random, so that servers do not come at once.
const JITTER: f64 = 0.04;

/// Immediate attempts to renew, each with what the API server has now.
const UPDATES: u32 = 5;

/// Pauses while the Lease can be neither read nor made.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

pub(super) struct Renewer {
    leases: Leases,
    name: String,
    options: Options,
    clock: Clock,
    /// As the API server has it, as far as we know.
    current: Option<Lease>,
    /// Whether the last attempt failed, and that is in the log.
    is_failing: bool,
}

impl Renewer {
    pub(super) fn new(leases: Leases, name: String, options: Options, clock: Clock) -> Self {
        Self {
            leases,
            name,
            options,
            clock,
            current: None,
            is_failing: false,
        }
    }

    /// Renews until `stop`, then deletes. A request under way is waited for: one that is dropped could make the Lease after
    /// it was deleted.
    pub(super) async fn run(mut self, interval: Duration, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            self.renew(stop).await;
            let pause = interval.mul_f64(1.0 + fastrand::f64() * JITTER);
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(pause) => {}
            }
        }
        self.delete().await;
    }

    async fn renew(&mut self, stop: &CancellationToken) {
        if let Some(current) = self.current.take()
            && self.update(current, stop).await
        {
            return;
        }
        let Some((lease, is_new)) = self.ensure(stop).await else {
            return;
        };
        if is_new {
            tracing::info!(
                lease = self.name,
                namespace = self.options.namespace,
                "published this server's Lease"
            );
            self.current = Some(lease);
        } else {
            self.update(lease, stop).await;
        }
    }

    /// Whether the Lease is renewed now.
    async fn update(&mut self, mut current: Lease, stop: &CancellationToken) -> bool {
        for _ in 0..UPDATES {
            if stop.is_cancelled() {
                return false;
            }
            let error = match self
                .leases
                .update(&self.name, &self.lease(Some(&current)))
                .await
            {
                Ok(lease) => {
                    self.succeeded();
                    self.current = Some(lease);
                    return true;
                }
                Err(error) => error,
            };
            let is_conflict = error.is_conflict();
            if error.is_not_found() {
                return false;
            }
            self.failed(&error);
            if is_conflict {
                match self.leases.get(&self.name).await {
                    Ok(lease) => current = lease,
                    Err(error) => {
                        self.failed(&error);
                        return false;
                    }
                }
            }
        }
        false
    }

    /// The Lease as it is, or a new one; nothing if we are to stop before there is any.
    async fn ensure(&mut self, stop: &CancellationToken) -> Option<(Lease, bool)> {
        let mut pause = FIRST_PAUSE;
        while !stop.is_cancelled() {
            let error = match self.get_or_create().await {
                Ok(found) => {
                    self.succeeded();
                    return Some(found);
                }
                Err(error) => error,
            };
            self.failed(&error);
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        None
    }

    async fn get_or_create(&self) -> Result<(Lease, bool), ApiError> {
        match self.leases.get(&self.name).await {
            Ok(lease) => Ok((lease, false)),
            Err(error) if error.is_not_found() => {
                let lease = self.leases.create(&self.lease(None)).await?;
                Ok((lease, true))
            }
            Err(error) => Err(error),
        }
    }

    /// What is to be there. What others wrote into it stays, but for labels and what makes it valid.
    fn lease(&self, base: Option<&Lease>) -> Lease {
        let mut lease = base.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.options.namespace.clone()),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.options.server_id.clone()),
                ..LeaseSpec::default()
            }),
        });
        lease.metadata.labels = Some(self.options.labels.as_map().clone());
        let spec = lease.spec.get_or_insert_default();
        spec.lease_duration_seconds = Some(DURATION_SECONDS);
        spec.renew_time = Some(MicroTime((self.clock)()));
        lease
    }

    async fn delete(&mut self) {
        match self.leases.delete(&self.name, None).await {
            Ok(()) => tracing::info!(lease = self.name, "withdrew this server's Lease"),
            Err(error) if error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(%error, lease = self.name, "could not withdraw this server's Lease; it ends by itself");
            }
        }
    }

    fn failed(&mut self, error: &ApiError) {
        if self.is_failing || error.is_conflict() {
            tracing::debug!(%error, lease = self.name, "could not renew this server's Lease");
        } else {
            self.is_failing = true;
            tracing::warn!(%error, lease = self.name, "could not renew this server's Lease, trying again");
        }
    }

    fn succeeded(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(lease = self.name, "this server's Lease is renewed again");
        }
    }
}
