//! What can be wrong with flags by themselves: the flag, then upstream's words (wire-protocol.md 6.3), in upstream's order.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use daemon::flags::GoDuration;
use egress_policy::PolicyError;
use tunnel::ledger::MIN_BUDGET;

use super::{ForwardError, IdentifiersError, TunnelProtocol, egress, forwards, given, identifiers};
use crate::cli::Cli;
use crate::server_address::ServerAddress;

/// One flag, or two that do not go together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A file that is not there or may not be looked at.
    #[error("{flag}: error checking {what} {}, got {source}", file.display())]
    File {
        /// The flag.
        flag: &'static str,
        /// What the file is for.
        what: &'static str,
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A key without its certificate or the reverse.
    #[error(
        "--agent-{missing}: cannot have agent {missing} empty when agent {given} is set to {:?}",
        file
    )]
    HalfIdentity {
        /// `cert` or `key`.
        missing: &'static str,
        /// The other one.
        given: &'static str,
        /// Its file.
        file: PathBuf,
    },
    /// Not a port.
    #[error(
        "--{}-port: {what} port {port} must be greater than 0{}",
        what.replace(' ', "-"),
        if *port > 0 { " and at most 65535" } else { "" }
    )]
    Port {
        /// Whose port.
        what: &'static str,
        /// As written.
        port: i64,
    },
    /// `--xfr-channel-size`
    #[error("--xfr-channel-size: channel size {0} must be greater than 0")]
    ChannelSize(i64),
    /// `--enable-contention-profiling` alone.
    #[error("if --enable-contention-profiling is set, --enable-profiling must also be set")]
    ContentionProfiling,
    /// `--sync-interval` beyond `--sync-interval-cap`.
    #[error("--sync-interval: sync interval {interval} must be less than sync interval cap {cap}")]
    SyncInterval {
        /// The interval.
        interval: GoDuration,
        /// Its cap.
        cap: GoDuration,
    },
    /// `--agent-identifiers`
    #[error("--agent-identifiers: agent address is invalid: {0}")]
    Identifiers(IdentifiersError),
    /// `--kubeconfig`
    #[error("--kubeconfig: error checking KubeconfigPath {file:?}, got {source}")]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// `--server-count-source`
    #[error("--server-count-source must be one of '', 'default', 'max', got {0}")]
    CountSource(String),
    /// `--drain-idle` or `--drain-timeout`
    #[error("{flag} must be >= 0, got {value}")]
    Negative {
        /// The flag.
        flag: &'static str,
        /// As written.
        value: GoDuration,
    },
    /// `--memory-budget`
    #[error("--memory-budget {0} must be at least {MIN_BUDGET} bytes")]
    MemoryBudget(usize),
    /// `--egress-allow` or `--egress-deny`
    #[error(transparent)]
    Egress(#[from] PolicyError),
    /// `--proxy-server-host`
    #[error("--proxy-server-host {0:?} is neither an IP address nor a DNS name")]
    Host(String),
    /// `--agent-id`
    #[error("--agent-id {0:?} has characters other than printable ASCII")]
    AgentId(String),
    /// `--alpn-proto`
    #[error("--alpn-proto {0:?} must have 1 to 255 bytes")]
    Alpn(String),
    /// `--alpn-proto` names the tunnel that `--tunnel-protocol` excludes.
    #[error(
        "--alpn-proto has {name:?}, the name of a tunnel that --tunnel-protocol={pinned} excludes"
    )]
    Pinned {
        /// The tunnel's name.
        name: String,
        /// What is pinned.
        pinned: &'static str,
    },
    /// `--forward`
    #[error("--forward={value}: {source}")]
    Forward {
        /// As written.
        value: String,
        /// What is wrong with it; part of this problem's own text.
        source: ForwardError,
    },
    /// `--forward` without the tunnel that can carry it.
    #[error("--forward needs the stream tunnel, which --tunnel-protocol=packet excludes")]
    ForwardWithoutStream,
    /// `--forward-max-connections`
    #[error("--forward-max-connections 0 must be at least 1")]
    NoForwardedConnections,
}

/// Everything that is wrong. Never empty.
#[derive(Debug)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// A port that is one; others give 0, which [`find`] has refused.
pub(super) fn port(port: i64) -> u16 {
    u16::try_from(port).unwrap_or(0)
}

/// Everything that is wrong with the flags.
pub(super) fn find(
    cli: &Cli,
    server: &ServerAddress,
    agent_id: &str,
    alpn: &[String],
) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(file("--agent-key", "agent key", &cli.agent_key));
    problems.extend(half("cert", &cli.agent_cert, "key", &cli.agent_key));
    problems.extend(file("--agent-cert", "agent cert", &cli.agent_cert));
    problems.extend(half("key", &cli.agent_key, "cert", &cli.agent_cert));
    problems.extend(file("--ca-cert", "agent CA cert", &cli.ca_cert));
    for (what, number) in [
        ("proxy server", cli.proxy_server_port),
        ("health server", cli.health_server_port),
        ("admin server", cli.admin_server_port),
    ] {
        if port(number) == 0 {
            problems.push(Problem::Port { what, port: number });
        }
    }
    if cli.xfr_channel_size <= 0 {
        problems.push(Problem::ChannelSize(cli.xfr_channel_size));
    }
    if cli.enable_contention_profiling && !cli.enable_profiling {
        problems.push(Problem::ContentionProfiling);
    }
    if cli.sync_interval > cli.sync_interval_cap {
        problems.push(Problem::SyncInterval {
            interval: cli.sync_interval,
            cap: cli.sync_interval_cap,
        });
    }
    problems.extend(file(
        "--service-account-token-path",
        "service account token path",
        &cli.service_account_token_path,
    ));
    problems.extend(
        identifiers::check(&cli.agent_identifiers)
            .err()
            .map(Problem::Identifiers),
    );
    if let Some(file) = given(&cli.kubeconfig) {
        let source = std::fs::metadata(file).err();
        problems.extend(source.map(|source| Problem::Kubeconfig {
            file: file.to_owned(),
            source,
        }));
    }
    if !["", "default", "max"].contains(&cli.server_count_source.as_str()) {
        problems.push(Problem::CountSource(cli.server_count_source.clone()));
    }
    for (flag, value) in [
        ("--drain-idle", cli.drain_idle),
        ("--drain-timeout", cli.drain_timeout),
    ] {
        if value.to_duration().is_none() {
            problems.push(Problem::Negative { flag, value });
        }
    }
    let budget = cli.memory_budget.filter(|budget| *budget < MIN_BUDGET);
    problems.extend(budget.map(Problem::MemoryBudget));
    problems.extend(egress(cli).err().into_iter().flatten().map(Problem::Egress));
    if server.name().is_err() {
        problems.push(Problem::Host(server.host().to_owned()));
    }
    if !agent_id.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
        problems.push(Problem::AgentId(agent_id.to_owned()));
    }
    let lengths = 1..=usize::from(u8::MAX);
    let bad = alpn.iter().filter(|name| !lengths.contains(&name.len()));
    problems.extend(bad.cloned().map(Problem::Alpn));
    let excluded = cli.tunnel_protocol.excluded();
    let excluded = alpn.iter().filter(|name| excluded == Some(name.as_bytes()));
    problems.extend(excluded.map(|name| Problem::Pinned {
        name: name.clone(),
        pinned: cli.tunnel_protocol.name(),
    }));
    problems.extend(forwards(cli).err().into_iter().flatten());
    if !cli.forward.is_empty() && cli.tunnel_protocol == TunnelProtocol::Packet {
        problems.push(Problem::ForwardWithoutStream);
    }
    if cli.forward_max_connections == 0 {
        problems.push(Problem::NoForwardedConnections);
    }
    problems
}

/// Whether the file, if one is given, is there.
fn file(flag: &'static str, what: &'static str, path: &Path) -> Option<Problem> {
    let source = std::fs::metadata(given(path)?).err()?;
    Some(Problem::File {
        flag,
        what,
        file: path.to_owned(),
        source,
    })
}

fn half(missing: &'static str, other: &Path, name: &'static str, path: &Path) -> Option<Problem> {
    match (given(other), given(path)) {
        (None, Some(path)) => Some(Problem::HalfIdentity {
            missing,
            given: name,
            file: path.to_owned(),
        }),
        _ => None,
    }
}
