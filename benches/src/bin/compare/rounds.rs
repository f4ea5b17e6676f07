//! Rounds, and which of them count.

use anyhow::Result;
use benches::{figure::median, pair::Pair, rig::Parts};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    cli::Cli,
    measure::{Round, Runner},
    metric::Metric,
};

/// How far the control may be from its median: what it costs the bare relay to carry a byte is the same in every round, unless somebody
/// else uses the machine.
const STEADY: f64 = 0.2;

/// What came out.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// As many steady rounds as were asked for.
    Steady(Vec<Round>),
    /// All rounds; too few of them were steady.
    Disturbed(Vec<Round>),
}

impl Outcome {
    pub(crate) fn rounds(&self) -> &[Round] {
        match self {
            Self::Steady(rounds) | Self::Disturbed(rounds) => rounds,
        }
    }
}

/// Measures rounds until enough are steady, at most twice as many as were asked for.
pub(crate) async fn measure(cli: &Cli, parts: &Parts, pairs: &[Pair]) -> Result<Outcome> {
    let wanted = cli.rounds();
    let measures = cli.measures();
    let steps: usize = measures
        .iter()
        .map(|measure| pairs.iter().filter(|pair| measure.is_of(**pair)).count())
        .sum();
    let progress = ProgressBar::new((steps * wanted) as u64);
    progress.set_style(ProgressStyle::with_template(
        "{elapsed_precise} [{bar:30}] {pos}/{len}, about {eta} left: {msg}",
    )?);
    let mut rounds = Vec::new();
    loop {
        let runner = Runner {
            parts,
            size: cli.size(),
            pairs,
            measures: &measures,
            progress: &progress,
            is_first: rounds.is_empty(),
        };
        rounds.push(Box::pin(runner.round()).await?);
        let steady = steady(&rounds.iter().map(control).collect::<Vec<_>>());
        let count = steady.iter().filter(|is_steady| **is_steady).count();
        if count >= wanted {
            progress.finish_and_clear();
            let kept = rounds.into_iter().zip(steady);
            let kept = kept.filter_map(|(round, is_steady)| is_steady.then_some(round));
            return Ok(Outcome::Steady(kept.collect()));
        }
        if rounds.len() >= 2 * wanted {
            progress.finish_and_clear();
            return Ok(Outcome::Disturbed(rounds));
        }
        if rounds.len() >= wanted {
            progress.inc_length(steps as u64);
        }
    }
}

/// None if the bare relay is not measured: then nothing is known, and every round counts.
pub(crate) fn control(round: &Round) -> Option<f64> {
    round.get(Metric::CpuUp, Pair::Bare)
}

fn steady(controls: &[Option<f64>]) -> Vec<bool> {
    let middle = median(controls.iter().flatten().copied());
    controls
        .iter()
        .map(|control| control.is_none_or(|control| (control / middle - 1.0).abs() <= STEADY))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_in_which_the_control_moved_does_not_count() {
        let controls = [Some(1.0), Some(1.1), Some(1.5), Some(0.95)];
        assert_eq!(steady(&controls), [true, true, false, true]);
        assert_eq!(steady(&[None, None]), [true, true]);
    }
}
