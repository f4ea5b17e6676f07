//! Health, readiness and metrics (wire-protocol, section 8.1).

use std::sync::Arc;

use daemon::admin::{AdminServer, AdminThread, Router, metrics_handler, text};
use http::StatusCode;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// The paths of the health listener.
#[must_use]
pub fn health_router(metrics: &Arc<Metrics>, stop: &CancellationToken) -> Router {
    let ready = {
        let (metrics, stop) = (metrics.clone(), stop.clone());
        move |_: &http::request::Parts| {
            if stop.is_cancelled() {
                text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "proxy server is shutting down",
                )
            } else if metrics.ready_backends.get() > 0 {
                text(StatusCode::OK, "ok")
            } else {
                text(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "no connection to any proxy agent",
                )
            }
        }
    };
    admin_router(metrics)
        .route("/healthz", |_| text(StatusCode::OK, "ok"))
        .route("/readyz", ready.clone())
        .route("/ready", ready)
}

/// The paths of the admin listener.
#[must_use]
pub fn admin_router(metrics: &Arc<Metrics>) -> Router {
    Router::new().route("/metrics", metrics_handler(&metrics.registry))
}

/// The two listeners' threads.
#[derive(Debug)]
pub struct Admin {
    threads: [AdminThread; 2],
    stop: CancellationToken,
}

impl Admin {
    /// Starts both; `draining` is what readiness looks at.
    ///
    /// # Errors
    /// If a thread cannot be made.
    pub fn start(
        health: AdminServer,
        admin: AdminServer,
        metrics: &Arc<Metrics>,
        draining: &CancellationToken,
    ) -> std::io::Result<Self> {
        let stop = CancellationToken::new();
        let threads = [
            health.serve("health", health_router(metrics, draining), stop.clone())?,
            admin.serve("admin", admin_router(metrics), stop.clone())?,
        ];
        Ok(Self { threads, stop })
    }

    /// Ends both. Blocks until their threads are gone.
    pub fn finish(self) {
        self.stop.cancel();
        for thread in self.threads {
            if let Err(error) = thread.join() {
                tracing::error!(%error, "an admin listener ended badly");
            }
        }
    }
}
