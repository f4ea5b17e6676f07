//! Certificates that change under load: CA, server, agent and client, one after another, as an operator does it. No connection
//! is lost, no dial fails, and new handshakes are on new material.

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use certs::{Authority, Identity, Issued, Roots};
use e2e::{
    client::{Client, Endpoint, Frontend},
    exchange::{dial_and_echo, echo},
    harness::{Agent, AgentBuilder, PATIENCE, Pki, Server, ServerBuilder, eventually, get, metric},
    say,
    targets::Target,
};
use rustls::pki_types::CertificateDer;
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_rustls::TlsConnector;

const SERVER: &str = "konnectivity_network_proxy_server_";
const AGENT: &str = "konnectivity_network_proxy_agent_";

/// Connections that live through everything, half of them over HTTP CONNECT and half over gRPC.
const CONNECTIONS: usize = 50;

/// More of them, on the tunnel that comes second.
const MORE: usize = 6;

/// Bytes of one exchange on each of them, there and back.
const EXCHANGE: u64 = 48 * 1024;

/// Between two exchanges, so that two cores have time for handshakes in a debug build.
const PAUSE: Duration = Duration::from_millis(200);

/// Until new handshakes must be on new material, from the last write on.
const TAKE_UP: Duration = Duration::from_secs(5);

/// How files change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each is written over.
    Rewrite,
    /// As a kubelet does with a mounted Secret: a new folder, and a symlink that is swapped.
    Swap,
}

/// A folder that both processes have their certificates from.
struct Mount {
    folder: TempDir,
    way: Way,
    contents: BTreeMap<&'static str, String>,
    version: u32,
}

impl Mount {
    fn new(way: Way, contents: Vec<(&'static str, String)>) -> Result<Self> {
        let mut mount = Self {
            folder: tempfile::Builder::new().prefix("adit-rotate-").tempdir()?,
            way,
            contents: BTreeMap::new(),
            version: 0,
        };
        if way == Way::Swap {
            for (name, _) in &contents {
                symlink(Path::new("..data").join(name), mount.path(name))?;
            }
        }
        mount.write(contents)?;
        Ok(mount)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.path(name).display())
    }

    fn write(&mut self, changes: Vec<(&'static str, String)>) -> io::Result<()> {
        let names: Vec<_> = changes.iter().map(|(name, _)| *name).collect();
        self.contents.extend(changes);
        if self.way == Way::Rewrite {
            for name in names {
                let content = self.contents.get(name).map_or("", String::as_str);
                fs::write(self.path(name), content)?;
            }
            return Ok(());
        }
        let old = self.path(&format!("..{}", self.version));
        self.version += 1;
        let new = format!("..{}", self.version);
        fs::create_dir(self.path(&new))?;
        for (name, content) in &self.contents {
            fs::write(self.path(&new).join(name), content)?;
        }
        symlink(&new, self.path("..data_tmp"))?;
        fs::rename(self.path("..data_tmp"), self.path("..data"))?;
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
        Ok(())
    }
}

fn pair(stem: [&'static str; 2], issued: &Issued) -> Vec<(&'static str, String)> {
    vec![
        (stem[1], issued.key_pem()),
        (stem[0], issued.certificate_pem()),
    ]
}

const SERVER_PAIR: [&str; 2] = ["server.crt", "server.key"];
const AGENT_PAIR: [&str; 2] = ["agent.crt", "agent.key"];

fn issue_server(authority: &Authority) -> Result<Issued> {
    Ok(authority.issue_server(&["localhost", "127.0.0.1"])?)
}

/// kube-apiserver, in both protocols.
#[derive(Clone)]
struct ApiServer {
    http: Client,
    grpc: Client,
}

impl ApiServer {
    fn new(address: SocketAddr, roots: &Roots, identity: &Identity) -> Result<Self> {
        let client = |frontend| -> Result<Client> {
            let endpoint = Endpoint::tls(address, roots, Some(identity), frontend)?;
            Ok(Client::new(frontend, endpoint))
        };
        Ok(Self {
            http: client(Frontend::HttpTls)?,
            grpc: client(Frontend::GrpcTls)?,
        })
    }
}

/// What runs all the time: connections that stay, and dials that come anew.
struct Load {
    tasks: JoinSet<Result<()>>,
    client: Arc<Mutex<ApiServer>>,
    stop: Arc<AtomicBool>,
    exchanges: Arc<AtomicU64>,
    dials: Arc<AtomicU64>,
}

impl Load {
    async fn start(client: ApiServer, target: &str) -> Result<Self> {
        let mut load = Self {
            tasks: JoinSet::new(),
            client: Arc::new(Mutex::new(client.clone())),
            stop: Arc::default(),
            exchanges: Arc::default(),
            dials: Arc::default(),
        };
        load.stay(&client, target, CONNECTIONS).await?;
        for is_grpc in [false, true] {
            let (current, target) = (load.client.clone(), target.to_owned());
            let (stop, dials) = (load.stop.clone(), load.dials.clone());
            load.tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let client = current
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .clone();
                    let client = if is_grpc { client.grpc } else { client.http };
                    dial_and_echo(&client, &target, 1_000)
                        .await
                        .context("a new dial")?;
                    dials.fetch_add(1, Ordering::Relaxed);
                    sleep(PAUSE).await;
                }
                Ok(())
            });
        }
        Ok(load)
    }

    /// Adds `count` connections that stay.
    async fn stay(&mut self, client: &ApiServer, target: &str, count: usize) -> Result<()> {
        for number in 0..count {
            let client = if number % 2 == 0 {
                &client.http
            } else {
                &client.grpc
            };
            let mut stream = client.dial(target).await.context("dial")?;
            let (stop, exchanges) = (self.stop.clone(), self.exchanges.clone());
            self.tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    echo(&mut stream, EXCHANGE)
                        .await
                        .with_context(|| format!("connection {number} of {count}"))?;
                    exchanges.fetch_add(1, Ordering::Relaxed);
                    sleep(PAUSE).await;
                }
                stream.close().await.context("close")
            });
        }
        Ok(())
    }

    fn use_client(&self, client: &ApiServer) {
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client.clone();
    }

    /// Fails if anything has failed so far; waits until every kind of load has gone on since.
    async fn check(&mut self, when: &str) -> Result<()> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (exchanges, dials) = (count(&self.exchanges), count(&self.dials));
        let goal = exchanges + 2 * CONNECTIONS as u64;
        eventually("the load goes on", PATIENCE, async || {
            if let Some(ended) = self.tasks.try_join_next() {
                return Ok(ended?.and_then(|()| anyhow::bail!("a task has ended")));
            }
            let (now, dialled) = (count(&self.exchanges), count(&self.dials));
            ensure!(
                now >= goal && dialled >= dials + 4,
                "{now} exchanges, {dialled} dials"
            );
            Ok(Ok(()))
        })
        .await?
        .with_context(|| format!("after {when}"))
    }

    async fn finish(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        say!("{:?} exchanges and {:?} dials", self.exchanges, self.dials);
        Ok(())
    }
}

/// The certificate that a fresh handshake shows.
async fn presented(
    address: SocketAddr,
    roots: &Roots,
    identity: &Identity,
) -> Result<CertificateDer<'static>> {
    let endpoint = Endpoint::tls(address, roots, Some(identity), Frontend::GrpcTls)?;
    let Endpoint::Tls { name, config, .. } = endpoint else {
        anyhow::bail!("not TLS");
    };
    let stream = TcpStream::connect(address).await?;
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    Ok(chain.first().context("no certificate")?.clone())
}

struct World {
    mount: Mount,
    server: Server,
    agent: Agent,
    frontend: SocketAddr,
    /// What agents and kube-apiserver trust now, and a client of it: to look with.
    roots: Roots,
    identity: Identity,
}

impl World {
    async fn start(mount: Mount, identity: Identity) -> Result<Self> {
        let pki = Pki::shared()?;
        let server = ServerBuilder::new(Frontend::HttpTls, Arc::clone(&pki))
            .flag(mount.flag("cluster-cert", "server.crt"))
            .flag(mount.flag("cluster-key", "server.key"))
            .flag(mount.flag("cluster-ca-cert", "ca.crt"))
            .flag(mount.flag("server-cert", "server.crt"))
            .flag(mount.flag("server-key", "server.key"))
            .flag(mount.flag("server-ca-cert", "ca.crt"))
            .start()
            .await?;
        let agent = AgentBuilder::new(server.agents(), pki)
            .flag(mount.flag("agent-cert", "agent.crt"))
            .flag(mount.flag("agent-key", "agent.key"))
            .flag(mount.flag("ca-cert", "ca.crt"))
            .start()
            .await?;
        Ok(Self {
            frontend: server.address().context("a TCP frontend")?,
            roots: Roots::load(&mount.path("ca.crt"))?,
            mount,
            server,
            agent,
            identity,
        })
    }

    fn apiserver(&self, identity: &Identity) -> Result<ApiServer> {
        ApiServer::new(self.frontend, &self.roots, identity)
    }

    /// Waits until the server has taken `name` up `times` times.
    async fn reloaded(
        &self,
        health: SocketAddr,
        prefix: &str,
        name: &str,
        times: f64,
    ) -> Result<()> {
        let labels = format!(
            "file=\"{}\",outcome=\"reloaded\"",
            self.mount.path(name).display()
        );
        eventually(&format!("{name} is taken up"), PATIENCE, async || {
            let count = metric(health, &format!("{prefix}file_reloads_total"), &labels).await?;
            ensure!(count >= times, "{count} of {times}");
            Ok(())
        })
        .await
    }

    /// Waits until the agent has replaced its tunnel for the `times`th time.
    async fn renewed(&self, times: f64) -> Result<()> {
        let health = self.agent.health();
        eventually("the agent has a new tunnel", PATIENCE, async || {
            let name = format!("{AGENT}server_connection_attempts_total");
            let count = metric(health, &name, "outcome=\"renewed\"").await?;
            ensure!(count >= times, "{count} of {times}");
            Ok(())
        })
        .await
    }

    /// Waits until both listeners of the server show `expected`.
    async fn shows(&self, expected: &Issued) -> Result<()> {
        let written = Instant::now();
        let chain = expected.chain();
        let leaf = chain.first().context("a leaf")?;
        for address in [self.frontend, self.server.agents()] {
            eventually(
                "handshakes are on the new certificate",
                TAKE_UP,
                async || {
                    let shown = presented(address, &self.roots, &self.identity).await?;
                    ensure!(shown == *leaf, "another certificate");
                    Ok(())
                },
            )
            .await?;
        }
        say!(
            "both listeners on the new certificate {:?} after the write",
            written.elapsed()
        );
        Ok(())
    }
}

/// A broken file changes nothing but a warning, metrics and a readiness detail.
async fn break_and_mend(world: &mut World, load: &mut Load, current: &Issued) -> Result<()> {
    let good = world.mount.contents.clone();
    let broken = "-----BEGIN CERTIFICATE-----\nnot base64\n".to_owned();
    let names = ["server.crt", "agent.crt", "ca.crt"];
    world
        .mount
        .write(names.map(|name| (name, broken.clone())).to_vec())?;
    let (server, agent) = (world.server.health(), world.agent.health());
    for (health, prefix, name) in [
        (server, SERVER, "server.crt"),
        (server, SERVER, "ca.crt"),
        (agent, AGENT, "agent.crt"),
        (agent, AGENT, "ca.crt"),
    ] {
        let path = world.mount.path(name).display().to_string();
        eventually(&format!("{path} is refused"), PATIENCE, async || {
            let labels = format!("file=\"{path}\",outcome=\"refused\"");
            let refused = metric(health, &format!("{prefix}file_reloads_total"), &labels).await?;
            let stale = metric(health, &format!("{prefix}file_stale"), &path).await?;
            ensure!(
                refused >= 1.0 && stale == 1.0,
                "{refused} refused, stale: {stale}"
            );
            Ok(())
        })
        .await?;
        let ready = get(health, "/readyz").await?;
        ensure!(
            (ready.status, ready.body.as_str()) == (200, "ok"),
            "{ready:?}"
        );
        let details = get(health, "/readyz?verbose").await?;
        ensure!(
            details.status == 200 && details.body.contains(&format!("{path}: stale since ")),
            "{details:?}"
        );
    }
    for log in [world.server.process().log(), world.agent.process().log()] {
        ensure!(log.contains("its last good content stays in use"), "{log}");
    }
    world.shows(current).await?;
    load.check("broken files").await?;
    world.mount.write(good.into_iter().collect())?;
    eventually("the files are in use again", PATIENCE, async || {
        for (health, prefix) in [(server, SERVER), (agent, AGENT)] {
            let stale = metric(health, &format!("{prefix}file_stale"), "").await?;
            ensure!(stale == 0.0, "{stale} are stale");
        }
        Ok(())
    })
    .await
}

async fn rotate(way: Way) -> Result<()> {
    // Of one name, as a cluster's authorities are after a rotation.
    let (old, new) = (
        Authority::generate("adit rotate")?,
        Authority::generate("adit rotate")?,
    );
    let server = issue_server(&old)?;
    let mut contents = vec![("ca.crt", old.certificate_pem())];
    contents.extend(pair(SERVER_PAIR, &server));
    contents.extend(pair(AGENT_PAIR, &old.issue_client("agent")?));
    let old_client = old.issue_client("kube-apiserver")?.identity()?;
    let new_client = new.issue_client("kube-apiserver")?.identity()?;
    let mount = Mount::new(way, contents)?;
    let mut world = World::start(mount, old_client.clone()).await?;
    let target = Target::echo().await?;
    let client = world.apiserver(&old_client)?;
    let mut load = Load::start(client, &target.name()).await?;
    world.shows(&server).await?;
    load.check("the start").await?;

    // Trust both authorities first.
    let both = format!("{}{}", old.certificate_pem(), new.certificate_pem());
    world.mount.write(vec![("ca.crt", both)])?;
    world.roots = Roots::load(&world.mount.path("ca.crt"))?;
    world
        .reloaded(world.server.health(), SERVER, "ca.crt", 1.0)
        .await?;
    dial_and_echo(&world.apiserver(&new_client)?.http, &target.name(), 1_000)
        .await
        .context("a client of the new authority")?;
    world.renewed(1.0).await?;
    // So that the second tunnel has something to lose, too.
    load.stay(&world.apiserver(&new_client)?, &target.name(), MORE)
        .await?;
    load.check("both authorities").await?;

    break_and_mend(&mut world, &mut load, &server).await?;
    load.check("mended files").await?;

    let server = issue_server(&new)?;
    world.mount.write(pair(SERVER_PAIR, &server))?;
    // A client that still trusts both: connections of the old certificate are served beside it.
    load.use_client(&world.apiserver(&old_client)?);
    world.shows(&server).await?;
    load.check("the server's certificate").await?;

    world
        .mount
        .write(pair(AGENT_PAIR, &new.issue_client("agent")?))?;
    world.renewed(2.0).await?;
    load.check("the agent's certificate").await?;

    load.use_client(&world.apiserver(&new_client)?);
    world.identity = new_client.clone();
    load.check("kube-apiserver's certificate").await?;

    // Then distrust the old one.
    world.mount.write(vec![("ca.crt", new.certificate_pem())])?;
    world.roots = Roots::load(&world.mount.path("ca.crt"))?;
    world.renewed(3.0).await?;
    let distrusted = world.apiserver(&old_client)?;
    eventually(
        "the old authority's clients are refused",
        PATIENCE,
        async || {
            let dial = distrusted.grpc.dial(&target.name()).await;
            ensure!(dial.is_err(), "one was served");
            Ok(())
        },
    )
    .await?;
    world.shows(&server).await?;
    load.use_client(&world.apiserver(&new_client)?);
    load.check("the new authority alone").await?;

    load.finish().await?;
    eventually("replaced tunnels end", PATIENCE, async || {
        let name = format!("{AGENT}replaced_server_connections");
        let left = metric(world.agent.health(), &name, "").await?;
        let name = format!("{SERVER}grpc_connections");
        let streams = metric(world.server.health(), &name, "service_method=\"Connect\"").await?;
        ensure!(
            left == 0.0 && streams == 1.0,
            "{left} left, {streams} streams"
        );
        Ok(())
    })
    .await?;
    let log = world.agent.process().log();
    ensure!(!log.contains("tunnel down"), "a tunnel was lost: {log}");
    let log = world.server.process().log();
    ensure!(!log.contains("tunnel lost"), "a tunnel was lost: {log}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_lost_when_certificates_are_written_over() -> Result<()> {
    rotate(Way::Rewrite).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_lost_when_a_kubelet_swaps_certificates() -> Result<()> {
    rotate(Way::Swap).await
}
