//! What token review tells; all ours, as upstream has none.

use std::time::Duration;

use daemon::metrics::Factory;
use prometheus::{Histogram, IntCounter, IntCounterVec};

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
    /// All of them, at zero.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub(crate) fn new(make: Factory<'_>) -> prometheus::Result<Self> {
        Ok(Self {
            reviews: make.counters(
                "token_reviews_total",
                "Agents whose token was reviewed, by outcome (accepted, denied, failed, malformed).",
                "outcome",
                &Outcome::ALL.map(Outcome::name),
            )?,
            cache_hits: make.counter(
                "token_review_cache_hits_total",
                "Token reviews that were answered from memory or together with another one.",
            )?,
            latency: make.histogram(
                "token_review_duration_seconds",
                "Seconds until the Kubernetes API answered a TokenReview, the wait for the client's own rate limit included.",
                &BUCKETS,
            )?,
            limit_hits: make.counter(
                "token_review_limit_hits_total",
                "Agents that were refused because too many waited for a token review.",
            )?,
        })
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
