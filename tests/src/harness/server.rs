//! A `proxy-server` process.

use std::{net::SocketAddr, path::PathBuf, process::Command, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use super::{
    PATIENCE, Pki, Process, binaries, eventually, free_port, get,
    launch::Launch,
    process::{Ended, FileLimits},
};
use crate::client::{Client, Endpoint, Frontend};

/// Start-ups before a port that somebody else took in between counts as a failure.
const TRIES: usize = 3;

/// How a server is to be started.
#[derive(Debug)]
pub struct ServerBuilder {
    frontend: Frontend,
    pki: Arc<Pki>,
    launch: Launch,
}

impl ServerBuilder {
    /// A server with this frontend, and agents over mTLS.
    #[must_use]
    pub fn new(frontend: Frontend, pki: Arc<Pki>) -> Self {
        Self {
            frontend,
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

    /// Starts it under these limits of open files.
    #[must_use]
    pub fn file_limits(mut self, limits: FileLimits) -> Self {
        self.launch.file_limits = Some(limits);
        self
    }

    /// Prints no log at its end.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.launch.is_quiet = true;
        self
    }

    /// Starts the process and waits until it is healthy; agents come later.
    ///
    /// # Errors
    /// If the process ends or is not healthy in time; its log is part of the error.
    pub async fn start(self) -> Result<Server> {
        let folder = tempfile::Builder::new().prefix("adit-").tempdir()?;
        for _ in 1..TRIES {
            let addresses = Addresses::choose(self.frontend, &folder)?;
            match Server::launch(&self, addresses).await {
                Err(error) if format!("{error:#}").contains("in use") => {}
                other => return other.map(|parts| parts.into_server(self, folder)),
            }
        }
        let addresses = Addresses::choose(self.frontend, &folder)?;
        let parts = Server::launch(&self, addresses).await?;
        Ok(parts.into_server(self, folder))
    }

    /// Starts the process, which is to fail, and waits for its end.
    ///
    /// # Errors
    /// If it goes on.
    pub async fn fail(self) -> Result<Ended> {
        let folder = tempfile::Builder::new().prefix("adit-").tempdir()?;
        let addresses = Addresses::choose(self.frontend, &folder)?;
        let process = Process::spawn("proxy-server", self.command(&addresses)?)?;
        process.into_ended(PATIENCE).await
    }

    fn command(&self, addresses: &Addresses) -> Result<Command> {
        let Pki { server, ca, .. } = &*self.pki;
        let mut own = vec![
            format!("--mode={}", self.frontend.mode()),
            format!("--cluster-cert={}", server.certificate.display()),
            format!("--cluster-key={}", server.key.display()),
            format!("--cluster-ca-cert={}", ca.display()),
            "--agent-bind-address=127.0.0.1".to_owned(),
            format!("--agent-port={}", addresses.agents.port()),
            "--health-bind-address=127.0.0.1".to_owned(),
            format!("--health-port={}", addresses.health.port()),
            "--admin-bind-address=127.0.0.1".to_owned(),
            format!("--admin-port={}", addresses.admin.port()),
        ];
        match &addresses.frontend {
            FrontendAddress::Uds(path) => own.extend([
                "--server-port=0".to_owned(),
                format!("--uds-name={}", path.display()),
            ]),
            FrontendAddress::Tls(address) => own.extend([
                "--server-bind-address=127.0.0.1".to_owned(),
                format!("--server-port={}", address.port()),
                format!("--server-cert={}", server.certificate.display()),
                format!("--server-key={}", server.key.display()),
                format!("--server-ca-cert={}", ca.display()),
            ]),
        }
        Ok(self.launch.command(&binaries()?.server, &own))
    }
}

#[derive(Clone, Debug)]
struct Addresses {
    frontend: FrontendAddress,
    agents: SocketAddr,
    health: SocketAddr,
    admin: SocketAddr,
}

#[derive(Clone, Debug)]
enum FrontendAddress {
    Uds(PathBuf),
    Tls(SocketAddr),
}

impl Addresses {
    fn choose(frontend: Frontend, folder: &TempDir) -> Result<Self> {
        Ok(Self {
            frontend: if frontend.is_uds() {
                FrontendAddress::Uds(folder.path().join("proxy.sock"))
            } else {
                FrontendAddress::Tls(loopback()?)
            },
            agents: loopback()?,
            health: loopback()?,
            admin: loopback()?,
        })
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Process,
    addresses: Addresses,
    spec: ServerBuilder,
    _folder: TempDir,
}

/// What [`Server::launch`] has made so far.
struct Launched {
    process: Process,
    addresses: Addresses,
}

impl Launched {
    fn into_server(self, spec: ServerBuilder, folder: TempDir) -> Server {
        Server {
            process: self.process,
            addresses: self.addresses,
            spec,
            _folder: folder,
        }
    }
}

impl Server {
    async fn launch(spec: &ServerBuilder, addresses: Addresses) -> Result<Launched> {
        let command = spec.command(&addresses)?;
        let mut process = spec.launch.spawn("proxy-server", command)?;
        wait_for(&mut process, addresses.health, "/healthz").await?;
        Ok(Launched { process, addresses })
    }

    /// A client of its frontend, with kube-apiserver's certificate where one is needed.
    ///
    /// # Errors
    /// If no TLS configuration can be made.
    pub fn client(&self) -> Result<Client> {
        self.client_as(self.spec.frontend)
    }

    /// A client of another protocol at the same listener.
    ///
    /// # Errors
    /// If `frontend` is of another transport, or no TLS configuration can be made.
    pub fn client_as(&self, frontend: Frontend) -> Result<Client> {
        let endpoint = match &self.addresses.frontend {
            FrontendAddress::Uds(path) if frontend.is_uds() => Endpoint::Uds(path.clone()),
            FrontendAddress::Tls(address) if !frontend.is_uds() => {
                let pki = &self.spec.pki;
                Endpoint::tls(
                    *address,
                    pki.roots(),
                    Some(pki.apiserver_identity()),
                    frontend,
                )?
            }
            other => bail!("{frontend} cannot be used at {other:?}"),
        };
        Ok(Client::new(frontend, endpoint))
    }

    /// Where agents connect to.
    #[must_use]
    pub fn agents(&self) -> SocketAddr {
        self.addresses.agents
    }

    /// The health listener, which has the metrics, too.
    #[must_use]
    pub fn health(&self) -> SocketAddr {
        self.addresses.health
    }

    /// The admin listener.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.addresses.admin
    }

    /// The Unix socket of the frontend, if it has one.
    #[must_use]
    pub fn socket(&self) -> Option<&PathBuf> {
        match &self.addresses.frontend {
            FrontendAddress::Uds(path) => Some(path),
            FrontendAddress::Tls(_) => None,
        }
    }

    /// The TCP address of the frontend, if it has one.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.addresses.frontend {
            FrontendAddress::Uds(_) => None,
            FrontendAddress::Tls(address) => Some(*address),
        }
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts it again with the same flags, on the same addresses; what still runs is killed first.
    ///
    /// # Errors
    /// If the process ends or is not healthy in time.
    pub async fn restart(&mut self) -> Result<()> {
        if self.process.ended()?.is_none() {
            self.process.kill()?;
        }
        self.process = Self::launch(&self.spec, self.addresses.clone())
            .await?
            .process;
        Ok(())
    }

    /// Waits until `/readyz` says that an agent is connected.
    ///
    /// # Errors
    /// If it does not in time, or the process ends.
    pub async fn ready(&mut self) -> Result<()> {
        wait_for(&mut self.process, self.addresses.health, "/readyz").await
    }
}

pub(super) fn loopback() -> Result<SocketAddr> {
    Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)))
}

/// Waits until `path` answers 200, or fails with the process' log.
pub(super) async fn wait_for(process: &mut Process, address: SocketAddr, path: &str) -> Result<()> {
    let mut ended = None;
    let result = eventually(&format!("200 at {path}"), PATIENCE, async || {
        if ended.is_some() {
            // The caller is told below: nothing will change any more.
            return Ok(());
        }
        ended = process.ended()?;
        let reply = get(address, path).await?;
        if reply.status != 200 {
            bail!("status {}: {}", reply.status, reply.body);
        }
        Ok(())
    })
    .await;
    if ended.is_some() {
        let status = process.exit(Duration::from_secs(5)).await?;
        bail!("ended with {status}:\n{}", process.log());
    }
    result.with_context(|| format!("log:\n{}", process.log()))
}
