//! Dials and agents that come and go without end: what leaks does so here. Hours of the field, in a few thousand dials.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, DialFailure, Frontend},
    exchange::{dial_and_echo, echo},
    harness::{Agent, AgentBuilder, Cluster, PATIENCE, Pki, eventually, metric},
    say,
    targets::{BlackHole, Target, refusing},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout},
};

/// Dials a round of the soak.
const DIALS: usize = 600;

/// Dials at the same time.
const AT_ONCE: usize = 20;

/// Most that a process may grow by between two rounds, in KiB: an allocator's noise, less than 3 KiB a dial.
const NOISE: u64 = 2 * 1024;

const BACKENDS: &str = "konnectivity_network_proxy_server_ready_backends";
const ATTEMPTS: &str = "konnectivity_network_proxy_agent_server_connection_attempts_total";

/// R17, and with it R31: a mix of good dials, and 5 % each of those that end badly. Two hours at 50 a second there, as many as show a
/// slope here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dials_that_end_well_or_badly_leave_nothing_behind() -> Result<()> {
    let mix = Arc::new(Mix {
        good: Target::echo().await?,
        resetting: Target::serve("127.0.0.1", async |stream: TcpStream| {
            stream.set_zero_linger()
        })
        .await?,
        refusing: refusing()?,
        silent: BlackHole::open()?,
    });
    for frontend in [Frontend::GrpcUds, Frontend::HttpTls] {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        // What the first ones make is kept: threads, buffers, tables.
        mix.round(&client).await?;
        let before = cluster.footprint()?;
        cluster.settle(before).await?;
        mix.round(&client).await?;
        cluster.settle(before).await?;
        let middle = memory(&mut cluster)?;
        mix.round(&client).await?;
        cluster.settle(before).await?;
        let end = memory(&mut cluster)?;
        say!("{frontend}: server, agent {middle:?} KiB, {DIALS} dials later {end:?} KiB");
        for (middle, end) in middle.into_iter().zip(end) {
            ensure!(end <= middle + NOISE, "{frontend}: {middle} to {end} KiB");
        }
        let pending = "konnectivity_network_proxy_server_pending_backend_dials";
        let established = "konnectivity_network_proxy_server_established_connections";
        for gauge in [pending, established] {
            let value = metric(cluster.server().health(), gauge, "").await?;
            ensure!(value == 0.0, "{frontend}: {gauge} is {value}");
        }
    }
    Ok(())
}

fn memory(cluster: &mut Cluster) -> Result<[u64; 2]> {
    Ok([
        cluster.server().process().resident_kib()?,
        cluster.agent(0)?.process().resident_kib()?,
    ])
}

/// Targets of every manner.
struct Mix {
    good: Target,
    resetting: Target,
    refusing: SocketAddr,
    silent: BlackHole,
}

impl Mix {
    async fn round(self: &Arc<Self>, client: &Client) -> Result<()> {
        let mut dials = JoinSet::new();
        for number in 0..DIALS {
            if dials.len() == AT_ONCE {
                dials.join_next().await.context("some run")???;
            }
            let (mix, client) = (Arc::clone(self), client.clone());
            dials.spawn(async move {
                let one = timeout(PATIENCE, mix.one(&client, number));
                one.await.context("a dial hangs")?
            });
        }
        while let Some(dial) = dials.join_next().await {
            dial??;
        }
        Ok(())
    }

    async fn one(&self, client: &Client, number: usize) -> Result<()> {
        match number % 20 {
            0 => {
                let dial = client.dial(&self.refusing.to_string()).await;
                ensure!(dial.is_err(), "connected to a target that refuses");
            }
            1 => {
                // The reset may come before or behind the answer to the dial.
                if let Ok(mut stream) = client.dial(&self.resetting.name()).await {
                    stream.read_to_end(&mut Vec::new()).await.ok();
                }
            }
            2 => {
                // A client that vanishes in the middle of it.
                let mut stream = client.dial(&self.good.name()).await?;
                stream.write_all(b"half of a sent").await?;
                drop(stream);
            }
            3 => {
                // One that takes its dial back.
                let client = client.clone().with_patience(Duration::from_millis(50));
                let dial = client.dial(&self.silent.address().to_string()).await;
                ensure!(
                    matches!(dial, Err(DialFailure::NoAnswer(_))),
                    "a target that never answers: {dial:?}"
                );
            }
            _ => dial_and_echo(client, &self.good.name(), 1_024).await?,
        }
        Ok(())
    }
}

/// R22: 10,000 there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_refused_connects_are_all_told_and_forgotten() -> Result<()> {
    let mut cluster = Cluster::with(Frontend::HttpUds).await?;
    let client = cluster.client()?;
    let name = refusing()?.to_string();
    let before = cluster.footprint()?;
    let mut dials = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (client, name) = (client.clone(), name.clone());
        dials.spawn(async move {
            for _ in 0..50 {
                let failure = client.dial(&name).await.err().context("connected")?;
                let is_told = matches!(failure, DialFailure::Status { status: 502, .. });
                ensure!(is_told, "{failure:?}");
            }
            Ok(())
        });
    }
    while let Some(dials) = dials.join_next().await {
        dials??;
    }
    cluster.settle(before).await
}

/// R19: while the server is away, dials fail; when it is back, all who waited come at once. 5,000 in a second there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_survives_all_who_have_waited() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in [Frontend::GrpcUds, Frontend::HttpTls] {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        dial_and_echo(&client, &target.name(), 1_000).await?;
        let before = cluster.footprint()?;
        cluster.server().process().kill()?;
        for _ in 0..50 {
            ensure!(client.dial(&target.name()).await.is_err(), "no server");
        }
        cluster.server().restart().await?;
        cluster.server().ready().await?;
        let mut dials = JoinSet::new();
        for _ in 0..1_000 {
            let (client, name) = (client.clone(), target.name());
            dials.spawn(async move { dial_and_echo(&client, &name, 100).await });
        }
        while let Some(dial) = dials.join_next().await {
            dial?.with_context(|| frontend.to_string())?;
        }
        cluster.settle(before).await?;
    }
    Ok(())
}

/// R20, and W18: agents that flap, with traffic; at the end gauges tell what is there. 50 agents and ten minutes there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_flap_leave_tables_that_tell_the_truth() -> Result<()> {
    const FLAPS: usize = 40;
    let target = Target::echo().await?;
    let mut cluster = Cluster::with(Frontend::GrpcUds).await?;
    let (client, spec) = (cluster.client()?, cluster.agent_spec().quiet());
    let mut flapping: Vec<Agent> = Vec::new();
    for number in 0..FLAPS {
        // Under a few names, so that some come back before their old tunnel is known to be dead.
        let spec = spec.clone().flag(format!("--agent-id=flap-{}", number % 4));
        flapping.push(spec.start().await?);
        let mut streams = Vec::new();
        for _ in 0..5 {
            let mut stream = client.dial(&target.name()).await?;
            echo(&mut stream, 1_000).await?;
            streams.push(stream);
        }
        if flapping.len() > 3 {
            let mut agent = flapping.remove(fastrand::usize(..flapping.len()));
            if number % 2 == 0 {
                agent.process().kill()?;
            } else {
                // A second signal ends it at once; one that comes before the first was taken is the same one.
                let process = agent.process();
                eventually("it ends", PATIENCE, async || {
                    process.terminate().ok();
                    process.ended()?.context("still running")
                })
                .await?;
            }
        }
    }
    for mut agent in flapping {
        agent.process().kill()?;
    }
    let health = cluster.server().health();
    let prefix = "konnectivity_network_proxy_server_";
    eventually("gauges tell what is there", PATIENCE, async || {
        for (name, labels, expected) in [
            ("ready_backends", "\"default\"", 1.0),
            ("grpc_connections", "Connect", 1.0),
            ("grpc_connections", "Proxy", 0.0),
            ("pending_backend_dials", "", 0.0),
            ("established_connections", "", 0.0),
        ] {
            let value = metric(health, &format!("{prefix}{name}"), labels).await?;
            ensure!(value == expected, "{name} {labels} is {value}");
        }
        Ok(())
    })
    .await?;
    let backends = metric(health, BACKENDS, "\"default\"").await?;
    ensure!(backends == 1.0);
    ensure!(target.open() == 0, "{} targets are open", target.open());
    let log = cluster.server().process().log();
    ensure!(
        !log.contains("panicked") && !log.contains(" ERROR "),
        "{log}"
    );
    dial_and_echo(&client, &target.name(), 100_000).await
}

/// R32, and R34 for the agent's side: a port that is closed, a host that is silent, and one that speaks no TLS. An hour there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_finds_no_server_does_not_grow() -> Result<()> {
    const TRIES: f64 = 30.0;
    let pki = Pki::shared()?;
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let garbled = Target::serve("127.0.0.1", async |mut stream: TcpStream| {
        stream.write_all(b"220 smtp.example.com ESMTP\r\n").await
    })
    .await?;
    let mut agents = Vec::new();
    // A silent one is tried once in CONNECT_LIMIT, so there is nothing to count: it has to stay as it is meanwhile.
    for server in [refusing()?, garbled.address(), silent.local_addr()?] {
        let spec = AgentBuilder::new(server, Arc::clone(&pki)).flag("--sync-interval-cap=100ms");
        agents.push(spec.start_unconnected().await?);
    }
    let until = async |agent: &Agent, tries: f64| {
        eventually("it tries", PATIENCE, async || {
            let tried = metric(agent.health(), ATTEMPTS, "").await?;
            ensure!(tried >= tries, "{tried} of {tries} times");
            Ok(())
        })
        .await
    };
    let mut before = Vec::new();
    for agent in &mut agents[..2] {
        until(agent, TRIES).await?;
        let process = agent.process();
        before.push((process.resident_kib()?, process.open_files()?));
    }
    for (agent, (kib, files)) in agents.iter_mut().zip(before) {
        until(agent, 2.0 * TRIES).await?;
        let process = agent.process();
        let (now, open) = (process.resident_kib()?, process.open_files()?);
        ensure!(now <= kib + NOISE, "{kib} to {now} KiB");
        // One attempt may be under way.
        ensure!(open <= files + 2, "{files} to {open} descriptors");
    }
    let waiting = agents.last_mut().context("three")?;
    ensure!(waiting.process().ended()?.is_none(), "it gave up");
    Ok(())
}

/// R95: as port-forward does, over and over, closed from either side. An hour there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_short_connections_in_a_row_are_all_whole() -> Result<()> {
    let open = Target::echo().await?;
    let closing = Target::serve("127.0.0.1", async |mut stream: TcpStream| {
        let mut request = [0; 100];
        stream.read_exact(&mut request).await?;
        stream.write_all(&request).await?;
        stream.shutdown().await
    })
    .await?;
    for frontend in Frontend::ALL {
        let cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let begin = Instant::now();
        for number in 0..200 {
            let what = || format!("{frontend}: connection {number}");
            if fastrand::bool() {
                dial_and_echo(&client, &open.name(), 100)
                    .await
                    .with_context(what)?;
                continue;
            }
            let mut stream = client.dial(&closing.name()).await.with_context(what)?;
            let request = [b'r'; 100];
            stream.write_all(&request).await.with_context(what)?;
            let mut answer = Vec::new();
            timeout(PATIENCE, stream.read_to_end(&mut answer))
                .await
                .with_context(what)?
                .with_context(what)?;
            ensure!(answer == request, "{}: {} bytes", what(), answer.len());
        }
        say!("{frontend}: 200 in {:?}", begin.elapsed());
    }
    Ok(())
}
