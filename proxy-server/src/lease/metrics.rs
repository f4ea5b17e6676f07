//! What the collection tells, under upstream's names and in its words.

use std::{sync::Arc, time::Duration};

use cluster::ApiError;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};

const PREFIX: &str = "konnectivity_network_proxy_server_";

/// All metrics of Leases.
#[derive(Debug)]
pub struct Metrics {
    culled: IntCounter,
    delete_latency: HistogramVec,
    deletes: IntCounterVec,
    list_latency: HistogramVec,
    lists: IntCounterVec,
}

impl Metrics {
    /// Registers all of them; without labels at zero, with labels when there is something to tell, as upstream.
    ///
    /// # Errors
    /// If there are some of the same name already.
    pub fn register(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let opts = |name: &str, help: &str| Opts::new(format!("{PREFIX}{name}"), help);
        let code = ["http_status_code"];
        let code_and_reason = ["http_status_code", "reason"];
        let this = Self {
            culled: IntCounter::with_opts(opts(
                "culled_leases_count",
                "Count of expired leases that the lease garbage collection controller has culled.",
            ))?,
            delete_latency: HistogramVec::new(
                HistogramOpts::from(opts(
                    "lease_delete_latency_seconds",
                    "Latency of lease deletion calls by the garbage collection controller in seconds.",
                )),
                &code,
            )?,
            deletes: IntCounterVec::new(
                opts(
                    "lease_delete_total",
                    "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason.",
                ),
                &code_and_reason,
            )?,
            list_latency: HistogramVec::new(
                HistogramOpts::from(opts(
                    "lease_list_latency_seconds",
                    "Latency of lease list calls by the garbage collection controller in seconds.",
                )),
                &code,
            )?,
            lists: IntCounterVec::new(
                opts(
                    "lease_list_total",
                    "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason.",
                ),
                &code_and_reason,
            )?,
        };
        registry.register(Box::new(this.culled.clone()))?;
        registry.register(Box::new(this.delete_latency.clone()))?;
        registry.register(Box::new(this.deletes.clone()))?;
        registry.register(Box::new(this.list_latency.clone()))?;
        registry.register(Box::new(this.lists.clone()))?;
        Ok(Arc::new(this))
    }

    pub(super) fn listed<T>(&self, result: &Result<T, ApiError>, took: Duration) {
        observe(&self.lists, &self.list_latency, result, took);
    }

    pub(super) fn deleted<T>(&self, result: &Result<T, ApiError>, took: Duration) {
        observe(&self.deletes, &self.delete_latency, result, took);
        if result.is_ok() {
            self.culled.inc();
        }
    }

    #[cfg(test)]
    pub(super) fn culled(&self) -> u64 {
        self.culled.get()
    }
}

/// A request that no answer came to has the code 0; upstream leaves it out, and so shows no outage.
fn observe<T>(
    counts: &IntCounterVec,
    latency: &HistogramVec,
    result: &Result<T, ApiError>,
    took: Duration,
) {
    let (code, reason) = match result {
        Ok(_) => (200, ""),
        Err(error) => (error.code().unwrap_or(0), error.reason()),
    };
    let code = code.to_string();
    counts.with_label_values(&[code.as_str(), reason]).inc();
    latency
        .with_label_values(&[code.as_str()])
        .observe(took.as_secs_f64());
}
