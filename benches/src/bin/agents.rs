//! `benches/agents`: what thousands of agents cost a server, upstream's and ours: memory of each, a reconnect of all at once with full and
//! with resumed handshakes, and how long dials take to a node while it storms. Many agents are one process here, with real TLS and
//! real tunnels; the one that is dialled is a process of its own.

use std::{fs, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use benches::{
    chart::{self, Series},
    figure::slope,
    load::{
        agents::{Agents, Handshake, Wire},
        dialer::Dialer,
        echo::histogram,
        nanoseconds,
        target::Worker,
    },
    pair::{Pair, Whose},
    probe::Machine,
    rig::{Flags, Parts, Rig},
    table::Table,
    upstream,
};
use clap::Parser;
use e2e::{
    client::Frontend,
    harness::{Pki, binaries},
    say, say_line,
};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Handshakes at once.
const AT_ONCE: usize = 64;

/// Before memory is looked at.
const REST: Duration = Duration::from_secs(3);

/// Between two dials.
const PAUSE: Duration = Duration::from_millis(2);

/// How long dials are measured without a storm.
const CALM: Duration = Duration::from_secs(3);

/// What thousands of agents cost a server.
#[derive(Debug, Parser)]
#[command(name = "agents", version)]
struct Cli {
    /// Numbers of agents; the cost of each is a line through them.
    #[arg(long, value_delimiter = ',', default_values_t = [250, 500, 1_000, 2_500, 5_000])]
    counts: Vec<usize>,
    /// Pairs whose server is measured, of those with a tunnel; upstream's if its binaries are there.
    #[arg(long, value_delimiter = ',', default_values = ["upstream", "packet", "stream"])]
    pairs: Vec<Pair>,
    /// Folder with upstream's `server` and `agent`. Those that interop/run has built unless set.
    #[arg(long, value_name = "DIR")]
    upstream_dir: Option<PathBuf>,
    /// Also writes everything that was measured to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draws memory and CPU over the number of agents to files in this folder.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
}

/// What so many agents cost.
#[derive(Debug, Serialize)]
struct Cost {
    pair: &'static str,
    agents: usize,
    /// MiB of the server on top of what it holds without agents.
    memory: f64,
    /// The same after all have reconnected twice.
    memory_after: f64,
    full: Storm,
    resumed: Storm,
    /// Microseconds, without a storm.
    dial_p50: f64,
    dial_p99: f64,
}

/// All agents come back at once.
#[derive(Debug, Serialize)]
struct Storm {
    /// CPU seconds of the server.
    cpu: f64,
    /// Seconds until the last was there.
    took: f64,
    /// Microseconds of a dial to a node meanwhile.
    dial_p50: f64,
    dial_p99: f64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let limit = rlimit::increase_nofile_limit(u64::MAX).context("raise the limit of open files")?;
    let most = cli.counts.iter().max().copied().unwrap_or_default();
    ensure!(
        limit > most as u64 + 500,
        "{most} agents need more than the {limit} descriptors that this process may have"
    );
    say!("building proxy-server and proxy-agent, unless they are up to date");
    let parts = Parts {
        ours: binaries()?.clone(),
        upstream: upstream::find(cli.upstream_dir.as_deref())?,
        pki: Arc::new(Pki::generate()?),
        target: Worker::start()?,
        distance: None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let machine = Machine::probe()?;
    say!(
        "copy {:.1} GB/s, loopback {:.2} us, load {:.2}",
        machine.copy,
        machine.loopback,
        machine.load
    );
    let costs = runtime.block_on(measure(cli, &parts))?;
    print(&costs);
    if let Some(file) = &cli.json {
        let text = serde_json::to_string_pretty(&costs)? + "\n";
        fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    if let Some(folder) = &cli.svg {
        let draw = |name: &str, title, y, of: fn(&Cost) -> f64| {
            chart::lines(&folder.join(name), title, "agents", y, &series(&costs, of))
        };
        draw("agents-memory.svg", "Memory of the server", "MiB", |cost| {
            cost.memory
        })?;
        draw(
            "agents-storm.svg",
            "A full reconnect of all agents",
            "CPU-s of the server",
            |cost| cost.full.cpu,
        )?;
    }
    Ok(())
}

async fn measure(cli: &Cli, parts: &Parts) -> Result<Vec<Cost>> {
    let mut costs = Vec::new();
    for &count in &cli.counts {
        for &pair in &cli.pairs {
            ensure!(!pair.is_relay(), "a relay has no agents");
            if pair.has(Whose::Upstream) && parts.upstream.is_none() {
                say!("{} is left out: its binaries are not there", pair.name());
                continue;
            }
            say!("{count} agents of {}", pair.name());
            let cost = Box::pin(one(parts, pair, count)).await;
            costs.push(cost.with_context(|| format!("{count} agents of {}", pair.name()))?);
        }
    }
    Ok(costs)
}

async fn one(parts: &Parts, pair: Pair, count: usize) -> Result<Cost> {
    // The others have no addresses, so that dials go to the one that serves them.
    let flags = Flags {
        server: &["--proxy-strategies=destHost"],
        agent: &["--agent-identifiers=ipv4=127.0.0.1"],
    };
    let rig = Rig::start_with(parts, pair, Frontend::HttpUds, flags).await?;
    let wire = if pair == Pair::Stream {
        Wire::Stream
    } else {
        Wire::Packet
    };
    let agents = Agents::new(rig.agents, &parts.pki, wire, count)?;
    sleep(REST).await;
    let before = rig.memory()?.server.rss;
    agents.connect(Handshake::Full, AT_ONCE).await?;
    sleep(REST).await;
    let memory = mib(rig.memory()?.server.rss, before);
    let calm = CancellationToken::new();
    let (_, times) = tokio::join!(
        async {
            sleep(CALM).await;
            calm.cancel();
        },
        dials(&rig.dialer, calm.clone())
    );
    let times = times?;
    let full = storm(&rig, &agents, Handshake::Full).await?;
    let resumed = storm(&rig, &agents, Handshake::Resumed).await?;
    sleep(REST).await;
    Ok(Cost {
        pair: pair.name(),
        agents: count,
        memory,
        memory_after: mib(rig.memory()?.server.rss, before),
        full,
        resumed,
        dial_p50: us(&times, 0.5),
        dial_p99: us(&times, 0.99),
    })
}

async fn storm(rig: &Rig, agents: &Agents, handshake: Handshake) -> Result<Storm> {
    agents.drop_all().await?;
    sleep(REST).await;
    let before = rig.cpu()?;
    let over = CancellationToken::new();
    let (took, times) = tokio::join!(
        async {
            let took = agents.connect(handshake, AT_ONCE).await;
            over.cancel();
            took
        },
        dials(&rig.dialer, over.clone())
    );
    let (took, times) = (took?, times?);
    // The dials are in it, as they are for everybody.
    let cpu = rig.cpu_since(before)?.server;
    Ok(Storm {
        cpu: cpu.as_secs_f64(),
        took: took.as_secs_f64(),
        dial_p50: us(&times, 0.5),
        dial_p99: us(&times, 0.99),
    })
}

/// Dials, one behind the other, until it is over.
async fn dials(dialer: &Dialer, over: CancellationToken) -> Result<Histogram<u64>> {
    let mut times = histogram()?;
    while !over.is_cancelled() {
        let start = Instant::now();
        drop(dialer.echo().await?);
        times.record(nanoseconds(start.elapsed()))?;
        sleep(PAUSE).await;
    }
    Ok(times)
}

fn print(costs: &[Cost]) {
    let mut table = Table::new([
        "pair",
        "agents",
        "MiB",
        "KiB each",
        "after storms, MiB",
        "full: CPU us each",
        "s",
        "resumed: CPU us each",
        "s",
        "dial p50 / p99 us: calm",
        "full storm",
        "resumed storm",
    ]);
    for cost in costs {
        let each = |all: f64| format!("{:.0}", all / cost.agents as f64);
        table.row([
            cost.pair.to_owned(),
            cost.agents.to_string(),
            format!("{:.0}", cost.memory),
            format!("{:.1}", cost.memory * 1024.0 / cost.agents as f64),
            format!("{:.0}", cost.memory_after),
            each(cost.full.cpu * 1e6),
            format!("{:.2}", cost.full.took),
            each(cost.resumed.cpu * 1e6),
            format!("{:.2}", cost.resumed.took),
            format!("{:.0} / {:.0}", cost.dial_p50, cost.dial_p99),
            format!("{:.0} / {:.0}", cost.full.dial_p50, cost.full.dial_p99),
            format!(
                "{:.0} / {:.0}",
                cost.resumed.dial_p50, cost.resumed.dial_p99
            ),
        ]);
    }
    say!("");
    for line in table.to_string().lines() {
        say_line(line);
    }
    for series in series(costs, |cost| cost.memory * 1024.0) {
        say!(
            "{}: {:.1} KiB an agent, by the line through all",
            series.name,
            slope(&series.points)
        );
    }
}

/// A line for each pair.
fn series(costs: &[Cost], of: fn(&Cost) -> f64) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for cost in costs {
        let point = (cost.agents as f64, of(cost));
        match all.iter_mut().find(|series| series.name == cost.pair) {
            Some(series) => series.points.push(point),
            None => all.push(Series {
                name: cost.pair.to_owned(),
                points: vec![point],
            }),
        }
    }
    all
}

fn us(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1_000.0
}

fn mib(now: u64, before: u64) -> f64 {
    now.saturating_sub(before) as f64 / 1024.0
}
