//! Every metric of the server; upstream's names, labels, buckets and HELP where upstream has the metric
//! (`pkg/server/metrics/metrics.go`; wire-protocol, section 7.1).

mod labels;
mod packets;

use std::{sync::Arc, time::Duration};

use certs::{
    Current, Status, Timestamp,
    status::{FileState, Outcome as FileOutcome},
};
use daemon::{
    file_metrics::{self, FileSample},
    metrics::{ApiCalls, Factory},
};
use prometheus::{
    Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
};
use tunnel::{grpc::Code, observe::Limit};

pub use daemon::metrics::{Gauged, Timed};
use labels::Outcome;
pub use labels::{
    AgentState, DialFailure, DialRetry, ForwardFailure, Listener, Segment, TunnelKind,
};
pub use packets::{AgentObserver, PacketCounters};

use crate::{registry::strategy::Strategy, token_review};

const PREFIX: &str = "konnectivity_network_proxy_server_";

/// Seconds, upstream's, for dials and for writes to frontends.
const LATENCY_BUCKETS: [f64; 9] = [
    0.000_001, 0.000_01, 0.000_1, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5,
];

/// Seconds, upstream's, for the life of connections.
const DURATION_BUCKETS: [f64; 12] = [
    1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0, 43200.0, 86400.0,
];

/// Seconds, ours: where dials in the field are, up to twice the default deadline.
const OUTCOME_BUCKETS: [f64; 9] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 5.0, 15.0, 30.0];

/// All metrics, registered.
#[derive(Debug)]
pub struct Metrics {
    /// What `/metrics` shows.
    pub registry: Registry,
    /// The files that are watched.
    pub files: Current<Arc<Status>>,
    /// Seconds from a dial's request to its success.
    pub dial_duration: Histogram,
    /// Seconds that writes of agents' bytes to kube-apiserver took.
    pub frontend_write: Histogram,
    /// Life time of connections.
    pub connection_duration: Histogram,
    /// Open `Proxy` streams.
    pub proxy_streams: IntGauge,
    /// Open `Connect` streams.
    pub connect_streams: IntGauge,
    /// CONNECT requests under way.
    pub http_connections: IntGauge,
    /// Agents, by id; upstream's deprecated name. Whichever table changed last, as upstream.
    pub ready_backend_connections: IntGauge,
    /// Dials that wait for an answer.
    pub pending_dials: IntGauge,
    /// Connections.
    pub established: IntGauge,
    /// Clients that are not read, because what they sent before waits for the tunnel.
    full_proxy_channels: IntGauge,
    /// Agents whose tunnel's window is held by readers that take too little.
    full_connect_channels: IntGauge,
    /// Payload bytes taken from clients for agents.
    pub bytes_to_agents: IntCounter,
    /// Payload bytes of agents given to clients.
    pub bytes_from_agents: IntCounter,
    /// Bytes that slow readers hold of the budget.
    pub buffered_bytes: IntGauge,
    /// Connections reset because their readers stalled.
    pub stalled: IntCounter,
    /// Packets against the protocol.
    pub violations: IntCounter,
    /// Leases that the collection of garbage has deleted.
    pub culled_leases: IntCounter,
    /// Its calls to delete one.
    pub lease_deletes: ApiCalls,
    /// Its calls to list them.
    pub lease_lists: ApiCalls,
    /// Forwards of agents that are under way: dials of their targets, and connections.
    pub forward_connections: IntGauge,
    /// Reviews of agents' tokens.
    pub token_reviews: token_review::Metrics,
    backends: IntGaugeVec,
    agents: IntGaugeVec,
    tunnels: IntGaugeVec,
    dial_failures: IntCounterVec,
    dial_causes: IntCounterVec,
    dial_outcomes: HistogramVec,
    dial_retries: IntCounterVec,
    forward_failures: IntCounterVec,
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
        let make = Factory::new(&registry, PREFIX);
        let methods = ["Proxy", "Connect"];
        let streams = make.gauges(
            "grpc_connections",
            "Number of current grpc connections, partitioned by service method.",
            "service_method",
            &methods,
        )?;
        let full_channels = make.gauges(
            "full_receive_channels",
            "Number of current connections blocked by a full receive channel, partitioned by service method.",
            "service_method",
            &methods,
        )?;
        let bytes = make.counters(
            "forwarded_bytes_total",
            "Payload bytes of connections, by direction (to_agent, from_agent).",
            "direction",
            &["to_agent", "from_agent"],
        )?;
        // Not all strategies need to be in use; a series at 0 harms nobody.
        let backends = make.gauges(
            "ready_backends",
            "Number of konnectivity agent connected to the proxy server",
            "proxy_strategy",
            &Strategy::ALL.map(Strategy::name),
        )?;
        let this = Self {
            dial_duration: make.histogram(
                "dial_duration_seconds",
                "Latency of dial to the remote endpoint in seconds",
                &LATENCY_BUCKETS,
            )?,
            frontend_write: make.histogram(
                "frontend_write_duration_seconds",
                "Latency of write to the frontend in seconds",
                &LATENCY_BUCKETS,
            )?,
            // In upstream's main branch only; its HELP is ours until a release has it.
            connection_duration: make.histogram(
                "connection_duration_seconds",
                "Life time of connections.",
                &DURATION_BUCKETS,
            )?,
            proxy_streams: streams.with_label_values(&["Proxy"]),
            connect_streams: streams.with_label_values(&["Connect"]),
            http_connections: make.gauge(
                "http_connections",
                "Number of current HTTP CONNECT connections",
            )?,
            ready_backend_connections: make.gauge(
                "ready_backend_connections",
                "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends",
            )?,
            pending_dials: make.gauge(
                "pending_backend_dials",
                "Current number of pending backend dial requests",
            )?,
            established: make.gauge(
                "established_connections",
                "Current number of established end-to-end connections (post-dial).",
            )?,
            full_proxy_channels: full_channels.with_label_values(&["Proxy"]),
            full_connect_channels: full_channels.with_label_values(&["Connect"]),
            bytes_to_agents: bytes.with_label_values(&["to_agent"]),
            bytes_from_agents: bytes.with_label_values(&["from_agent"]),
            buffered_bytes: make.gauge(
                "buffered_bytes",
                "Bytes of --memory-budget that slow readers hold.",
            )?,
            stalled: make.counter(
                "stalled_connections_total",
                "Connections reset because their reader stalled beyond its share of the buffers.",
            )?,
            violations: make.counter(
                "protocol_violations_total",
                "Packets that were ignored because they are against the protocol.",
            )?,
            forward_connections: make.gauge(
                "forward_connections",
                "Connections of nodes to targets of the control plane, those being dialled included.",
            )?,
            token_reviews: token_review::Metrics::new(make)?,
            culled_leases: make.counter(
                "culled_leases_count",
                "Count of expired leases that the lease garbage collection controller has culled.",
            )?,
            lease_deletes: ApiCalls::new(
                make,
                "http_status_code",
                (
                    "lease_delete_total",
                    "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason.",
                ),
                Some((
                    "lease_delete_latency_seconds",
                    "Latency of lease deletion calls by the garbage collection controller in seconds.",
                    prometheus::DEFAULT_BUCKETS,
                )),
            )?,
            lease_lists: ApiCalls::new(
                make,
                "http_status_code",
                // Upstream's HELP says deletion, and means listing.
                (
                    "lease_list_total",
                    "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason.",
                ),
                Some((
                    "lease_list_latency_seconds",
                    "Latency of lease list calls by the garbage collection controller in seconds.",
                    prometheus::DEFAULT_BUCKETS,
                )),
            )?,
            agents: make.gauges(
                "agent_tunnels",
                "Tunnels of agents, by what they are good for (ready, draining, superseded, suspect).",
                "state",
                &AgentState::ALL.map(AgentState::name),
            )?,
            tunnels: make.gauges(
                "tunnels",
                "Tunnels of agents, by kind (packet: as upstream's; credit: with flow control for each connection; stream: an HTTP/2 stream for each).",
                "kind",
                &TunnelKind::ALL.map(TunnelKind::name),
            )?,
            dial_failures: make.counters(
                "dial_failure_count",
                "Number of dial failures observed. Multiple failures can occur for a single dial request.",
                "reason",
                &DialFailure::ALL.map(DialFailure::reason),
            )?,
            dial_causes: make.counters(
                "dial_failures_total",
                "Dials that failed, by cause.",
                "cause",
                &DialFailure::ALL.map(DialFailure::cause),
            )?,
            dial_retries: make.counters(
                "dial_retries_total",
                "Dials that were sent to another agent before any answer, by cause.",
                "cause",
                &DialRetry::ALL.map(DialRetry::name),
            )?,
            forward_failures: make.counters(
                "forward_failures_total",
                "Connections of nodes to targets of the control plane that failed, by reason.",
                "reason",
                &ForwardFailure::ALL.map(ForwardFailure::name),
            )?,
            dial_outcomes: make.histograms(
                "dial_outcome_seconds",
                "Seconds from a dial's request to its end, by outcome (connected, failed, timed_out, abandoned).",
                &OUTCOME_BUCKETS,
                "outcome",
                &Outcome::ALL.map(Outcome::name),
            )?,
            packets: make.counters_by(
                "stream_packets_total",
                "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)",
                &["segment", "packet_type"],
            )?,
            errors: make.counters_by(
                "stream_errors_total",
                "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)",
                &["segment", "code", "packet_type"],
            )?,
            limits: make.counters(
                "tunnel_limit_hits_total",
                "How often a bound of a tunnel was hit.",
                "limit",
                &Limit::ALL.map(Limit::name),
            )?,
            refused: make.counters(
                "refused_connections_total",
                "Connections refused before they became anything, by listener.",
                "listener",
                &Listener::ALL.map(Listener::name),
            )?,
            backends,
            registry,
            files,
        };
        let files = this.files.clone();
        file_metrics::register(&this.registry, PREFIX, move || samples(&files.current()))?;
        daemon::process_metrics::register(&this.registry)?;
        for segment in Segment::ALL {
            let _every_kind_at_zero = this.packets(segment);
            for code in [Code::Unavailable, Code::Canceled, Code::Unknown] {
                this.error_counter(segment, code);
            }
        }
        Ok(Arc::new(this))
    }

    /// A dial failed: counted under its reason and under its cause.
    pub fn dial_failed(&self, failure: DialFailure) {
        self.dial_failures
            .with_label_values(&[failure.reason()])
            .inc();
        self.dial_causes.with_label_values(&[failure.cause()]).inc();
    }

    /// A dial ended after `took`. Counts it if it failed, and its time in any case.
    pub fn dial_ended(&self, outcome: Result<(), DialFailure>, took: Duration) {
        let seconds = took.as_secs_f64();
        let outcome = match outcome {
            Ok(()) => {
                self.dial_duration.observe(seconds);
                Outcome::Connected
            }
            Err(failure) => {
                self.dial_failed(failure);
                failure.outcome()
            }
        };
        self.dial_outcomes
            .with_label_values(&[outcome.name()])
            .observe(seconds);
    }

    /// A dial goes to another agent.
    pub fn dial_retried(&self, cause: DialRetry) {
        self.dial_retries.with_label_values(&[cause.name()]).inc();
    }

    /// An agent's forward gave no connection.
    pub fn forward_failed(&self, failure: ForwardFailure) {
        self.forward_failures
            .with_label_values(&[failure.name()])
            .inc();
    }

    /// How many forwards have failed so.
    #[cfg(test)]
    pub(crate) fn forwards_failed(&self, failure: ForwardFailure) -> u64 {
        self.forward_failures
            .with_label_values(&[failure.name()])
            .get()
    }

    /// What was last told of a strategy's table: its number of keys.
    #[must_use]
    pub fn backends(&self, strategy: Strategy) -> i64 {
        self.backends.with_label_values(&[strategy.name()]).get()
    }

    /// The table of a strategy has that many keys now: agent ids, or identifiers for `destHost`.
    pub fn set_backends(&self, strategy: Strategy, keys: usize) {
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        self.backends
            .with_label_values(&[strategy.name()])
            .set(keys);
        self.ready_backend_connections.set(keys);
    }

    /// That many tunnels are in a state now.
    pub fn set_agents(&self, state: AgentState, tunnels: usize) {
        let tunnels = i64::try_from(tunnels).unwrap_or(i64::MAX);
        self.agents.with_label_values(&[state.name()]).set(tunnels);
    }

    /// That many clients, and agents, are not read now because what they sent before has nowhere to go.
    pub fn set_full_channels(&self, clients: usize, agents: usize) {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        self.full_proxy_channels.set(number(clients));
        self.full_connect_channels.set(number(agents));
    }

    /// A tunnel of a kind is open for as long as the guard lives.
    #[must_use]
    pub fn tunnel(&self, kind: TunnelKind) -> Gauged {
        Gauged::new(&self.tunnels.with_label_values(&[kind.name()]))
    }

    /// A stream broke.
    pub fn stream_failed(&self, segment: Segment, code: Code) {
        self.error_counter(segment, code).inc();
    }

    /// A connection was refused: handshake, identity, protocol.
    pub fn refused(&self, listener: Listener) {
        self.refused.with_label_values(&[listener.name()]).inc();
    }

    /// Counters of one direction, one a packet type, so that a packet costs no look-up.
    #[must_use]
    pub fn packets(&self, segment: Segment) -> PacketCounters {
        PacketCounters::new(self, segment)
    }

    /// Ours are all errors of receiving, which belong to no packet: upstream's `Unknown`.
    fn error_counter(&self, segment: Segment, code: Code) -> IntCounter {
        self.errors
            .with_label_values(&[segment.name(), code.name(), "Unknown"])
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
            reloads: FileOutcome::ALL
                .map(|outcome| (outcome.name(), file.changes(outcome)))
                .to_vec(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
