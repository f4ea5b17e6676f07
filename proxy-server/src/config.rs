//! Flags and files, checked once.

mod faults;
mod forward;
mod kubernetes;
mod numbers;
mod protocol;
mod tls;

use std::{path::PathBuf, sync::Arc, time::Duration};

use certs::{Current, Watcher};
use cluster::ClientOptions;
use daemon::flags::StringSlice;
use egress_policy::Policy;
use rustls::ServerConfig;
use tunnel::{keepalive, ledger, stream::hello::MAX_ID};

use crate::{
    binding::Binding, cli::Cli, forward::ForwardTargets, lease, registry::strategy::Strategies,
    token_review,
};
use faults::Faults;
use numbers::{address, check_duration, check_ports, check_server_count, positive};
pub use protocol::TunnelProtocol;

/// How long an agent may take to answer a dial. Ours gives its target 5 s, resolution included; kube-apiserver's client
/// library gives up after 30 s, and our answer must be there before.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// Default ping interval of the gRPC frontend over TCP.
pub const FRONTEND_KEEPALIVE: Duration = Duration::from_secs(30);

/// What the server runs with.
#[derive(Debug)]
pub struct Config {
    /// Where kube-apiserver comes in.
    pub frontend: FrontendConfig,
    /// Where agents come in.
    pub agents: Address,
    /// Which tunnels agents can have.
    pub tunnel_protocol: TunnelProtocol,
    /// TLS of the agent listener, with the ALPN of those tunnels.
    pub agent_tls: Current<Arc<ServerConfig>>,
    /// The admin listener.
    pub admin: Address,
    /// The health listener.
    pub health: Address,
    /// Announced to agents.
    pub server_id: String,
    /// Announced to agents.
    pub server_count: u32,
    /// Ping interval towards agents.
    pub keepalive: Duration,
    /// Ping interval towards gRPC clients over TCP.
    pub frontend_keepalive: Duration,
    /// How long a dial may take.
    pub dial_timeout: Duration,
    /// How long everything goes on after the first signal, but for readiness.
    pub shutdown_delay: Duration,
    /// How long connections may go on after that.
    pub graceful_shutdown: Duration,
    /// Budget of the ledger, in bytes.
    pub memory_budget: usize,
    /// How agents are chosen.
    pub strategies: Strategies,
    /// The strategies that must have an agent for this server to be ready, if not the first of those above.
    pub ready_strategies: Option<Strategies>,
    /// Whether agents must send a token, and whose.
    pub token_review: Option<token_review::Options>,
    /// What must show an agent's claims.
    pub binding: Binding,
    /// How to reach the Kubernetes API.
    pub kube_client: ClientOptions,
    /// The Lease to keep, if one is to be kept.
    pub lease: Option<lease::Options>,
    /// What may be dialled.
    pub egress: Policy,
    /// What agents may connect to through this server.
    pub forward_targets: ForwardTargets,
    /// How many such connections the agent of one tunnel may have, those being dialled included.
    pub forward_max_connections: usize,
    /// Whether the admin port serves profiles.
    pub profiling: bool,
    /// Takes up changed certificates, keys and CA bundles, once it runs.
    pub watcher: Watcher,
    /// What the operator should hear at start.
    pub warnings: Vec<String>,
}

/// A TCP address to bind, and the flag to name when that fails.
#[derive(Clone, Debug)]
pub struct Address {
    /// The flag of the port.
    pub flag: &'static str,
    /// Host, empty for all interfaces.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// The frontend's transport.
#[derive(Debug)]
pub enum FrontendConfig {
    /// A Unix socket; whoever may open it may dial.
    Uds {
        /// Its path.
        path: PathBuf,
        /// Whether to remove what is there.
        delete_existing: bool,
    },
    /// TCP with client certificates.
    Tcp {
        /// Where.
        address: Address,
        /// TLS, with verification of clients.
        tls: Current<Arc<ServerConfig>>,
    },
}

/// Why the server cannot run as it was told to; everything that is wrong, at once.
#[derive(Debug, thiserror::Error)]
#[error("failed to validate server options with {}", .faults.join("; "))]
pub struct ConfigError {
    faults: Vec<String>,
}

impl Config {
    /// Checks the flags and loads the files that they name.
    ///
    /// # Errors
    /// [`ConfigError`], with every fault that was found.
    pub fn new(cli: &Cli) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let mut warnings = Vec::new();
        check_ports(cli, &mut faults);
        if cli.mode != "grpc" && cli.mode != "http-connect" {
            faults.add(format!(
                "--mode: mode must be set to either 'grpc' or 'http-connect' not \"{}\"",
                cli.mode
            ));
        }
        if cli.xfr_channel_size <= 0 {
            faults.add(format!(
                "--xfr-channel-size: channel size {} must be greater than 0",
                cli.xfr_channel_size
            ));
        }
        let strategies = cli.proxy_strategies.parse::<Strategies>();
        let strategies = faults
            .take("--proxy-strategies", strategies)
            .unwrap_or_default();
        let ready_strategies = ready_strategies(cli, &strategies, &mut faults);
        let server_count = check_server_count(cli.server_count, &mut faults, &mut warnings);
        let dial_timeout = check_duration(
            "backend-dial-timeout",
            cli.backend_dial_timeout,
            &mut faults,
        );
        let shutdown_delay = check_duration("shutdown-delay", cli.shutdown_delay, &mut faults);
        let graceful_shutdown = check_duration(
            "graceful-shutdown-timeout",
            cli.graceful_shutdown_timeout,
            &mut faults,
        );
        let memory_budget = cli
            .memory_budget
            .unwrap_or_else(|| ledger::default_budget(daemon::memory::limit()));
        if memory_budget < ledger::MIN_BUDGET {
            faults.add(format!(
                "--memory-budget {memory_budget} must be at least {} bytes",
                ledger::MIN_BUDGET
            ));
        }
        if cli.enable_contention_profiling {
            warnings.push(
                "--enable-contention-profiling has no effect: there are no locks to profile"
                    .to_owned(),
            );
        }
        if cli.enable_contention_profiling && !cli.enable_profiling {
            faults.add(
                "if --enable-contention-profiling is set, --enable-profiling must also be set"
                    .to_owned(),
            );
        }
        let server_id = cli
            .server_id
            .clone()
            .filter(|id| !id.is_empty())
            .unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        if server_id.len() > MAX_ID {
            faults.add(format!("--server-id is longer than {MAX_ID} bytes"));
        }
        let egress = egress(cli, &mut faults);
        let forward_targets = forward::targets(cli, &mut faults, &mut warnings);
        let token_review = kubernetes::token_review(cli, &mut faults);
        check_binding(cli, &mut faults);
        let kube_client = kubernetes::client(cli, &mut faults);
        let lease = kubernetes::lease(cli, &server_id, &mut faults);
        let options = tls::tls_options(cli, &mut faults, &mut warnings);
        let mut watcher = Watcher::new();
        let agent_tls = tls::agent_tls(cli, &options, &mut watcher, &mut faults, &mut warnings);
        let frontend = tls::frontend(cli, &options, &mut watcher, &mut faults);
        match (agent_tls, frontend) {
            (Some(agent_tls), Some(frontend)) if faults.0.is_empty() => Ok(Self {
                frontend,
                agents: address("--agent-port", &cli.agent_bind_address, cli.agent_port),
                tunnel_protocol: cli.tunnel_protocol,
                agent_tls,
                admin: address("--admin-port", &cli.admin_bind_address, cli.admin_port),
                health: address("--health-port", &cli.health_bind_address, cli.health_port),
                server_id,
                server_count,
                keepalive: positive(cli.keepalive_time).unwrap_or(keepalive::DEFAULT_INTERVAL),
                frontend_keepalive: positive(cli.frontend_keepalive_time)
                    .unwrap_or(FRONTEND_KEEPALIVE),
                dial_timeout: if dial_timeout.is_zero() {
                    DIAL_TIMEOUT
                } else {
                    dial_timeout
                },
                shutdown_delay,
                graceful_shutdown,
                memory_budget,
                strategies,
                ready_strategies,
                token_review,
                binding: cli.bind_agent_identity,
                kube_client,
                lease,
                egress,
                forward_targets,
                forward_max_connections: cli.forward_max_connections,
                profiling: cli.enable_profiling,
                watcher,
                warnings,
            }),
            _ => Err(ConfigError { faults: faults.0 }),
        }
    }
}

fn ready_strategies(cli: &Cli, strategies: &Strategies, faults: &mut Faults) -> Option<Strategies> {
    const FLAG: &str = "--ready-strategies";
    if cli.ready_strategies.is_empty() {
        return None;
    }
    let wanted: Strategies = faults.take(FLAG, cli.ready_strategies.parse())?;
    let missing = wanted.iter().find(|&wanted| !strategies.contains(wanted));
    if let Some(missing) = missing {
        faults.add(format!(
            "{FLAG}: {missing} is not among --proxy-strategies {strategies}: this server would never be ready"
        ));
    }
    Some(wanted)
}

fn egress(cli: &Cli, faults: &mut Faults) -> Policy {
    let list = |flag: &[StringSlice]| StringSlice::concat(flag.iter().cloned());
    Policy::parse(&list(&cli.egress_allow), &list(&cli.egress_deny)).unwrap_or_else(|errors| {
        errors
            .iter()
            .for_each(|error| faults.add(error.to_string()));
        Policy::default()
    })
}

/// A proof that nobody could show would keep every agent out.
fn check_binding(cli: &Cli, faults: &mut Faults) {
    let binding = cli.bind_agent_identity;
    let has_certificates = !cli.cluster_ca_cert.is_empty();
    let has_tokens = !cli.agent_namespace.is_empty();
    let needs = match binding {
        Binding::Certificate if !has_certificates => "--cluster-ca-cert",
        Binding::Token if !has_tokens => "--agent-namespace",
        Binding::CertificateOrToken if !has_certificates && !has_tokens => {
            "--cluster-ca-cert or --agent-namespace"
        }
        _ => return,
    };
    faults.add(format!("--bind-agent-identity={binding} needs {needs}"));
}

#[cfg(test)]
mod tests;
