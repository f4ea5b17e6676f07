//! Every metric of this process; upstream's names, labels, buckets and HELP where upstream has it
//! (`pkg/agent/metrics/metrics.go`; wire-protocol.md 7.2).

mod labels;
mod packets;

use std::sync::Arc;
use std::time::Duration;

use certs::status::{FileState, Outcome};
use certs::{Current, Status, Timestamp};
use daemon::file_metrics::{self, FileSample};
use daemon::metrics::{ApiCalls, Factory};
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use tunnel::{grpc::Code, observe::Limit};

pub use daemon::metrics::Gauged as Open;
pub use labels::TunnelKind;
pub(crate) use labels::{Attempt, DialFailureReason, ForwardFailure};
pub(crate) use packets::TunnelObserver;

/// What stands in front of every name.
const PREFIX: &str = "konnectivity_network_proxy_agent_";

/// Upper bounds in seconds, upstream's.
const LATENCY_BUCKETS: [f64; 7] = [0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0];

/// All metrics. Threads share it; what packets need is resolved beforehand.
#[derive(Debug)]
pub struct Metrics {
    /// Lists of server Leases, and how long they took.
    pub lease_lists: ApiCalls,
    /// Watches of server Leases. Upstream counts them among the lists, by mistake (wire-protocol.md W18).
    pub lease_watches: ApiCalls,
    /// Payload bytes given to targets.
    pub bytes_to_targets: IntCounter,
    /// Payload bytes taken from targets.
    pub bytes_from_targets: IntCounter,
    registry: Registry,
    files: Current<Arc<Status>>,
    dial_duration: Histogram,
    dial_failures: IntCounterVec,
    dial_causes: IntCounterVec,
    connection_failures: IntCounterVec,
    server_connections: IntGauge,
    retired_connections: IntGauge,
    tunnels: IntGaugeVec,
    known_servers: IntGauge,
    reached_servers: IntGauge,
    endpoint_connections: IntGauge,
    forward_connections: IntGauge,
    forward_failures: IntCounterVec,
    packets: IntCounterVec,
    stream_errors: IntCounterVec,
    attempts: IntCounterVec,
    limit_hits: IntCounterVec,
    stalled: IntCounter,
    violations: IntCounter,
    buffered: IntGauge,
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
        file_metrics::register(&registry, PREFIX, move || samples(&watched.current()))?;
        let make = Factory::new(&registry, PREFIX);
        let bytes = make.counters(
            "forwarded_bytes_total",
            "Payload bytes of connections, by direction (to_target, from_target).",
            "direction",
            &["to_target", "from_target"],
        )?;
        let metrics = Self {
            lease_lists: ApiCalls::new(
                make,
                "http_response_code",
                (
                    "lease_lists_total",
                    "Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason",
                ),
                Some((
                    "lease_list_latency_seconds",
                    "Latency of server lease listing in seconds",
                    &LATENCY_BUCKETS,
                )),
            )?,
            lease_watches: ApiCalls::new(
                make,
                "http_response_code",
                (
                    "lease_watches_total",
                    "Count of server lease watch calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason",
                ),
                None,
            )?,
            bytes_to_targets: bytes.with_label_values(&["to_target"]),
            bytes_from_targets: bytes.with_label_values(&["from_target"]),
            dial_duration: make.histogram(
                "dial_duration_seconds",
                "Latency of dial to the remote endpoint in seconds",
                &LATENCY_BUCKETS,
            )?,
            // None before its first: upstream's integration suite compares the whole family, and takes a zero for one too many.
            dial_failures: make.counters_by(
                "endpoint_dial_failure_total",
                "Number of failures dialing the remote endpoint, by reason (example: timeout).",
                &["reason"],
            )?,
            dial_causes: make.counters(
                "endpoint_dial_failures_by_cause_total",
                "Dials to targets that failed, by cause.",
                "cause",
                &DialFailureReason::ALL.map(DialFailureReason::cause),
            )?,
            connection_failures: make.counters(
                "server_connection_failure_count",
                // The name at its end is upstream's slip; the series is stream_errors_total.
                "Count of failures to send to or receive from the proxy server, labeled by the direction (from_server or to_server). DEPRECATED, please use stream_events_error_total",
                "direction",
                &["from_server", "to_server"],
            )?,
            server_connections: make.gauge(
                "open_server_connections",
                "Current number of open server connections.",
            )?,
            retired_connections: make.gauge(
                "replaced_server_connections",
                "Tunnels that another one to the same server took the place of and that still carry connections.",
            )?,
            tunnels: make.gauges(
                "tunnels",
                "Tunnels to servers, by kind (packet: as upstream's; credit: the same with flow control for each connection; stream: a stream for each connection).",
                "kind",
                &TunnelKind::ALL.map(TunnelKind::name),
            )?,
            known_servers: make.gauge(
                "known_server_count",
                "Current number of servers agent is trying to connect to.",
            )?,
            reached_servers: make.gauge(
                "reached_server_count",
                "Servers that have a tunnel and are not about to leave.",
            )?,
            endpoint_connections: make.gauge(
                "open_endpoint_connections",
                "Current number of open endpoint connections.",
            )?,
            forward_connections: make.gauge(
                "forward_connections",
                "Connections of this node (--forward) that are carried to a target of the control plane, or wait for their server's answer.",
            )?,
            forward_failures: make.counters(
                "forward_failures_total",
                "Connections of this node that were not carried, by reason (no_tunnel, refused, tunnel_lost, timeout, limit).",
                "reason",
                &ForwardFailure::ALL.map(ForwardFailure::name),
            )?,
            packets: make.counters_by(
                "stream_packets_total",
                "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)",
                &["segment", "packet_type"],
            )?,
            stream_errors: make.counters_by(
                "stream_errors_total",
                "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)",
                &["segment", "code", "packet_type"],
            )?,
            attempts: make.counters(
                "server_connection_attempts_total",
                "Attempts to open a tunnel to one more server, by outcome (added, renewed, duplicate, failed).",
                "outcome",
                &Attempt::ALL.map(Attempt::name),
            )?,
            limit_hits: make.counters(
                "tunnel_limit_hits_total",
                "Times that a bound of a tunnel was hit, by limit.",
                "limit",
                &Limit::ALL.map(Limit::name),
            )?,
            stalled: make.counter(
                "stalled_connections_total",
                "Connections reset because their target read nothing while others needed the memory.",
            )?,
            violations: make.counter(
                "protocol_violations_total",
                "Packets from servers that made no sense and were ignored.",
            )?,
            buffered: make.gauge(
                "buffered_bytes",
                "Bytes held for slow targets that count against --memory-budget.",
            )?,
            registry,
            files,
        };
        let _every_kind_at_zero = metrics.tunnel_observer();
        for code in [Code::Unavailable, Code::Canceled, Code::Unknown] {
            metrics.error_counter(code);
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
        TunnelObserver::new(self)
    }

    /// A tunnel is open for as long as the guard lives.
    pub(crate) fn tunnel_opened(&self) -> Open {
        Open::new(&self.server_connections)
    }

    /// A tunnel of a kind is open for as long as the guard lives, replaced ones among them.
    #[must_use]
    pub fn tunnel_of(&self, kind: TunnelKind) -> Open {
        Open::new(&self.tunnels.with_label_values(&[kind.name()]))
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

    /// A connection of this node is under way for as long as the guard lives; `None` if there are `most` already.
    pub(crate) fn forward_within(&self, most: usize) -> Option<Open> {
        let under_way = usize::try_from(self.forward_connections.get()).unwrap_or(0);
        (under_way < most).then(|| Open::new(&self.forward_connections))
    }

    /// A connection of this node was not carried.
    pub(crate) fn forward_failed(&self, failure: ForwardFailure) {
        self.forward_failures
            .with_label_values(&[failure.name()])
            .inc();
    }

    /// A dial succeeded.
    pub(crate) fn dialled(&self, took: Duration) {
        self.dial_duration.observe(took.as_secs_f64());
    }

    /// A dial failed: counted under upstream's reason and under its cause.
    pub(crate) fn dial_failed(&self, failure: DialFailureReason) {
        self.dial_failures
            .with_label_values(&[failure.reason()])
            .inc();
        self.dial_causes.with_label_values(&[failure.cause()]).inc();
    }

    /// A tunnel ended by an error. What was sent is not known to have arrived, so all count as errors of receiving.
    pub(crate) fn tunnel_failed(&self, code: Code) {
        self.connection_failures
            .with_label_values(&["from_server"])
            .inc();
        self.error_counter(code).inc();
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

    /// How many of them have a tunnel and stay.
    pub fn reach_servers(&self, count: usize) {
        self.reached_servers
            .set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// Bytes charged to the ledger.
    pub(crate) fn buffer(&self, bytes: usize) {
        self.buffered.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    fn error_counter(&self, code: Code) -> IntCounter {
        self.stream_errors
            .with_label_values(&["to_agent", code.name(), "Unknown"])
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

#[cfg(test)]
mod tests;
