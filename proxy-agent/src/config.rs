//! What the flags and the files that they name come to. Checked once; whoever has a [`Config`] need not check again.

mod identifiers;
mod problem;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use certs::{Identity, LoadError, Roots, TlsOptions};
use daemon::flags::{GoDuration, StringSlice};
use http::HeaderValue;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::cli::Cli;
use crate::server_address::ServerAddress;

pub use identifiers::IdentifiersError;
pub use problem::{Problem, Problems};

/// The protocol that a tunnel speaks.
pub(crate) const H2: &[u8] = b"h2";

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
    /// The files are fine, and still TLS does not take them.
    #[error("prepare TLS")]
    Tls(#[source] certs::tls::ConfigError),
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

/// Who this agent says it is.
#[derive(Clone, Debug)]
pub(crate) struct Announcement {
    pub(crate) agent_id: HeaderValue,
    pub(crate) identifiers: HeaderValue,
    /// Read at each attempt.
    pub(crate) token_file: Option<PathBuf>,
}

/// Everything that an agent needs to start. `Debug` shows paths and dates, no secrets.
#[derive(Clone)]
pub struct Config {
    pub(crate) server: ServerAddress,
    pub(crate) server_name: ServerName<'static>,
    pub(crate) authority: String,
    pub(crate) tls: Arc<ClientConfig>,
    pub(crate) announcement: Announcement,
    pub(crate) sync: SyncConfig,
    pub(crate) keepalive: Duration,
    pub(crate) memory_budget: usize,
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
        let alpn = alpn(cli);
        let agent_id = match &cli.agent_id {
            Some(id) => id.clone(),
            None if agent_id.is_empty() => uuid::Uuid::new_v4().to_string(),
            None => agent_id.to_owned(),
        };
        let problems = problem::find(cli, &server, &agent_id, &alpn);
        let (Ok(server_name), Ok(agent_id), Ok(identifiers), true) = (
            server.name(),
            HeaderValue::from_str(&agent_id),
            HeaderValue::from_str(&cli.agent_identifiers),
            problems.is_empty(),
        ) else {
            return Err(ConfigError::Options(Problems(problems)));
        };
        let (tls, has_certificate) = tls(cli, &alpn)?;
        Ok(Self {
            authority: server.authority(has_certificate),
            server,
            server_name,
            tls,
            announcement: Announcement {
                agent_id,
                identifiers,
                token_file: given(&cli.service_account_token_path).map(Path::to_owned),
            },
            sync: SyncConfig {
                interval: at_least(cli.sync_interval, MIN_SYNC_INTERVAL),
                cap: at_least(cli.sync_interval_cap, MIN_SYNC_INTERVAL),
                forever: cli.sync_forever,
            },
            keepalive: cli
                .keepalive_time
                .map_or(tunnel::keepalive::AGENT_INTERVAL, |time| {
                    at_least(time, MIN_KEEPALIVE)
                }),
            memory_budget: cli.memory_budget,
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

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("server", &format_args!("{}", self.server))
            .field("authority", &self.authority)
            .field("announcement", &self.announcement)
            .field("sync", &self.sync)
            .field("keepalive", &self.keepalive)
            .field("memory_budget", &self.memory_budget)
            .field("health", &self.health)
            .field("admin", &self.admin)
            .finish_non_exhaustive()
    }
}

/// `--alpn-proto`'s names in their order, then `h2` unless it is among them.
fn alpn(cli: &Cli) -> Vec<String> {
    let mut names = StringSlice::concat(cli.alpn_proto.iter().cloned());
    if !names.iter().any(|name| name.as_bytes() == H2) {
        names.push(String::from_utf8_lossy(H2).into_owned());
    }
    names
}

/// The TLS configuration, and whether it has a client certificate.
fn tls(cli: &Cli, alpn: &[String]) -> Result<(Arc<ClientConfig>, bool), ConfigError> {
    let file = |flag| move |source| ConfigError::File { flag, source };
    let roots = given(&cli.ca_cert).ok_or(ConfigError::NoRoots)?;
    let roots = Roots::load(roots).map_err(file("--ca-cert"))?;
    let identity = match (given(&cli.agent_cert), given(&cli.agent_key)) {
        (Some(certificate), Some(key)) => {
            Some(Identity::load(certificate, key).map_err(file("--agent-cert, --agent-key"))?)
        }
        _ => None,
    };
    let alpn: Vec<&[u8]> = alpn.iter().map(String::as_bytes).collect();
    let config = certs::client_config(&roots, identity.as_ref(), &alpn, &TlsOptions::default())
        .map_err(ConfigError::Tls)?;
    Ok((config, identity.is_some()))
}

/// The path, unless it is empty.
fn given(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| !path.as_os_str().is_empty())
}

/// A negative duration counts as none.
fn at_least(duration: GoDuration, least: Duration) -> Duration {
    duration.to_duration().unwrap_or_default().max(least)
}

#[cfg(test)]
pub(crate) mod tests;
