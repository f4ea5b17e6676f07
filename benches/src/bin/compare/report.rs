//! Tables, JSON, chart.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use benches::{
    chart::{self, Bar},
    figure::{least, median},
    pair::Pair,
    table::Table,
};
use e2e::{say, say_line};
use serde_json::{Value, json};

use crate::{
    cli::Cli,
    measure::Round,
    metric::{Goal, Metric, Spec},
    rounds::{Outcome, control},
};

/// A goal and what became of it.
#[derive(Debug)]
struct Verdict {
    pair: Pair,
    against: String,
    goal: String,
    /// Median of the rounds, and the worst.
    median: f64,
    worst: f64,
    is_reached: bool,
    /// How far it has come: 1 is there.
    way: f64,
}

/// Prints, and writes the files that were asked for.
pub(crate) fn write(cli: &Cli, pairs: &[Pair], outcome: &Outcome) -> Result<()> {
    let rounds = outcome.rounds();
    print_machine(rounds);
    let is_disturbed = matches!(outcome, Outcome::Disturbed(_));
    if is_disturbed {
        say!(
            "The control, CPU of the bare relay, moved more than 20 % in too many rounds: the machine is busy, and there is no report."
        );
        if !cli.disturbed {
            return Ok(());
        }
        say!("Here is one nevertheless, as --disturbed asks for. Do not quote it.");
    }
    print(&values(pairs, rounds));
    print(&goals(rounds));
    if let Some(file) = &cli.json {
        let value = document(pairs, rounds, is_disturbed);
        let text = serde_json::to_string_pretty(&value)? + "\n";
        fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    if let Some(file) = &cli.svg {
        draw(file, rounds)?;
    }
    Ok(())
}

fn print_machine(rounds: &[Round]) {
    for (number, round) in (1..).zip(rounds) {
        let machine = round.machine;
        let control = control(round).map_or_else(
            || "no control".to_owned(),
            |control| format!("control {control:.3} CPU-s/GiB"),
        );
        say!(
            "round {number}: {control}; copy {:.1} GB/s, loopback {:.2} us, load {:.2}",
            machine.copy,
            machine.loopback,
            machine.load
        );
    }
}

fn print(table: &Table) {
    say!("");
    for line in table.to_string().lines() {
        say_line(line);
    }
}

/// Medians of all pairs.
fn values(pairs: &[Pair], rounds: &[Round]) -> Table {
    let heads = ["row", "median of the rounds"]
        .into_iter()
        .chain(pairs.iter().map(|pair| pair.name()));
    let mut table = Table::with(heads.map(str::to_owned).collect());
    for metric in Metric::ALL {
        let spec = metric.spec();
        let cells: Vec<Option<f64>> = pairs
            .iter()
            .map(|pair| middle(rounds.iter().filter_map(|round| round.get(metric, *pair))))
            .collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        let cells = cells
            .into_iter()
            .map(|cell| cell.map_or_else(String::new, number));
        let row = [spec.row.to_owned(), spec.what.to_owned()];
        table.push(row.into_iter().chain(cells).collect());
    }
    table
}

fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| median(values))
}

/// Three digits that say something.
fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}

fn goals(rounds: &[Round]) -> Table {
    let mut table = Table::new([
        "row", "what", "pair", "against", "goal", "median", "worst", "",
    ]);
    for metric in Metric::ALL {
        let spec = metric.spec();
        for verdict in verdicts(metric, &spec, rounds) {
            table.row([
                spec.row.to_owned(),
                spec.what.to_owned(),
                verdict.pair.name().to_owned(),
                verdict.against,
                verdict.goal,
                number(verdict.median),
                number(verdict.worst),
                if verdict.is_reached {
                    "reached"
                } else {
                    "missed"
                }
                .to_owned(),
            ]);
        }
    }
    table
}

fn verdicts(metric: Metric, spec: &Spec, rounds: &[Round]) -> Vec<Verdict> {
    let mut all = Vec::new();
    for &goal in &spec.goals {
        match goal {
            Goal::Upstream(times) => {
                for pair in [Pair::Stream, Pair::Packet] {
                    all.extend(against(metric, spec, rounds, pair, Pair::Upstream, times));
                }
            }
            Goal::Mixed(times) => {
                for pair in [Pair::OursUpstream, Pair::UpstreamOurs] {
                    all.extend(against(metric, spec, rounds, pair, Pair::Upstream, times));
                }
            }
            Goal::Bare(pair, times) => {
                all.extend(against(metric, spec, rounds, pair, Pair::Bare, times));
            }
            Goal::AtMost(pair, most) => {
                // The greatest is the worst.
                let values = of(metric, pair, rounds);
                all.extend(alone(&values, -1.0).map(|(median, worst)| Verdict {
                    pair,
                    against: String::new(),
                    goal: format!("<= {}", number(most)),
                    median,
                    worst,
                    is_reached: median <= most,
                    way: most / median.max(f64::MIN_POSITIVE),
                }));
            }
            Goal::AtLeast(pair, least) => {
                let values = of(metric, pair, rounds);
                all.extend(alone(&values, 1.0).map(|(median, worst)| Verdict {
                    pair,
                    against: String::new(),
                    goal: format!(">= {}", number(least)),
                    median,
                    worst,
                    is_reached: median >= least,
                    way: median / least,
                }));
            }
        }
    }
    all
}

fn of(metric: Metric, pair: Pair, rounds: &[Round]) -> Vec<f64> {
    rounds
        .iter()
        .filter_map(|round| round.get(metric, pair))
        .collect()
}

/// Median and worst, where `sign` makes less the worse.
fn alone(values: &[f64], sign: f64) -> Option<(f64, f64)> {
    let worst = sign * least(values.iter().map(|value| sign * value));
    middle(values.iter().copied()).map(|median| (median, worst))
}

/// None if one of both was not measured.
fn against(
    metric: Metric,
    spec: &Spec,
    rounds: &[Round],
    pair: Pair,
    other: Pair,
    goal: f64,
) -> Option<Verdict> {
    let gains: Vec<f64> = rounds
        .iter()
        .filter_map(|round| Some(spec.gain(round.get(metric, pair)?, round.get(metric, other)?)))
        .collect();
    let (median, worst) = alone(&gains, 1.0)?;
    Some(Verdict {
        pair,
        against: other.name().to_owned(),
        goal: format!("{}x", number(goal)),
        median,
        worst,
        is_reached: median >= goal,
        way: median / goal,
    })
}

fn draw(file: &Path, rounds: &[Round]) -> Result<()> {
    let mut bars = Vec::new();
    for metric in Metric::ALL {
        let spec = metric.spec();
        for verdict in verdicts(metric, &spec, rounds) {
            if verdict.against == Pair::Upstream.name() {
                bars.push(Bar {
                    name: format!("{} {}: {}", spec.row, spec.what, verdict.pair.name()),
                    value: verdict.median,
                    goal: verdict.median / verdict.way,
                });
            }
        }
    }
    chart::bars(
        file,
        "Times better than upstream's pair; marks are goals",
        &bars,
    )
}

fn document(pairs: &[Pair], rounds: &[Round], is_disturbed: bool) -> Value {
    let rounds: Vec<Value> = rounds
        .iter()
        .map(|round| {
            let mut rows: BTreeMap<String, BTreeMap<&str, f64>> = BTreeMap::new();
            for ((metric, pair), value) in &round.values {
                let spec = metric.spec();
                rows.entry(format!("{} {}", spec.row, spec.what))
                    .or_default()
                    .insert(pair.name(), *value);
            }
            json!({ "machine": round.machine, "rows": rows })
        })
        .collect();
    let names: Vec<&str> = pairs.iter().map(|pair| pair.name()).collect();
    json!({ "disturbed": is_disturbed, "pairs": names, "rounds": rounds })
}
