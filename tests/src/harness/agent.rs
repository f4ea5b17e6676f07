//! A `proxy-agent` process.

use std::{net::SocketAddr, process::Command, sync::Arc};

use anyhow::Result;

use super::{
    PATIENCE, Pki, Pod, Process, binaries,
    process::{Ended, FileLimits, program},
    server::{loopback, wait_for},
};

/// How an agent is to be started.
#[derive(Clone, Debug)]
pub struct AgentBuilder {
    server: SocketAddr,
    pki: Arc<Pki>,
    flags: Vec<String>,
    file_limits: Option<FileLimits>,
    pod: Option<Pod>,
    is_quiet: bool,
}

impl AgentBuilder {
    /// An agent of the server that expects agents at `server`.
    #[must_use]
    pub fn new(server: SocketAddr, pki: Arc<Pki>) -> Self {
        Self {
            server,
            pki,
            flags: Vec::new(),
            file_limits: None,
            pod: None,
            is_quiet: false,
        }
    }

    /// Adds a flag, as `--name=value`; it wins over the harness' own.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Starts it under these limits of open files.
    #[must_use]
    pub fn file_limits(mut self, limits: FileLimits) -> Self {
        self.file_limits = Some(limits);
        self
    }

    /// Starts it in this file system.
    #[must_use]
    pub fn pod(mut self, pod: Pod) -> Self {
        self.pod = Some(pod);
        self
    }

    /// Prints no log at its end.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.is_quiet = true;
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
        let mut process = Process::spawn("proxy-agent", self.command(health, admin)?)?;
        if self.is_quiet {
            process = process.quiet();
        }
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
        let mut command = program(&binaries()?.agent, self.file_limits);
        command
            .arg(format!(
                "--agent-cert={}",
                self.pki.agent.certificate.display()
            ))
            .arg(format!("--agent-key={}", self.pki.agent.key.display()))
            .arg(format!("--ca-cert={}", self.pki.ca.display()))
            .arg(format!("--proxy-server-host={}", self.server.ip()))
            .arg(format!("--proxy-server-port={}", self.server.port()))
            .arg("--health-server-host=127.0.0.1")
            .arg(format!("--health-server-port={}", health.port()))
            .arg("--admin-bind-address=127.0.0.1")
            .arg(format!("--admin-server-port={}", admin.port()))
            // Upstream's own suite uses these; the defaults of seconds would only make restarts slow.
            .arg("--sync-interval=100ms")
            .arg("--sync-interval-cap=1s")
            .arg("--probe-interval=100ms")
            .args(&self.flags);
        if let Some(pod) = &self.pod {
            pod.contain(&mut command);
        }
        Ok(command)
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
