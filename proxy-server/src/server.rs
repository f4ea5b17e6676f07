//! Binds everything, runs, ends.

mod kubernetes;
mod shutdown;

use std::{rc::Rc, sync::Arc, time::Duration};

use anyhow::Context as _;
use certs::{Current, Watcher, reload};
use daemon::{admin::AdminServer, listen::listen, signals::Terminations, uds::UdsListener};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    time::{interval, sleep},
};
use tokio_util::sync::CancellationToken;
use tunnel::{drain::Tasks, ledger::Ledger};

use crate::{
    admin::{Admin, Readiness},
    backend::{Agents, Identity, ServerCount},
    config::{Address, Config, FrontendConfig},
    dial::Core,
    forward::Forwarder,
    frontend::{self, FrontendListener},
    metrics::{Metrics, Segment},
    registry::Registry,
};
use kubernetes::Kubernetes;
use shutdown::Shutdown;

/// How often the gauge of buffered bytes is brought up to date.
const GAUGE_INTERVAL: Duration = Duration::from_secs(1);

/// A server whose listeners are all bound.
#[derive(Debug)]
pub struct Bound {
    core: Rc<Core>,
    agents: Rc<Agents>,
    agent_listener: TcpListener,
    agent_tls: Current<Arc<rustls::ServerConfig>>,
    watcher: Watcher,
    frontend: FrontendListener,
    frontend_keepalive: Duration,
    shutdown_delay: Duration,
    graceful_shutdown: Duration,
    admin: Admin,
    kubernetes: Option<Kubernetes>,
    leaving: CancellationToken,
    accepting: Tasks,
    clients: Tasks,
    tunnels: Tasks,
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// After one signal, whatever was cut.
    Done,
    /// By a second signal during shutdown.
    Impatient,
}

/// Binds every listener. Call on the worker's `LocalSet`.
///
/// # Errors
/// If any of them cannot be bound: none is optional. The text names flag and address.
pub fn bind(config: Config) -> anyhow::Result<Bound> {
    let metrics = Metrics::new(config.watcher.status()).context("register metrics")?;
    let accepting = Tasks::default();
    let (clients, tunnels) = (Tasks::default(), Tasks::default());
    let core = Rc::new(Core {
        registry: Registry::new(metrics.clone(), &config.strategies),
        from_client: metrics.packets(Segment::FromClient),
        to_client: metrics.packets(Segment::ToClient),
        metrics: metrics.clone(),
        ledger: Rc::new(Ledger::new(config.memory_budget)),
        stop: accepting.stop().clone(),
        dial_timeout: config.dial_timeout,
        egress: config.egress,
    });
    let (live, live_servers) = watch::channel(0);
    let (kubernetes, reviewer) = if config.token_review.is_some() || config.lease.is_some() {
        let (kubernetes, reviewer) = Kubernetes::start(
            config.kube_client,
            config.token_review,
            config.lease,
            &metrics,
            live,
        )?;
        (Some(kubernetes), reviewer)
    } else {
        (None, None)
    };
    let forward_targets: Vec<_> = config
        .forward_targets
        .iter()
        .map(|target| target.name().to_owned())
        .collect();
    // As established connections that no frontend waits for: they end with the tunnels.
    let forwarder = Forwarder::new(
        config.forward_targets,
        config.forward_max_connections,
        metrics.clone(),
        tunnels.clone(),
        core.stop.clone(),
    );
    let agents = Agents::new(
        core.clone(),
        tunnels.clone(),
        &config.server_id,
        ServerCount::new(config.server_count, live_servers),
        config.keepalive,
        Identity {
            reviewer,
            binding: config.binding,
        },
        forwarder,
    )?;
    let frontend = bind_frontend(config.frontend)?;
    let agent_listener = tcp(&config.agents)?;
    let health = AdminServer::bind(config.health.flag, &config.health.host, config.health.port)?;
    let admin = AdminServer::bind(config.admin.flag, &config.admin.host, config.admin.port)?;
    tracing::info!(
        server_id = config.server_id,
        server_count = config.server_count,
        strategies = %config.strategies,
        tunnel_protocol = ?config.tunnel_protocol,
        ?forward_targets,
        dial_timeout = ?config.dial_timeout,
        keepalive = ?config.keepalive,
        memory_budget = config.memory_budget,
        agents = ?agent_listener.local_addr().ok(),
        frontend = ?frontend.local_addr(),
        health = %health.local_addr(),
        admin = %admin.local_addr(),
        "listening"
    );
    let leaving = CancellationToken::new();
    let readiness = Readiness {
        wanted: config.ready_strategies,
        strategies: config.strategies,
        metrics: metrics.clone(),
        leaving: leaving.clone(),
    };
    let admin = Admin::start(health, admin, readiness, config.profiling)
        .context("start the health and admin listeners")?;
    Ok(Bound {
        kubernetes,
        core,
        agents,
        agent_listener,
        agent_tls: config.agent_tls,
        watcher: config.watcher,
        frontend,
        frontend_keepalive: config.frontend_keepalive,
        shutdown_delay: config.shutdown_delay,
        graceful_shutdown: config.graceful_shutdown,
        admin,
        leaving,
        accepting,
        clients,
        tunnels,
    })
}

fn bind_frontend(config: FrontendConfig) -> anyhow::Result<FrontendListener> {
    Ok(match config {
        FrontendConfig::Uds {
            path,
            delete_existing,
        } => {
            let (listener, file) =
                UdsListener::bind("--uds-name", &path, delete_existing)?.into_parts();
            tracing::info!(path = %path.display(), "frontend socket is ready");
            FrontendListener::Uds(
                UnixListener::from_std(listener).context("--uds-name")?,
                file,
            )
        }
        FrontendConfig::Tcp { address, tls } => FrontendListener::Tcp(tcp(&address)?, tls),
    })
}

fn tcp(address: &Address) -> anyhow::Result<TcpListener> {
    let listener = listen(address.flag, &address.host, address.port)?;
    TcpListener::from_std(listener).context(address.flag)
}

impl Bound {
    /// Serves until a signal comes and everything has ended or been cut. Call on the worker's `LocalSet`.
    ///
    /// # Errors
    /// If what reloads certificates has ended, by a panic: a server whose certificates silently grow old is not to go on.
    pub async fn run(mut self, mut signals: Terminations) -> anyhow::Result<Exit> {
        let agents = self
            .agents
            .clone()
            .serve(self.agent_listener, self.agent_tls);
        self.accepting.spawn(agents);
        self.accepting.spawn(self.agents.announce_count());
        let frontend = frontend::serve(
            self.frontend,
            self.core.clone(),
            self.clients.clone(),
            self.frontend_keepalive,
        );
        self.accepting.spawn(frontend);
        self.accepting.spawn(update_gauges(self.core.clone()));
        if let Some(kubernetes) = &mut self.kubernetes {
            kubernetes.publish()?;
        }
        // As long as there are new handshakes.
        let mut reloading = Box::pin(self.watcher.run(reload::DEFAULT_INTERVAL));
        let signal = tokio::select! {
            biased;
            (signal, _) = signals.recv() => signal,
            error = &mut reloading => {
                self.admin.finish(shutdown::ADMIN_LIMIT).await;
                return Err(error).context("reload certificates");
            }
        };
        tracing::info!(
            ?signal,
            delay = ?self.shutdown_delay,
            grace = ?self.graceful_shutdown,
            "shutting down"
        );
        let shutdown = Shutdown {
            core: self.core,
            accepting: self.accepting,
            clients: self.clients,
            tunnels: self.tunnels,
        };
        let leave = async {
            self.leaving.cancel();
            tokio::select! {
                biased;
                () = sleep(self.shutdown_delay) => {}
                error = &mut reloading => tracing::error!(%error, "certificates are no longer reloaded"),
            }
            let withdraw = async {
                if let Some(kubernetes) = &mut self.kubernetes {
                    kubernetes.withdraw().await;
                }
            };
            tokio::join!(shutdown.run(self.graceful_shutdown), withdraw);
        };
        let exit = tokio::select! {
            biased;
            () = leave => Exit::Done,
            (signal, _) = signals.recv() => {
                tracing::warn!(?signal, "second signal: leaving at once");
                return Ok(Exit::Impatient);
            }
        };
        if let Some(kubernetes) = self.kubernetes {
            kubernetes.finish().await;
        }
        self.admin.finish(shutdown::ADMIN_LIMIT).await;
        Ok(exit)
    }
}

async fn update_gauges(core: Rc<Core>) {
    let mut tick = interval(GAUGE_INTERVAL);
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            _ = tick.tick() => {
                core.registry.update_gauges();
                core.metrics.buffered_bytes.set(i64::try_from(core.ledger.used()).unwrap_or(i64::MAX));
            }
        }
    }
}
