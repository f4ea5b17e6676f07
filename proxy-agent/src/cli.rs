//! Command line flags, under upstream's names and with its defaults (wire-protocol.md 6.3).

use std::path::PathBuf;

use clap::Parser;
use cluster::Selector;
use daemon::flags::{GoDuration, LogFlags, StringSlice};

use crate::config::{MAX_CONNECTIONS, TunnelProtocol};

/// Environment variable that gives the agent's id when `--agent-id` does not.
pub const AGENT_ID_VARIABLE: &str = "PROXY_AGENT_ID";

/// Connects out to proxy servers and opens connections to targets on their behalf.
#[derive(Clone, Debug, Parser)]
#[command(name = "proxy-agent")]
pub struct Cli {
    /// Client certificate (PEM) that proves who this agent is. Needs --agent-key.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub agent_cert: PathBuf,

    /// Private key (PEM) of --agent-cert.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub agent_key: PathBuf,

    /// CA certificates (PEM) that the servers' certificates must chain to. Required.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub ca_cert: PathBuf,

    /// Name or IP address of the servers, or of the load balancer in front of them; must be in their certificates.
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    pub proxy_server_host: String,

    /// Port of the servers for agents.
    #[arg(long, default_value_t = 8091, value_name = "PORT")]
    pub proxy_server_port: i64,

    /// ALPN names to offer before those of the tunnel, for a router that tells agents apart by them. The server must still choose
    /// adit/1 or h2.
    #[arg(long, value_name = "NAMES")]
    pub alpn_proto: Vec<StringSlice>,

    /// Tunnels to offer to servers: 'packet' is upstream's (ALPN h2), 'stream' ours (ALPN adit/1), with flow control and half-close
    /// for each connection; 'auto' offers both and the server chooses. Adit's own flag.
    #[arg(long, value_enum, default_value_t, value_name = "PROTOCOL")]
    pub tunnel_protocol: TunnelProtocol,

    /// Address to serve /healthz, /readyz and /metrics on; empty means all.
    #[arg(long, default_value = "", value_name = "HOST")]
    pub health_server_host: String,

    /// Port to serve /healthz, /readyz and /metrics on.
    #[arg(long, default_value_t = 8093, value_name = "PORT")]
    pub health_server_port: i64,

    /// Address of the admin server.
    #[arg(long, default_value = "127.0.0.1", value_name = "HOST")]
    pub admin_bind_address: String,

    /// Port of the admin server.
    #[arg(long, default_value_t = 8094, value_name = "PORT")]
    pub admin_server_port: i64,

    /// Serve CPU profiles at /debug/pprof/profile of the admin port.
    #[arg(long)]
    pub enable_profiling: bool,

    /// Accepted without effect: there are no locks to profile. Needs --enable-profiling.
    #[arg(long)]
    pub enable_contention_profiling: bool,

    /// Id of this agent. Default: the environment variable PROXY_AGENT_ID, else a random UUID.
    #[arg(long, value_name = "ID")]
    pub agent_id: Option<String>,

    /// What this agent serves, for servers that choose by it, for example host=node1&ipv4=10.0.0.7. Keys: ipv4, ipv6,
    /// cidr, host, default-route.
    #[arg(long, default_value = "", value_name = "QUERY")]
    pub agent_identifiers: String,

    /// Delay after the first failed attempt to connect to a server; grows by half with each further one. A tenth of it is the
    /// shortest delay between attempts that reach servers we are connected to already. At least 100ms is kept.
    #[arg(long, default_value = "1s", value_name = "DURATION")]
    pub sync_interval: GoDuration,

    /// What the delay after failed attempts grows to. While there is no tunnel at all, at most 10s.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub sync_interval_cap: GoDuration,

    /// Accepted without effect: the loss of a tunnel is noticed at once.
    #[arg(long, default_value = "1s", value_name = "DURATION")]
    pub probe_interval: GoDuration,

    /// Keep looking for further servers when there are tunnels to as many as the servers say exist; every 30s at most,
    /// more often at first.
    #[arg(long)]
    pub sync_forever: bool,

    /// Ping a server after this long, and give it up when no answer comes within 10s. At least 10s. Default: 10s at a server
    /// of ours, 31s at one of upstream's, which tolerates no less. (Upstream's default is 1h.)
    #[arg(long, value_name = "DURATION")]
    pub keepalive_time: Option<GoDuration>,

    /// File with a token to send to servers that ask for one. Read at every attempt to connect, white space trimmed.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub service_account_token_path: PathBuf,

    /// Count servers by their Leases instead of by what servers say.
    #[arg(long)]
    pub count_server_leases: bool,

    /// Namespace of the Leases.
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    pub lease_namespace: String,

    /// Which Leases are those of servers: a label selector in Kubernetes' syntax; empty selects all.
    #[arg(
        long,
        default_value = "k8s-app=konnectivity-server",
        value_name = "SELECTOR"
    )]
    pub lease_label_selector: Selector,

    /// Deprecated: use --lease-label-selector.
    #[arg(long, hide = true, value_name = "SELECTOR")]
    pub lease_label: Option<Selector>,

    /// With --count-server-leases: 'default' takes the number of Leases, 'max' the larger of that and what servers say.
    #[arg(long, default_value = "default", value_name = "SOURCE")]
    pub server_count_source: String,

    /// How to reach the Kubernetes API, for counting Leases; empty for the Pod's own service account.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub kubeconfig: PathBuf,

    /// Accepted for upstream's manifests; requests are JSON, which every API server takes.
    #[arg(
        long,
        default_value = "application/vnd.kubernetes.protobuf",
        value_name = "TYPE"
    )]
    pub kube_api_content_type: String,

    /// After the first SIGTERM: leave once there has been neither a connection nor a dial for this long; 0 for never, as upstream.
    /// Adit's own flag.
    #[arg(long, default_value = "5s", value_name = "DURATION")]
    pub drain_idle: GoDuration,

    /// After the first SIGTERM: leave after this long, whatever is open; 0 for never. Adit's own flag.
    #[arg(long, default_value = "1h", value_name = "DURATION")]
    pub drain_timeout: GoDuration,

    /// Accepted without effect: connections have queues of bytes, see --memory-budget.
    #[arg(long)]
    pub warn_on_channel_limit: bool,

    /// Accepted without effect: connections have queues of bytes, see --memory-budget.
    #[arg(long, default_value_t = 150, value_name = "PACKETS")]
    pub xfr_channel_size: i64,

    /// Bytes that all connections together may hold for targets that do not read, beyond 64 KiB each, which are free. The
    /// one that holds most while it stands still is reset when the budget runs out. At least 4194304. Default: a quarter of the
    /// container's memory limit, at most 67108864. Adit's own flag.
    #[arg(long, value_name = "BYTES")]
    pub memory_budget: Option<usize>,

    /// Targets that may be dialled: networks, addresses or names, each with optional ports, e.g. 10.0.0.0/8:443,.svc. With any,
    /// all others are refused. Adit's own flag; off by default.
    #[arg(long, value_name = "RULES")]
    pub egress_allow: Vec<StringSlice>,

    /// Targets that may not be dialled, whatever allows them. Adit's own flag; off by default.
    #[arg(long, value_name = "RULES")]
    pub egress_deny: Vec<StringSlice>,

    /// Take connections of this node at LISTEN (HOST:PORT or unix:/PATH) and carry them through a tunnel to the target that the
    /// server calls NAME, if it allows this agent to; e.g. 127.0.0.1:6443=api. Needs a stream tunnel. May be repeated. Adit's own
    /// flag; off by default.
    #[arg(long, value_name = "LISTEN=NAME")]
    pub forward: Vec<StringSlice>,

    /// Connections that all --forward together take at once; more are closed at once. Adit's own flag.
    #[arg(long, default_value_t = MAX_CONNECTIONS, value_name = "CONNECTIONS")]
    pub forward_max_connections: usize,

    /// Logging.
    #[command(flatten)]
    pub log: LogFlags,
}

#[cfg(test)]
mod tests {
    use daemon::flags::{Parsed, Stop, parse};

    use super::*;

    fn cli(args: &[&str]) -> Result<Parsed<Cli>, Stop> {
        parse(std::iter::once("proxy-agent").chain(args.iter().copied()))
    }

    /// wire-protocol.md T16: upstream's harness passes every flag with the value that Go prints for its default.
    #[test]
    fn every_flag_parses_with_its_printed_default() {
        let parsed = cli(&[
            "--agent-cert=",
            "--agent-key=",
            "--ca-cert=",
            "--proxy-server-host=127.0.0.1",
            "--proxy-server-port=8091",
            "--alpn-proto=[]",
            "--health-server-host=",
            "--health-server-port=8093",
            "--admin-bind-address=127.0.0.1",
            "--admin-server-port=8094",
            "--enable-profiling=false",
            "--enable-contention-profiling=false",
            "--agent-id=b1c1dd2b-0f8d-4b0c-8ad1-0d1ea3bdf3a5",
            "--agent-identifiers=",
            "--sync-interval=1s",
            "--sync-interval-cap=10s",
            "--probe-interval=1s",
            "--sync-forever=false",
            "--keepalive-time=1h0m0s",
            "--service-account-token-path=",
            "--warn-on-channel-limit=false",
            "--xfr-channel-size=150",
            "--count-server-leases=false",
            "--lease-namespace=kube-system",
            "--lease-label-selector=k8s-app=konnectivity-server",
            "--lease-label=k8s-app=konnectivity-server",
            "--server-count-source=default",
            "--kubeconfig=",
            "--kube-api-content-type=application/vnd.kubernetes.protobuf",
            "--v=4",
            "--logtostderr=true",
        ])
        .unwrap();
        let defaults = cli(&[]).unwrap().cli;
        assert_eq!(StringSlice::concat(parsed.cli.alpn_proto), [""; 0]);
        assert_eq!(parsed.cli.sync_interval, defaults.sync_interval);
        assert_eq!(parsed.cli.sync_interval_cap, defaults.sync_interval_cap);
        assert_eq!(parsed.cli.proxy_server_port, defaults.proxy_server_port);
        assert_eq!(parsed.cli.xfr_channel_size, defaults.xfr_channel_size);
        assert_eq!(parsed.cli.keepalive_time, Some("1h".parse().unwrap()));
        assert_eq!(defaults.keepalive_time, None);
    }

    #[test]
    fn the_old_name_of_the_lease_selector_and_full_selectors_are_taken() {
        let parsed = cli(&["--lease-label=a=b", "--lease-label-selector=k in (v,w),!x"]).unwrap();
        assert_eq!(parsed.cli.lease_label.unwrap().as_str(), "a=b");
        assert_eq!(parsed.cli.lease_label_selector.as_str(), "k in (v,w),!x");
        match cli(&["--lease-label-selector=a b"]) {
            Err(Stop::Invalid(error)) => {
                let lead = "invalid argument \"a b\" for \"--lease-label-selector\" flag: ";
                assert!(error.to_string().starts_with(lead), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_of_our_own_flags_that_are_none_are_told_with_their_flag() {
        for (arg, text) in [
            (
                "--tunnel-protocol=udp",
                "invalid argument \"udp\" for \"--tunnel-protocol\" flag: must be one of auto, packet, stream",
            ),
            (
                "--forward-max-connections=-1",
                "invalid argument \"-1\" for \"--forward-max-connections\" flag: ",
            ),
        ] {
            match cli(&[arg]) {
                Err(Stop::Invalid(error)) => {
                    assert!(error.to_string().starts_with(text), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn the_help_describes_this_program_and_not_its_logging() {
        match cli(&["--help"]) {
            Err(Stop::Help(text)) => {
                assert!(text.starts_with("Connects out to proxy servers"), "{text}")
            }
            other => panic!("{other:?}"),
        }
    }
}
