//! What the flags and the files that they name come to. Checked once; whoever has a [`Config`] need not check again.

mod forward;
mod identifiers;
mod problem;
mod protocol;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use certs::{
    ClientFiles, Current, Identity, LoadError, Roots, StoreError, TlsOptions, Token, Watcher,
};
use cluster::ClientOptions;
use daemon::flags::{GoDuration, StringSlice};
use egress_policy::{Policy, PolicyError};
use http::HeaderValue;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tunnel::ledger;

use crate::cli::Cli;
use crate::lease_count;
use crate::proxy::Proxy;
use crate::server_address::ServerAddress;

pub use crate::proxy::EnvironmentError;
pub use forward::{Forward, ForwardError, Listen, MAX_CONNECTIONS};
pub use identifiers::IdentifiersError;
pub use problem::{Problem, Problems};
pub(crate) use protocol::H2;
pub use protocol::TunnelProtocol;

/// Shortest keepalive interval; grpc-go raises shorter ones to it.
pub const MIN_KEEPALIVE: Duration = Duration::from_secs(10);

/// Shortest delay that `--sync-interval` may set, so that a zero does not make a busy loop.
pub const MIN_SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// Why there is no configuration; the operator's to solve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Flags that are wrong by themselves, all of them.
    #[error("failed to validate agent options with {0}")]
    Options(Problems),
    /// Nothing says which servers to trust.
    #[error("failed to run proxy connection with failed to load CA cert: --ca-cert is not set")]
    NoRoots,
    /// A file that cannot be used.
    #[error("{flag}")]
    File {
        /// The flag that names it.
        flag: &'static str,
        /// What is wrong with it.
        #[source]
        source: LoadError,
    },
    /// The files are fine one by one, and not together.
    #[error("--ca-cert, --agent-cert, --agent-key")]
    Tls(#[source] StoreError),
    /// A proxy that cannot be used.
    #[error("environment")]
    Environment(#[source] EnvironmentError),
}

/// How this agent finds and keeps its tunnels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncConfig {
    /// Delay after the first failed attempt.
    pub(crate) interval: Duration,
    /// Most that the delay grows to.
    pub(crate) cap: Duration,
    /// Whether to look for more servers than there are said to be.
    pub(crate) forever: bool,
}

/// When a draining agent leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainConfig {
    /// After this long without a connection and without a dial; `None` for never.
    pub(crate) idle: Option<Duration>,
    /// After this long, whatever is open; `None` for never.
    pub(crate) timeout: Option<Duration>,
}

/// Servers are counted by their Leases.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseConfig {
    /// How to reach the Kubernetes API.
    pub(crate) client: ClientOptions,
    /// Which Leases count.
    pub(crate) leases: lease_count::Options,
    /// Whether what servers say counts if it is more: `--server-count-source=max`.
    pub(crate) or_more: bool,
}

/// Who this agent says it is.
#[derive(Clone, Debug)]
pub(crate) struct Announcement {
    pub(crate) agent_id: HeaderValue,
    pub(crate) identifiers: HeaderValue,
    pub(crate) token: Option<TokenFile>,
}

/// `--service-account-token-path`. Read at each attempt; while it cannot be, what it held last is sent.
#[derive(Clone, Debug)]
pub(crate) struct TokenFile {
    pub(crate) file: PathBuf,
    /// What it held last. `None` if it held no token at the start.
    pub(crate) last: Option<Current<Token>>,
}

/// Everything that an agent needs to start. `Debug` shows paths and dates, no secrets.
pub struct Config {
    pub(crate) server: ServerAddress,
    pub(crate) server_name: ServerName<'static>,
    pub(crate) authority: String,
    /// What stands between us and the servers.
    pub(crate) proxy: Option<Proxy>,
    pub(crate) tls: Current<Arc<ClientConfig>>,
    pub(crate) watcher: Watcher,
    pub(crate) announcement: Announcement,
    pub(crate) sync: SyncConfig,
    pub(crate) drain: DrainConfig,
    pub(crate) leases: Option<LeaseConfig>,
    pub(crate) egress: Policy,
    pub(crate) profiling: bool,
    /// `None`: as the server allows.
    pub(crate) keepalive: Option<Duration>,
    pub(crate) memory_budget: usize,
    pub(crate) forwards: Vec<Forward>,
    /// Connections that all of `forwards` together may have, at least one.
    pub(crate) max_forwarded: usize,
    pub(crate) health: (String, u16),
    pub(crate) admin: (String, u16),
}

impl Config {
    /// Checks the flags, reads the files. `agent_id` is used when no flag gives one; empty, a random UUID is.
    ///
    /// # Errors
    /// [`ConfigError`]: first all flags that are wrong at once, then the first file that is.
    pub fn new(cli: &Cli, agent_id: &str) -> Result<Self, ConfigError> {
        let server_port = problem::port(cli.proxy_server_port);
        let server = ServerAddress::new(&cli.proxy_server_host, server_port);
        let alpn = cli.tunnel_protocol.offer(alpn(cli));
        let agent_id = match &cli.agent_id {
            Some(id) => id.clone(),
            None if agent_id.is_empty() => uuid::Uuid::new_v4().to_string(),
            None => agent_id.to_owned(),
        };
        let problems = problem::find(cli, &server, &agent_id, &alpn);
        let (Ok(server_name), Ok(agent_id), Ok(identifiers), Ok(egress), Ok(forwards), true) = (
            server.name(),
            HeaderValue::from_str(&agent_id),
            HeaderValue::from_str(&cli.agent_identifiers),
            egress(cli),
            forwards(cli),
            problems.is_empty(),
        ) else {
            return Err(ConfigError::Options(Problems(problems)));
        };
        let mut watcher = Watcher::new();
        let (tls, has_certificate) = tls(cli, &alpn, &mut watcher)?;
        let token = given(&cli.service_account_token_path).map(|file| token(file, &mut watcher));
        Ok(Self {
            authority: server.authority(has_certificate),
            server,
            server_name,
            proxy: None,
            tls,
            watcher,
            announcement: Announcement {
                agent_id,
                identifiers,
                token,
            },
            sync: SyncConfig {
                interval: at_least(cli.sync_interval, MIN_SYNC_INTERVAL),
                cap: at_least(cli.sync_interval_cap, MIN_SYNC_INTERVAL),
                forever: cli.sync_forever,
            },
            drain: DrainConfig {
                idle: unless_zero(cli.drain_idle),
                timeout: unless_zero(cli.drain_timeout),
            },
            leases: leases(cli),
            egress,
            profiling: cli.enable_profiling,
            keepalive: cli.keepalive_time.map(|time| at_least(time, MIN_KEEPALIVE)),
            memory_budget: cli
                .memory_budget
                .unwrap_or_else(|| ledger::default_budget(daemon::memory::limit())),
            forwards,
            max_forwarded: cli.forward_max_connections,
            health: (
                cli.health_server_host.clone(),
                problem::port(cli.health_server_port),
            ),
            admin: (
                cli.admin_bind_address.clone(),
                problem::port(cli.admin_server_port),
            ),
        })
    }
}

impl Config {
    /// Goes to servers through the proxy that `HTTPS_PROXY` names, unless `NO_PROXY` has them; `variable` looks a variable of the
    /// environment up.
    ///
    /// # Errors
    /// [`ConfigError::Environment`], which shows no credentials.
    pub fn through_proxy(
        mut self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        self.proxy =
            Proxy::from_environment(&self.server, variable).map_err(ConfigError::Environment)?;
        Ok(self)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("server", &format_args!("{}", self.server))
            .field("authority", &self.authority)
            .field("proxy", &self.proxy)
            .field("announcement", &self.announcement)
            .field("sync", &self.sync)
            .field("drain", &self.drain)
            .field("leases", &self.leases)
            .field("egress", &self.egress)
            .field("keepalive", &self.keepalive)
            .field("memory_budget", &self.memory_budget)
            .field("forwards", &self.forwards)
            .field("max_forwarded", &self.max_forwarded)
            .field("health", &self.health)
            .field("admin", &self.admin)
            .finish_non_exhaustive()
    }
}

/// `--alpn-proto`'s names in their order.
fn alpn(cli: &Cli) -> Vec<String> {
    StringSlice::concat(cli.alpn_proto.iter().cloned())
}

/// The TLS configuration, and whether it has a client certificate.
///
/// Files are looked at one by one before the watcher takes them as a set, so that a fault is told under its own flag.
fn tls(
    cli: &Cli,
    alpn: &[String],
    watcher: &mut Watcher,
) -> Result<(Current<Arc<ClientConfig>>, bool), ConfigError> {
    let file = |flag| move |source| ConfigError::File { flag, source };
    let ca = given(&cli.ca_cert).ok_or(ConfigError::NoRoots)?.to_owned();
    Roots::load(&ca).map_err(file("--ca-cert"))?;
    let identity = match (given(&cli.agent_cert), given(&cli.agent_key)) {
        (Some(certificate), Some(key)) => {
            Identity::load(certificate, key).map_err(file("--agent-cert, --agent-key"))?;
            Some((certificate.to_owned(), key.to_owned()))
        }
        _ => None,
    };
    let has_certificate = identity.is_some();
    let alpn: Vec<&[u8]> = alpn.iter().map(String::as_bytes).collect();
    let files = ClientFiles { ca, identity };
    let tls = watcher
        .client(files, &alpn, &TlsOptions::default())
        .map_err(ConfigError::Tls)?;
    Ok((tls, has_certificate))
}

/// A token that cannot be read is no reason not to start: servers may not ask for it, or it may come later.
fn token(file: &Path, watcher: &mut Watcher) -> TokenFile {
    let last = watcher
        .token(file)
        .inspect_err(|error| {
            tracing::warn!(
                error = crate::client::chain(error),
                "no token yet, tunnels will wait for it"
            );
        })
        .ok();
    TokenFile {
        file: file.to_owned(),
        last,
    }
}

/// The path, unless it is empty.
fn given(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| !path.as_os_str().is_empty())
}

/// What may be dialled.
fn egress(cli: &Cli) -> Result<Policy, Vec<PolicyError>> {
    let list = |flag: &[StringSlice]| StringSlice::concat(flag.iter().cloned());
    Policy::parse(&list(&cli.egress_allow), &list(&cli.egress_deny))
}

/// Where connections of this node are taken, or every value that does not say.
fn forwards(cli: &Cli) -> Result<Vec<Forward>, Vec<Problem>> {
    let values = StringSlice::concat(cli.forward.iter().cloned());
    let (mut forwards, mut problems) = (Vec::new(), Vec::new());
    for value in values {
        match value.parse() {
            Ok(forward) => forwards.push(forward),
            Err(source) => problems.push(Problem::Forward { value, source }),
        }
    }
    if problems.is_empty() {
        Ok(forwards)
    } else {
        Err(problems)
    }
}

/// With `--count-server-leases`.
fn leases(cli: &Cli) -> Option<LeaseConfig> {
    cli.count_server_leases.then(|| LeaseConfig {
        client: ClientOptions {
            kubeconfig: given(&cli.kubeconfig).map(Path::to_owned),
            content_type: cli.kube_api_content_type.clone(),
            ..ClientOptions::new("proxy-agent")
        },
        leases: lease_count::Options {
            namespace: cli.lease_namespace.clone(),
            selector: cli
                .lease_label
                .clone()
                .unwrap_or_else(|| cli.lease_label_selector.clone()),
        },
        or_more: cli.server_count_source == "max",
    })
}

fn unless_zero(duration: GoDuration) -> Option<Duration> {
    duration
        .to_duration()
        .filter(|duration| !duration.is_zero())
}

/// A negative duration counts as none.
fn at_least(duration: GoDuration, least: Duration) -> Duration {
    duration.to_duration().unwrap_or_default().max(least)
}

#[cfg(test)]
pub(crate) mod tests;
