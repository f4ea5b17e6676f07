//! Series on files that are watched while the process runs: what expires when, and how changes ended. Read at each scrape.

use std::fmt;

use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

/// What is to be told of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSample {
    /// Its path, the label `file`.
    pub file: String,
    /// Seconds until what is in use of it expires, negative once it has; `None` if it does not expire.
    pub expiry_seconds: Option<i64>,
    /// Whether something else is in use than the file holds.
    pub is_stale: bool,
    /// How often changes ended how since the start, by the label `outcome`.
    pub reloads: Vec<(&'static str, u64)>,
}

/// Name behind the prefix, help and type of each series.
const EXPIRY: (&str, &str, MetricType) = (
    "certificate_expiry_seconds",
    "Seconds until the certificate in use, or the first of a CA bundle, expires; negative once it has.",
    MetricType::GAUGE,
);
const STALE: (&str, &str, MetricType) = (
    "file_stale",
    "1 while an older content is in use than the file holds, because what it holds was refused.",
    MetricType::GAUGE,
);
const RELOADS: (&str, &str, MetricType) = (
    "file_reloads_total",
    "Changes of a watched file, by outcome (reloaded, refused).",
    MetricType::COUNTER,
);

/// Adds the series, with `prefix` in front of their names, to `registry`. `sample` is called at each scrape, on the
/// scraping thread, and must not block.
///
/// # Errors
///
/// If a series of the same name is registered already.
pub fn register(
    registry: &Registry,
    prefix: &str,
    sample: impl Fn() -> Vec<FileSample> + Send + Sync + 'static,
) -> prometheus::Result<()> {
    let desc = |(name, help, _): (&str, &str, MetricType), labels: &[&str]| {
        Desc::new(
            format!("{prefix}{name}"),
            help.to_owned(),
            labels.iter().map(|&label| label.to_owned()).collect(),
            std::collections::HashMap::new(),
        )
    };
    registry.register(Box::new(FileCollector {
        descs: vec![
            desc(EXPIRY, &["file"])?,
            desc(STALE, &["file"])?,
            desc(RELOADS, &["file", "outcome"])?,
        ],
        prefix: prefix.to_owned(),
        sample: Box::new(sample),
    }))
}

struct FileCollector {
    descs: Vec<Desc>,
    prefix: String,
    sample: Box<dyn Fn() -> Vec<FileSample> + Send + Sync>,
}

impl fmt::Debug for FileCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCollector")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Collector for FileCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    #[expect(clippy::cast_precision_loss, reason = "Prometheus values are f64")]
    fn collect(&self) -> Vec<MetricFamily> {
        let (mut expiry, mut stale, mut reloads) = (Vec::new(), Vec::new(), Vec::new());
        for file in (self.sample)() {
            let label = ("file", file.file.as_str());
            if let Some(seconds) = file.expiry_seconds {
                expiry.push(gauge(&[label], seconds as f64));
            }
            stale.push(gauge(&[label], f64::from(u8::from(file.is_stale))));
            for (outcome, count) in file.reloads {
                reloads.push(counter(&[label, ("outcome", outcome)], count as f64));
            }
        }
        [(EXPIRY, expiry), (STALE, stale), (RELOADS, reloads)]
            .into_iter()
            .map(|((name, help, kind), metrics)| {
                let mut family = MetricFamily::default();
                family.set_name(format!("{}{name}", self.prefix));
                family.set_help(help.to_owned());
                family.set_field_type(kind);
                family.set_metric(metrics);
                family
            })
            .collect()
    }
}

fn gauge(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = labelled(labels);
    metric.set_gauge(gauge);
    metric
}

fn counter(labels: &[(&str, &str)], value: f64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value);
    let mut metric = labelled(labels);
    metric.set_counter(counter);
    metric
}

fn labelled(labels: &[(&str, &str)]) -> Metric {
    let labels = labels.iter().map(|(name, value)| {
        let mut label = LabelPair::default();
        label.set_name((*name).to_owned());
        label.set_value((*value).to_owned());
        label
    });
    let mut metric = Metric::default();
    metric.set_label(labels.collect());
    metric
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn each_file_has_its_series_and_a_key_has_no_expiry() {
        let registry = Registry::new();
        let sample = |file: &str, expiry_seconds, is_stale| FileSample {
            file: file.to_owned(),
            expiry_seconds,
            is_stale,
            reloads: vec![("reloaded", 2), ("refused", 1)],
        };
        register(&registry, "x_", move || {
            vec![
                sample("a.crt", Some(-5), false),
                sample("a.key", None, true),
            ]
        })
        .unwrap();
        let text = TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "x_certificate_expiry_seconds{file=\"a.crt\"} -5",
                "x_file_reloads_total{file=\"a.crt\",outcome=\"refused\"} 1",
                "x_file_reloads_total{file=\"a.crt\",outcome=\"reloaded\"} 2",
                "x_file_reloads_total{file=\"a.key\",outcome=\"refused\"} 1",
                "x_file_reloads_total{file=\"a.key\",outcome=\"reloaded\"} 2",
                "x_file_stale{file=\"a.crt\"} 0",
                "x_file_stale{file=\"a.key\"} 1",
            ]
        );
        assert!(
            text.contains("# TYPE x_file_reloads_total counter\n"),
            "{text}"
        );
    }

    #[test]
    fn without_files_there_is_no_series() {
        let registry = Registry::new();
        register(&registry, "x_", Vec::new).unwrap();
        assert!(registry.gather().is_empty());
        assert!(register(&registry, "x_", Vec::new).is_err());
    }
}
