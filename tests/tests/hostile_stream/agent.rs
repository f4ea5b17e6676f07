//! An agent under attack, and a server that it serves meanwhile.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result, ensure};
use certs::{TlsOptions, server_config};
use e2e::{
    client::{Client, Frontend, Socket, Stream},
    exchange::{dial_and_echo, echo},
    harness::{Agent, AgentBuilder, PATIENCE, Pki, Server, ServerBuilder, eventually, metric},
    targets::Target,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tunnel::stream::ALPN;

use super::{
    Log, MAX_GROWTH_KIB, MAX_LINES,
    frames::{field, headers, message},
    raw::Raw,
};

/// The stream that a server opens first.
pub(crate) const CONTROL: u32 = 1;

/// The honest server says that there are two; the agent looks for the other where it found this one, and finds the hostile one.
pub(crate) struct Site {
    server: Server,
    agent: Agent,
    client: Client,
    pub(crate) target: Target,
    innocent: Stream,
    listener: TcpListener,
    tls: TlsAcceptor,
    files: usize,
    peak_kib: u64,
    log: Log,
    _honest: JoinSet<()>,
}

impl Site {
    /// With these flags of the agent besides.
    pub(crate) async fn start(flags: &[&str]) -> Result<Self> {
        let pki = Pki::shared()?;
        let mut server = ServerBuilder::new(Frontend::HttpUds, Arc::clone(&pki))
            .flag("--server-count=2")
            .start()
            .await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let builder = AgentBuilder::new(listener.local_addr()?, Arc::clone(&pki));
        let builder = flags
            .iter()
            .fold(builder, |builder, flag| builder.flag(*flag));
        let address = server.agents();
        let mut honest = JoinSet::new();
        let (agent, first) = tokio::join!(builder.start(), async {
            let (mut stream, _) = listener.accept().await?;
            honest.spawn(async move {
                if let Ok(mut server) = TcpStream::connect(address).await {
                    // However it ends, both ends are told.
                    copy_bidirectional(&mut stream, &mut server).await.ok();
                }
            });
            anyhow::Ok(())
        });
        first?;
        let mut agent = agent?;
        server.ready().await?;
        let identity = pki.authority().issue_server(&["127.0.0.1"])?.identity()?;
        let options = TlsOptions::default();
        let config = server_config(&identity, Some(pki.roots()), &[ALPN], &options)?;
        let target = Target::echo().await?;
        let client = server.client()?;
        dial_and_echo(&client, &target.name(), 100_000).await?;
        let innocent = client.dial(&target.name()).await?;
        let mut site = Self {
            files: agent.process().open_files()?,
            peak_kib: agent.process().peak_kib()?,
            log: Log::of(agent.process()),
            server,
            agent,
            client,
            target,
            innocent,
            listener,
            tls: TlsAcceptor::from(config),
            _honest: honest,
        };
        site.serve(1).await?;
        Ok(site)
    }

    /// Both a connection that is there and new ones carry bytes of the honest server.
    pub(crate) async fn serve(&mut self, times: usize) -> Result<()> {
        let served = Box::pin(async {
            for _ in 0..times {
                echo(&mut self.innocent, 10_000).await?;
                dial_and_echo(&self.client, &self.target.name(), 10_000).await?;
            }
            anyhow::Ok(())
        });
        timeout(PATIENCE, served)
            .await
            .context("the honest server is not served")?
            .context("the honest server is served badly")
    }

    /// The agent's next connection, its hello read.
    pub(crate) async fn greeted(&mut self) -> Result<Socket> {
        let greeted = async {
            let (stream, _) = self.listener.accept().await?;
            stream.set_nodelay(true)?;
            let mut stream = self.tls.accept(stream).await?;
            ensure!(stream.get_ref().1.alpn_protocol() == Some(ALPN));
            let len = stream.read_u32().await?;
            let mut hello = vec![0; usize::try_from(len)?];
            stream.read_exact(&mut hello).await?;
            let hello: Value = serde_json::from_slice(&hello)?;
            ensure!(hello.get("role") == Some(&"agent".into()), "{hello}");
            anyhow::Ok(Box::new(stream) as Socket)
        };
        timeout(PATIENCE, greeted)
            .await
            .context("the agent does not come")?
    }

    /// A tunnel of the agent's to the hostile server, with a control stream.
    pub(crate) async fn tunnel(&mut self) -> Result<Raw> {
        let raw = self.bare_tunnel().await?;
        ensure!(raw.send(control()).await, "it has hung up");
        raw.until("the control stream", |seen| seen.has_answered(CONTROL))
            .await?;
        Ok(raw)
    }

    /// The same without a control stream.
    pub(crate) async fn bare_tunnel(&mut self) -> Result<Raw> {
        let mut socket = self.greeted().await?;
        socket.write_all(&welcome(&[])).await?;
        Raw::server(socket).await
    }

    pub(crate) async fn broken(&self) -> Result<f64> {
        let name = "konnectivity_network_proxy_agent_stream_errors_total";
        metric(self.agent.health(), name, "segment=\"to_agent\"").await
    }

    pub(crate) async fn violations(&self) -> Result<f64> {
        let name = "konnectivity_network_proxy_agent_protocol_violations_total";
        metric(self.agent.health(), name, "").await
    }

    /// The agent's log.
    pub(crate) fn log(&mut self) -> String {
        self.agent.process().log()
    }

    /// Checks what was added to the agent's log, by as many tunnels and refusals as `peers`.
    pub(crate) fn check_log(&mut self, peers: usize) -> Result<()> {
        let process = self.agent.process();
        self.log.check(process, peers)?;
        self.log = Log::of(process);
        Ok(())
    }

    /// Checks that no line of the agent's log is a peer's.
    pub(crate) fn check_lines(&mut self) -> Result<()> {
        self.log.check(self.agent.process(), usize::MAX / MAX_LINES)
    }

    /// Checks that `broken` tunnels were counted in all.
    pub(crate) async fn counts(&self, broken: f64) -> Result<()> {
        eventually("all is counted", PATIENCE, async || {
            let now = self.broken().await?;
            ensure!(now == broken, "{now} tunnels instead of {broken}");
            Ok(())
        })
        .await
    }

    /// The agent lives, has all that it needs and nothing more, and serves.
    pub(crate) async fn settle(&mut self) -> Result<()> {
        self.serve(1).await?;
        ensure!(
            self.agent.process().ended()?.is_none(),
            "the agent has ended"
        );
        let grown = self
            .agent
            .process()
            .peak_kib()?
            .saturating_sub(self.peak_kib);
        ensure!(grown < MAX_GROWTH_KIB, "memory rose by {grown} KiB");
        eventually("nothing is left behind", PATIENCE, async || {
            let open = self.target.open();
            ensure!(open == 1, "{open} connections to the target");
            let name = "konnectivity_network_proxy_agent_open_endpoint_connections";
            let counted = metric(self.agent.health(), name, "").await?;
            ensure!(counted == 1.0, "{counted} connections are counted");
            // One for an attempt that is under way, and for its waiting in our listener's queue.
            let files = self.agent.process().open_files()?;
            ensure!(
                files <= self.files + 1,
                "{files} descriptors, {} before",
                self.files
            );
            Ok(())
        })
        .await
    }

    /// It serves to the end, and so did the honest server's only tunnel.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.settle().await?;
        self.innocent.close().await?;
        ensure!(self.server.process().ended()?.is_none());
        Ok(())
    }
}

/// A welcome as it should be, but for `fields`.
pub(crate) fn welcome(fields: &[(&str, Value)]) -> Vec<u8> {
    let mut welcome = json!({
        "version": 1, "server_id": "hostile", "server_count": 2, "software": "e2e", "features": ["forward"],
    });
    for (name, value) in fields {
        if let Some(object) = welcome.as_object_mut() {
            object.insert((*name).to_owned(), value.clone());
        }
    }
    message(json!({ "welcome": welcome }).to_string().as_bytes())
}

/// What opens the control stream.
fn control() -> Vec<u8> {
    open(CONTROL, "POST", "/control")
}

/// HEADERS of a request with a path.
pub(crate) fn open(stream: u32, method: &str, path: &str) -> Vec<u8> {
    let block = [
        field(":method", method),
        field(":scheme", "https"),
        field(":authority", "adit"),
        field(":path", path),
    ];
    headers(stream, 0, &block.concat())
}

/// An address where nobody listens.
pub(crate) fn refusing() -> Result<SocketAddr> {
    e2e::targets::refusing()
}
