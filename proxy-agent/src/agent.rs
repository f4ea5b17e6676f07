//! The agent as a whole: bind, run until told to drain, run on until told to stop (wire-protocol.md 4.10, T14).

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use certs::reload;
use daemon::admin::{AdminServer, AdminThread};
use daemon::listen::ListenError;
use tokio::sync::watch;
use tokio::task::{JoinError, LocalSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tunnel::drain::{Drained, Tasks};
use tunnel::ledger::Ledger;

use crate::activity::Activity;
use crate::admin::{Heartbeat, admin_router, health_router};
use crate::client::Connector;
use crate::client_set::{ClientSet, Connect};
use crate::config::{Config, Forward, LeaseConfig};
use crate::dial::Resolver;
use crate::drain::drained;
use crate::endpoint::{DIAL_LIMIT, Dialer};
pub use crate::forward::BindError;
use crate::forward::{Bound, Forwarder};
use crate::lease_count;
use crate::metrics::Metrics;
use crate::server_count::CountSource;
use crate::standing::Standing;

/// How long tunnels may take to end in order when a drained agent leaves; then they are dropped.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// How often gauges that nobody pushes are brought up to date.
const GAUGES: Duration = Duration::from_secs(1);

/// Why the agent does not start; the operator's to solve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A port that cannot be had.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A place where connections of this node are to be taken.
    #[error(transparent)]
    Forward(#[from] BindError),
    /// Two metrics of one name.
    #[error("register metrics")]
    Metrics(#[from] prometheus::Error),
    /// Servers are to be counted by their Leases, and nothing says how to reach the Kubernetes API.
    #[error("--count-server-leases")]
    Kubernetes(#[source] cluster::ConfigError),
}

/// Why a running agent ends unasked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A thread for probes and scrapes cannot be made.
    #[error("start the {name} server")]
    Start {
        /// Which.
        name: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// Such a thread has ended by itself.
    #[error("the {name} thread has ended")]
    Ended {
        /// Which.
        name: &'static str,
    },
    /// A listener of this node cannot be served.
    #[error("--forward={forward}: take connections")]
    Forward {
        /// The flag's value.
        forward: Forward,
        /// What the system says.
        source: io::Error,
    },
    /// What reloads certificates has ended, by a panic.
    #[error("reload certificates")]
    Reload(#[source] JoinError),
}

/// An agent whose ports are bound and that does nothing yet.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    metrics: Arc<Metrics>,
    leases: Option<CountedLeases>,
    health: AdminServer,
    admin: AdminServer,
    forwards: Vec<Bound>,
}

/// Servers are counted by their Leases, on a thread of its own for as long as this lives.
#[derive(Debug)]
struct CountedLeases {
    thread: cluster::Thread,
    source: CountSource,
}

impl CountedLeases {
    fn start(config: LeaseConfig, metrics: Arc<Metrics>) -> Result<Self, StartError> {
        let thread = cluster::Thread::start(config.client).map_err(StartError::Kubernetes)?;
        let counted = lease_count::start(&thread, config.leases, metrics);
        let source = if config.or_more {
            CountSource::Max(counted)
        } else {
            CountSource::Leases(counted)
        };
        Ok(Self { thread, source })
    }
}

impl Agent {
    /// Takes the ports, and starts to count Leases if that is asked for; does not wait for the Kubernetes API, which upstream's
    /// agent does before it has a health port (wire-protocol.md W23).
    ///
    /// # Errors
    /// [`StartError`], which names the flag.
    pub fn bind(config: Config) -> Result<Self, StartError> {
        let (host, port) = &config.health;
        let health = AdminServer::bind("--health-server-host, --health-server-port", host, *port)?;
        let (host, port) = &config.admin;
        let admin = AdminServer::bind("--admin-bind-address, --admin-server-port", host, *port)?;
        let forwards = config.forwards.iter().map(Bound::bind);
        let forwards = forwards.collect::<Result<_, _>>()?;
        let metrics = Arc::new(Metrics::new(config.watcher.status())?);
        let leases = config
            .leases
            .clone()
            .map(|leases| CountedLeases::start(leases, metrics.clone()))
            .transpose()?;
        Ok(Self {
            metrics,
            leases,
            config,
            health,
            admin,
            forwards,
        })
    }

    /// Where health, readiness and metrics are served.
    #[must_use]
    pub fn health_addr(&self) -> SocketAddr {
        self.health.local_addr()
    }

    /// Where the admin server is.
    #[must_use]
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    /// Where connections of this node are taken (`--forward`): the flag's value, and the port if it is one.
    pub fn forwards(&self) -> impl Iterator<Item = (&Forward, Option<SocketAddr>)> {
        let forwards = self.forwards.iter();
        forwards.map(|bound| (bound.forward(), bound.local_addr()))
    }

    /// Serves. With `drain`, servers are told to send no new dials, lost tunnels are not replaced, and no more connections of this node
    /// are taken; everything else goes on, also new dials, as with upstream, until the agent is idle or its time is up (`--drain-idle`, `--drain-timeout`); then this
    /// returns. With `stop`, everything is dropped and this returns.
    ///
    /// Must run on a current-thread runtime with I/O and time.
    ///
    /// # Errors
    /// [`RunError`]: something without which the agent should not go on has failed.
    pub async fn run(
        self,
        drain: CancellationToken,
        stop: CancellationToken,
    ) -> Result<(), RunError> {
        LocalSet::new()
            .run_until(Box::pin(self.run_local(drain, stop)))
            .await
    }

    async fn run_local(
        self,
        drain: CancellationToken,
        stop: CancellationToken,
    ) -> Result<(), RunError> {
        let heartbeat = Arc::new(Heartbeat::new());
        let admin_stop = CancellationToken::new();
        let _stop_admin = admin_stop.clone().drop_guard();
        let health_port = self.health.local_addr().port();
        let (standing, shown) = watch::channel(Standing::default());
        let servers = [
            (
                "health",
                self.health,
                health_router(&self.metrics, &heartbeat, &shown),
            ),
            (
                "admin",
                self.admin,
                admin_router(health_port, self.config.profiling),
            ),
        ];
        let mut threads = Vec::new();
        for (name, server, router) in servers {
            let thread = server
                .serve(name, router, admin_stop.clone())
                .map_err(|source| RunError::Start { name, source })?;
            threads.push((name, thread));
        }
        let ledger = Rc::new(Ledger::new(self.config.memory_budget));
        let tasks = Tasks::default();
        let resolver = Resolver::default();
        let observer = Rc::new(self.metrics.tunnel_observer());
        let connector = Connector::new(&self.config, resolver.clone(), ledger.clone(), observer);
        let activity = Activity::new();
        let dialer = Dialer {
            resolver,
            policy: Rc::new(self.config.egress.clone()),
            metrics: self.metrics.clone(),
            tasks: tasks.clone(),
            activity: activity.clone(),
            limit: DIAL_LIMIT,
        };
        let clients = ClientSet::new(
            connector,
            self.config.sync,
            self.leases
                .as_ref()
                .map_or(CountSource::Servers, |leases| leases.source.clone()),
            dialer,
            heartbeat.clone(),
            standing,
        );
        let forwarder = Rc::new(Forwarder {
            carry: clients.clone(),
            metrics: self.metrics.clone(),
            tasks: tasks.clone(),
            activity: activity.clone(),
            most: self.config.max_forwarded,
        });
        for bound in self.forwards {
            let forward = bound.forward().clone();
            match bound.listen() {
                Ok(listener) => forwarder.serve(listener, forward.name),
                Err(source) => return Err(RunError::Forward { forward, source }),
            }
        }
        let left = CancellationToken::new();
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            error = Box::pin(self.config.watcher.run(reload::DEFAULT_INTERVAL)) => Err(RunError::Reload(error)),
            error = watch(&threads, self.leases.as_ref(), &self.metrics, &ledger) => Err(error),
            () = async {
                tokio::join!(clients.sync(), beat_once_drained(&tasks, &heartbeat), report_load(&clients), async {
                    drain.cancelled().await;
                    tasks.stop().cancel();
                    drained(&activity, self.config.drain).await;
                    clients.leave();
                    tasks.finish(LEAVE_LIMIT).await;
                    left.cancel();
                });
            } => Ok(()),
            () = left.cancelled() => Ok(()),
        };
        if let Drained::Cut { left } = tasks.finish(Duration::ZERO).await {
            tracing::info!(left, "dropped what was still running");
        }
        ended
    }
}

/// The sync loop has nothing left to do when the agent drains, and nobody else says that the process lives.
async fn beat_once_drained(tasks: &Tasks, heartbeat: &Heartbeat) {
    tasks.stop().cancelled().await;
    loop {
        heartbeat.beat();
        tokio::time::sleep(GAUGES).await;
    }
}

/// Tells servers what this agent carries, as it changes.
async fn report_load<C: Connect>(clients: &ClientSet<C>) {
    let mut ticks = interval(GAUGES);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        clients.send_load();
    }
}

/// Keeps gauges up to date; resolves when a thread is gone.
async fn watch(
    threads: &[(&'static str, AdminThread)],
    leases: Option<&CountedLeases>,
    metrics: &Metrics,
    ledger: &Ledger,
) -> RunError {
    let mut ticks = interval(GAUGES);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        metrics.buffer(ledger.used());
        if let Some((name, _)) = threads.iter().find(|(_, thread)| thread.is_finished()) {
            return RunError::Ended { name };
        }
        if leases.is_some_and(|leases| leases.thread.is_finished()) {
            return RunError::Ended { name: "kubernetes" };
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;
    use crate::config::tests::{files, full};
    use crate::dial::tests::refusing;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    /// wire-protocol.md T14.
    #[tokio::test]
    async fn draining_changes_nothing_for_probes_and_stopping_ends_the_agent() {
        let folder = files();
        let (_held, refused) = refusing();
        let port = format!("--proxy-server-port={}", refused.port());
        let mut config = Config::new(&full(&folder, &[&port]), "").unwrap();
        config.health = ("127.0.0.1".to_owned(), 0);
        config.admin = ("127.0.0.1".to_owned(), 0);
        let agent = Agent::bind(config).unwrap();
        let (health, admin) = (agent.health_addr(), agent.admin_addr());
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let probes = async {
            for _ in 0..2 {
                assert!(ask(health, "/healthz").await.starts_with("HTTP/1.1 200"));
                assert!(ask(health, "/readyz").await.starts_with("HTTP/1.1 503"));
                let location = format!("location: //h:{}/metrics\r\n", health.port());
                assert!(ask(admin, "/metrics").await.contains(&location));
                drain.cancel();
            }
            stop.cancel();
        };
        let both = async { tokio::join!(agent.run(drain.clone(), stop.clone()), probes).0 };
        timeout(Duration::from_secs(60), both)
            .await
            .unwrap()
            .unwrap();
    }

    #[tokio::test]
    async fn a_connection_of_the_node_is_reset_while_there_is_no_tunnel() {
        let folder = files();
        let (_held, refused) = refusing();
        let port = format!("--proxy-server-port={}", refused.port());
        let flags = [port.as_str(), "--forward=127.0.0.1:0=api"];
        let mut config = Config::new(&full(&folder, &flags), "").unwrap();
        config.health = ("127.0.0.1".to_owned(), 0);
        config.admin = ("127.0.0.1".to_owned(), 0);
        let agent = Agent::bind(config).unwrap();
        let health = agent.health_addr();
        let (forward, address) = agent.forwards().next().unwrap();
        assert_eq!(forward.name, "api");
        let address = address.unwrap();
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        let client = async {
            let mut client = TcpStream::connect(address).await.unwrap();
            let error = client.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            let metrics = ask(health, "/metrics").await;
            assert!(
                metrics.contains("_agent_forward_failures_total{reason=\"no_tunnel\"} 1\n"),
                "{metrics}"
            );
            stop.cancel();
        };
        let both = async { tokio::join!(agent.run(drain, stop.clone()), client).0 };
        timeout(Duration::from_secs(60), both)
            .await
            .unwrap()
            .unwrap();
    }

    /// wire-protocol.md W36, where upstream's agent stays until it is killed.
    #[tokio::test]
    async fn an_agent_that_is_idle_when_it_drains_leaves_by_itself() {
        let folder = files();
        let (_held, refused) = refusing();
        let port = format!("--proxy-server-port={}", refused.port());
        let flags = [port.as_str(), "--drain-idle=50ms"];
        let mut config = Config::new(&full(&folder, &flags), "").unwrap();
        config.health = ("127.0.0.1".to_owned(), 0);
        config.admin = ("127.0.0.1".to_owned(), 0);
        let agent = Agent::bind(config).unwrap();
        let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
        drain.cancel();
        let ended = timeout(Duration::from_secs(60), agent.run(drain, stop)).await;
        ended.unwrap().unwrap();
    }
}
