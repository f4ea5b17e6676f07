//! Flags.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use benches::{
    load::echo::Enough,
    pair::{Pair, Whose},
    relay::Relay,
};
use clap::{Parser, Subcommand};

use crate::measure::Measure;

/// What a byte, an exchange, a dial, a connection and an agent cost, of our pairs, of upstream's, and of bare relays.
#[derive(Debug, Parser)]
#[command(name = "compare", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Fewer and shorter: three rounds, less of everything.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Rounds, each of everything. 5 unless set, 3 with --quick.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// What to measure; all unless set.
    #[arg(long, value_delimiter = ',')]
    measures: Vec<Measure>,
    /// Pairs to measure; all unless set.
    #[arg(long, value_delimiter = ',')]
    pairs: Vec<Pair>,
    /// Leaves out the pairs with an end of upstream's if its binaries are not there, instead of ending with an error.
    #[arg(long)]
    without_upstream: bool,
    /// Folder with upstream's `server` and `agent`. Those that interop/run has built unless set.
    #[arg(long, value_name = "DIR")]
    pub(crate) upstream_dir: Option<PathBuf>,
    /// Milliseconds that every byte takes from server to agent, and back, through a relay of this program. Loopback hides what windows
    /// do; this shows it.
    #[arg(long, value_name = "MS")]
    delay: Option<u64>,
    /// Also writes everything that was measured to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Also draws the ratios to upstream's to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Reports although the control moved, and says so: to try the tool, not to quote.
    #[arg(long)]
    pub(crate) disturbed: bool,
}

/// What this program is besides, as a child of its own.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// One end of a relay.
    #[command(subcommand, hide = true)]
    Relay(Relay),
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Bytes of a transfer of one stream; repeated until `bulk_time` is over.
    pub(crate) bulk: u64,
    pub(crate) bulk_time: Duration,
    /// Bytes of each of 16 streams.
    pub(crate) share: u64,
    pub(crate) echo: Enough,
    /// How long exchanges come at a fixed rate.
    pub(crate) rate_time: Duration,
    pub(crate) dials: u32,
    pub(crate) idle: usize,
    /// Before memory is looked at.
    pub(crate) rest: Duration,
    /// The same after a burst.
    pub(crate) long_rest: Duration,
    /// Numbers of stalled readers.
    pub(crate) stalled: &'static [usize],
    /// How long exchanges go on beside one stalled reader, in the first round.
    pub(crate) hold: Duration,
    pub(crate) agents: usize,
}

const MIB: u64 = 1024 * 1024;

/// Who waits so long stands still.
const LIMIT: Duration = Duration::from_secs(10);

impl Cli {
    pub(crate) fn rounds(&self) -> usize {
        let default = if self.quick { 3 } else { 5 };
        self.rounds.unwrap_or(default) as usize
    }

    pub(crate) fn distance(&self) -> Option<Duration> {
        self.delay.map(Duration::from_millis)
    }

    pub(crate) fn measures(&self) -> Vec<Measure> {
        if self.measures.is_empty() {
            Measure::ALL.to_vec()
        } else {
            self.measures.clone()
        }
    }

    /// Whom to measure.
    pub(crate) fn pairs(&self, has_upstream: bool) -> Result<Vec<Pair>> {
        let asked = if self.pairs.is_empty() {
            Pair::ALL.to_vec()
        } else {
            self.pairs.clone()
        };
        ensure!(
            has_upstream
                || self.without_upstream
                || !asked.iter().any(|pair| pair.has(Whose::Upstream)),
            "upstream's binaries are not there: interop/run --cases none builds them, or leave them out by --without-upstream"
        );
        Ok(asked
            .into_iter()
            .filter(|pair| has_upstream || !pair.has(Whose::Upstream))
            .collect())
    }

    pub(crate) fn size(&self) -> Size {
        if self.quick {
            Size {
                bulk: 64 * MIB,
                bulk_time: Duration::from_millis(400),
                share: 6 * MIB,
                echo: Enough {
                    count: 2_000,
                    time: Duration::from_secs(1),
                    limit: Duration::from_secs(2),
                },
                rate_time: Duration::from_secs(1),
                dials: 640,
                idle: 400,
                rest: Duration::from_millis(500),
                long_rest: Duration::from_secs(11),
                stalled: &[1, 70],
                hold: Duration::from_secs(5),
                agents: 100,
            }
        } else {
            Size {
                bulk: 1_024 * MIB,
                bulk_time: Duration::from_secs(4),
                share: 64 * MIB,
                echo: Enough {
                    count: 20_000,
                    time: Duration::from_secs(6),
                    limit: LIMIT,
                },
                rate_time: Duration::from_secs(5),
                dials: 6_000,
                idle: 5_000,
                rest: Duration::from_secs(5),
                long_rest: Duration::from_secs(60),
                stalled: &[1, 70, 300, 2_000],
                hold: Duration::from_secs(60),
                agents: 1_000,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_with_upstream_are_left_out_only_if_asked_to() {
        let cli = Cli::parse_from(["compare"]);
        assert_eq!(cli.pairs(true).unwrap(), Pair::ALL);
        cli.pairs(false).unwrap_err();
        let cli = Cli::parse_from(["compare", "--without-upstream"]);
        let ours = [Pair::Packet, Pair::Stream, Pair::Bare, Pair::Plain];
        assert_eq!(cli.pairs(false).unwrap(), ours);
        let cli = Cli::parse_from(["compare", "--pairs=stream,bare", "--quick"]);
        assert_eq!(cli.pairs(false).unwrap(), [Pair::Stream, Pair::Bare]);
        assert_eq!(cli.rounds(), 3);
    }
}
