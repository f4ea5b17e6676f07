//! What token review tells; all ours, as upstream has none.

use std::{sync::Arc, time::Duration};

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

const PREFIX: &str = "konnectivity_network_proxy_server_";

/// In seconds.
const BUCKETS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0];

/// All metrics of token review.
#[derive(Debug)]
pub struct Metrics {
    reviews: IntCounterVec,
    cache_hits: IntCounter,
    latency: Histogram,
    limit_hits: IntCounter,
}

/// How an agent fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It may connect.
    Accepted,
    /// It is not who may.
    Denied,
    /// The API could not be asked.
    Failed,
    /// It sent no token that could be looked at.
    Malformed,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Accepted, Self::Denied, Self::Failed, Self::Malformed];

    const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Malformed => "malformed",
        }
    }
}

impl Metrics {
    /// Registers all of them, at zero.
    ///
    /// # Errors
    /// If there are some of the same name already.
    pub fn register(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let opts = |name: &str, help: &str| Opts::new(format!("{PREFIX}{name}"), help);
        let this = Self {
            reviews: IntCounterVec::new(
                opts(
                    "token_reviews_total",
                    "Agents whose token was reviewed, by outcome (accepted, denied, failed, malformed).",
                ),
                &["outcome"],
            )?,
            cache_hits: IntCounter::with_opts(opts(
                "token_review_cache_hits_total",
                "Token reviews that were answered from memory or together with another one.",
            ))?,
            latency: Histogram::with_opts(
                HistogramOpts::from(opts(
                    "token_review_latency_seconds",
                    "Seconds that the Kubernetes API took for a TokenReview, the wait for the client's own rate limit included.",
                ))
                .buckets(BUCKETS.to_vec()),
            )?,
            limit_hits: IntCounter::with_opts(opts(
                "token_review_limit_hits_total",
                "Agents that were refused because too many waited for a token review.",
            ))?,
        };
        registry.register(Box::new(this.reviews.clone()))?;
        registry.register(Box::new(this.cache_hits.clone()))?;
        registry.register(Box::new(this.latency.clone()))?;
        registry.register(Box::new(this.limit_hits.clone()))?;
        for outcome in Outcome::ALL {
            this.reviews.with_label_values(&[outcome.name()]);
        }
        Ok(Arc::new(this))
    }

    pub(super) fn reviewed(&self, outcome: Outcome) {
        self.reviews.with_label_values(&[outcome.name()]).inc();
    }

    pub(super) fn cache_hit(&self) {
        self.cache_hits.inc();
    }

    pub(super) fn asked(&self, took: Duration) {
        self.latency.observe(took.as_secs_f64());
    }

    pub(super) fn limit_hit(&self) {
        self.limit_hits.inc();
    }

    #[cfg(test)]
    pub(super) fn hits(&self) -> (u64, u64) {
        (self.cache_hits.get(), self.limit_hits.get())
    }

    #[cfg(test)]
    pub(super) fn count(&self, outcome: Outcome) -> u64 {
        self.reviews.with_label_values(&[outcome.name()]).get()
    }
}
