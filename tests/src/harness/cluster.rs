//! A server and its agents.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::{
    Agent, AgentBuilder, FileLimits, PATIENCE, Pki, Server, ServerBuilder, eventually,
    launch::Launch, metric,
};
use crate::client::{Client, Frontend};

/// What carries connections between our server and our agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKind {
    /// Upstream's protocol, with our flow control in it.
    Packet,
    /// An HTTP/2 stream for each connection.
    Stream,
}

impl TunnelKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Packet, Self::Stream];

    /// The flag of either binary that pins it.
    #[must_use]
    pub fn flag(self) -> String {
        let kind = match self {
            Self::Packet => "packet",
            Self::Stream => "stream",
        };
        format!("--tunnel-protocol={kind}")
    }
}

/// How a cluster is to be started: `Cluster::builder().frontend(Frontend::GrpcUds).agents(2).start().await`.
#[derive(Debug, Default)]
pub struct ClusterBuilder {
    frontend: Option<Frontend>,
    agents: Option<usize>,
    server: Launch,
    agent: Launch,
}

impl ClusterBuilder {
    /// How kube-apiserver reaches the server; gRPC over a Unix socket unless set, as kubeadm-like set-ups do.
    #[must_use]
    pub fn frontend(mut self, frontend: Frontend) -> Self {
        self.frontend = Some(frontend);
        self
    }

    /// How many agents; one unless set.
    #[must_use]
    pub fn agents(mut self, agents: usize) -> Self {
        self.agents = Some(agents);
        self
    }

    /// Adds a flag of the server, as `--name=value`.
    #[must_use]
    pub fn server_flag(mut self, flag: impl Into<String>) -> Self {
        self.server.flags.push(flag.into());
        self
    }

    /// Adds a flag of every agent, as `--name=value`.
    #[must_use]
    pub fn agent_flag(mut self, flag: impl Into<String>) -> Self {
        self.agent.flags.push(flag.into());
        self
    }

    /// Pins the kind of tunnel, for the server and every agent.
    #[must_use]
    pub fn tunnel(self, kind: TunnelKind) -> Self {
        let flag = kind.flag();
        self.server_flag(flag.clone()).agent_flag(flag)
    }

    /// Starts all processes under these limits of open files.
    #[must_use]
    pub fn file_limits(mut self, limits: FileLimits) -> Self {
        self.server.file_limits = Some(limits);
        self.agent.file_limits = Some(limits);
        self
    }

    /// Prints no logs at the end.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.server.is_quiet = true;
        self.agent.is_quiet = true;
        self
    }

    /// Starts all processes and waits until every agent is connected.
    ///
    /// # Errors
    /// If one ends or is not ready in time; its log is part of the error.
    pub async fn start(self) -> Result<Cluster> {
        let pki = Pki::shared()?;
        let frontend = self.frontend.unwrap_or(Frontend::GrpcUds);
        let server = ServerBuilder::new(frontend, Arc::clone(&pki)).launch(self.server);
        let server = server.start().await.context("start the server")?;
        let agent = AgentBuilder::new(server.agents(), Arc::clone(&pki)).launch(self.agent);
        let mut cluster = Cluster {
            agents: Vec::new(),
            server,
            agent_spec: agent,
            pki,
        };
        for _ in 0..self.agents.unwrap_or(1) {
            cluster.add_agent().await?;
        }
        Ok(cluster)
    }
}

/// One server and its agents. Dropping it kills them all.
#[derive(Debug)]
pub struct Cluster {
    // Agents first: they are dropped in this order, and have less to say without a server that vanishes.
    agents: Vec<Agent>,
    server: Server,
    agent_spec: AgentBuilder,
    pki: Arc<Pki>,
}

impl Cluster {
    /// A cluster that is yet to be started.
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// One with this frontend and one agent.
    ///
    /// # Errors
    /// As [`ClusterBuilder::start`].
    pub async fn with(frontend: Frontend) -> Result<Self> {
        Self::builder()
            .frontend(frontend)
            .start()
            .await
            .with_context(|| format!("start a cluster with {frontend}"))
    }

    /// A client of its frontend.
    ///
    /// # Errors
    /// If no TLS configuration can be made.
    pub fn client(&self) -> Result<Client> {
        self.server.client()
    }

    /// The server.
    pub fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// The agent of this number, from 0 on, in the order of their start.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn agent(&mut self, number: usize) -> Result<&mut Agent> {
        self.agents.get_mut(number).context("no such agent")
    }

    /// The certificates.
    #[must_use]
    pub fn pki(&self) -> &Arc<Pki> {
        &self.pki
    }

    /// Starts one more agent and waits until it is connected.
    ///
    /// # Errors
    /// If it ends or is not ready in time.
    pub async fn add_agent(&mut self) -> Result<&mut Agent> {
        let spec = self.agent_spec.clone();
        self.add_agent_like(spec).await
    }

    /// What [`add_agent`](Self::add_agent) starts, to be changed.
    #[must_use]
    pub fn agent_spec(&self) -> AgentBuilder {
        self.agent_spec.clone()
    }

    /// Starts one more agent of another kind.
    ///
    /// # Errors
    /// If it ends or is not ready in time.
    pub async fn add_agent_like(&mut self, spec: AgentBuilder) -> Result<&mut Agent> {
        let agent = spec.start().await.context("start an agent")?;
        self.agents.push(agent);
        self.server.ready().await?;
        self.agents.last_mut().context("just added")
    }

    /// Kills the agent of this number; those after it move up.
    ///
    /// # Errors
    /// If there are not so many.
    pub fn kill_agent(&mut self, number: usize) -> Result<()> {
        ensure!(number < self.agents.len(), "no such agent");
        self.agents.remove(number).process().kill()
    }

    /// What both processes hold now.
    ///
    /// # Errors
    /// If one has ended.
    pub fn footprint(&mut self) -> Result<Footprint> {
        Ok(Footprint {
            server_files: self.server.process().open_files()?,
            agent_files: self
                .agents
                .iter_mut()
                .map(|agent| agent.process().open_files())
                .sum::<Result<usize>>()?,
        })
    }

    /// Waits until nothing more is open than `before`, in either process, and no connection is counted.
    ///
    /// # Errors
    /// If something is left behind.
    pub async fn settle(&mut self, before: Footprint) -> Result<()> {
        eventually("nothing is left behind", 2 * PATIENCE, async || {
            let now = self.footprint()?;
            ensure!(
                now.server_files <= before.server_files && now.agent_files <= before.agent_files,
                "{now:?} are open, {before:?} before"
            );
            for agent in &self.agents {
                let open = metric(
                    agent.health(),
                    "konnectivity_network_proxy_agent_open_endpoint_connections",
                    "",
                )
                .await?;
                ensure!(open == 0.0, "the agent counts {open} connections");
            }
            Ok(())
        })
        .await
    }
}

/// What the processes of a cluster hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Open descriptors of the server.
    pub server_files: usize,
    /// Open descriptors of all agents.
    pub agent_files: usize,
}
