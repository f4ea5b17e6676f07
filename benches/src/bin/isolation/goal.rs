//! What was to be reached, and whether it was.

use crate::{
    cli::Kind,
    row::{Of, Row},
};

/// Others' p99 may grow by so much with up to [`FEW`] stalled connections on a stream tunnel.
const MAX_RATIO_OF_FEW: f64 = 1.2;

const FEW: usize = 100;

/// And with more.
const MAX_RATIO_OF_MANY: f64 = 2.0;

/// Largest ratio of p99; none where it is shown and not judged.
fn max_ratio(kind: Kind, stalled: usize) -> Option<f64> {
    match (kind, stalled) {
        (Kind::Packet, _) | (_, 0) => None,
        (Kind::Stream, 1..=FEW) => Some(MAX_RATIO_OF_FEW),
        (Kind::Stream, _) => Some(MAX_RATIO_OF_MANY),
    }
}

/// The goals that a row missed. `budget` is the processes' `--memory-budget` in bytes.
pub(crate) fn missed(row: &Row, budget: u64) -> Vec<String> {
    let mut missed = Vec::new();
    if row.stuck > 0 {
        missed.push(format!("others stood still {} times", row.stuck));
    }
    if let Some(most) = max_ratio(row.kind, row.stalled) {
        for (name, of) in [("echo", Of::Echo), ("dial", Of::Dial)] {
            let ratio = row.ratio(of, 0.99);
            if ratio > most {
                missed.push(format!("{name} p99 x{ratio:.2} > {most}"));
            }
        }
    }
    if let Some((before, with)) = row.memory() {
        for ((name, before), (_, with)) in before.each().into_iter().zip(with.each()) {
            let grown = with.private.saturating_sub(before.private);
            if grown > budget / 1024 {
                let (grown, budget) = (grown / 1024, budget / 1024 / 1024);
                missed.push(format!("{name} +{grown} MiB > {budget}"));
            }
        }
    }
    if row.alive < row.stalled {
        missed.push(format!("{} were cut", row.stalled - row.alive));
    } else if row.delivered.whole < row.stalled || row.delivered.read != row.delivered.pushed {
        missed.push("not all was delivered".to_owned());
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stalled_connections_of_a_stream_tunnel_are_judged_by_time() {
        assert_eq!(max_ratio(Kind::Packet, 100), None);
        assert_eq!(max_ratio(Kind::Stream, 0), None);
        assert_eq!(max_ratio(Kind::Stream, 100), Some(1.2));
        assert_eq!(max_ratio(Kind::Stream, 2_000), Some(2.0));
    }
}
