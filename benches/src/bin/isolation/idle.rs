//! `--idle`: what does nothing, and what it holds.

use anyhow::{Context, Result};
use benches::{figure::slope, usage::Memory};
use e2e::{client::Stream, harness::Cluster, say, targets::Target};
use tokio::task::JoinSet;

use crate::{
    cli::{Cli, Direction, Kind},
    cluster::{self, Both},
    load::echo,
    stall::Stalled,
};

/// Looks at the memory on the way from none to all.
const STEPS: usize = 4;

/// Dials under way at the same time.
const AT_ONCE: usize = 50;

/// What one thing of a kind holds, in KiB of private memory.
#[derive(Debug)]
pub(crate) struct Costs {
    pub(crate) kind: Kind,
    /// Server and agent with one tunnel, that has been used.
    pub(crate) base: Both<f64>,
    /// A connection that has echoed once.
    pub(crate) connection: Both<f64>,
    pub(crate) connections: usize,
    /// A tunnel, at the server.
    pub(crate) tunnel: f64,
    pub(crate) tunnels: usize,
    pub(crate) stalled: Vec<StalledCost>,
}

/// Of one connection among so many that stall.
#[derive(Debug)]
pub(crate) struct StalledCost {
    pub(crate) direction: Direction,
    pub(crate) count: usize,
    pub(crate) each: Both<f64>,
}

/// All kinds.
pub(crate) async fn measure(cli: &Cli) -> Result<Vec<Costs>> {
    let (connections, tunnels) = if cli.quick { (400, 12) } else { (2_000, 50) };
    let mut all = Vec::new();
    for &kind in &cli.kinds {
        say!("{}: {connections} idle connections", kind.name());
        let (base, connection) = idle(kind, connections, cli).await?;
        say!("{}: {tunnels} agents", kind.name());
        let tunnel = agents(kind, tunnels, cli).await?;
        let mut stalled = Vec::new();
        for &direction in &cli.directions {
            for count in cli.stalled().into_iter().filter(|&count| count > 0) {
                say!("{}: {count} stalled {}", kind.name(), direction.name());
                let each = stall(kind, direction, count, cli).await?;
                stalled.push(StalledCost {
                    direction,
                    count,
                    each,
                });
            }
        }
        all.push(Costs {
            kind,
            base,
            connection,
            connections,
            tunnel,
            tunnels,
            stalled,
        });
    }
    Ok(all)
}

/// A cluster that has been used, so that what is needed once is there, and what both processes hold.
async fn used(kind: Kind, target: &Target, cli: &Cli) -> Result<(Cluster, Both<f64>)> {
    let mut cluster = cluster::start(kind, cli).await?;
    let files = cluster.footprint()?;
    drop(open(&cluster, target, AT_ONCE).await?);
    cluster::settle(&mut cluster, files).await?;
    let base = private(&mut cluster).await?;
    Ok((cluster, base))
}

/// Base, and the slope over `count` connections.
async fn idle(kind: Kind, count: usize, cli: &Cli) -> Result<(Both<f64>, Both<f64>)> {
    let target = Target::echo().await?;
    let (mut cluster, base) = used(kind, &target, cli).await?;
    let mut server = vec![(0.0, base.server)];
    let mut agent = vec![(0.0, base.agent)];
    let mut held = Vec::new();
    for _ in 0..STEPS {
        held.extend(open(&cluster, &target, count / STEPS).await?);
        let now = private(&mut cluster).await?;
        server.push((held.len() as f64, now.server));
        agent.push((held.len() as f64, now.agent));
    }
    let each = Both {
        server: slope(&server),
        agent: slope(&agent),
    };
    Ok((base, each))
}

/// The slope of the server's memory over `count` agents that have carried something.
async fn agents(kind: Kind, count: usize, cli: &Cli) -> Result<f64> {
    let target = Target::echo().await?;
    let (mut cluster, base) = used(kind, &target, cli).await?;
    let mut points = vec![(0.0, base.server)];
    for number in 1..=count {
        let spec = cluster.agent_spec().quiet();
        cluster.add_agent_like(spec).await?;
        if number % (count / STEPS).max(1) == 0 {
            let files = cluster.footprint()?;
            // Each has its turn, by chance.
            drop(open(&cluster, &target, 4 * number).await?);
            cluster::settle(&mut cluster, files).await?;
            let now = private(&mut cluster).await?;
            points.push((number as f64, now.server));
        }
    }
    Ok(slope(&points))
}

/// What `count` stalled connections hold, by their number.
async fn stall(kind: Kind, direction: Direction, count: usize, cli: &Cli) -> Result<Both<f64>> {
    let target = Target::echo().await?;
    let (mut cluster, base) = used(kind, &target, cli).await?;
    let stalled = Stalled::open(&cluster.client()?, direction, count).await?;
    let now = private(&mut cluster).await?;
    drop(stalled);
    let each = |before: f64, now: f64| (now - before) / count.max(1) as f64;
    Ok(Both {
        server: each(base.server, now.server),
        agent: each(base.agent, now.agent),
    })
}

/// Connections that have echoed once.
async fn open(cluster: &Cluster, target: &Target, count: usize) -> Result<Vec<Stream>> {
    let client = cluster.client()?;
    let mut streams = Vec::new();
    let mut dials = JoinSet::new();
    for number in 0..count {
        let (client, name) = (client.clone(), target.name());
        dials.spawn(async move {
            let mut stream = client.dial(&name).await?;
            echo::<1>(&mut stream).await?;
            anyhow::Ok(stream)
        });
        if number + 1 >= AT_ONCE
            && let Some(dial) = dials.join_next().await
        {
            streams.push(dial?.context("dial")?);
        }
    }
    while let Some(dial) = dials.join_next().await {
        streams.push(dial?.context("dial")?);
    }
    Ok(streams)
}

async fn private(cluster: &mut Cluster) -> Result<Both<f64>> {
    let server = Memory::still(cluster.server().process().id()).await?;
    let agent = Memory::still(cluster.agent(0)?.process().id()).await?;
    Ok(Both {
        server: server.private as f64,
        agent: agent.private as f64,
    })
}
