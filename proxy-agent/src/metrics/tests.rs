use prometheus::TextEncoder;
use tunnel::{observe::Observe as _, packet::PacketKind};

use super::*;

fn metrics() -> Metrics {
    Metrics::new(Current::fixed(Arc::default())).unwrap()
}

fn rendered(metrics: &Metrics) -> String {
    TextEncoder::new()
        .encode_to_string(&metrics.registry().gather())
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

fn raised(text: &str, name: &str) -> Vec<String> {
    let lines = series(text, name).into_iter();
    lines.filter(|line| !line.ends_with(" 0")).collect()
}

const LATENCY: [&str; 8] = ["0.005", "0.025", "0.1", "0.5", "2.5", "10", "30", "+Inf"];

/// Name, type, HELP, labels of the series that are there from the start. Copied by hand from upstream's
/// `pkg/agent/metrics/metrics.go` of v0.36.0.
const UPSTREAM: [(&str, &str, &str, &[&str]); 8] = [
    (
        "dial_duration_seconds",
        "histogram",
        "Latency of dial to the remote endpoint in seconds",
        &[""],
    ),
    (
        "server_connection_failure_count",
        "counter",
        "Count of failures to send to or receive from the proxy server, labeled by the direction (from_server or to_server). DEPRECATED, please use stream_events_error_total",
        &["{direction=\"from_server\"}", "{direction=\"to_server\"}"],
    ),
    (
        "open_server_connections",
        "gauge",
        "Current number of open server connections.",
        &[""],
    ),
    (
        "known_server_count",
        "gauge",
        "Current number of servers agent is trying to connect to.",
        &[""],
    ),
    (
        "open_endpoint_connections",
        "gauge",
        "Current number of open endpoint connections.",
        &[""],
    ),
    (
        "lease_lists_total",
        "counter",
        "Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason",
        &["{http_response_code=\"200\",reason=\"\"}"],
    ),
    (
        "lease_watches_total",
        "counter",
        "Count of server lease watch calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason",
        &["{http_response_code=\"200\",reason=\"\"}"],
    ),
    (
        "lease_list_latency_seconds",
        "histogram",
        "Latency of server lease listing in seconds",
        &["{http_response_code=\"200\"}"],
    ),
];

#[test]
fn upstreams_metrics_are_there_from_the_start_at_zero_as_upstream_writes_them() {
    let text = rendered(&metrics());
    for (name, kind, help, labels) in UPSTREAM {
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
            for bound in LATENCY {
                expected.push(format!("{name}_bucket{{{inner}{comma}le=\"{bound}\"}} 0"));
            }
            expected.push(format!("{name}_sum{labels} 0"));
            expected.push(format!("{name}_count{labels} 0"));
        }
        assert_eq!(series(&text, name), expected);
    }
    // Upstream's integration suite compares all of this family with what it expects, and takes a zero for one too many.
    assert!(series(&text, "endpoint_dial_failure_total").is_empty());
    for line in ["tunnels{kind=\"packet\"} 0", "reached_server_count 0"] {
        assert!(text.contains(&format!("\n{PREFIX}{line}\n")), "{line}");
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
    for segment in ["from_agent", "to_agent"] {
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
    }
}

#[test]
fn a_packet_counts_under_its_direction_and_type() {
    let metrics = metrics();
    let observer = metrics.tunnel_observer();
    for kind in PacketKind::ALL {
        observer.received(Some(kind));
        observer.sent(kind);
    }
    observer.sent(PacketKind::Drain);
    observer.received(None);
    observer.limited(Limit::Paced);
    let text = rendered(&metrics);
    let packets = series(&text, "stream_packets_total");
    for kind in PacketKind::ALL {
        let line = format!("stream_packets_total{{packet_type=\"{kind}\",segment=\"to_agent\"}} 1");
        assert!(packets.contains(&line), "{line}: {text}");
    }
    for line in [
        "stream_packets_total{packet_type=\"DRAIN\",segment=\"from_agent\"} 2",
        "stream_packets_total{packet_type=\"unknown\",segment=\"to_agent\"} 1",
    ] {
        assert!(packets.iter().any(|found| found == line), "{line}: {text}");
    }
    assert_eq!(
        raised(&text, "tunnel_limit_hits_total"),
        ["tunnel_limit_hits_total{limit=\"paced\"} 1"]
    );
}

/// field-tests.md R116.
#[test]
fn every_cause_of_a_failed_dial_raises_exactly_its_own_counter() {
    for failure in DialFailureReason::ALL {
        let metrics = metrics();
        metrics.dial_failed(failure);
        let text = rendered(&metrics);
        let (cause, reason) = (failure.cause(), failure.reason());
        assert_eq!(
            raised(&text, "endpoint_dial_failures_by_cause_total"),
            [format!(
                "endpoint_dial_failures_by_cause_total{{cause=\"{cause}\"}} 1"
            )]
        );
        assert_eq!(
            raised(&text, "endpoint_dial_failure_total"),
            [format!(
                "endpoint_dial_failure_total{{reason=\"{reason}\"}} 1"
            )]
        );
    }
    let mut causes = DialFailureReason::ALL
        .map(DialFailureReason::cause)
        .to_vec();
    causes.sort_unstable();
    causes.dedup();
    assert_eq!(causes.len(), DialFailureReason::ALL.len());
}

#[test]
fn a_watch_of_leases_is_no_list() {
    let metrics = metrics();
    metrics
        .lease_watches
        .answered(410, "Expired", Duration::from_secs(1));
    let text = rendered(&metrics);
    assert_eq!(
        raised(&text, "lease_watches_total"),
        ["lease_watches_total{http_response_code=\"410\",reason=\"Expired\"} 1"]
    );
    assert_eq!(raised(&text, "lease_lists_total"), [""; 0]);
    assert_eq!(raised(&text, "lease_list_latency_seconds"), [""; 0]);
}

#[test]
fn a_gauge_falls_when_its_guard_is_dropped() {
    let metrics = metrics();
    let open = (metrics.tunnel_opened(), metrics.tunnel_opened());
    let kind = metrics.tunnel_of(TunnelKind::Credit);
    assert_eq!(metrics.tunnels(), 2);
    assert_eq!(
        raised(&rendered(&metrics), "tunnels"),
        ["tunnels{kind=\"credit\"} 1"]
    );
    drop((open, kind));
    assert_eq!(metrics.tunnels(), 0);
    assert_eq!(raised(&rendered(&metrics), "tunnels"), [""; 0]);
}
