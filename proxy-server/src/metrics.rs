//! Every metric of the server; upstream's names where upstream has the metric (wire-protocol, section 7.1).

use std::{sync::Arc, time::Instant};

use certs::{
    Current, Status, Timestamp,
    status::{FileState, Outcome},
};
use daemon::file_metrics::{self, FileSample};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};
use tunnel::{
    grpc::Code,
    observe::{Limit, Observe},
    packet::PacketKind,
};

const PREFIX: &str = "konnectivity_network_proxy_server_";

const DIAL_BUCKETS: [f64; 9] = [
    0.000_001, 0.000_01, 0.000_1, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5,
];

const DURATION_BUCKETS: [f64; 12] = [
    1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0, 43200.0, 86400.0,
];

/// Where a packet came from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// From kube-apiserver.
    FromClient,
    /// To kube-apiserver.
    ToClient,
    /// From an agent.
    FromAgent,
    /// To an agent.
    ToAgent,
}

impl Segment {
    const fn name(self) -> &'static str {
        match self {
            Self::FromClient => "from_client",
            Self::ToClient => "to_client",
            Self::FromAgent => "from_agent",
            Self::ToAgent => "to_agent",
        }
    }
}

/// Why a dial failed, in upstream's words and a few of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFailure {
    /// No agent is connected.
    NoAgent,
    /// The agent could not reach the target.
    ErrorResponse,
    /// The agent's tunnel went away, or the agent gave up.
    BackendClose,
    /// The agent did not answer in time.
    BackendDialTimeout,
    /// Whoever asked went away.
    FrontendClose,
    /// A bound was hit. Ours.
    Limit,
}

impl DialFailure {
    const ALL: [Self; 6] = [
        Self::NoAgent,
        Self::ErrorResponse,
        Self::BackendClose,
        Self::BackendDialTimeout,
        Self::FrontendClose,
        Self::Limit,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::NoAgent => "no_agent",
            Self::ErrorResponse => "error_response",
            Self::BackendClose => "backend_close",
            Self::BackendDialTimeout => "backend_dial_timeout",
            Self::FrontendClose => "frontend_close",
            Self::Limit => "limit",
        }
    }
}

/// Which listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// kube-apiserver's.
    Frontend,
    /// The agents'.
    Agent,
}

impl Listener {
    /// As it stands in a metric label and in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frontend => "frontend",
            Self::Agent => "agent",
        }
    }
}

/// All metrics, registered.
#[derive(Debug)]
pub struct Metrics {
    /// What `/metrics` shows.
    pub registry: Registry,
    /// The files that are watched.
    pub files: Current<Arc<Status>>,
    /// Seconds from a dial's request to its success.
    pub dial_duration: Histogram,
    /// Life time of connections.
    pub connection_duration: Histogram,
    /// Open `Proxy` streams.
    pub proxy_streams: IntGauge,
    /// Open `Connect` streams.
    pub connect_streams: IntGauge,
    /// CONNECT requests under way.
    pub http_connections: IntGauge,
    /// Agents, by id; upstream's deprecated name.
    pub ready_backend_connections: IntGauge,
    /// Agents of the strategy `default`, by id.
    pub ready_backends: IntGauge,
    /// Dials that wait for an answer.
    pub pending_dials: IntGauge,
    /// Connections.
    pub established: IntGauge,
    /// Bytes that slow readers hold of the budget.
    pub buffered_bytes: IntGauge,
    /// Connections reset because their readers stalled.
    pub stalled: IntCounter,
    /// Packets against the protocol.
    pub violations: IntCounter,
    dial_failures: IntCounterVec,
    packets: IntCounterVec,
    errors: IntCounterVec,
    limits: IntCounterVec,
    refused: IntCounterVec,
}

impl Metrics {
    /// Registers everything; `files` is read at each scrape.
    ///
    /// # Errors
    /// Never in practice: the names are constants and differ.
    pub fn new(files: Current<Arc<Status>>) -> prometheus::Result<Arc<Self>> {
        let registry = Registry::new();
        let gauges = IntGaugeVec::new(
            opts(
                "grpc_connections",
                "Number of open gRPC streams, by method.",
            ),
            &["service_method"],
        )?;
        registry.register(Box::new(gauges.clone()))?;
        let backends = IntGaugeVec::new(
            opts(
                "ready_backends",
                "Number of agents that can be chosen, by strategy.",
            ),
            &["proxy_strategy"],
        )?;
        registry.register(Box::new(backends.clone()))?;
        // Written when a frontend stream takes a packet of an agent; upstream has it, ours is one observation a batch.
        let this = Self {
            dial_duration: histogram(
                &registry,
                "dial_duration_seconds",
                "Seconds from a dial's request to its success.",
                &DIAL_BUCKETS,
            )?,
            connection_duration: histogram(
                &registry,
                "connection_duration_seconds",
                "Life time of connections.",
                &DURATION_BUCKETS,
            )?,
            proxy_streams: gauges.with_label_values(&["Proxy"]),
            connect_streams: gauges.with_label_values(&["Connect"]),
            http_connections: gauge(
                &registry,
                "http_connections",
                "Number of CONNECT requests under way.",
            )?,
            ready_backend_connections: gauge(
                &registry,
                "ready_backend_connections",
                "Number of agents. Deprecated for ready_backends.",
            )?,
            ready_backends: backends.with_label_values(&["default"]),
            pending_dials: gauge(
                &registry,
                "pending_backend_dials",
                "Number of dials that wait for an agent's answer.",
            )?,
            established: gauge(
                &registry,
                "established_connections",
                "Number of established connections.",
            )?,
            buffered_bytes: gauge(
                &registry,
                "buffered_bytes",
                "Bytes of --memory-budget that slow readers hold.",
            )?,
            stalled: counter(
                &registry,
                "stalled_connections_total",
                "Connections reset because their reader stalled beyond its share of the buffers.",
            )?,
            violations: counter(
                &registry,
                "protocol_violations_total",
                "Packets that were ignored because they are against the protocol.",
            )?,
            dial_failures: counters(
                &registry,
                "dial_failure_count",
                "Number of dials that failed, by reason.",
                &["reason"],
            )?,
            packets: counters(
                &registry,
                "stream_packets_total",
                "Number of packets, by segment and type.",
                &["segment", "packet_type"],
            )?,
            errors: counters(
                &registry,
                "stream_errors_total",
                "Number of stream errors, by segment, gRPC code and packet type.",
                &["segment", "code", "packet_type"],
            )?,
            limits: counters(
                &registry,
                "tunnel_limit_hits_total",
                "How often a bound of a tunnel was hit.",
                &["limit"],
            )?,
            refused: counters(
                &registry,
                "refused_connections_total",
                "Connections refused before they became anything, by listener.",
                &["listener"],
            )?,
            registry,
            files,
        };
        let files = this.files.clone();
        file_metrics::register(&this.registry, PREFIX, move || samples(&files.current()))?;
        daemon::process_metrics::register(&this.registry)?;
        for reason in DialFailure::ALL {
            this.dial_failures.with_label_values(&[reason.name()]);
        }
        for limit in Limit::ALL {
            this.limits.with_label_values(&[limit.name()]);
        }
        for listener in [Listener::Frontend, Listener::Agent] {
            this.refused.with_label_values(&[listener.name()]);
        }
        Ok(Arc::new(this))
    }

    /// A dial failed.
    pub fn dial_failed(&self, reason: DialFailure) {
        self.dial_failures.with_label_values(&[reason.name()]).inc();
    }

    /// A stream broke.
    pub fn stream_failed(&self, segment: Segment, code: Code) {
        self.errors
            .with_label_values(&[segment.name(), code.name(), "Unknown"])
            .inc();
    }

    /// A connection was refused: handshake, identity, protocol.
    pub fn refused(&self, listener: Listener) {
        self.refused.with_label_values(&[listener.name()]).inc();
    }

    /// Counters of one direction, one a packet type, so that a packet costs no look-up.
    #[must_use]
    pub fn packets(&self, segment: Segment) -> PacketCounters {
        PacketCounters {
            known: PacketKind::ALL.map(|kind| {
                self.packets
                    .with_label_values(&[segment.name(), kind.name()])
            }),
            unknown: self.packets.with_label_values(&[segment.name(), "unknown"]),
        }
    }
}

/// See [`Metrics::packets`].
#[derive(Debug)]
pub struct PacketCounters {
    known: [IntCounter; PacketKind::ALL.len()],
    unknown: IntCounter,
}

impl PacketCounters {
    /// Counts one.
    pub fn count(&self, kind: Option<PacketKind>) {
        kind.and_then(|kind| self.known.get(kind as usize))
            .unwrap_or(&self.unknown)
            .inc();
    }
}

/// What tunnels to agents report to.
#[derive(Debug)]
pub struct AgentObserver {
    metrics: Arc<Metrics>,
    received: PacketCounters,
    sent: PacketCounters,
}

impl AgentObserver {
    /// Reports to `metrics`.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            received: metrics.packets(Segment::FromAgent),
            sent: metrics.packets(Segment::ToAgent),
            metrics,
        }
    }
}

impl Observe for AgentObserver {
    fn received(&self, kind: Option<PacketKind>) {
        self.received.count(kind);
    }

    fn sent(&self, kind: PacketKind) {
        self.sent.count(Some(kind));
    }

    fn violation(&self) {
        self.metrics.violations.inc();
    }

    fn stalled(&self) {
        self.metrics.stalled.inc();
    }

    fn limited(&self, limit: Limit) {
        self.metrics.limits.with_label_values(&[limit.name()]).inc();
    }
}

/// Raises a gauge for as long as it lives.
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

/// Observes how long it lived.
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
            since: tokio::time::Instant::now().into_std(),
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.histogram.observe(self.since.elapsed().as_secs_f64());
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
    Opts::new(format!("{PREFIX}{name}"), help)
}

fn gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    let gauge = IntGauge::with_opts(opts(name, help))?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    let counter = IntCounter::with_opts(opts(name, help))?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let counters = IntCounterVec::new(opts(name, help), labels)?;
    registry.register(Box::new(counters.clone()))?;
    Ok(counters)
}

fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
) -> prometheus::Result<Histogram> {
    let opts = HistogramOpts::new(format!("{PREFIX}{name}"), help).buckets(buckets.to_vec());
    let vec = HistogramVec::new(opts, &[])?;
    let histogram = vec.with_label_values::<&str>(&[]);
    registry.register(Box::new(vec))?;
    Ok(histogram)
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn series_exist_from_the_start_under_upstreams_names() {
        let metrics = Metrics::new(Current::fixed(Arc::default())).unwrap();
        let text = TextEncoder::new()
            .encode_to_string(&metrics.registry.gather())
            .unwrap();
        for line in [
            "konnectivity_network_proxy_server_dial_failure_count{reason=\"no_agent\"} 0",
            "konnectivity_network_proxy_server_ready_backends{proxy_strategy=\"default\"} 0",
            "konnectivity_network_proxy_server_grpc_connections{service_method=\"Proxy\"} 0",
            "# TYPE konnectivity_network_proxy_server_dial_failure_count counter",
            "konnectivity_network_proxy_server_dial_duration_seconds_count 0",
        ] {
            assert!(text.contains(line), "no {line} in {text}");
        }
    }

    #[test]
    fn a_gauge_falls_with_its_guard() {
        let metrics = Metrics::new(Current::fixed(Arc::default())).unwrap();
        let guard = Gauged::new(&metrics.established);
        assert_eq!(metrics.established.get(), 1);
        drop(guard);
        assert_eq!(metrics.established.get(), 0);
    }
}
