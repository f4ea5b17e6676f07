//! Flags and files, checked once.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use certs::{
    CipherSuites, Current, Identity, MinVersion, Roots, ServerFiles, TlsOptions, Watcher,
    tls::{ALPN_AGENT, ALPN_FRONTEND},
};
use daemon::flags::{GoDuration, StringSlice};
use rustls::ServerConfig;
use tunnel::keepalive;

use crate::cli::Cli;

/// How long an agent may take to answer a dial. Ours gives its target 5 s, resolution included; kube-apiserver's client
/// library gives up after 30 s, and our answer must be there before.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(15);

/// Default ping interval of the gRPC frontend over TCP.
pub const FRONTEND_KEEPALIVE: Duration = Duration::from_secs(30);

/// Ports that upstream refuses from here on, as the kernel hands them out to others.
const FIRST_EPHEMERAL: i64 = 49152;

/// What the server runs with.
#[derive(Debug)]
pub struct Config {
    /// Where kube-apiserver comes in.
    pub frontend: FrontendConfig,
    /// Where agents come in.
    pub agents: Address,
    /// TLS of the agent listener.
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
    /// How long connections may go on after the first signal.
    pub graceful_shutdown: Duration,
    /// Budget of the ledger, in bytes.
    pub memory_budget: usize,
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
        let mut faults = Faults(Vec::new());
        let mut warnings = Vec::new();
        check_ports(cli, &mut faults);
        if cli.mode != "grpc" && cli.mode != "http-connect" {
            faults.add(format!(
                "mode must be set to either 'grpc' or 'http-connect' not \"{}\"",
                cli.mode
            ));
        }
        if cli.xfr_channel_size <= 0 {
            faults.add(format!(
                "channel size {} must be greater than 0",
                cli.xfr_channel_size
            ));
        }
        check_strategies(&cli.proxy_strategies, &mut faults);
        let server_count = check_server_count(cli.server_count, &mut faults, &mut warnings);
        let dial_timeout = check_duration(
            "backend-dial-timeout",
            cli.backend_dial_timeout,
            &mut faults,
        );
        let graceful_shutdown = check_duration(
            "graceful-shutdown-timeout",
            cli.graceful_shutdown_timeout,
            &mut faults,
        );
        if cli.memory_budget < tunnel::ledger::MIN_BUDGET {
            faults.add(format!(
                "--memory-budget {} must be at least {} bytes",
                cli.memory_budget,
                tunnel::ledger::MIN_BUDGET
            ));
        }
        let options = tls_options(cli, &mut faults, &mut warnings);
        let mut watcher = Watcher::new();
        let agent_tls = agent_tls(cli, &options, &mut watcher, &mut faults, &mut warnings);
        let frontend = frontend(cli, &options, &mut watcher, &mut faults);
        match (agent_tls, frontend) {
            (Some(agent_tls), Some(frontend)) if faults.0.is_empty() => Ok(Self {
                frontend,
                agents: address("--agent-port", &cli.agent_bind_address, cli.agent_port),
                agent_tls,
                admin: address("--admin-port", &cli.admin_bind_address, cli.admin_port),
                health: address("--health-port", &cli.health_bind_address, cli.health_port),
                server_id: cli
                    .server_id
                    .clone()
                    .filter(|id| !id.is_empty())
                    .unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
                server_count,
                keepalive: positive(cli.keepalive_time).unwrap_or(keepalive::SERVER_INTERVAL),
                frontend_keepalive: positive(cli.frontend_keepalive_time)
                    .unwrap_or(FRONTEND_KEEPALIVE),
                dial_timeout: if dial_timeout.is_zero() {
                    DIAL_TIMEOUT
                } else {
                    dial_timeout
                },
                graceful_shutdown,
                memory_budget: cli.memory_budget,
                watcher,
                warnings,
            }),
            _ => Err(ConfigError { faults: faults.0 }),
        }
    }
}

struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, fault: String) {
        self.0.push(fault);
    }

    /// The value, or a fault that names the flags.
    fn take<T, E: std::error::Error>(&mut self, flags: &str, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(format!("{flags}: {}", chain(&error)));
                None
            }
        }
    }
}

/// An error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Checks everything, so that [`address`] may take the port as it is.
fn check_ports(cli: &Cli, faults: &mut Faults) {
    let ports = [
        (cli.server_port, "server"),
        (cli.agent_port, "agent"),
        (cli.admin_port, "admin"),
        (cli.health_port, "health"),
    ];
    if !cli.uds_name.is_empty() && cli.server_port != 0 {
        faults.add(format!(
            "server port should be set to 0 not {} for UDS",
            cli.server_port
        ));
    }
    for (port, name) in ports {
        if port >= FIRST_EPHEMERAL {
            faults.add(format!(
                "please do not try to use ephemeral port {port} for the {name} port"
            ));
        } else if port < 1024 && (name != "server" || cli.uds_name.is_empty()) {
            faults.add(format!(
                "please do not try to use reserved port {port} for the {name} port"
            ));
        }
    }
}

fn address(flag: &'static str, host: &str, port: i64) -> Address {
    Address {
        flag,
        host: host.to_owned(),
        port: u16::try_from(port).unwrap_or_default(),
    }
}

fn check_strategies(strategies: &str, faults: &mut Faults) {
    if strategies.is_empty() {
        faults.add("ProxyStrategies cannot be empty".to_owned());
        return;
    }
    let mut named = strategies
        .split(',')
        .filter(|name| !name.is_empty())
        .peekable();
    if named.peek().is_none() {
        faults.add("invalid proxy strategies: proxy strategies cannot be empty".to_owned());
    }
    for name in named {
        match name {
            "default" => {}
            "destHost" | "defaultRoute" => {
                faults.add(format!("invalid proxy strategies: {name} is not supported by this version of Adit, use 'default'"));
            }
            _ => faults.add(format!(
                "invalid proxy strategies: unknown proxy strategy: {name}"
            )),
        }
    }
}

fn check_server_count(count: i64, faults: &mut Faults, warnings: &mut Vec<String>) -> u32 {
    match u32::try_from(count) {
        Ok(0) => {
            warnings.push("--server-count=0 means 1: agents take it so".to_owned());
            1
        }
        Ok(count) if count <= 1000 => count,
        _ => {
            faults.add(format!(
                "--server-count must be between 0 and 1000, got {count}"
            ));
            1
        }
    }
}

fn check_duration(flag: &str, value: GoDuration, faults: &mut Faults) -> Duration {
    value.to_duration().unwrap_or_else(|| {
        faults.add(format!("{flag} must be >= 0, got {value}"));
        Duration::ZERO
    })
}

fn positive(value: Option<GoDuration>) -> Option<Duration> {
    value
        .and_then(GoDuration::to_duration)
        .filter(|value| !value.is_zero())
}

fn tls_options(cli: &Cli, faults: &mut Faults, warnings: &mut Vec<String>) -> TlsOptions {
    let mut options = TlsOptions::default();
    if !cli.tls_min_version.is_empty()
        && let Some(version) = faults.take(
            "--tls-min-version",
            cli.tls_min_version.parse::<MinVersion>(),
        )
    {
        if version.clamped() {
            warnings.push(format!(
                "--tls-min-version={}: the oldest version that is served is 1.2",
                cli.tls_min_version
            ));
        }
        options.min_version = version;
    }
    let suites = StringSlice::concat(cli.cipher_suites.iter().cloned());
    if let Some(suites) = faults.take("--cipher-suites", CipherSuites::parse(&suites)) {
        if !suites.ignored().is_empty() {
            warnings.push(format!(
                "--cipher-suites: not served and left out: {}",
                suites.ignored().join(", ")
            ));
        }
        options.cipher_suites = suites;
    }
    options
}

/// A certificate and its key; both flags or neither.
///
/// Files are looked at one by one before the watcher takes them as a set, so that each fault is told under its own flag.
fn identity(what: &str, cert: &str, key: &str, faults: &mut Faults) -> Option<(PathBuf, PathBuf)> {
    match (cert.is_empty(), key.is_empty()) {
        (true, true) => {
            faults.add(format!("--{what}-cert and --{what}-key must be set"));
            None
        }
        (false, true) => {
            faults.add(format!(
                "cannot have {what} key empty when {what} cert is set to \"{cert}\""
            ));
            None
        }
        (true, false) => {
            faults.add(format!(
                "cannot have {what} cert empty when {what} key is set to \"{key}\""
            ));
            None
        }
        (false, false) => {
            let (cert, key) = (PathBuf::from(cert), PathBuf::from(key));
            faults.take(
                &format!("--{what}-cert, --{what}-key"),
                Identity::load(&cert, &key),
            )?;
            Some((cert, key))
        }
    }
}

/// A CA bundle.
fn roots(flag: &str, file: &str, faults: &mut Faults) -> Option<PathBuf> {
    faults.take(flag, Roots::load(Path::new(file)))?;
    Some(PathBuf::from(file))
}

fn agent_tls(
    cli: &Cli,
    options: &TlsOptions,
    watcher: &mut Watcher,
    faults: &mut Faults,
    warnings: &mut Vec<String>,
) -> Option<Current<Arc<ServerConfig>>> {
    let identity = identity("cluster", &cli.cluster_cert, &cli.cluster_key, faults);
    let client_ca = if cli.cluster_ca_cert.is_empty() {
        warnings.push(
            "--cluster-ca-cert is not set: whoever reaches the agent port may register as an agent"
                .to_owned(),
        );
        None
    } else {
        Some(roots("--cluster-ca-cert", &cli.cluster_ca_cert, faults)?)
    };
    let (certificate, key) = identity?;
    let files = ServerFiles {
        certificate,
        key,
        client_ca,
    };
    faults.take(
        "--cluster-cert, --cluster-key, --cluster-ca-cert",
        watcher.server(files, ALPN_AGENT, options),
    )
}

fn frontend(
    cli: &Cli,
    options: &TlsOptions,
    watcher: &mut Watcher,
    faults: &mut Faults,
) -> Option<FrontendConfig> {
    if !cli.uds_name.is_empty() {
        for (file, what) in [
            (&cli.server_cert, "cert"),
            (&cli.server_key, "key"),
            (&cli.server_ca_cert, "ca cert"),
        ] {
            if !file.is_empty() {
                faults.add(format!("server {what} should not be set for UDS"));
            }
        }
        return Some(FrontendConfig::Uds {
            path: PathBuf::from(&cli.uds_name),
            delete_existing: cli.delete_existing_uds_file,
        });
    }
    let identity = identity("server", &cli.server_cert, &cli.server_key, faults);
    if cli.server_ca_cert.is_empty() {
        faults.add("server ca cert must be set when in TCP mode (uds-name is empty)".to_owned());
        return None;
    }
    let client_ca = roots("--server-ca-cert", &cli.server_ca_cert, faults);
    let (certificate, key) = identity?;
    let files = ServerFiles {
        certificate,
        key,
        client_ca: Some(client_ca?),
    };
    let tls = faults.take(
        "--server-cert, --server-key, --server-ca-cert",
        watcher.server(files, ALPN_FRONTEND, options),
    )?;
    Some(FrontendConfig::Tcp {
        address: address("--server-port", &cli.server_bind_address, cli.server_port),
        tls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Files};

    fn config(files: &Files, more: &[&str]) -> Result<Config, String> {
        let mut args = files.flags();
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        let cli = daemon::flags::parse::<Cli, _>(args).unwrap().cli;
        Config::new(&cli).map_err(|error| error.to_string())
    }

    #[test]
    fn a_plain_start_line_gives_safe_defaults() {
        let files = testing::files();
        let config = config(&files, &["--server-id=a"]).unwrap();
        assert_eq!((config.server_id.as_str(), config.server_count), ("a", 1));
        assert_eq!(
            (config.dial_timeout, config.keepalive),
            (DIAL_TIMEOUT, keepalive::SERVER_INTERVAL)
        );
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        assert!(matches!(config.frontend, FrontendConfig::Uds { .. }));
    }

    #[test]
    fn all_faults_are_told_at_once_each_with_its_flag() {
        let files = testing::files();
        let error = config(
            &files,
            &[
                "--mode=tcp",
                "--agent-port=80",
                "--health-port=50000",
                "--proxy-strategies=best",
                "--cluster-key=",
                "--backend-dial-timeout=-1s",
                "--server-count=-1",
                "--server-port=1",
            ],
        )
        .unwrap_err();
        for part in [
            "mode must be set to either 'grpc' or 'http-connect' not \"tcp\"",
            "reserved port 80 for the agent port",
            "ephemeral port 50000 for the health port",
            "unknown proxy strategy: best",
            "cannot have cluster key empty",
            "backend-dial-timeout must be >= 0, got -1s",
            "--server-count must be",
            "server port should be set to 0 not 1 for UDS",
        ] {
            assert!(error.contains(part), "no «{part}» in {error}");
        }
    }

    #[test]
    fn a_tcp_frontend_needs_its_three_files_and_a_socket_none() {
        let files = testing::files();
        let error = config(&files, &["--uds-name=", "--server-port=8090"]).unwrap_err();
        assert!(
            error.contains("--server-cert and --server-key must be set")
                && error.contains("server ca cert must be set"),
            "{error}"
        );
        let error = config(&files, &["--server-ca-cert=/x"]).unwrap_err();
        assert!(
            error.contains("server ca cert should not be set for UDS"),
            "{error}"
        );
        let tcp = files.tcp_flags();
        let tcp: Vec<_> = tcp.iter().map(String::as_str).collect();
        assert!(matches!(
            config(&files, &tcp).unwrap().frontend,
            FrontendConfig::Tcp { .. }
        ));
    }

    #[test]
    fn faults_of_two_files_of_one_listener_are_both_told() {
        let files = testing::files();
        let error = config(
            &files,
            &[
                "--cluster-ca-cert=/nowhere/ca.crt",
                "--cluster-key=/nowhere/tls.key",
            ],
        )
        .unwrap_err();
        for part in [
            "--cluster-ca-cert: ",
            "/nowhere/ca.crt",
            "--cluster-cert, --cluster-key: ",
            "/nowhere/tls.key",
        ] {
            assert!(error.contains(part), "no «{part}» in {error}");
        }
    }

    #[test]
    fn every_file_of_the_listeners_is_watched() {
        let files = testing::files();
        let tcp = files.tcp_flags();
        let tcp: Vec<_> = tcp.iter().map(String::as_str).collect();
        let status = config(&files, &tcp).unwrap().watcher.status().current();
        let watched: Vec<_> = status
            .files()
            .iter()
            .map(certs::status::FileStatus::file)
            .collect();
        let all = ["server.crt", "server.key", "ca.crt"].map(|name| files.path(name));
        assert_eq!(watched, all);
    }

    #[test]
    fn a_missing_file_is_named_with_its_flag() {
        let files = testing::files();
        let error = config(&files, &["--cluster-ca-cert=/nowhere/ca.crt"]).unwrap_err();
        assert!(
            error.contains("--cluster-ca-cert") && error.contains("/nowhere/ca.crt"),
            "{error}"
        );
    }
}
