//! A server under attack, and an agent that it serves meanwhile.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use certs::{Identity, TlsOptions};
use e2e::{
    client::{Client, Frontend, Socket, Stream},
    exchange::{dial_and_echo, echo},
    harness::{Cluster, Footprint, PATIENCE, Pki, eventually, metric},
    targets::Target,
};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use tunnel::stream::ALPN;

use super::{
    Log, MAX_GROWTH_KIB,
    frames::{OK, headers, message},
    raw::Raw,
};

/// What hostile agents claim, so that dials to it go to them and to nobody else.
pub(crate) const CLAIM: &str = "hostile.test";

/// The stream that a server opens first.
pub(crate) const CONTROL: u32 = 1;

/// A server, an honest agent, and a connection through both.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    target: Target,
    innocent: Stream,
    identity: Identity,
    before: Footprint,
    peak_kib: u64,
}

/// What an attack has cost so far.
pub(crate) struct Bill {
    log: Log,
    refused: f64,
    broken: f64,
}

impl Site {
    pub(crate) async fn start() -> Result<Self> {
        let mut cluster = Cluster::builder()
            .frontend(Frontend::HttpUds)
            .server_flag("--proxy-strategies=destHost")
            .agent_flag("--agent-identifiers=ipv4=127.0.0.1")
            .start()
            .await?;
        let target = Target::echo().await?;
        let client = cluster.client()?;
        let identity = Pki::shared()?
            .authority()
            .issue_client("konnectivity-agent")?
            .identity()?;
        dial_and_echo(&client, &target.name(), 100_000).await?;
        let innocent = client.dial(&target.name()).await?;
        let before = cluster.footprint()?;
        let peak_kib = cluster.server().process().peak_kib()?;
        let mut site = Self {
            cluster,
            client,
            target,
            innocent,
            identity,
            before,
            peak_kib,
        };
        site.serve(1).await?;
        Ok(site)
    }

    /// Both a connection that is there and new ones carry bytes.
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
            .context("the honest agent is not served")?
            .context("the honest agent is served badly")
    }

    /// A connection of an agent, its handshake done.
    pub(crate) async fn connect(&mut self) -> Result<(Socket, SocketAddr)> {
        let roots = Pki::shared()?.roots().clone();
        let options = TlsOptions::default();
        let config = certs::client_config(&roots, Some(&self.identity), &[ALPN], &options)?;
        let address = self.cluster.server().agents();
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let own = stream.local_addr()?;
        let name = ServerName::from(address.ip());
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        ensure!(stream.get_ref().1.alpn_protocol() == Some(ALPN));
        Ok((Box::new(stream), own))
    }

    /// An agent that is welcome and claims [`CLAIM`]. The server's request for the control stream has been answered.
    pub(crate) async fn agent(&mut self) -> Result<Raw> {
        let raw = self.silent_agent().await?;
        ensure!(raw.send(headers(CONTROL, 0, OK)).await, "it has hung up");
        Ok(raw)
    }

    /// The same, without that answer.
    pub(crate) async fn silent_agent(&mut self) -> Result<Raw> {
        let (mut socket, _) = self.connect().await?;
        let hello = hello(&[("identifiers", format!("host={CLAIM}").into())]);
        socket.write_all(&hello).await?;
        socket.flush().await?;
        let welcome = answer(&mut socket).await?.context("no answer")?;
        ensure!(welcome.get("welcome").is_some(), "{welcome}");
        let raw = Raw::agent(socket).await?;
        raw.until("the control stream", |seen| seen.has_answered(CONTROL))
            .await?;
        Ok(raw)
    }

    pub(crate) async fn bill(&mut self) -> Result<Bill> {
        Ok(Bill {
            log: Log::of(self.cluster.server().process()),
            refused: self.refused().await?,
            broken: self.broken().await?,
        })
    }

    /// Connections of agents that were refused since `bill`.
    pub(crate) async fn refusals(&mut self, bill: &Bill) -> Result<f64> {
        Ok(self.refused().await? - bill.refused)
    }

    async fn refused(&mut self) -> Result<f64> {
        let name = "konnectivity_network_proxy_server_refused_connections_total";
        metric(self.cluster.server().health(), name, "listener=\"agent\"").await
    }

    async fn broken(&mut self) -> Result<f64> {
        let name = "konnectivity_network_proxy_server_stream_errors_total";
        let segment = "segment=\"from_agent\"";
        metric(self.cluster.server().health(), name, segment).await
    }

    pub(crate) async fn violations(&mut self) -> Result<f64> {
        let name = "konnectivity_network_proxy_server_protocol_violations_total";
        metric(self.cluster.server().health(), name, "").await
    }

    /// Checks that `refused` connections and `broken` tunnels were counted since `bill`, and that `peers` peers have cost no more than
    /// they may.
    pub(crate) async fn settle(
        &mut self,
        bill: &Bill,
        peers: usize,
        refused: f64,
        broken: f64,
    ) -> Result<()> {
        self.counts(bill, refused, broken).await?;
        self.costs(bill, peers).await
    }

    /// The first half of that.
    pub(crate) async fn counts(&mut self, bill: &Bill, refused: f64, broken: f64) -> Result<()> {
        eventually("all is counted", PATIENCE, async || {
            let now = (
                self.refusals(bill).await?,
                self.broken().await? - bill.broken,
            );
            let all = (refused, broken);
            ensure!(now == all, "{now:?} instead of {all:?}");
            Ok(())
        })
        .await
    }

    /// The second half of that.
    pub(crate) async fn costs(&mut self, bill: &Bill, peers: usize) -> Result<()> {
        self.is_alone().await?;
        self.serve(1).await?;
        let process = self.cluster.server().process();
        ensure!(process.ended()?.is_none(), "the server has ended");
        bill.log.check(process, peers)?;
        let grown = process.peak_kib()?.saturating_sub(self.peak_kib);
        ensure!(grown < MAX_GROWTH_KIB, "memory rose by {grown} KiB");
        Ok(())
    }

    /// Nobody but the honest agent has a tunnel.
    async fn is_alone(&mut self) -> Result<()> {
        let health = self.cluster.server().health();
        eventually("hostile agents are forgotten", PATIENCE, async || {
            let name = "konnectivity_network_proxy_server_tunnels";
            let tunnels = metric(health, name, "").await?;
            ensure!(tunnels == 1.0, "{tunnels} tunnels");
            Ok(())
        })
        .await
    }

    /// Nothing is left behind.
    pub(crate) async fn end(mut self) -> Result<()> {
        self.serve(1).await?;
        let before = self.before;
        eventually("descriptors are closed", PATIENCE, async || {
            let now = self.cluster.footprint()?;
            ensure!(
                now.server_files <= before.server_files && now.agent_files <= before.agent_files,
                "{now:?}, {before:?} before"
            );
            Ok(())
        })
        .await?;
        self.innocent.close().await?;
        Ok(())
    }
}

/// A hello as it should be, but for `fields`.
pub(crate) fn hello(fields: &[(&str, Value)]) -> Vec<u8> {
    let mut hello = serde_json::json!({
        "version": 1, "role": "agent", "agent_id": "hostile", "software": "e2e", "features": ["forward"],
    });
    for (name, value) in fields {
        if let Some(object) = hello.as_object_mut() {
            object.insert((*name).to_owned(), value.clone());
        }
    }
    message(hello.to_string().as_bytes())
}

/// The server's answer to a hello; `None` if it has closed the connection without one.
pub(crate) async fn answer(socket: &mut Socket) -> Result<Option<Value>> {
    let reading = async {
        let mut len = [0; 4];
        match socket.read(&mut len).await {
            Ok(0) => return Ok(None),
            Ok(4) => {}
            other => bail!("{other:?} of a length"),
        }
        let mut json = vec![0; usize::try_from(u32::from_be_bytes(len))?];
        socket.read_exact(&mut json).await?;
        Ok(Some(serde_json::from_slice(&json)?))
    };
    timeout(PATIENCE, reading)
        .await
        .context("neither answered nor closed")?
}

/// Waits until the other end has closed the connection, however; what it still said does not count.
pub(crate) async fn is_closed(socket: &mut Socket) -> Result<()> {
    let mut rest = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut rest))
        .await
        .context("the connection is not closed")?
        .ok();
    Ok(())
}
