//! A cluster somewhere in the field: its files, its processes and their start lines.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use certs::issue::Files;
use e2e::{
    client::{Client, Endpoint, Frontend},
    harness::{PATIENCE, Pki, Process, binaries, eventually, get},
    kube_api::{KubeApi, ServiceAccount},
};
use tempfile::TempDir;

use crate::line::Line;

/// Lines of a log that a failure shows.
const SHOWN_LINES: usize = 40;

/// Ports that a server listens on, and an agent.
const SERVER_PORTS: [&str; 3] = ["agent-port", "health-port", "admin-port"];
const AGENT_PORTS: [&str; 2] = ["health-server-port", "admin-server-port"];

/// A folder that stands for the root of every container's file system, and what fills it.
///
/// A start line is used to the letter but for this: a path gets the folder in front of it, and the file that its flag asks
/// for is made there; ports that are listened on become free ones, those that a line leaves to their defaults as well; what
/// a deployer's template fills in is filled in by [`fill`](Self::fill).
#[derive(Debug)]
pub(crate) struct Site {
    root: TempDir,
    pki: Arc<Pki>,
    kube: Arc<KubeApi>,
    /// Of the agents' service account.
    token: String,
    /// Pem files of a certificate for other names than usual.
    server: Option<Arc<(TempDir, Files)>>,
    fills: Vec<(String, String)>,
    agents: Option<u16>,
    logs: Arc<Mutex<String>>,
}

impl Site {
    /// A cluster with a Kubernetes API of its own, whose processes' last words go to `logs`.
    pub(crate) fn logging_to(logs: Arc<Mutex<String>>) -> Result<Self> {
        let kube = Arc::new(KubeApi::start()?);
        Ok(Self {
            root: folder()?,
            pki: Pki::shared()?,
            token: kube.token(&ServiceAccount::agent()),
            kube,
            server: None,
            fills: Vec::new(),
            agents: None,
            logs,
        })
    }

    /// Another node of the same cluster, with files of its own.
    pub(crate) fn another(&self) -> Result<Self> {
        Ok(Self {
            root: folder()?,
            pki: Arc::clone(&self.pki),
            token: self.token.clone(),
            kube: Arc::clone(&self.kube),
            server: self.server.clone(),
            fills: self.fills.clone(),
            agents: self.agents,
            logs: Arc::clone(&self.logs),
        })
    }

    /// What stands for `variable` in the start lines from now on, as kubelet and templates put it there.
    pub(crate) fn fill(mut self, variable: &str, value: &str) -> Self {
        self.fills.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// Servers present a certificate for these names instead of `localhost`, 127.0.0.1 and `::1`.
    pub(crate) fn server_names(mut self, names: &[&str]) -> Result<Self> {
        let folder = folder()?;
        let issued = self.pki.authority().issue_server(names)?;
        let files = issued.write(folder.path(), "server", certs::issue::Replace::No)?;
        self.server = Some(Arc::new((folder, files)));
        Ok(self)
    }

    /// Servers of this node listen for agents on this port.
    pub(crate) fn agents_at(mut self, port: u16) -> Self {
        self.agents = Some(port);
        self
    }

    /// Agents send a token of this account instead of their own.
    pub(crate) fn token_of(mut self, account: &ServiceAccount) -> Self {
        self.token = self.kube.token(account);
        self
    }

    pub(crate) fn kube(&self) -> &KubeApi {
        &self.kube
    }

    /// The token that agents send.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Makes what a Pod finds of its service account in its file system.
    pub(crate) fn service_account(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        let kubeconfig = fs::read_to_string(self.kube.kubeconfig())?;
        let field = |name: &str| {
            let mut lines = kubeconfig.lines();
            let value = lines.find_map(|line| line.trim().strip_prefix(name));
            value.map(str::trim).with_context(|| format!("no {name}"))
        };
        // One authority signs for everything in a cluster; here there are two.
        let api = fs::read_to_string(field("certificate-authority:")?)?;
        let authorities = fs::read_to_string(&self.pki.ca)? + &api;
        fs::write(folder.join("ca.crt"), authorities)?;
        fs::write(folder.join("token"), field("token:")?)?;
        fs::write(folder.join("namespace"), "kube-system")?;
        Ok(())
    }

    pub(crate) fn pki(&self) -> &Pki {
        &self.pki
    }

    /// Where a path of a start line is on this machine.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    /// Starts a server and waits until it is healthy.
    pub(crate) async fn server(&self, line: Line) -> Result<Running> {
        self.server_as(line, |_| {}).await
    }

    /// The same, with `change` for what is no flag.
    pub(crate) async fn server_as(
        &self,
        line: Line,
        change: impl FnOnce(&mut Command),
    ) -> Result<Running> {
        let mut ports = SERVER_PORTS.to_vec();
        if line.value("uds-name").is_none() {
            ports.push("server-port");
        }
        let mut line = self.place(line)?.with_free_ports(&ports)?;
        if let Some(port) = self.agents {
            line = line.and(&format!("--agent-port={port}"));
        }
        let binary = &binaries()?.server;
        self.start("proxy-server", binary, line, "health-port", change)
            .await
    }

    /// Starts an agent of the server that listens for agents on `port`, and waits until it is healthy.
    pub(crate) async fn agent(&self, line: Line, port: u16) -> Result<Running> {
        self.agent_as(line, port, |_| {}).await
    }

    /// The same, with `change` for what is no flag.
    pub(crate) async fn agent_as(
        &self,
        line: Line,
        port: u16,
        change: impl FnOnce(&mut Command),
    ) -> Result<Running> {
        let line = self.place(line)?.with_free_ports(&AGENT_PORTS)?;
        let line = line.map(|name, value| {
            let is_server = name == "proxy-server-port";
            Ok(if is_server {
                port.to_string()
            } else {
                value.to_owned()
            })
        })?;
        let binary = &binaries()?.agent;
        self.start("proxy-agent", binary, line, "health-server-port", change)
            .await
    }

    async fn start(
        &self,
        name: &'static str,
        binary: &Path,
        line: Line,
        health_flag: &str,
        change: impl FnOnce(&mut Command),
    ) -> Result<Running> {
        let mut command = Command::new(binary);
        command.args(line.words());
        change(&mut command);
        let health = line.value(health_flag).context("just set")?.parse()?;
        let mut running = Running {
            process: Process::spawn(name, command)?.quiet(),
            line,
            name,
            health: SocketAddr::from(([127, 0, 0, 1], health)),
            logs: Arc::clone(&self.logs),
        };
        running.wait_for("/healthz").await?;
        Ok(running)
    }

    /// Fills in, and puts every file in its place.
    fn place(&self, line: Line) -> Result<Line> {
        line.map(|name, value| {
            let mut value = value.to_owned();
            for (variable, filling) in &self.fills {
                value = value.replace(variable, filling);
            }
            if !value.starts_with('/') {
                return Ok(value);
            }
            let path = self.path(&value);
            self.provide(name, &path)
                .with_context(|| format!("make {value}"))?;
            Ok(path.display().to_string())
        })
    }

    /// Makes the file that a flag names, or its folder if the process makes the file itself.
    fn provide(&self, flag: &str, path: &Path) -> Result<()> {
        fs::create_dir_all(path.parent().context("a file has a folder")?)?;
        let named = self.server.as_ref().map(|named| &named.1);
        let server = named.unwrap_or(&self.pki.server);
        let source = match flag {
            "server-cert" | "cluster-cert" => &server.certificate,
            "server-key" | "cluster-key" => &server.key,
            "server-ca-cert" | "cluster-ca-cert" | "ca-cert" => &self.pki.ca,
            "agent-cert" => &self.pki.agent.certificate,
            "agent-key" => &self.pki.agent.key,
            "kubeconfig" => self.kube.kubeconfig(),
            "service-account-token-path" => {
                fs::write(path, &self.token)?;
                return Ok(());
            }
            "uds-name" | "log-file" => return Ok(()),
            _ => bail!("nobody knows what --{flag} holds"),
        };
        // The service account's has more in it, if there is one.
        if !path.exists() || flag != "ca-cert" {
            fs::copy(source, path)?;
        }
        Ok(())
    }

    /// kube-apiserver's client of a server.
    pub(crate) fn client(&self, server: &Running, frontend: Frontend) -> Result<Client> {
        let endpoint = if frontend.is_uds() {
            Endpoint::Uds(server.socket()?)
        } else {
            let address = server.address("server-port")?;
            let identity = Some(self.pki.apiserver_identity());
            Endpoint::tls(address, self.pki.roots(), identity, frontend)?
        };
        Ok(Client::new(frontend, endpoint))
    }
}

fn folder() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("adit-").tempdir()?)
}

/// A process of the site. Its end is at the drop at the latest; the end of its log goes where the test's failure is told.
#[derive(Debug)]
pub(crate) struct Running {
    process: Process,
    line: Line,
    name: &'static str,
    health: SocketAddr,
    logs: Arc<Mutex<String>>,
}

impl Running {
    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The health listener.
    pub(crate) fn health(&self) -> SocketAddr {
        self.health
    }

    /// The port that a flag of this name was given.
    pub(crate) fn port(&self, flag: &str) -> Result<u16> {
        let value = self.line.value(flag);
        Ok(value.with_context(|| format!("no --{flag}"))?.parse()?)
    }

    /// The same on loopback.
    pub(crate) fn address(&self, flag: &str) -> Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], self.port(flag)?)))
    }

    /// Where agents connect to.
    pub(crate) fn agents(&self) -> Result<u16> {
        self.port("agent-port")
    }

    /// The frontend's Unix socket.
    pub(crate) fn socket(&self) -> Result<PathBuf> {
        Ok(self.line.value("uds-name").context("no socket")?.into())
    }

    /// Waits until `/readyz` answers 200.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        self.wait_for("/readyz").await
    }

    /// SIGTERM, and how long it took to end.
    pub(crate) async fn stop(&mut self) -> Result<Duration> {
        let before = tokio::time::Instant::now();
        self.process.terminate()?;
        let status = self.process.exit(PATIENCE).await?;
        ensure!(
            status.code() == Some(0),
            "{} ended with {status}",
            self.name
        );
        Ok(before.elapsed())
    }

    async fn wait_for(&mut self, path: &str) -> Result<()> {
        let mut ended = None;
        let answered = eventually(&format!("200 at {path}"), PATIENCE, async || {
            ended = self.process.ended()?;
            if ended.is_some() {
                return Ok(());
            }
            let reply = get(self.health, path).await?;
            ensure!(reply.status == 200, "{reply:?}");
            Ok(())
        })
        .await;
        if let Some(status) = ended {
            bail!("{} ended with {status}", self.name);
        }
        answered.with_context(|| self.name)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The last of its log comes with its end.
        self.process.kill().ok();
        let log = self.process.log();
        let lines: Vec<&str> = log.lines().collect();
        let shown = lines.len().saturating_sub(SHOWN_LINES);
        let shown = lines.get(shown..).unwrap_or_default().join("\n");
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        logs.push_str(&format!(
            "--- {} {}\n--- end of its log:\n{shown}\n",
            self.name, self.line
        ));
    }
}
