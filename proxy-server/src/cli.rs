//! The command line, under upstream's names (wire-protocol, section 6.2).

use clap::Parser;
use daemon::flags::{GoDuration, LogFlags, StringSlice};

use crate::{binding::Binding, config::TunnelProtocol};

/// Serves kube-apiserver's egress selector over tunnels that agents dial in.
///
/// Takes the flags of Konnectivity's proxy-server.
#[derive(Debug, Parser)]
#[command(name = "proxy-server")]
pub struct Cli {
    /// Certificate of the TCP frontend (PEM, chain allowed).
    #[arg(long, default_value = "", value_name = "FILE")]
    pub server_cert: String,
    /// Key of the TCP frontend (PEM).
    #[arg(long, default_value = "", value_name = "FILE")]
    pub server_key: String,
    /// CA that clients of the TCP frontend must have a certificate of.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub server_ca_cert: String,
    /// Certificate of the agent listener (PEM, chain allowed).
    #[arg(long, default_value = "", value_name = "FILE")]
    pub cluster_cert: String,
    /// Key of the agent listener (PEM).
    #[arg(long, default_value = "", value_name = "FILE")]
    pub cluster_key: String,
    /// CA that agents must have a certificate of.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub cluster_ca_cert: String,
    /// 'grpc' or 'http-connect'. The frontend tells both apart by their first bytes and serves them at once; this only
    /// says which one you mean to use.
    #[arg(long, default_value = "grpc")]
    pub mode: String,
    /// Path of the frontend's Unix socket, at most 107 bytes; empty for a TCP frontend.
    #[arg(long, default_value = "", value_name = "PATH")]
    pub uds_name: String,
    /// Remove what is at --uds-name before binding. The socket of a live process is never removed.
    #[arg(long, default_value_t = true)]
    pub delete_existing_uds_file: bool,
    /// Port of the TCP frontend; 0 with --uds-name.
    #[arg(long, default_value_t = 8090)]
    pub server_port: i64,
    /// Address of the TCP frontend; empty for all.
    #[arg(long, default_value = "")]
    pub server_bind_address: String,
    /// Port for agents.
    #[arg(long, default_value_t = 8091)]
    pub agent_port: i64,
    /// Address for agents; empty for all.
    #[arg(long, default_value = "")]
    pub agent_bind_address: String,
    /// Port for metrics, kept for those who scrape it there.
    #[arg(long, default_value_t = 8095)]
    pub admin_port: i64,
    /// Address of the admin port; explicitly empty for all.
    #[arg(long, default_value = "127.0.0.1")]
    pub admin_bind_address: String,
    /// Port for health, readiness and metrics.
    #[arg(long, default_value_t = 8092)]
    pub health_port: i64,
    /// Address of the health port; empty for all.
    #[arg(long, default_value = "")]
    pub health_bind_address: String,
    /// Ping an agent this long after its last answer; it is given up when a ping stays unanswered for 10s. Default 10s, so
    /// that a dead agent is noticed within 20s.
    #[arg(long, value_name = "DURATION")]
    pub keepalive_time: Option<GoDuration>,
    /// The same for clients of the gRPC frontend over TCP. Default 30s.
    #[arg(long, value_name = "DURATION")]
    pub frontend_keepalive_time: Option<GoDuration>,
    /// Unique id of this server; default: PROXY_SERVER_ID, else random.
    #[arg(long, env = "PROXY_SERVER_ID")]
    pub server_id: Option<String>,
    /// How many servers agents should look for.
    #[arg(long, default_value_t = 1)]
    pub server_count: i64,
    /// Which agents are asked for a dial, in order: 'destHost' those that claim the destination as an identifier, 'defaultRoute'
    /// those that claim default-route, 'default' all. Comma-separated.
    #[arg(long, default_value = "default", value_name = "STRATEGIES")]
    pub proxy_strategies: String,
    /// Agents must send a token of a service account in this namespace. Set together with --agent-service-account and
    /// --authentication-audience.
    #[arg(long, default_value = "", value_name = "NAMESPACE")]
    pub agent_namespace: String,
    /// The service account of agents.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub agent_service_account: String,
    /// The audience that agents' tokens must be made for.
    #[arg(long, default_value = "", value_name = "AUDIENCE")]
    pub authentication_audience: String,
    /// What must show that an agent is what it claims to be (its id and identifiers): 'none', 'certificate' (its subject
    /// alternative names), 'token' (the Pod and node of its token) or 'certificate-or-token'. Adit's own flag.
    #[arg(long, default_value = "none", value_name = "PROOF")]
    pub bind_agent_identity: Binding,
    /// How to reach the Kubernetes API, for token reviews and leases; empty for the Pod's own service account.
    #[arg(long, default_value = "", value_name = "FILE")]
    pub kubeconfig: String,
    /// Requests a second to the Kubernetes API; 0 for 5.
    #[arg(long, default_value_t = 0.0, value_name = "NUMBER")]
    pub kubeconfig_qps: f32,
    /// Requests to the Kubernetes API that may come at once; 0 for 10.
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    pub kubeconfig_burst: i32,
    /// Accepted for upstream's manifests; requests are JSON, which every API server takes.
    #[arg(
        long,
        default_value = "application/vnd.kubernetes.protobuf",
        value_name = "TYPE"
    )]
    pub kube_api_content_type: String,
    /// Publish a Lease for this server, so that agents can count servers, and remove expired ones of others.
    #[arg(long)]
    pub enable_lease_controller: bool,
    /// Namespace of the Leases.
    #[arg(long, default_value = "kube-system", value_name = "NAMESPACE")]
    pub lease_namespace: String,
    /// Labels of the Leases, by which agents find them: k=v[,k=v].
    #[arg(
        long,
        default_value = "k8s-app=konnectivity-server",
        value_name = "LABELS"
    )]
    pub lease_label: String,
    /// Serve CPU profiles at /debug/pprof/profile of the admin port.
    #[arg(long)]
    pub enable_profiling: bool,
    /// Accepted without effect: there are no locks to profile. Needs --enable-profiling.
    #[arg(long)]
    pub enable_contention_profiling: bool,
    /// TLS 1.2 cipher suites by Go's names.
    #[arg(long, value_name = "SUITES")]
    pub cipher_suites: Vec<StringSlice>,
    /// Lowest TLS version: VersionTLS10 to VersionTLS13; below VersionTLS12 is raised to it.
    #[arg(long, default_value = "", value_name = "VERSION")]
    pub tls_min_version: String,
    /// Accepted for upstream's manifests; buffers here are bounded in bytes, see --memory-budget.
    #[arg(long, default_value_t = 10)]
    pub xfr_channel_size: i64,
    /// How long established connections may go on after the first SIGTERM.
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    pub graceful_shutdown_timeout: GoDuration,
    /// How long everything is still served after the first SIGTERM while readiness fails already, so that load balancers can
    /// look elsewhere; --graceful-shutdown-timeout begins behind it. Adit's own flag.
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    pub shutdown_delay: GoDuration,
    /// Ready only while each of these strategies has an agent, instead of the first of --proxy-strategies alone. Adit's own flag; off by
    /// default.
    #[arg(long, default_value = "", value_name = "STRATEGIES")]
    pub ready_strategies: String,
    /// How long an agent may take to answer a dial; 0 for the default of 15s.
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    pub backend_dial_timeout: GoDuration,
    /// Deprecated, without effect.
    #[arg(long, default_value_t = true)]
    pub warn_on_channel_limit: bool,
    /// Bytes that slow readers may hold in this process before they are paced and, if they stall, reset. At least 4194304. Default: a
    /// quarter of the container's memory limit, at most 67108864. Adit's own flag.
    #[arg(long, value_name = "BYTES")]
    pub memory_budget: Option<usize>,
    /// Targets that may be dialled: networks, addresses or names, each with optional ports, e.g. 10.0.0.0/8:443,.svc. With any,
    /// all others are refused. Adit's own flag; off by default.
    #[arg(long, value_name = "RULES")]
    pub egress_allow: Vec<StringSlice>,
    /// Targets that may not be dialled, whatever allows them. Adit's own flag; off by default.
    #[arg(long, value_name = "RULES")]
    pub egress_deny: Vec<StringSlice>,
    /// Tunnels that agents can have: 'packet' is upstream's (ALPN h2), 'stream' ours (ALPN adit/1), with flow control and half-close
    /// for each connection; 'auto' gives each agent the best that it offers. Adit's own flag.
    #[arg(long, value_enum, default_value_t, value_name = "PROTOCOL")]
    pub tunnel_protocol: TunnelProtocol,
    /// A target that nodes can reach through their agent's --forward and this server, and the name that agents ask for; e.g.
    /// api=10.0.0.1:6443. A list, and may be repeated. Adit's own flag; off by default.
    #[arg(long, value_name = "NAME=HOST:PORT")]
    pub forward_target: Vec<StringSlice>,
    /// Who may use a target: agents with a verified name (common name or DNS name of the certificate, Pod or node of a reviewed token)
    /// that is like PATTERN, in which * is any run of characters. A list, and may be repeated. Adit's own flag; nobody by default.
    #[arg(long, value_name = "NAME=PATTERN")]
    pub forward_allow: Vec<StringSlice>,
    /// Connections to such targets that one tunnel of an agent may have; more are refused. Adit's own flag.
    #[arg(long, default_value_t = 1024, value_name = "CONNECTIONS")]
    pub forward_max_connections: usize,
    /// Logging.
    #[command(flatten)]
    pub log: LogFlags,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_defaults_are_ours() {
        let cli = daemon::flags::parse::<Cli, _>(["proxy-server"])
            .unwrap()
            .cli;
        assert_eq!(
            (
                cli.server_port,
                cli.agent_port,
                cli.admin_port,
                cli.health_port
            ),
            (8090, 8091, 8095, 8092)
        );
        assert_eq!(
            (cli.mode.as_str(), cli.admin_bind_address.as_str()),
            ("grpc", "127.0.0.1")
        );
        assert!(cli.delete_existing_uds_file && cli.warn_on_channel_limit);
        assert_eq!((cli.server_count, cli.xfr_channel_size), (1, 10));
    }

    #[test]
    fn both_ways_of_giving_a_value_may_be_mixed() {
        let args = [
            "proxy-server",
            "--cluster-cert",
            "/a",
            "--mode=http-connect",
            "--agent-port",
            "8132",
            "-v=8",
            "--cipher-suites=[]",
        ];
        let cli = daemon::flags::parse::<Cli, _>(args).unwrap().cli;
        assert_eq!(
            (cli.cluster_cert.as_str(), cli.mode.as_str(), cli.agent_port),
            ("/a", "http-connect", 8132)
        );
        assert!(StringSlice::concat(cli.cipher_suites).is_empty());
    }
}
