//! Samples, and whether they are flat.

use std::{fmt, time::Duration};

use anyhow::Result;
use benches::{figure::median, rig::Rig};
use serde::Serialize;

/// How much more the last quarter may hold than the second one.
const GROWTH: f64 = 0.10;

/// Too little to be a leak in half an hour that must be found: MiB, descriptors, threads.
const NOISE: f64 = 2.0;

/// What one process holds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Held {
    /// MiB.
    pub(crate) rss: f64,
    pub(crate) files: f64,
    pub(crate) threads: f64,
}

/// One look.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) seconds: f64,
    pub(crate) server: Held,
    pub(crate) agent: Held,
    /// Taken after the load.
    pub(crate) is_rest: bool,
}

impl Sample {
    pub(crate) fn take(rig: &Rig, at: Duration) -> Result<Self> {
        let (memory, files, threads) = (rig.memory()?, rig.files()?, rig.threads()?);
        Ok(Self {
            seconds: at.as_secs_f64(),
            server: Held {
                rss: memory.server.rss as f64 / 1024.0,
                files: files.server as f64,
                threads: threads.server as f64,
            },
            agent: Held {
                rss: memory.agent.rss as f64 / 1024.0,
                files: files.agent as f64,
                threads: threads.agent as f64,
            },
            is_rest: false,
        })
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "server {:.1} MiB, {} files; agent {:.1} MiB, {} files",
            self.server.rss, self.server.files, self.agent.rss, self.agent.files
        )
    }
}

/// What became of one thing.
#[derive(Debug)]
pub(crate) struct Verdict {
    name: &'static str,
    early: f64,
    late: f64,
    rest: f64,
}

impl Verdict {
    pub(crate) fn is_flat(&self) -> bool {
        self.late - self.early <= (GROWTH * self.early).max(NOISE)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_flat() { "flat" } else { "GROWS" };
        write!(
            f,
            "{}: {:.1} in the second quarter, {:.1} in the last, {:.1} after the load: {verdict}",
            self.name, self.early, self.late, self.rest
        )
    }
}

/// What is looked at.
type Value = fn(&Sample) -> f64;

/// Medians of the second and of the last quarter of the load, of everything. In the first, buffers find their size.
pub(crate) fn judge(samples: &[Sample]) -> Vec<Verdict> {
    let of: [(&'static str, Value); 6] = [
        ("server RSS, MiB", |sample| sample.server.rss),
        ("agent RSS, MiB", |sample| sample.agent.rss),
        ("server descriptors", |sample| sample.server.files),
        ("agent descriptors", |sample| sample.agent.files),
        ("server threads", |sample| sample.server.threads),
        ("agent threads", |sample| sample.agent.threads),
    ];
    let load: Vec<&Sample> = samples.iter().filter(|sample| !sample.is_rest).collect();
    let quarter = load.len() / 4;
    let middle = |range: std::ops::Range<usize>, value: Value| {
        let part = load.get(range).unwrap_or_default();
        median(part.iter().map(|sample| value(sample)))
    };
    of.into_iter()
        .map(|(name, value)| Verdict {
            name,
            early: middle(quarter..2 * quarter, value),
            late: middle(load.len() - quarter..load.len(), value),
            rest: samples
                .iter()
                .rfind(|sample| sample.is_rest)
                .map_or(f64::NAN, value),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(rss: impl Fn(f64) -> f64) -> Vec<Sample> {
        (0..100)
            .map(|number| {
                let held = Held {
                    rss: rss(f64::from(number)),
                    files: 40.0,
                    threads: 4.0,
                };
                Sample {
                    seconds: f64::from(number),
                    server: held,
                    agent: held,
                    is_rest: false,
                }
            })
            .collect()
    }

    #[test]
    fn what_grows_all_the_time_is_found_and_what_jumps_about_is_not() {
        let flat = judge(&samples(|at| 30.0 + at % 7.0));
        assert!(flat.iter().all(Verdict::is_flat));
        let leak = judge(&samples(|at| 30.0 + at / 5.0));
        assert_eq!(leak.iter().filter(|verdict| !verdict.is_flat()).count(), 2);
        // At first everything grows.
        assert!(
            judge(&samples(|at| at.min(20.0)))
                .iter()
                .all(Verdict::is_flat)
        );
    }
}
