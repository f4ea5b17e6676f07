//! Flags.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};

/// `tunnel::ledger::DEFAULT_BUDGET`, whatever the limit of the cgroup is: the verdict needs a number.
pub(crate) const BUDGET: u64 = 64 * 1024 * 1024;

/// What connections that nobody reads cost all others of the same tunnel.
#[derive(Debug, Parser)]
#[command(name = "isolation", version)]
pub(crate) struct Cli {
    /// Fewer and shorter: 0, 1 and 100 stalled connections, 2 s each.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Memory of idle connections, stalled connections and agents instead of times.
    #[arg(long)]
    pub(crate) idle: bool,
    /// Also writes everything that was measured to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Kinds of tunnel.
    #[arg(long, value_delimiter = ',', default_values = ["packet", "stream"])]
    pub(crate) kinds: Vec<Kind>,
    /// Who does not read: the target (up) or the client (down).
    #[arg(long, value_delimiter = ',', default_values = ["up", "down"])]
    pub(crate) directions: Vec<Direction>,
    /// Numbers of stalled connections; 0 shows how far two measurements of the same differ. 0,1,100,2000 unless set.
    #[arg(long, value_delimiter = ',')]
    pub(crate) stalled: Vec<usize>,
    /// Rounds of a row, each of a measurement without and one with stalled connections.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Seconds that are measured each time, behind one of warm-up. 5 unless set.
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// `--memory-budget` of both processes, in bytes.
    #[arg(long, default_value_t = BUDGET)]
    pub(crate) memory_budget: u64,
}

impl Cli {
    pub(crate) fn stalled(&self) -> Vec<usize> {
        match (self.stalled.as_slice(), self.quick) {
            ([], true) => vec![0, 1, 100],
            ([], false) => vec![0, 1, 100, 2_000],
            (set, _) => set.to_vec(),
        }
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs(self.seconds.unwrap_or(if self.quick { 2 } else { 5 }))
    }
}

/// What carries connections between server and agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Packet,
    Stream,
}

impl Kind {
    /// As `--tunnel-protocol` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Stream => "stream",
        }
    }
}

/// Which way the bytes go that nobody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    /// From the client; the target does not read.
    Up,
    /// From the target; the client does not read.
    Down,
}

impl Direction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_at_commas_and_what_is_set_wins_over_quick() {
        let cli = Cli::parse_from([
            "isolation",
            "--quick",
            "--kinds=stream",
            "--stalled",
            "0,300",
        ]);
        assert_eq!(cli.kinds, [Kind::Stream]);
        assert_eq!(cli.stalled(), [0, 300]);
        assert_eq!(cli.directions, [Direction::Up, Direction::Down]);
        let cli = Cli::parse_from(["isolation", "--quick"]);
        assert_eq!(cli.stalled(), [0, 1, 100]);
        assert_eq!(cli.time(), Duration::from_secs(2));
    }
}
