//! Values that measure by living.

use prometheus::{Histogram, IntGauge};
use tokio::time::Instant;

/// Keeps a gauge one higher while it lives.
#[derive(Debug)]
pub struct Gauged(IntGauge);

impl Gauged {
    /// Raises `gauge`.
    #[must_use]
    pub fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Gauged {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Observes, at its end, how many seconds it lived.
#[derive(Debug)]
pub struct Timed {
    histogram: Histogram,
    since: Instant,
}

impl Timed {
    /// Starts now.
    #[must_use]
    pub fn new(histogram: &Histogram) -> Self {
        Self {
            histogram: histogram.clone(),
            since: Instant::now(),
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.histogram.observe(self.since.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use prometheus::HistogramOpts;

    use super::*;

    #[test]
    fn a_gauge_falls_with_its_guard() {
        let gauge = IntGauge::new("level", "A level.").unwrap();
        let guard = Gauged::new(&gauge);
        assert_eq!(gauge.get(), 1);
        drop(guard);
        assert_eq!(gauge.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_life_time_is_observed_at_its_end() {
        let histogram = Histogram::with_opts(HistogramOpts::new("took", "Took.")).unwrap();
        let guard = Timed::new(&histogram);
        tokio::time::advance(std::time::Duration::from_secs(3)).await;
        assert_eq!(histogram.get_sample_count(), 0);
        drop(guard);
        assert_eq!(histogram.get_sample_count(), 1);
        assert!((histogram.get_sample_sum() - 3.0).abs() < 0.1);
    }
}
