//! What the flags ask of the Kubernetes API, on its thread.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use cluster::ClientOptions;
use tokio::{sync::watch, time::timeout};

use crate::{
    lease::{self, Published},
    metrics::Metrics,
    token_review::{self, Reviewer},
};

/// How long this server's Lease may take to be deleted. One that is not expires by itself.
const WITHDRAW_LIMIT: Duration = Duration::from_secs(2);

/// How long requests that are under way may take to end.
const END_LIMIT: Duration = Duration::from_millis(200);

/// The thread, and what is kept alive there.
#[derive(Debug)]
pub(super) struct Kubernetes {
    thread: cluster::Thread,
    lease: Option<lease::Options>,
    published: Option<Published>,
    metrics: Arc<Metrics>,
    /// Hears how many servers live, until a Lease is published or for ever.
    live: Option<watch::Sender<u32>>,
}

impl Kubernetes {
    /// Starts the thread, and on it a reviewer if tokens are wanted. Asks the API nothing yet. `live` is told how many servers there
    /// are by their Leases.
    ///
    /// # Errors
    /// If kubeconfig or service account cannot be used.
    pub(super) fn start(
        client: ClientOptions,
        review: Option<token_review::Options>,
        lease: Option<lease::Options>,
        metrics: &Arc<Metrics>,
        live: watch::Sender<u32>,
    ) -> anyhow::Result<(Self, Option<Reviewer>)> {
        let thread = cluster::Thread::start(client).context("--kubeconfig")?;
        let reviewer = review.map(|options| Reviewer::start(&thread, options, metrics.clone()));
        let this = Self {
            thread,
            lease,
            published: None,
            metrics: metrics.clone(),
            live: Some(live),
        };
        Ok((this, reviewer))
    }

    /// Publishes the Lease, if there is to be one. Call when agents can connect.
    ///
    /// # Errors
    /// If the server's id makes no name for it.
    pub(super) fn publish(&mut self) -> Result<(), lease::InvalidName> {
        if let (Some(options), Some(live)) = (self.lease.take(), self.live.take()) {
            let published = Published::start(&self.thread, options, self.metrics.clone(), live)?;
            self.published = Some(published);
        }
        Ok(())
    }

    /// Deletes the Lease, so that agents no longer look for this server, within [`WITHDRAW_LIMIT`].
    pub(super) async fn withdraw(&mut self) {
        let Some(published) = self.published.take() else {
            return;
        };
        if timeout(WITHDRAW_LIMIT, published.withdraw()).await.is_err() {
            tracing::warn!(
                "this server's Lease could not be deleted within {WITHDRAW_LIMIT:?}; it expires {}s after its last renewal",
                lease::DURATION_SECONDS
            );
        }
    }

    /// Ends the thread.
    pub(super) async fn finish(self) {
        if !self.thread.finish(END_LIMIT).await {
            tracing::debug!("left a request to the Kubernetes API unfinished");
        }
    }
}
