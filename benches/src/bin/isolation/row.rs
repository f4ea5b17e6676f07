//! One row: rounds of a measurement without stalled connections and one with them.

use std::time::Duration;

use anyhow::{Context, Result};
use benches::{
    figure::median,
    usage::{Memory, tcp_buffers},
};
use e2e::{harness::Cluster, say};
use tokio::time::Instant;

use crate::{
    cli::{Cli, Direction, Kind},
    cluster::{self, Both},
    load::{Load, Times},
    stall::{Delivered, Stalled},
};

/// What was measured of one number of stalled connections.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) direction: Direction,
    pub(crate) stalled: usize,
    pub(crate) rounds: Vec<Round>,
    /// The fewest that were left at the end of a round.
    pub(crate) alive: usize,
    /// Connections and dials of others that stood still, in any round, with stalled connections or without.
    pub(crate) stuck: usize,
    /// Of the last round.
    pub(crate) delivered: Delivered,
}

/// Both measurements, one right behind the other: what else the machine does changes from minute to minute.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) without: Phase,
    pub(crate) with: Phase,
}

/// One measurement.
#[derive(Debug)]
pub(crate) struct Phase {
    pub(crate) times: Times,
    /// At its end.
    pub(crate) memory: Both<Memory>,
    /// At its end, KiB.
    pub(crate) tcp_buffers: u64,
    /// Of a core.
    pub(crate) cpu: Both<f64>,
}

/// What a quantile is taken of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Of {
    Echo,
    Dial,
}

impl Phase {
    /// In microseconds.
    pub(crate) fn quantile(&self, of: Of, quantile: f64) -> f64 {
        let times = match of {
            Of::Echo => &self.times.echo,
            Of::Dial => &self.times.dial,
        };
        times.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

impl Row {
    /// The median of all rounds, with stalled connections, in microseconds.
    pub(crate) fn quantile(&self, of: Of, quantile: f64) -> f64 {
        median(
            self.rounds
                .iter()
                .map(|round| round.with.quantile(of, quantile)),
        )
    }

    /// The same by that without, of each round.
    pub(crate) fn ratios(&self, of: Of, quantile: f64) -> Vec<f64> {
        self.rounds
            .iter()
            .map(|round| {
                round.with.quantile(of, quantile) / round.without.quantile(of, quantile).max(0.001)
            })
            .collect()
    }

    /// The median of the rounds' ratios.
    pub(crate) fn ratio(&self, of: Of, quantile: f64) -> f64 {
        median(self.ratios(of, quantile))
    }

    /// What a process held before anything ever stalled, and with it, in the first round: an allocator keeps some for the others.
    pub(crate) fn memory(&self) -> Option<(&Both<Memory>, &Both<Memory>)> {
        let first = self.rounds.first()?;
        Some((&first.without.memory, &first.with.memory))
    }
}

/// All rows.
pub(crate) async fn measure_all(cli: &Cli) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &kind in &cli.kinds {
        for (number, &direction) in cli.directions.iter().enumerate() {
            for stalled in cli.stalled() {
                // With nobody stalled there is no direction.
                if stalled > 0 || number == 0 {
                    rows.push(measure(kind, direction, stalled, cli).await?);
                }
            }
        }
    }
    Ok(rows)
}

async fn measure(kind: Kind, direction: Direction, stalled: usize, cli: &Cli) -> Result<Row> {
    let name = format!("{} {} {stalled}", kind.name(), direction.name());
    say!("{name}");
    let mut cluster = cluster::start(kind, cli).await?;
    let mut load = Load::open(cluster.client()?).await?;
    let mut row = Row {
        kind,
        direction,
        stalled,
        rounds: Vec::new(),
        alive: stalled,
        stuck: 0,
        delivered: Delivered::default(),
    };
    for number in 1..=cli.rounds {
        let round = play(&mut cluster, &mut load, &mut row, number == cli.rounds, cli);
        let round = Box::pin(round).await;
        let round = round.with_context(|| format!("{name}, round {number}"))?;
        say!(
            "  round {number}: echo p99 {:.0} us without, {:.0} us with; dial p99 {:.0} us, {:.0} us",
            round.without.quantile(Of::Echo, 0.99),
            round.with.quantile(Of::Echo, 0.99),
            round.without.quantile(Of::Dial, 0.99),
            round.with.quantile(Of::Dial, 0.99),
        );
        for phase in [&round.without, &round.with] {
            row.stuck += phase.times.stuck + phase.times.stuck_dials;
        }
        row.rounds.push(round);
    }
    Ok(row)
}

async fn play(
    cluster: &mut Cluster,
    load: &mut Load,
    row: &mut Row,
    is_last: bool,
    cli: &Cli,
) -> Result<Round> {
    let files = cluster.footprint()?;
    let without = phase(cluster, load, cli.time()).await?;
    let start = Instant::now();
    let stalled = Stalled::open(&cluster.client()?, row.direction, row.stalled).await?;
    if row.stalled > 0 {
        say!(
            "  {} stalled after {:.1} s, {} KiB were taken of each",
            row.stalled,
            start.elapsed().as_secs_f64(),
            stalled.pushed() / 1024 / row.stalled as u64
        );
    }
    let with = phase(cluster, load, cli.time()).await?;
    row.alive = row.alive.min(stalled.alive());
    if is_last {
        row.delivered = stalled.deliver().await?;
    } else {
        drop(stalled);
    }
    cluster::settle(cluster, files).await?;
    Ok(Round { without, with })
}

async fn phase(cluster: &mut Cluster, load: &mut Load, time: Duration) -> Result<Phase> {
    let (before, start) = (cluster::cpu(cluster)?, Instant::now());
    let times = load.measure(time).await?;
    let (after, took) = (cluster::cpu(cluster)?, start.elapsed());
    let share = |used: Duration| used.as_secs_f64() / took.as_secs_f64();
    Ok(Phase {
        times,
        memory: cluster::memory(cluster)?,
        tcp_buffers: tcp_buffers()?,
        cpu: Both {
            server: share(after.server.since(before.server)),
            agent: share(after.agent.since(before.agent)),
        },
    })
}
