//! A `proxy-agent` process.

use std::{net::SocketAddr, process::Command, sync::Arc};

use anyhow::Result;

use super::{
    PATIENCE, Pki, Pod, Process, binaries,
    launch::Launch,
    process::{Ended, FileLimits},
    server::{loopback, wait_for},
};

/// How an agent is to be started.
#[derive(Clone, Debug)]
pub struct AgentBuilder {
    server: SocketAddr,
    pki: Arc<Pki>,
    launch: Launch,
}

impl AgentBuilder {
    /// An agent of the server that expects agents at `server`.
    #[must_use]
    pub fn new(server: SocketAddr, pki: Arc<Pki>) -> Self {
        Self {
            server,
            pki,
            launch: Launch::default(),
        }
    }

    pub(super) fn launch(mut self, launch: Launch) -> Self {
        self.launch = launch;
        self
    }

    /// Adds a flag, as `--name=value`; it wins over the harness' own.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.launch.flags.push(flag.into());
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl Into<String>) -> Self {
        self.launch.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Starts it under these limits of open files.
    #[must_use]
    pub fn file_limits(mut self, limits: FileLimits) -> Self {
        self.launch.file_limits = Some(limits);
        self
    }

    /// Starts it in this file system.
    #[must_use]
    pub fn pod(mut self, pod: Pod) -> Self {
        self.launch.pod = Some(pod);
        self
    }

    /// Prints no log at its end.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.launch.is_quiet = true;
        self
    }

    /// Starts the process and waits until it is connected to its server.
    ///
    /// # Errors
    /// If the process ends or is not ready in time; its log is part of the error.
    pub async fn start(self) -> Result<Agent> {
        let mut agent = self.start_unconnected().await?;
        agent.ready().await?;
        Ok(agent)
    }

    /// Starts the process and waits until it is healthy, connected or not.
    ///
    /// # Errors
    /// If the process ends or is not healthy in time; its log is part of the error.
    pub async fn start_unconnected(self) -> Result<Agent> {
        let health = loopback()?;
        let admin = loopback()?;
        let command = self.command(health, admin)?;
        let mut process = self.launch.spawn("proxy-agent", command)?;
        wait_for(&mut process, health, "/healthz").await?;
        Ok(Agent {
            process,
            health,
            admin,
        })
    }

    /// Starts the process, which is to fail, and waits for its end.
    ///
    /// # Errors
    /// If it goes on.
    pub async fn fail(self) -> Result<Ended> {
        let process = Process::spawn("proxy-agent", self.command(loopback()?, loopback()?)?)?;
        process.into_ended(PATIENCE).await
    }

    fn command(&self, health: SocketAddr, admin: SocketAddr) -> Result<Command> {
        let pki = &self.pki;
        let own = [
            format!("--agent-cert={}", pki.agent.certificate.display()),
            format!("--agent-key={}", pki.agent.key.display()),
            format!("--ca-cert={}", pki.ca.display()),
            format!("--proxy-server-host={}", self.server.ip()),
            format!("--proxy-server-port={}", self.server.port()),
            "--health-server-host=127.0.0.1".to_owned(),
            format!("--health-server-port={}", health.port()),
            "--admin-bind-address=127.0.0.1".to_owned(),
            format!("--admin-server-port={}", admin.port()),
            // Upstream's own suite uses these; the defaults of seconds would only make restarts slow.
            "--sync-interval=100ms".to_owned(),
            "--sync-interval-cap=1s".to_owned(),
            "--probe-interval=100ms".to_owned(),
        ];
        Ok(self.launch.command(&binaries()?.agent, &own))
    }
}

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    process: Process,
    health: SocketAddr,
    admin: SocketAddr,
}

impl Agent {
    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The health listener, which has the metrics, too.
    #[must_use]
    pub fn health(&self) -> SocketAddr {
        self.health
    }

    /// The admin listener.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Waits until `/readyz` says that it is connected to its server.
    ///
    /// # Errors
    /// If it does not in time, or the process ends.
    pub async fn ready(&mut self) -> Result<()> {
        wait_for(&mut self.process, self.health, "/readyz").await
    }
}
