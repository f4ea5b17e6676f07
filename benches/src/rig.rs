//! A pair of processes with the same flags, whoever made them.

use std::{env, net::SocketAddr, path::Path, process::Command, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    client::{Client, Endpoint, Frontend},
    harness::{Binaries, PATIENCE, Pki, Process, free_port, get},
};
use tempfile::TempDir;
use tokio::{
    net::{TcpStream, UnixStream},
    time::{Instant, sleep},
};

use crate::{
    load::{delay::Delay, dialer::Dialer, target::Worker},
    pair::{Pair, Whose},
    relay::tls_flags,
    usage::{self, Cpu, Memory},
};

/// Between two looks whether a process is ready.
const PAUSE: Duration = Duration::from_millis(2);

/// What runs are made of.
#[derive(Debug)]
pub struct Parts {
    /// Ours.
    pub ours: Binaries,
    /// Upstream's, if they are there.
    pub upstream: Option<Binaries>,
    /// Certificates.
    pub pki: Arc<Pki>,
    /// What is dialled.
    pub target: Worker,
    /// How far it is from the agent to the server, one way, if it is far.
    pub distance: Option<Duration>,
}

/// Flags besides those that every pair is started with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags<'a> {
    /// Of the server.
    pub server: &'a [&'a str],
    /// Of the agent.
    pub agent: &'a [&'a str],
}

/// Something of the server and of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Both<T> {
    /// Of the server, or a relay's near end.
    pub server: T,
    /// Of the agent, or a relay's far end.
    pub agent: T,
}

impl Both<Duration> {
    /// Of both, in seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        (self.server + self.agent).as_secs_f64()
    }
}

/// A running pair.
#[derive(Debug)]
pub struct Rig {
    /// Which.
    pub pair: Pair,
    /// The way to the target.
    pub dialer: Dialer,
    /// From start to ready: the server as such, the agent connected.
    pub ready: Both<Duration>,
    /// Where agents connect to.
    pub agents: SocketAddr,
    server: Process,
    agent: Option<Process>,
    _way: Way,
    _folder: TempDir,
}

/// The way from the agent to the server.
#[derive(Debug)]
struct Way(Option<Delay>);

impl Way {
    fn to(server: SocketAddr, distance: Option<Duration>) -> Result<Self> {
        let delay = distance.map(|distance| Delay::to(server, distance));
        Ok(Self(delay.transpose()?))
    }

    fn address(&self, server: SocketAddr) -> SocketAddr {
        self.0.as_ref().map_or(server, Delay::address)
    }
}

impl Rig {
    /// Starts a pair, and waits until it is connected.
    ///
    /// # Errors
    /// If a binary is missing, a process ends, or is not ready in time.
    pub async fn start(parts: &Parts, pair: Pair, frontend: Frontend) -> Result<Self> {
        let rig = if pair.is_relay() {
            relay(parts, pair).await
        } else {
            tunnel(parts, pair, frontend, true, Flags::default()).await
        };
        rig.with_context(|| format!("start {}", pair.name()))
    }

    /// Starts a pair with more flags.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(
        parts: &Parts,
        pair: Pair,
        frontend: Frontend,
        flags: Flags<'_>,
    ) -> Result<Self> {
        tunnel(parts, pair, frontend, true, flags)
            .await
            .with_context(|| format!("start {}", pair.name()))
    }

    /// Starts the server alone.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn server_alone(parts: &Parts, pair: Pair) -> Result<Self> {
        ensure!(!pair.is_relay(), "a relay has no server");
        tunnel(parts, pair, Frontend::HttpUds, false, Flags::default())
            .await
            .with_context(|| format!("start the server of {}", pair.name()))
    }

    /// Memory of both; none of an agent that was not started.
    ///
    /// # Errors
    /// If one has ended.
    pub fn memory(&self) -> Result<Both<Memory>> {
        Ok(Both {
            server: Memory::of(self.server.id())?,
            agent: match &self.agent {
                Some(agent) => Memory::of(agent.id())?,
                None => Memory::default(),
            },
        })
    }

    /// CPU time of both so far.
    ///
    /// # Errors
    /// If one has ended.
    pub fn cpu(&self) -> Result<Both<Cpu>> {
        Ok(Both {
            server: Cpu::of_threads(self.server.id())?,
            agent: match &self.agent {
                Some(agent) => Cpu::of_threads(agent.id())?,
                None => Cpu::default(),
            },
        })
    }

    /// CPU time of both since `before`.
    ///
    /// # Errors
    /// If one has ended.
    pub fn cpu_since(&self, before: Both<Cpu>) -> Result<Both<Duration>> {
        let now = self.cpu()?;
        Ok(Both {
            server: now.server.since(before.server),
            agent: now.agent.since(before.agent),
        })
    }

    /// Threads of both.
    ///
    /// # Errors
    /// If one has ended.
    pub fn threads(&self) -> Result<Both<usize>> {
        Ok(Both {
            server: usage::threads(self.server.id())?,
            agent: match &self.agent {
                Some(agent) => usage::threads(agent.id())?,
                None => 0,
            },
        })
    }

    /// Open descriptors of both.
    ///
    /// # Errors
    /// If one has ended.
    pub fn files(&self) -> Result<Both<usize>> {
        Ok(Both {
            server: self.server.open_files()?,
            agent: match &self.agent {
                Some(agent) => agent.open_files()?,
                None => 0,
            },
        })
    }
}

async fn relay(parts: &Parts, pair: Pair) -> Result<Rig> {
    let program = env::current_exe().context("find the running program")?;
    let folder = tempfile::Builder::new().prefix("adit-").tempdir()?;
    let socket = folder.path().join("relay.sock");
    let far = SocketAddr::from(([127, 0, 0, 1], free_port()?));
    let target = parts.target.address();
    let mut far_flags = vec![format!("--listen={far}"), format!("--target={target}")];
    let way = Way::to(far, parts.distance)?;
    let mut near_flags = vec![
        format!("--socket={}", socket.display()),
        format!("--far={}", way.address(far)),
    ];
    if pair == Pair::Bare {
        far_flags.extend(tls_flags(&parts.pki.ca, &parts.pki.server));
        near_flags.extend(tls_flags(&parts.pki.ca, &parts.pki.agent));
    }
    let spawn = |end: &str, flags: &[String]| {
        let mut command = Command::new(&program);
        command.args(["relay", end]).args(flags);
        anyhow::Ok(Process::spawn(end, command)?.quiet())
    };
    let mut agent = spawn("far", &far_flags)?;
    let start = Instant::now();
    let agent_ready = until(&mut agent, start, async || {
        Ok(TcpStream::connect(far).await.is_ok())
    })
    .await?;
    let mut server = spawn("near", &near_flags)?;
    let start = Instant::now();
    let server_ready = until(&mut server, start, async || {
        Ok(UnixStream::connect(&socket).await.is_ok())
    })
    .await?;
    Ok(Rig {
        pair,
        dialer: Dialer::Relay(socket),
        ready: Both {
            server: server_ready,
            agent: agent_ready,
        },
        agents: far,
        server,
        agent: Some(agent),
        _way: way,
        _folder: folder,
    })
}

async fn tunnel(
    parts: &Parts,
    pair: Pair,
    frontend: Frontend,
    with_agent: bool,
    flags: Flags<'_>,
) -> Result<Rig> {
    let folder = tempfile::Builder::new().prefix("adit-").tempdir()?;
    let socket = folder.path().join("proxy.sock");
    let port = || anyhow::Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
    let (whose_server, whose_agent) = pair.ends();
    let (agents, health) = (port()?, port()?);
    let way = Way::to(agents, parts.distance)?;
    let seen_by_agent = way.address(agents);
    let mut server = {
        let mut command = Command::new(&parts.binaries(whose_server)?.server);
        command
            .args(server_flags(
                parts,
                frontend,
                &socket,
                agents,
                health,
                port()?,
            ))
            .args(flags.server);
        Process::spawn("server", command)?.quiet()
    };
    let start = Instant::now();
    let server_ready = until(&mut server, start, async || is_ok(health, "/healthz").await).await?;
    let mut rig = Rig {
        pair,
        dialer: Dialer::Frontend {
            client: Client::new(frontend, Endpoint::Uds(socket)),
            target: parts.target.name().to_owned(),
        },
        ready: Both {
            server: server_ready,
            agent: Duration::ZERO,
        },
        agents,
        server,
        agent: None,
        _way: way,
        _folder: folder,
    };
    if !with_agent {
        return Ok(rig);
    }
    let agent_health = port()?;
    let mut command = Command::new(&parts.binaries(whose_agent)?.agent);
    command.args(agent_flags(parts, seen_by_agent, agent_health, port()?));
    command.args(flags.agent);
    if pair == Pair::Packet {
        command.arg("--tunnel-protocol=packet");
    }
    let mut agent = Process::spawn("agent", command)?.quiet();
    let start = Instant::now();
    rig.ready.agent = until(&mut agent, start, async || {
        is_ok(agent_health, "/readyz").await
    })
    .await?;
    until(&mut rig.server, start, async || {
        is_ok(health, "/readyz").await
    })
    .await?;
    rig.agent = Some(agent);
    Ok(rig)
}

impl Parts {
    fn binaries(&self, whose: Whose) -> Result<&Binaries> {
        match whose {
            Whose::Ours => Ok(&self.ours),
            Whose::Upstream => self.upstream.as_ref().context("no binaries of upstream's"),
            Whose::Relay => bail!("a relay is this program"),
        }
    }
}

/// The same for both sides' binaries.
fn server_flags(
    parts: &Parts,
    frontend: Frontend,
    socket: &Path,
    agents: SocketAddr,
    health: SocketAddr,
    admin: SocketAddr,
) -> Vec<String> {
    let Pki { server, ca, .. } = &*parts.pki;
    vec![
        format!("--mode={}", frontend.mode()),
        "--server-port=0".to_owned(),
        format!("--uds-name={}", socket.display()),
        format!("--cluster-cert={}", server.certificate.display()),
        format!("--cluster-key={}", server.key.display()),
        format!("--cluster-ca-cert={}", ca.display()),
        "--agent-bind-address=127.0.0.1".to_owned(),
        format!("--agent-port={}", agents.port()),
        "--health-bind-address=127.0.0.1".to_owned(),
        format!("--health-port={}", health.port()),
        "--admin-bind-address=127.0.0.1".to_owned(),
        format!("--admin-port={}", admin.port()),
    ]
}

fn agent_flags(
    parts: &Parts,
    server: SocketAddr,
    health: SocketAddr,
    admin: SocketAddr,
) -> Vec<String> {
    let Pki { agent, ca, .. } = &*parts.pki;
    vec![
        format!("--agent-cert={}", agent.certificate.display()),
        format!("--agent-key={}", agent.key.display()),
        format!("--ca-cert={}", ca.display()),
        "--proxy-server-host=127.0.0.1".to_owned(),
        format!("--proxy-server-port={}", server.port()),
        "--health-server-host=127.0.0.1".to_owned(),
        format!("--health-server-port={}", health.port()),
        "--admin-bind-address=127.0.0.1".to_owned(),
        format!("--admin-server-port={}", admin.port()),
    ]
}

async fn is_ok(address: SocketAddr, path: &str) -> Result<bool> {
    Ok(get(address, path).await?.status == 200)
}

/// How long it took from `start`; an error of `is_ready` is "not yet".
async fn until<F>(process: &mut Process, start: Instant, mut is_ready: F) -> Result<Duration>
where
    F: AsyncFnMut() -> Result<bool>,
{
    loop {
        if is_ready().await.unwrap_or(false) {
            return Ok(start.elapsed());
        }
        if let Some(status) = process.ended()? {
            bail!("ended with {status}:\n{}", process.log());
        }
        ensure!(
            start.elapsed() < PATIENCE,
            "not ready after {PATIENCE:?}:\n{}",
            process.log()
        );
        sleep(PAUSE).await;
    }
}
