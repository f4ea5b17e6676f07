//! Command line flags, under upstream's names and with its defaults (wire-protocol.md 6.3).
//!
//! Flags of features that do not exist yet (counting leases) are not defined: an agent that takes a flag and does not do what
//! it says is worse than one that does not start.

use std::path::PathBuf;

use clap::Parser;
use daemon::flags::{GoDuration, LogFlags, StringSlice};

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

    /// ALPN names to offer before h2, for a router that tells agents apart by them. The server must still choose h2.
    #[arg(long, value_name = "NAMES")]
    pub alpn_proto: Vec<StringSlice>,

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

    /// Accepted without effect: upstream serves Go profiles under it.
    #[arg(long)]
    pub enable_profiling: bool,

    /// Accepted without effect. Needs --enable-profiling.
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

    /// What the delay after failed attempts grows to.
    #[arg(long, default_value = "10s", value_name = "DURATION")]
    pub sync_interval_cap: GoDuration,

    /// Accepted without effect: the loss of a tunnel is noticed at once.
    #[arg(long, default_value = "1s", value_name = "DURATION")]
    pub probe_interval: GoDuration,

    /// Keep looking for further servers when there are tunnels to as many as the servers say exist; every 30s at most,
    /// more often at first.
    #[arg(long)]
    pub sync_forever: bool,

    /// Ping a server after this long, and give it up when no answer comes within 10s. At least 10s. Default: 31s, the least
    /// that upstream's servers allow. (Upstream's default is 1h.)
    #[arg(long, value_name = "DURATION")]
    pub keepalive_time: Option<GoDuration>,

    /// File with a token to send to servers that ask for one. Read at every attempt to connect, white space trimmed.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub service_account_token_path: PathBuf,

    /// Accepted without effect: connections have queues of bytes, see --memory-budget.
    #[arg(long)]
    pub warn_on_channel_limit: bool,

    /// Accepted without effect: connections have queues of bytes, see --memory-budget.
    #[arg(long, default_value_t = 150, value_name = "PACKETS")]
    pub xfr_channel_size: i64,

    /// Bytes that all connections together may hold for targets that do not read, beyond 64 KiB each, which are free. The
    /// one that holds most while it stands still is reset when the budget runs out. At least 4194304.
    #[arg(long, default_value_t = tunnel::ledger::DEFAULT_BUDGET, value_name = "BYTES")]
    pub memory_budget: usize,

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
    fn flags_of_features_that_do_not_exist_yet_are_refused() {
        for flag in [
            "--count-server-leases",
            "--lease-namespace=kube-system",
            "--lease-label=a=b",
            "--server-count-source=max",
            "--kubeconfig=/k",
            "--kube-api-content-type=application/json",
        ] {
            match cli(&[flag]) {
                Err(Stop::Invalid(error)) => {
                    assert!(error.to_string().starts_with("unknown flag: "), "{error}");
                }
                other => panic!("{flag}: {other:?}"),
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
