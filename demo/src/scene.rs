//! Who takes part: two servers, for one listens either on a Unix socket or on TCP, an agent each, and a target.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, anyhow};
use e2e::{
    client::{Client, Frontend},
    harness::{Agent, AgentBuilder, Pki, Process, Server, ServerBuilder},
};
use tokio::time::{Duration, sleep};
use tokio_util::task::TaskTracker;

use crate::{
    checks,
    egress::{self, EgressFiles},
    story::{Story, done},
    target::Target,
};

/// How often the processes are looked after while the demo serves.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Everything that runs. Dropping it ends all processes and removes all folders.
#[derive(Debug)]
pub(crate) struct Scene {
    // Agents before servers: that is the order in which they are dropped.
    agents: [Agent; 2],
    uds: Server,
    tls: Server,
    pub(crate) target: Target,
    pub(crate) pki: Arc<Pki>,
    pub(crate) egress: EgressFiles,
}

impl Scene {
    /// Starts everything, in the order in which an operator would.
    pub(crate) async fn set(story: &Story) -> anyhow::Result<Self> {
        let tasks = TaskTracker::new();
        let pki = story
            .step("certificates", async {
                let pki = Arc::new(Pki::generate()?);
                Ok(done(
                    "a CA; leaves for server, agent and kube-apiserver",
                    pki,
                ))
            })
            .await?;
        let target = story
            .step("target", async {
                let target = Target::start(&tasks).await?;
                Ok(done(
                    format!("HTTP on {}, with a word of its own to tell", target.address),
                    target,
                ))
            })
            .await?;
        let (uds, first) = pair(story, Frontend::GrpcUds, "node-a", &pki).await?;
        let (tls, second) = pair(story, Frontend::HttpTls, "node-b", &pki).await?;
        let egress = story
            .step("EgressSelectorConfiguration", async {
                let socket = uds.socket().context("the server has no socket")?;
                let address = tls.address().context("the server has no address")?;
                let files = egress::write(&pki, socket, address)?;
                Ok(done(
                    "two files, read back by kube-apiserver's rules",
                    files,
                ))
            })
            .await?;
        Ok(Self {
            agents: [first, second],
            uds,
            tls,
            target,
            pki,
            egress,
        })
    }

    /// kube-apiserver's stand-in at one of the four frontends.
    pub(crate) fn client(&self, frontend: Frontend) -> anyhow::Result<Client> {
        let server = if frontend.is_uds() {
            &self.uds
        } else {
            &self.tls
        };
        server.client_as(frontend)
    }

    /// The TCP frontend as `host:port`.
    pub(crate) fn proxy(&self) -> anyhow::Result<SocketAddr> {
        self.tls.address().context("the server has no address")
    }

    /// What a person can try now.
    pub(crate) fn tell_how_to_use(&self, story: &Story) {
        story.title("Yours to try, until Ctrl-C");
        story.say("kube-apiserver on this machine, with one of these:");
        for file in self.egress.all() {
            story.say(&format!(
                "  --egress-selector-config-file={}",
                file.display()
            ));
        }
        if let Ok(line) = checks::curl_line(self) {
            story.say(&format!(
                "curl, which speaks CONNECT over mutual TLS as kube-apiserver does:\n{line}"
            ));
        }
    }

    /// Resolves when a process has ended by itself.
    pub(crate) async fn until_broken(&mut self) -> anyhow::Error {
        loop {
            sleep(LOOK_EVERY).await;
            let [first, second] = &mut self.agents;
            for process in [
                self.uds.process(),
                self.tls.process(),
                first.process(),
                second.process(),
            ] {
                if let Some(error) = ended(process) {
                    return error;
                }
            }
        }
    }
}

fn ended(process: &mut Process) -> Option<anyhow::Error> {
    match process.ended() {
        Ok(None) => None,
        Ok(Some(status)) => Some(anyhow!(
            "a process ended by itself ({status}):\n{}",
            process.log()
        )),
        Err(error) => Some(error),
    }
}

/// A server and its agent.
async fn pair(
    story: &Story,
    frontend: Frontend,
    id: &str,
    pki: &Arc<Pki>,
) -> anyhow::Result<(Server, Agent)> {
    let place = if frontend.is_uds() {
        "Unix socket"
    } else {
        "mTLS TCP"
    };
    let server = story
        .step(&format!("proxy-server, {place}"), async {
            let mut server = ServerBuilder::new(frontend, Arc::clone(pki))
                .quiet()
                .start()
                .await?;
            let at = match (server.socket(), server.address()) {
                (Some(socket), _) => socket.display().to_string(),
                (None, Some(address)) => address.to_string(),
                (None, None) => String::new(),
            };
            let pid = server.process().id();
            Ok(done(
                format!("healthy; pid {pid}, gRPC and HTTP CONNECT at {at}"),
                server,
            ))
        })
        .await?;
    let agent = story
        .step(&format!("proxy-agent {id}"), async {
            let mut agent = AgentBuilder::new(server.agents(), Arc::clone(pki))
                .flag(format!("--agent-id={id}"))
                .quiet()
                .start()
                .await?;
            let pid = agent.process().id();
            Ok(done(
                format!(
                    "ready; pid {pid}, its tunnel to {} is up over mTLS",
                    server.agents()
                ),
                agent,
            ))
        })
        .await?;
    Ok((server, agent))
}
