//! What counting tells, under upstream's names and in its words.

use std::{sync::Arc, time::Duration};

use cluster::ApiError;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

const PREFIX: &str = "konnectivity_network_proxy_agent_";

/// Upper bounds in seconds, upstream's.
const BUCKETS: [f64; 7] = [0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];

/// All metrics of Leases.
#[derive(Debug)]
pub struct Metrics {
    lists: IntCounterVec,
    watches: IntCounterVec,
    list_latency: HistogramVec,
}

impl Metrics {
    /// Registers all of them; they have series when there is something to tell, as upstream's.
    ///
    /// # Errors
    /// If there are some of the same name already.
    pub fn register(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let opts = |name: &str, help: &str| Opts::new(format!("{PREFIX}{name}"), help);
        let this = Self {
            lists: IntCounterVec::new(
                opts(
                    "lease_lists_total",
                    "Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason",
                ),
                &["http_response_code", "reason"],
            )?,
            watches: IntCounterVec::new(
                opts(
                    "lease_watches_total",
                    "Count of server lease watch calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason",
                ),
                &["http_response_code", "reason"],
            )?,
            list_latency: HistogramVec::new(
                HistogramOpts::from(opts(
                    "lease_list_latency_seconds",
                    "Latency of server lease listing in seconds",
                ))
                .buckets(BUCKETS.to_vec()),
                &["http_response_code"],
            )?,
        };
        registry.register(Box::new(this.lists.clone()))?;
        registry.register(Box::new(this.watches.clone()))?;
        registry.register(Box::new(this.list_latency.clone()))?;
        Ok(Arc::new(this))
    }

    pub(super) fn listed<T>(&self, result: &Result<T, ApiError>, took: Duration) {
        let (code, reason) = outcome(result);
        self.lists.with_label_values(&[code.as_str(), reason]).inc();
        self.list_latency
            .with_label_values(&[code.as_str()])
            .observe(took.as_secs_f64());
    }

    /// Upstream counts these as lists (W18).
    pub(super) fn watched<T>(&self, result: &Result<T, ApiError>) {
        let (code, reason) = outcome(result);
        self.watches
            .with_label_values(&[code.as_str(), reason])
            .inc();
    }

    #[cfg(test)]
    pub(super) fn counts(&self, code: &str, reason: &str) -> (u64, u64) {
        let count = |counts: &IntCounterVec| counts.with_label_values(&[code, reason]).get();
        (count(&self.lists), count(&self.watches))
    }
}

/// A request that no answer came to has the code 0; upstream leaves it out, and so shows no outage.
fn outcome<T>(result: &Result<T, ApiError>) -> (String, &str) {
    match result {
        Ok(_) => ("200".to_owned(), ""),
        Err(error) => (error.code().unwrap_or(0).to_string(), error.reason()),
    }
}
