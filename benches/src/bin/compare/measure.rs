//! A round: everything of every pair.

use std::{collections::BTreeMap, fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use benches::{
    figure::jain,
    load::{
        agents::{Agents, Handshake, Wire},
        bulk::{self, Direction},
        dials,
        echo::{self, Enough},
        stall,
    },
    pair::{Pair, Whose},
    probe::Machine,
    rig::{Both, Parts, Rig},
};
use clap::ValueEnum;
use e2e::client::Frontend;
use indicatif::ProgressBar;
use tokio::{
    task::{block_in_place, yield_now},
    time::sleep,
};

use crate::{cli::Size, metric::Metric};

/// What is measured in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// E17.
    Rest,
    /// E9, E10.
    Idle,
    /// E1, E2, E3.
    Bulk,
    /// E4.
    Many,
    /// E5.
    Echo,
    /// E6.
    Rate,
    /// E7; needs `bulk`, too.
    Beside,
    /// E8.
    Dials,
    /// E16.
    Grpc,
    /// E13, E14.
    Stalled,
    /// E11, E12.
    Agents,
}

/// Streams of E4.
const STREAMS: usize = 16;

/// Connections and exchanges a second of E6.
const CONNECTIONS: usize = 64;
const RATE: u32 = 10_000;

/// Dials at once of E8, and of whatever is opened besides.
const AT_ONCE: u32 = 32;

/// Handshakes at once of a storm.
const STORM: usize = 64;

/// One round.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) values: BTreeMap<(Metric, Pair), f64>,
    /// Before it.
    pub(crate) machine: Machine,
}

impl Round {
    pub(crate) fn get(&self, metric: Metric, pair: Pair) -> Option<f64> {
        self.values.get(&(metric, pair)).copied()
    }
}

/// What measures.
pub(crate) struct Runner<'a> {
    pub(crate) parts: &'a Parts,
    pub(crate) size: Size,
    pub(crate) pairs: &'a [Pair],
    pub(crate) measures: &'a [Measure],
    pub(crate) progress: &'a ProgressBar,
    /// Whether this is the first round.
    pub(crate) is_first: bool,
}

impl Measure {
    pub(crate) const ALL: [Self; 11] = [
        Self::Rest,
        Self::Idle,
        Self::Bulk,
        Self::Many,
        Self::Echo,
        Self::Rate,
        Self::Beside,
        Self::Dials,
        Self::Grpc,
        Self::Stalled,
        Self::Agents,
    ];

    /// Whether a pair has anything to measure there.
    pub(crate) fn is_of(self, pair: Pair) -> bool {
        match self {
            Self::Grpc | Self::Stalled => !pair.is_relay(),
            Self::Agents => matches!(pair, Pair::Upstream | Pair::Packet | Pair::Stream),
            _ => true,
        }
    }
}

impl Runner<'_> {
    pub(crate) async fn round(&self) -> Result<Round> {
        let mut round = Round {
            values: BTreeMap::new(),
            machine: block_in_place(Machine::probe)?,
        };
        let mut rigs = Vec::new();
        for &pair in self.pairs {
            rigs.push(Rig::start(self.parts, pair, Frontend::HttpUds).await?);
        }
        for &measure in self.measures {
            for rig in rigs.iter().filter(|rig| measure.is_of(rig.pair)) {
                self.progress
                    .set_message(format!("{measure:?} of {}", rig.pair.name()));
                Box::pin(self.measure(measure, rig, &mut round))
                    .await
                    .with_context(|| format!("{measure:?} of {}", rig.pair.name()))?;
                self.progress.inc(1);
            }
            if measure == Measure::Idle {
                self.after_burst(&rigs, &mut round).await?;
            }
        }
        Ok(round)
    }

    async fn measure(&self, measure: Measure, rig: &Rig, round: &mut Round) -> Result<()> {
        match measure {
            Measure::Rest => self.rest(rig, round).await,
            Measure::Idle => self.idle(rig, round).await,
            Measure::Bulk => self.bulk(rig, round).await,
            Measure::Many => self.many(rig, round).await,
            Measure::Echo => self.echo(rig, round).await,
            Measure::Rate => self.rate(rig, round).await,
            Measure::Beside => self.beside(rig, round).await,
            Measure::Dials => self.dials(rig, round).await,
            Measure::Grpc => self.grpc(rig, round).await,
            Measure::Stalled => self.stalled(rig, round).await,
            Measure::Agents => self.agents(rig, round).await,
        }
    }

    async fn rest(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        sleep(self.size.rest).await;
        let memory = rig.memory()?;
        let mut set = |metric, value| round.values.insert((metric, rig.pair), value);
        set(Metric::RestServer, mib(memory.server.rss));
        set(Metric::RestAgent, mib(memory.agent.rss));
        set(Metric::ReadyServer, ms(rig.ready.server));
        set(Metric::ReadyAgent, ms(rig.ready.agent));
        // Of a mixed pair it says nothing that the others do not.
        let binaries = match rig.pair.ends() {
            (Whose::Ours, Whose::Ours) => Some(&self.parts.ours),
            (Whose::Upstream, Whose::Upstream) => self.parts.upstream.as_ref(),
            _ => None,
        };
        if let Some(binaries) = binaries {
            let larger = stripped(&binaries.server)?.max(stripped(&binaries.agent)?);
            set(Metric::Binary, larger as f64 / 1e6);
        }
        Ok(())
    }

    /// Keeps in `round` what was held before, for [`Self::after_burst`].
    async fn idle(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        // What is needed once is there then.
        drop(dials::idle(&rig.dialer, 50, AT_ONCE as usize).await?);
        sleep(self.size.rest).await;
        let before = rig.memory()?;
        let open = dials::idle(&rig.dialer, self.size.idle, AT_ONCE as usize).await?;
        sleep(self.size.rest).await;
        let after = rig.memory()?;
        drop(open);
        let each = |before: u64, after: u64| {
            (after.saturating_sub(before) as f64 / self.size.idle as f64).max(0.01)
        };
        let mut set = |metric, value| round.values.insert((metric, rig.pair), value);
        let server = each(before.server.rss, after.server.rss);
        let agent = each(before.agent.rss, after.agent.rss);
        set(Metric::IdleServer, server);
        set(Metric::IdleAgent, agent);
        set(Metric::BurstServer, before.server.rss as f64);
        set(Metric::BurstAgent, before.agent.rss as f64);
        Ok(())
    }

    async fn after_burst(&self, rigs: &[Rig], round: &mut Round) -> Result<()> {
        self.progress.set_message("memory after the burst");
        sleep(self.size.long_rest).await;
        for rig in rigs {
            let memory = rig.memory()?;
            for (metric, now) in [
                (Metric::BurstServer, memory.server.rss),
                (Metric::BurstAgent, memory.agent.rss),
            ] {
                if let Some(value) = round.values.get_mut(&(metric, rig.pair)) {
                    *value = now as f64 / value.max(1.0);
                }
            }
        }
        Ok(())
    }

    async fn bulk(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        for (direction, cpu_metric, rate_metric) in [
            (Direction::Up, Metric::CpuUp, Metric::RateUp),
            (Direction::Down, Metric::CpuDown, Metric::RateDown),
        ] {
            let before = rig.cpu()?;
            let moved =
                bulk::repeat(&rig.dialer, direction, self.size.bulk, self.size.bulk_time).await?;
            let cpu = rig.cpu_since(before)?.seconds();
            let mut set = |metric, value| round.values.insert((metric, rig.pair), value);
            set(cpu_metric, cpu * 1024.0 / moved.mib());
            set(rate_metric, moved.rate());
        }
        Ok(())
    }

    async fn many(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        for (direction, cpu_metric, rate_metric, fair_metric) in [
            (
                Direction::Up,
                Metric::ManyCpuUp,
                Metric::ManyRateUp,
                Metric::FairUp,
            ),
            (
                Direction::Down,
                Metric::ManyCpuDown,
                Metric::ManyRateDown,
                Metric::FairDown,
            ),
        ] {
            let before = rig.cpu()?;
            let (all, each) = bulk::many(&rig.dialer, direction, STREAMS, self.size.share).await?;
            let cpu = rig.cpu_since(before)?.seconds();
            let rates: Vec<f64> = each.iter().map(|moved| moved.rate()).collect();
            let mut set = |metric, value| round.values.insert((metric, rig.pair), value);
            set(cpu_metric, cpu * 1024.0 / all.mib());
            set(rate_metric, all.rate());
            set(fair_metric, jain(&rates));
        }
        Ok(())
    }

    async fn echo(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        let times = echo::closed_loop(&rig.dialer, self.size.echo).await?;
        let mut set = |metric, value| round.values.insert((metric, rig.pair), value);
        set(Metric::EchoP50, us(times.value_at_quantile(0.5)));
        set(Metric::EchoP99, us(times.value_at_quantile(0.99)));
        Ok(())
    }

    async fn rate(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        let before = rig.cpu()?;
        let times = echo::open_loop(&rig.dialer, CONNECTIONS, RATE, self.size.rate_time).await?;
        let cpu = rig.cpu_since(before)?.seconds();
        let mut set = |metric, value| round.values.insert((metric, rig.pair), value);
        set(Metric::LoadP50, us(times.value_at_quantile(0.5)));
        set(Metric::LoadP99, us(times.value_at_quantile(0.99)));
        set(Metric::LoadP999, us(times.value_at_quantile(0.999)));
        set(Metric::LoadCpu, cpu * 1e6 / times.len().max(1) as f64);
        Ok(())
    }

    async fn beside(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        for (direction, p50, p99, share, alone) in [
            (
                Direction::Up,
                Metric::BesideUpP50,
                Metric::BesideUpP99,
                Metric::BesideUpShare,
                Metric::RateUp,
            ),
            (
                Direction::Down,
                Metric::BesideDownP50,
                Metric::BesideDownP99,
                Metric::BesideDownShare,
                Metric::RateDown,
            ),
        ] {
            let bulk = async {
                let mut moved = bulk::Moved::default();
                loop {
                    let piece = bulk::transfer(&rig.dialer, direction, self.size.bulk).await?;
                    moved.bytes += piece.bytes;
                    moved.took += piece.took;
                    if moved.took > self.size.bulk_time {
                        return anyhow::Ok(moved);
                    }
                }
            };
            let echoes = async {
                // The bulk stream goes first.
                yield_now().await;
                echo::closed_loop(
                    &rig.dialer,
                    Enough {
                        // As long as the bulk stream.
                        count: u32::MAX / 2,
                        time: self.size.bulk_time,
                        limit: self.size.echo.limit,
                    },
                )
                .await
            };
            let (moved, times) = tokio::try_join!(bulk, echoes)?;
            let alone = round.get(alone, rig.pair);
            let mut set = |metric, value| round.values.insert((metric, rig.pair), value);
            set(p50, us(times.value_at_quantile(0.5)));
            set(p99, us(times.value_at_quantile(0.99)));
            if let Some(alone) = alone {
                set(share, moved.rate() / alone);
            }
        }
        Ok(())
    }

    async fn dials(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        let before = rig.cpu()?;
        let (took, times) = dials::run(&rig.dialer, self.size.dials, AT_ONCE).await?;
        let cpu = rig.cpu_since(before)?.seconds();
        let count = f64::from(self.size.dials);
        let mut set = |metric, value| round.values.insert((metric, rig.pair), value);
        set(Metric::DialRate, count / took.as_secs_f64());
        set(Metric::DialP99, us(times.value_at_quantile(0.99)));
        set(Metric::DialCpu, cpu * 1e6 / count);
        Ok(())
    }

    async fn grpc(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        let rig = Rig::start(self.parts, rig.pair, Frontend::GrpcUds).await?;
        for (direction, metric) in [
            (Direction::Up, Metric::GrpcCpuUp),
            (Direction::Down, Metric::GrpcCpuDown),
        ] {
            let before = rig.cpu()?;
            let moved = bulk::repeat(
                &rig.dialer,
                direction,
                self.size.bulk / 4,
                self.size.bulk_time / 2,
            )
            .await?;
            let cpu = rig.cpu_since(before)?.server.as_secs_f64();
            round
                .values
                .insert((metric, rig.pair), cpu * 1024.0 / moved.mib());
        }
        Ok(())
    }

    /// Each number on processes of its own: stalled readers that have been cut, or a tunnel that has died, would help or hurt the next.
    async fn stalled(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        let pair = rig.pair;
        for &count in self.size.stalled {
            // Once one stops everything, a thousand need not be tried.
            let before = match count {
                1 => None,
                _ => round.get(Metric::Stalled1P99, pair),
            };
            if before.is_some_and(|p99| p99 >= ms(self.size.echo.limit)) {
                continue;
            }
            let rig = Rig::start(self.parts, pair, Frontend::HttpUds).await?;
            let without = echo::closed_loop(&rig.dialer, self.size.echo).await?;
            let memory = rig.memory()?;
            let stalled = stall::open(&rig.dialer, &self.parts.target, count).await?;
            let mut enough = self.size.echo;
            if count == 1 && self.is_first {
                enough.count = u32::MAX / 2;
                enough.time = self.size.hold;
            }
            let with = echo::closed_loop(&rig.dialer, enough).await?;
            let grown = rig.memory()?;
            drop(stalled);
            let mut set = |metric, value| round.values.insert((metric, pair), value);
            let quantile = with.value_at_quantile(0.99);
            let by = quantile as f64 / without.value_at_quantile(0.99).max(1) as f64;
            if let Some(metric) = Metric::stalled(count) {
                set(metric, by);
            }
            if count == 1 {
                set(Metric::Stalled1P99, us(quantile) / 1_000.0);
            }
            let more = |before: u64, after: u64| mib(after.saturating_sub(before));
            set(
                Metric::StalledServer,
                more(memory.server.rss, grown.server.rss),
            );
            set(
                Metric::StalledAgent,
                more(memory.agent.rss, grown.agent.rss),
            );
        }
        Ok(())
    }

    async fn agents(&self, rig: &Rig, round: &mut Round) -> Result<()> {
        let pair = rig.pair;
        let wire = match pair {
            Pair::Stream => Wire::Stream,
            _ => Wire::Packet,
        };
        let server = Rig::server_alone(self.parts, pair).await?;
        sleep(self.size.rest).await;
        let count = self.size.agents;
        let before = server.memory()?.server;
        let agents = Agents::new(server.agents, &self.parts.pki, wire, count)?;
        agents.connect(Handshake::Full, STORM).await?;
        sleep(self.size.rest).await;
        let held = server.memory()?.server;
        let each = held.rss.saturating_sub(before.rss) as f64 / count as f64;
        round.values.insert((Metric::AgentMemory, pair), each);
        for (handshake, cpu_metric, time_metric) in [
            (Handshake::Full, Metric::StormFullCpu, Metric::StormFullTime),
            (
                Handshake::Resumed,
                Metric::StormResumedCpu,
                Metric::StormResumedTime,
            ),
        ] {
            agents.drop_all().await?;
            sleep(self.size.rest).await;
            let before = server.cpu()?;
            let took = agents.connect(handshake, STORM).await?;
            let Both { server: cpu, .. } = server.cpu_since(before)?;
            let mut set = |metric, value| round.values.insert((metric, pair), value);
            set(cpu_metric, cpu.as_secs_f64() * 1e6 / count as f64);
            set(time_metric, ms(took));
        }
        Ok(())
    }
}

fn us(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1_000.0
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// Bytes of a binary without symbols: ours has some, for profiles.
fn stripped(file: &Path) -> Result<u64> {
    block_in_place(|| {
        let folder = tempfile::tempdir()?;
        let copy = folder.path().join("stripped");
        let status = Command::new("strip")
            .arg("-o")
            .arg(&copy)
            .arg(file)
            .status()
            .context("run strip, of binutils")?;
        ensure!(status.success(), "strip {}: {status}", file.display());
        Ok(fs::metadata(&copy)?.len())
    })
}
