use prometheus::TextEncoder;
use tunnel::{observe::Observe as _, packet::PacketKind};

use super::*;

fn metrics() -> Arc<Metrics> {
    Metrics::new(Current::fixed(Arc::default())).unwrap()
}

fn rendered(metrics: &Metrics) -> String {
    TextEncoder::new()
        .encode_to_string(&metrics.registry.gather())
        .unwrap()
}

/// Lines of a metric without the prefix of all names, less HELP and TYPE.
fn series(text: &str, name: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.strip_prefix(PREFIX))
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ', '_']))
        })
        .map(str::to_owned)
        .collect()
}

const LATENCY: &str = "1e-06 1e-05 0.0001 0.005 0.025 0.1 0.5 2.5 12.5 +Inf";
const DURATION: &str = "1 5 15 30 60 300 900 1800 3600 14400 43200 86400 +Inf";
/// Those of Go's `prometheus.DefBuckets`.
const DEFAULT: &str = "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf";

/// Name, type, HELP, labels of the series that are there from the start, upper bounds. Copied by hand from upstream's
/// `pkg/server/metrics/metrics.go` and `konnectivity-client/pkg/common/metrics/metrics.go` of v0.36.0.
const UPSTREAM: [(&str, &str, &str, &[&str], &str); 16] = [
    (
        "dial_duration_seconds",
        "histogram",
        "Latency of dial to the remote endpoint in seconds",
        &[""],
        LATENCY,
    ),
    (
        "frontend_write_duration_seconds",
        "histogram",
        "Latency of write to the frontend in seconds",
        &[""],
        LATENCY,
    ),
    (
        "grpc_connections",
        "gauge",
        "Number of current grpc connections, partitioned by service method.",
        &["{service_method=\"Connect\"}", "{service_method=\"Proxy\"}"],
        "",
    ),
    (
        "http_connections",
        "gauge",
        "Number of current HTTP CONNECT connections",
        &[""],
        "",
    ),
    (
        "ready_backend_connections",
        "gauge",
        "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends",
        &[""],
        "",
    ),
    (
        "ready_backends",
        "gauge",
        "Number of konnectivity agent connected to the proxy server",
        &[
            "{proxy_strategy=\"default\"}",
            "{proxy_strategy=\"defaultRoute\"}",
            "{proxy_strategy=\"destHost\"}",
        ],
        "",
    ),
    (
        "pending_backend_dials",
        "gauge",
        "Current number of pending backend dial requests",
        &[""],
        "",
    ),
    (
        "established_connections",
        "gauge",
        "Current number of established end-to-end connections (post-dial).",
        &[""],
        "",
    ),
    (
        "full_receive_channels",
        "gauge",
        "Number of current connections blocked by a full receive channel, partitioned by service method.",
        &["{service_method=\"Connect\"}", "{service_method=\"Proxy\"}"],
        "",
    ),
    (
        "dial_failure_count",
        "counter",
        "Number of dial failures observed. Multiple failures can occur for a single dial request.",
        &[
            "{reason=\"backend_close\"}",
            "{reason=\"backend_dial_timeout\"}",
            "{reason=\"error_response\"}",
            "{reason=\"frontend_close\"}",
            "{reason=\"limit\"}",
            "{reason=\"no_agent\"}",
            "{reason=\"send_rsp\"}",
            "{reason=\"unrecognized_response\"}",
        ],
        "",
    ),
    (
        "culled_leases_count",
        "counter",
        "Count of expired leases that the lease garbage collection controller has culled.",
        &[""],
        "",
    ),
    (
        "lease_delete_latency_seconds",
        "histogram",
        "Latency of lease deletion calls by the garbage collection controller in seconds.",
        &["{http_status_code=\"200\"}"],
        DEFAULT,
    ),
    (
        "lease_delete_total",
        "counter",
        "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason.",
        &["{http_status_code=\"200\",reason=\"\"}"],
        "",
    ),
    (
        "lease_list_latency_seconds",
        "histogram",
        "Latency of lease list calls by the garbage collection controller in seconds.",
        &["{http_status_code=\"200\"}"],
        DEFAULT,
    ),
    (
        "lease_list_total",
        "counter",
        "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason.",
        &["{http_status_code=\"200\",reason=\"\"}"],
        "",
    ),
    // Not in that release: name and buckets by wire-protocol.md 7.1, HELP is ours.
    (
        "connection_duration_seconds",
        "histogram",
        "Life time of connections.",
        &[""],
        DURATION,
    ),
];

#[test]
fn upstreams_metrics_are_there_from_the_start_at_zero_as_upstream_writes_them() {
    let text = rendered(&metrics());
    for (name, kind, help, labels, buckets) in UPSTREAM {
        assert!(
            text.contains(&format!(
                "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} {kind}\n"
            )),
            "{name}: {text}"
        );
        let mut expected = Vec::new();
        for labels in labels {
            if kind != "histogram" {
                expected.push(format!("{name}{labels} 0"));
                continue;
            }
            let inner = labels.trim_matches(['{', '}']);
            let comma = if inner.is_empty() { "" } else { "," };
            for bound in buckets.split(' ') {
                let bound = match bound {
                    "1e-06" => "0.000001",
                    "1e-05" => "0.00001",
                    other => other,
                };
                expected.push(format!("{name}_bucket{{{inner}{comma}le=\"{bound}\"}} 0"));
            }
            expected.push(format!("{name}_sum{labels} 0"));
            expected.push(format!("{name}_count{labels} 0"));
        }
        assert_eq!(series(&text, name), expected);
    }
}

#[test]
fn packets_and_errors_are_upstreams_by_segment_and_type() {
    let text = rendered(&metrics());
    for (name, help) in [
        (
            "stream_packets_total",
            "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)",
        ),
        (
            "stream_errors_total",
            "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)",
        ),
    ] {
        assert!(
            text.contains(&format!(
                "# HELP {PREFIX}{name} {help}\n# TYPE {PREFIX}{name} counter\n"
            )),
            "{text}"
        );
    }
    let packets = series(&text, "stream_packets_total");
    for segment in ["from_client", "to_client", "from_agent", "to_agent"] {
        for kind in [
            "DIAL_REQ",
            "DIAL_RSP",
            "CLOSE_REQ",
            "CLOSE_RSP",
            "DATA",
            "DIAL_CLS",
            "DRAIN",
        ] {
            let line =
                format!("stream_packets_total{{packet_type=\"{kind}\",segment=\"{segment}\"}} 0");
            assert!(packets.contains(&line), "{line} {packets:?}");
        }
        let line = format!(
            "stream_errors_total{{code=\"Unavailable\",packet_type=\"Unknown\",segment=\"{segment}\"}} 0"
        );
        assert!(text.contains(&line), "{line}");
    }
}

#[test]
fn a_packet_counts_once_under_its_direction_and_type() {
    let metrics = metrics();
    let observer = AgentObserver::new(metrics.clone());
    observer.received(Some(PacketKind::DialResponse));
    observer.sent(PacketKind::Data);
    observer.received(None);
    let text = rendered(&metrics);
    let counted: Vec<_> = series(&text, "stream_packets_total")
        .into_iter()
        .filter(|line| !line.ends_with(" 0"))
        .collect();
    assert_eq!(
        counted,
        [
            "stream_packets_total{packet_type=\"DATA\",segment=\"to_agent\"} 1",
            "stream_packets_total{packet_type=\"DIAL_RSP\",segment=\"from_agent\"} 1",
            "stream_packets_total{packet_type=\"unknown\",segment=\"from_agent\"} 1",
        ]
    );
}

/// field-tests.md R116.
#[test]
fn every_cause_of_a_failed_dial_raises_exactly_its_own_counter() {
    for failure in DialFailure::ALL {
        let metrics = metrics();
        metrics.dial_failed(failure);
        let text = rendered(&metrics);
        let raised = |name| -> Vec<_> {
            let lines = series(&text, name).into_iter();
            lines.filter(|line| !line.ends_with(" 0")).collect()
        };
        let (cause, reason) = (failure.cause(), failure.reason());
        assert_eq!(
            raised("dial_failures_total"),
            [format!("dial_failures_total{{cause=\"{cause}\"}} 1")]
        );
        assert_eq!(
            raised("dial_failure_count"),
            [format!("dial_failure_count{{reason=\"{reason}\"}} 1")]
        );
    }
    let mut causes = DialFailure::ALL.map(DialFailure::cause).to_vec();
    causes.sort_unstable();
    causes.dedup();
    assert_eq!(causes.len(), DialFailure::ALL.len());
}

#[test]
fn a_dials_time_counts_by_its_outcome_and_for_upstream_only_if_it_succeeded() {
    let metrics = metrics();
    let took = Duration::from_millis(250);
    metrics.dial_ended(Ok(()), took);
    metrics.dial_ended(Err(DialFailure::BackendDialTimeout), took);
    metrics.dial_ended(Err(DialFailure::FrontendClose), took);
    metrics.dial_ended(Err(DialFailure::NoAgent), took);
    let text = rendered(&metrics);
    for line in [
        "dial_duration_seconds_sum 0.25",
        "dial_outcome_seconds_sum{outcome=\"connected\"} 0.25",
        "dial_outcome_seconds_sum{outcome=\"timed_out\"} 0.25",
        "dial_outcome_seconds_sum{outcome=\"abandoned\"} 0.25",
        "dial_outcome_seconds_sum{outcome=\"failed\"} 0.25",
        "dial_failures_total{cause=\"no_agent\"} 1",
    ] {
        assert!(text.contains(&format!("\n{PREFIX}{line}\n")), "{line}");
    }
}

#[test]
fn agents_and_tunnels_are_shown_by_state_kind_and_strategy() {
    let metrics = metrics();
    metrics.set_agents(AgentState::Draining, 2);
    metrics.set_backends(Strategy::DestHost, 7);
    let tunnel = metrics.tunnel(TunnelKind::Credit);
    let text = rendered(&metrics);
    for line in [
        "agent_tunnels{state=\"draining\"} 2",
        "agent_tunnels{state=\"ready\"} 0",
        "agent_tunnels{state=\"superseded\"} 0",
        "agent_tunnels{state=\"suspect\"} 0",
        "ready_backends{proxy_strategy=\"destHost\"} 7",
        "ready_backend_connections 7",
        "tunnels{kind=\"credit\"} 1",
        "tunnels{kind=\"packet\"} 0",
        "tunnels{kind=\"stream\"} 0",
    ] {
        assert!(text.contains(&format!("\n{PREFIX}{line}\n")), "{line}");
    }
    drop(tunnel);
    assert!(rendered(&metrics).contains("tunnels{kind=\"credit\"} 0"));
}

#[test]
fn every_reason_of_a_failed_forward_is_there_from_the_start_and_raises_its_own_counter() {
    for failure in ForwardFailure::ALL {
        let metrics = metrics();
        let before = series(&rendered(&metrics), "forward_failures_total");
        assert!(before.len() == 6 && before.iter().all(|line| line.ends_with(" 0")));
        metrics.forward_failed(failure);
        let after = series(&rendered(&metrics), "forward_failures_total");
        let raised: Vec<_> = after.iter().filter(|line| !line.ends_with(" 0")).collect();
        let name = failure.name();
        assert_eq!(
            raised,
            [&format!("forward_failures_total{{reason=\"{name}\"}} 1")]
        );
    }
}
