//! How both processes make their metrics: registered as they are made, under one prefix, with every series that is known
//! beforehand at zero.

mod api_calls;
mod guards;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result, core::Collector,
};

pub use api_calls::{ApiCalls, MAX_REASON_BYTES};
pub use guards::{Gauged, Timed};

/// Makes metrics and registers them. Every method fails if a metric of that name exists, or if a name or label is none, which
/// constants that a test renders cannot lead to.
#[derive(Clone, Copy, Debug)]
pub struct Factory<'a> {
    registry: &'a Registry,
    prefix: &'a str,
}

impl<'a> Factory<'a> {
    /// Metrics in `registry`, with `prefix` before their names.
    #[must_use]
    pub fn new(registry: &'a Registry, prefix: &'a str) -> Self {
        Self { registry, prefix }
    }

    /// A gauge without labels.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub fn gauge(self, name: &str, help: &str) -> Result<IntGauge> {
        self.register(IntGauge::with_opts(self.opts(name, help))?)
    }

    /// Gauges by one label, each of `values` at zero.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub fn gauges(
        self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&str],
    ) -> Result<IntGaugeVec> {
        let gauges = self.register(IntGaugeVec::new(self.opts(name, help), &[label])?)?;
        for value in values {
            gauges.get_metric_with_label_values(&[*value])?;
        }
        Ok(gauges)
    }

    /// A counter without labels.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub fn counter(self, name: &str, help: &str) -> Result<IntCounter> {
        self.register(IntCounter::with_opts(self.opts(name, help))?)
    }

    /// Counters by one label, each of `values` at zero.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub fn counters(
        self,
        name: &str,
        help: &str,
        label: &str,
        values: &[&str],
    ) -> Result<IntCounterVec> {
        let counters = self.counters_by(name, help, &[label])?;
        for value in values {
            counters.get_metric_with_label_values(&[*value])?;
        }
        Ok(counters)
    }

    /// Counters by several labels, none of which exists before it is asked for.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub fn counters_by(self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        self.register(IntCounterVec::new(self.opts(name, help), labels)?)
    }

    /// A histogram without labels; `buckets` are upper bounds.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub fn histogram(self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        self.register(Histogram::with_opts(self.buckets(name, help, buckets))?)
    }

    /// Histograms by one label, each of `values` at zero.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub fn histograms(
        self,
        name: &str,
        help: &str,
        buckets: &[f64],
        label: &str,
        values: &[&str],
    ) -> Result<HistogramVec> {
        let opts = self.buckets(name, help, buckets);
        let histograms = self.register(HistogramVec::new(opts, &[label])?)?;
        for value in values {
            histograms.get_metric_with_label_values(&[*value])?;
        }
        Ok(histograms)
    }

    fn opts(self, name: &str, help: &str) -> Opts {
        Opts::new(format!("{}{name}", self.prefix), help)
    }

    fn buckets(self, name: &str, help: &str, buckets: &[f64]) -> HistogramOpts {
        HistogramOpts::from(self.opts(name, help)).buckets(buckets.to_vec())
    }

    fn register<C: Collector + Clone + 'static>(self, collector: C) -> Result<C> {
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn what_is_made_is_rendered_under_its_prefix_at_zero() {
        let registry = Registry::new();
        let make = Factory::new(&registry, "x_");
        make.gauge("level", "A level.").unwrap();
        make.gauges("levels", "Levels.", "of", &["a", "b"]).unwrap();
        make.counter("times_total", "Times.").unwrap();
        make.counters("each_total", "Each.", "of", &["a"]).unwrap();
        make.counters_by("later_total", "Later.", &["of", "by"])
            .unwrap();
        make.histogram("took", "Took.", &[0.5]).unwrap();
        make.histograms("each_took", "Each took.", &[2.0], "of", &["a"])
            .unwrap();
        let text = TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "x_each_took_bucket{of=\"a\",le=\"2\"} 0",
                "x_each_took_bucket{of=\"a\",le=\"+Inf\"} 0",
                "x_each_took_sum{of=\"a\"} 0",
                "x_each_took_count{of=\"a\"} 0",
                "x_each_total{of=\"a\"} 0",
                "x_level 0",
                "x_levels{of=\"a\"} 0",
                "x_levels{of=\"b\"} 0",
                "x_times_total 0",
                "x_took_bucket{le=\"0.5\"} 0",
                "x_took_bucket{le=\"+Inf\"} 0",
                "x_took_sum 0",
                "x_took_count 0",
            ]
        );
    }

    #[test]
    fn a_name_that_is_taken_is_an_error() {
        let registry = Registry::new();
        let make = Factory::new(&registry, "x_");
        make.gauge("level", "A level.").unwrap();
        assert!(make.counter("level", "A level.").is_err());
    }
}
