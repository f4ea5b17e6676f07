//! Every metric of this process (wire-protocol.md 7.2), under upstream's names where upstream has it.

use std::sync::Arc;
use std::time::Duration;

use certs::status::{FileState, Outcome};
use certs::{Current, Status, Timestamp};
use daemon::file_metrics::{self, FileSample};
use prometheus::{
    Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, core::Collector,
};
use tunnel::{
    grpc::Code,
    observe::{Limit, Observe},
    packet::PacketKind,
};

/// What stands in front of every name.
const PREFIX: &str = "konnectivity_network_proxy_agent";

/// Upper bounds in seconds, upstream's.
const DIAL_BUCKETS: [f64; 7] = [0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];

/// All metrics. Threads share it; what packets need is resolved beforehand.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    dial_duration: Histogram,
    dial_failures: IntCounterVec,
    connection_failures: IntCounterVec,
    server_connections: IntGauge,
    retired_connections: IntGauge,
    files: Current<Arc<Status>>,
    known_servers: IntGauge,
    endpoint_connections: IntGauge,
    packets: IntCounterVec,
    stream_errors: IntCounterVec,
    attempts: IntCounterVec,
    limit_hits: IntCounterVec,
    stalled: IntCounter,
    violations: IntCounter,
    buffered: IntGauge,
}

/// How a dial to a target failed, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialFailureReason {
    /// No answer in time.
    Timeout,
    /// Upstream's word for all else.
    Unknown,
}

/// How an attempt to get a tunnel to one more server ended, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// With a new tunnel.
    Added,
    /// With a tunnel in the place of one that was made with certificates of before.
    Renewed,
    /// At a server that we have a tunnel to.
    Duplicate,
    /// Without an answer that can be used.
    Failed,
}

impl Metrics {
    /// All metrics at zero, those of the process besides; `files` is read at each scrape.
    ///
    /// # Errors
    /// If two have the same name, which no input leads to.
    pub fn new(files: Current<Arc<Status>>) -> prometheus::Result<Self> {
        let registry = Registry::new();
        daemon::process_metrics::register(&registry)?;
        let watched = files.clone();
        file_metrics::register(&registry, &format!("{PREFIX}_"), move || {
            samples(&watched.current())
        })?;
        let r = &registry;
        let metrics = Self {
            dial_duration: register(
                r,
                Histogram::with_opts(
                    HistogramOpts::from(opts(
                        "dial_duration_seconds",
                        "Time of successful dials to targets, in seconds.",
                    ))
                    .buckets(DIAL_BUCKETS.to_vec()),
                )?,
            )?,
            dial_failures: register(
                r,
                counters(
                    "endpoint_dial_failure_total",
                    "Number of failures dialing the remote endpoint, by reason (example: timeout).",
                    &["reason"],
                )?,
            )?,
            connection_failures: register(
                r,
                counters(
                    "server_connection_failure_count",
                    "Failures to send to or receive from servers, by direction. Deprecated by upstream: see stream_errors_total.",
                    &["direction"],
                )?,
            )?,
            server_connections: register(
                r,
                gauge(
                    "open_server_connections",
                    "Tunnels to servers that are open.",
                )?,
            )?,
            retired_connections: register(
                r,
                gauge(
                    "replaced_server_connections",
                    "Tunnels that were replaced after a change of certificates and still carry connections.",
                )?,
            )?,
            files,
            known_servers: register(
                r,
                gauge("known_server_count", "Servers that are said to exist.")?,
            )?,
            endpoint_connections: register(
                r,
                gauge(
                    "open_endpoint_connections",
                    "Current number of open endpoint connections.",
                )?,
            )?,
            packets: register(
                r,
                counters(
                    "stream_packets_total",
                    "Packets by direction and type.",
                    &["segment", "packet_type"],
                )?,
            )?,
            stream_errors: register(
                r,
                counters(
                    "stream_errors_total",
                    "Errors that ended tunnels, by direction, gRPC code and packet type.",
                    &["segment", "code", "packet_type"],
                )?,
            )?,
            attempts: register(
                r,
                counters(
                    "server_connection_attempts_total",
                    "Attempts to open a tunnel to one more server, by outcome (added, renewed, duplicate, failed).",
                    &["outcome"],
                )?,
            )?,
            limit_hits: register(
                r,
                counters(
                    "tunnel_limit_hits_total",
                    "Times that a bound of a tunnel was hit, by limit.",
                    &["limit"],
                )?,
            )?,
            stalled: register(
                r,
                counter(
                    "stalled_connections_total",
                    "Connections reset because their target read nothing while others needed the memory.",
                )?,
            )?,
            violations: register(
                r,
                counter(
                    "protocol_violations_total",
                    "Packets from servers that made no sense and were ignored.",
                )?,
            )?,
            buffered: register(
                r,
                gauge(
                    "buffered_bytes",
                    "Bytes held for slow targets that count against --memory-budget.",
                )?,
            )?,
            registry,
        };
        // Series that alerts and upstream's tests expect before anything has happened.
        for reason in [DialFailureReason::Timeout, DialFailureReason::Unknown] {
            metrics.dial_failures.with_label_values(&[reason.name()]);
        }
        for attempt in [
            Attempt::Added,
            Attempt::Renewed,
            Attempt::Duplicate,
            Attempt::Failed,
        ] {
            metrics.attempts.with_label_values(&[attempt.name()]);
        }
        Ok(metrics)
    }

    /// For rendering.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Tunnels open now; what readiness means.
    #[must_use]
    pub fn tunnels(&self) -> i64 {
        self.server_connections.get()
    }

    /// What counts the packets of tunnels.
    pub(crate) fn tunnel_observer(&self) -> TunnelObserver {
        let packets = |segment: &str| {
            PacketKind::ALL.map(|kind| self.packets.with_label_values(&[segment, kind.name()]))
        };
        TunnelObserver {
            received: packets("to_agent"),
            received_unknown: self.packets.with_label_values(&["to_agent", "unknown"]),
            sent: packets("from_agent"),
            limits: Limit::ALL.map(|limit| self.limit_hits.with_label_values(&[limit.name()])),
            stalled: self.stalled.clone(),
            violations: self.violations.clone(),
        }
    }

    /// A tunnel is open for as long as the guard lives.
    pub(crate) fn tunnel_opened(&self) -> Open {
        Open::new(&self.server_connections)
    }

    /// A tunnel that was replaced is still in use for as long as the guard lives.
    pub(crate) fn tunnel_retired(&self) -> Open {
        Open::new(&self.retired_connections)
    }

    /// Tunnels that were replaced and are in use now.
    #[cfg(test)]
    pub(crate) fn replaced_tunnels(&self) -> i64 {
        self.retired_connections.get()
    }

    /// The files that are watched.
    #[must_use]
    pub fn files(&self) -> Arc<Status> {
        self.files.current()
    }

    /// A connection to a target is open for as long as the guard lives.
    pub(crate) fn endpoint_opened(&self) -> Open {
        Open::new(&self.endpoint_connections)
    }

    /// A dial succeeded.
    pub(crate) fn dialled(&self, took: Duration) {
        self.dial_duration.observe(took.as_secs_f64());
    }

    /// A dial failed.
    pub(crate) fn dial_failed(&self, reason: DialFailureReason) {
        self.dial_failures.with_label_values(&[reason.name()]).inc();
    }

    /// A bound of ours was hit.
    pub(crate) fn limited(&self, limit: Limit) {
        self.limit_hits.with_label_values(&[limit.name()]).inc();
    }

    /// A tunnel ended by an error. What was sent is not known to have arrived, so all count as errors of receiving.
    pub(crate) fn tunnel_failed(&self, code: Code) {
        self.connection_failures
            .with_label_values(&["from_server"])
            .inc();
        self.stream_errors
            .with_label_values(&["to_agent", code.name(), "Unknown"])
            .inc();
    }

    /// An attempt to get one more tunnel ended.
    pub(crate) fn attempted(&self, attempt: Attempt) {
        self.attempts.with_label_values(&[attempt.name()]).inc();
    }

    /// How many servers there should be.
    pub(crate) fn know_servers(&self, count: usize) {
        self.known_servers
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Bytes charged to the ledger.
    pub(crate) fn buffer(&self, bytes: usize) {
        self.buffered.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }
}

impl DialFailureReason {
    const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unknown => "unknown",
        }
    }
}

impl Attempt {
    const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Renewed => "renewed",
            Self::Duplicate => "duplicate",
            Self::Failed => "failed",
        }
    }
}

/// Keeps a gauge one higher while it lives.
#[derive(Debug)]
pub(crate) struct Open(IntGauge);

impl Open {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts what tunnels do, without a look-up for a packet.
#[derive(Debug)]
pub(crate) struct TunnelObserver {
    received: [IntCounter; PacketKind::ALL.len()],
    received_unknown: IntCounter,
    sent: [IntCounter; PacketKind::ALL.len()],
    limits: [IntCounter; Limit::ALL.len()],
    stalled: IntCounter,
    violations: IntCounter,
}

impl Observe for TunnelObserver {
    fn received(&self, kind: Option<PacketKind>) {
        // `PacketKind::ALL` is in the order of the numbers.
        let counter = kind.and_then(|kind| self.received.get(kind as usize));
        counter.unwrap_or(&self.received_unknown).inc();
    }

    fn sent(&self, kind: PacketKind) {
        if let Some(counter) = self.sent.get(kind as usize) {
            counter.inc();
        }
    }

    fn violation(&self) {
        self.violations.inc();
    }

    fn stalled(&self) {
        self.stalled.inc();
    }

    fn limited(&self, limit: Limit) {
        for (of, counter) in Limit::ALL.iter().zip(&self.limits) {
            if *of == limit {
                counter.inc();
            }
        }
    }
}

fn samples(status: &Status) -> Vec<FileSample> {
    let now = Timestamp::now();
    let files = status.files().iter();
    files
        .map(|file| FileSample {
            file: file.file().display().to_string(),
            expiry_seconds: file.expiry_seconds(now),
            is_stale: *file.state() != FileState::Fresh,
            reloads: Outcome::ALL
                .map(|outcome| (outcome.name(), file.changes(outcome)))
                .to_vec(),
        })
        .collect()
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("{PREFIX}_{name}"), help)
}

fn gauge(name: &str, help: &str) -> prometheus::Result<IntGauge> {
    IntGauge::with_opts(opts(name, help))
}

fn counter(name: &str, help: &str) -> prometheus::Result<IntCounter> {
    IntCounter::with_opts(opts(name, help))
}

fn counters(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    IntCounterVec::new(opts(name, help), labels)
}

fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    fn rendered(metrics: &Metrics) -> String {
        TextEncoder::new()
            .encode_to_string(&metrics.registry().gather())
            .unwrap()
    }

    fn has_line(text: &str, line: &str) -> bool {
        text.lines()
            .any(|found| found == format!("{PREFIX}_{line}"))
    }

    /// wire-protocol.md T19 and 7.2: upstream's suite reads these from an agent that has done nothing yet.
    #[test]
    fn a_new_agent_has_the_series_and_help_texts_that_upstreams_tests_read() {
        let text = rendered(&Metrics::new(Current::fixed(Arc::default())).unwrap());
        for line in [
            "open_server_connections 0",
            "known_server_count 0",
            "open_endpoint_connections 0",
        ] {
            assert!(has_line(&text, line), "{line}: {text}");
        }
        for help in [
            "endpoint_dial_failure_total Number of failures dialing the remote endpoint, by reason (example: timeout).",
            "open_endpoint_connections Current number of open endpoint connections.",
        ] {
            assert!(
                text.contains(&format!("# HELP {PREFIX}_{help}\n")),
                "{help}"
            );
        }
    }

    #[test]
    fn a_packet_counts_under_its_direction_and_type() {
        let metrics = Metrics::new(Current::fixed(Arc::default())).unwrap();
        let observer = metrics.tunnel_observer();
        for kind in PacketKind::ALL {
            observer.received(Some(kind));
            observer.sent(kind);
        }
        observer.sent(PacketKind::Drain);
        observer.received(None);
        observer.limited(Limit::Paced);
        let text = rendered(&metrics);
        for kind in PacketKind::ALL {
            let line =
                format!("stream_packets_total{{packet_type=\"{kind}\",segment=\"to_agent\"}} 1");
            assert!(has_line(&text, &line), "{line}: {text}");
        }
        for line in [
            "stream_packets_total{packet_type=\"DRAIN\",segment=\"from_agent\"} 2",
            "stream_packets_total{packet_type=\"unknown\",segment=\"to_agent\"} 1",
            "tunnel_limit_hits_total{limit=\"paced\"} 1",
            "tunnel_limit_hits_total{limit=\"connections\"} 0",
        ] {
            assert!(has_line(&text, line), "{line}: {text}");
        }
    }

    #[test]
    fn a_gauge_falls_when_its_guard_is_dropped() {
        let metrics = Metrics::new(Current::fixed(Arc::default())).unwrap();
        let open = (metrics.tunnel_opened(), metrics.tunnel_opened());
        assert_eq!(metrics.tunnels(), 2);
        drop(open);
        assert_eq!(metrics.tunnels(), 0);
    }
}
