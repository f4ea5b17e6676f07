//! Servers, agents and what is in front of the servers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, Frontend, Stream},
    exchange::echo,
    harness::{
        Agent, AgentBuilder, Balancer, PATIENCE, Pki, Pod, Server, ServerBuilder, eventually,
        free_port, metric,
    },
    targets::Target,
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

pub(crate) const SERVERS: usize = 3;
pub(crate) const AGENTS: usize = 6;

/// Connections at each server whose fate is watched.
const HELD: usize = 5;

/// Pause between two exchanges on a held connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The name of a Service whose addresses are the servers'; the harness' certificates are for `localhost`, too.
const SERVICE: &str = "localhost";

/// What agents find servers by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// One address, which leads to a random server.
    Balancer,
    /// A name with the address of each.
    Addresses,
}

/// All processes.
#[derive(Debug)]
pub(crate) struct Fleet {
    agents: Vec<Agent>,
    servers: Vec<Server>,
    agent: AgentBuilder,
    _balancer: Option<Balancer>,
    _folder: TempDir,
}

impl Fleet {
    /// Starts everything, and waits until every agent is at every server.
    pub(crate) async fn start(front: Front) -> Result<Self> {
        let pki = Pki::shared()?;
        let folder = tempfile::tempdir()?;
        let shared = free_port()?;
        let mut servers = Vec::new();
        for number in 0..SERVERS {
            let mut server = ServerBuilder::new(Frontend::GrpcUds, Arc::clone(&pki))
                .flag(format!("--server-count={SERVERS}"))
                .flag("--graceful-shutdown-timeout=30s");
            if front == Front::Addresses {
                server = server
                    .flag(format!("--agent-bind-address=127.0.0.{}", number + 1))
                    .flag(format!("--agent-port={shared}"));
            }
            servers.push(server.start().await?);
        }
        let mut balancer = None;
        let mut agent = match front {
            Front::Balancer => {
                let backends = servers.iter().map(Server::agents).collect();
                let balancer = balancer.insert(Balancer::over(backends).await?);
                AgentBuilder::new(balancer.address(), pki)
            }
            Front::Addresses => {
                let addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"];
                let address = SocketAddr::from(([127, 0, 0, 1], shared));
                AgentBuilder::new(address, pki)
                    .flag(format!("--proxy-server-host={SERVICE}"))
                    .pod(Pod::resolving(folder.path(), SERVICE, &addresses)?)
            }
        };
        // Upstream's defaults, not those of the harness; and agents need not be idle for long to go.
        for flag in [
            "--sync-interval=1s",
            "--sync-interval-cap=10s",
            "--drain-idle=1s",
        ] {
            agent = agent.flag(flag);
        }
        let mut fleet = Self {
            agents: Vec::new(),
            servers,
            agent,
            _balancer: balancer,
            _folder: folder,
        };
        for _ in 0..AGENTS {
            let agent = fleet.agent.clone().start().await?;
            fleet.agents.push(agent);
        }
        fleet.complete().await?;
        Ok(fleet)
    }

    /// Waits until every agent is at every server.
    pub(crate) async fn complete(&self) -> Result<()> {
        eventually("every agent is at every server", PATIENCE, async || {
            for agent in &self.agents {
                let open = of_agent(agent, "open_server_connections").await?;
                ensure!(open == SERVERS as f64, "{open} tunnels");
            }
            Ok(())
        })
        .await
    }

    pub(crate) fn server(&mut self, number: usize) -> Result<&mut Server> {
        self.servers.get_mut(number).context("no such server")
    }

    pub(crate) fn agent(&mut self, number: usize) -> Result<&mut Agent> {
        self.agents.get_mut(number).context("no such agent")
    }

    /// Starts one more agent, and waits until it is at every server.
    pub(crate) async fn add_agent(&mut self) -> Result<()> {
        let agent = self.agent.clone().start().await?;
        self.agents.push(agent);
        self.complete().await
    }

    /// Takes an agent out; those after it move up.
    pub(crate) fn remove_agent(&mut self, number: usize) -> Result<Agent> {
        ensure!(number < self.agents.len(), "no such agent");
        Ok(self.agents.remove(number))
    }

    /// kube-apiserver beside that server.
    pub(crate) fn client(&self, number: usize) -> Result<Client> {
        self.servers.get(number).context("no such server")?.client()
    }

    /// All of them.
    pub(crate) fn clients(&self) -> Result<Vec<Client>> {
        self.servers.iter().map(Server::client).collect()
    }

    /// Compares what both sides count with `open` connections at each server.
    pub(crate) async fn check_gauges(&self, open: usize) -> Result<()> {
        for (number, server) in self.servers.iter().enumerate() {
            let gauges = [
                ("pending_backend_dials", "", 0),
                ("established_connections", "", open),
                ("ready_backends", "\"default\"", AGENTS),
                ("grpc_connections", "Connect", AGENTS),
                ("grpc_connections", "Proxy", open),
            ];
            for (name, labels, expected) in gauges {
                let full = format!("konnectivity_network_proxy_server_{name}");
                let value = metric(server.health(), &full, labels).await?;
                ensure!(
                    value == expected as f64,
                    "server {number}: {name} {labels} is {value}, not {expected}"
                );
            }
        }
        let mut endpoints = 0.0;
        for agent in &self.agents {
            let tunnels = of_agent(agent, "open_server_connections").await?;
            ensure!(tunnels == SERVERS as f64, "{tunnels} tunnels of an agent");
            endpoints += of_agent(agent, "open_endpoint_connections").await?;
        }
        let expected = (open * SERVERS) as f64;
        ensure!(endpoints == expected, "{endpoints} endpoints of {expected}");
        Ok(())
    }

    /// No process tells of something that must not be.
    pub(crate) fn check_logs(&mut self) -> Result<()> {
        let servers = self.servers.iter_mut().map(Server::process);
        for process in servers.chain(self.agents.iter_mut().map(Agent::process)) {
            let log = process.log();
            let loud = log.lines().find(|line| {
                line.split_whitespace().nth(1) == Some("ERROR") || line.contains("panicked")
            });
            ensure!(loud.is_none(), "{loud:?}");
        }
        Ok(())
    }
}

async fn of_agent(agent: &Agent, name: &str) -> Result<f64> {
    let name = format!("konnectivity_network_proxy_agent_{name}");
    metric(agent.health(), &name, "").await
}

/// Connections that are in use.
#[derive(Debug)]
pub(crate) struct Held {
    streams: Vec<Stream>,
}

impl Held {
    /// Five by each client.
    pub(crate) async fn dial(clients: &[Client], target: &Target) -> Result<Self> {
        let mut streams = Vec::new();
        for client in clients {
            for _ in 0..HELD {
                let mut stream = client.dial(&target.name()).await?;
                echo(&mut stream, 100).await?;
                streams.push(stream);
            }
        }
        Ok(Self { streams })
    }

    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Sends and receives on each, for that long.
    pub(crate) async fn use_for(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            for stream in &mut self.streams {
                echo(stream, 1_000).await?;
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Closes all of them.
    pub(crate) async fn close(self) -> Result<()> {
        for stream in self.streams {
            stream.close().await.context("close")?;
        }
        Ok(())
    }
}
