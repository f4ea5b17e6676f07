//! `benches/soak`: mixed load on one pair for a long time, and whether it holds more at the end than after a while: memory, descriptors,
//! threads. Dials, transfers both ways, idle connections, readers that stall, resets, all at once.
//!
//! | module | job |
//! |---|---|
//! | [`work`] | the load |
//! | [`watch`] | samples, and whether they are flat |

mod watch;
mod work;

use std::{fs, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use benches::{
    chart::{self, Series},
    load::target::Worker,
    pair::{Pair, Whose},
    rig::{Parts, Rig},
    upstream,
};
use clap::Parser;
use e2e::{
    client::Frontend,
    harness::{Pki, binaries},
    say,
};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::{
    watch::{Sample, Verdict},
    work::Work,
};

/// Between two samples.
const PERIOD: Duration = Duration::from_secs(2);

/// After the load: longer than an allocator keeps what is free.
const REST: Duration = Duration::from_secs(15);

/// Mixed load for a long time.
#[derive(Debug, Parser)]
#[command(name = "soak", version)]
struct Cli {
    /// For how long.
    #[arg(long, default_value_t = 30)]
    minutes: u64,
    /// On whom.
    #[arg(long, default_value = "stream")]
    pair: Pair,
    /// Folder with upstream's `server` and `agent`. Those that interop/run has built unless set.
    #[arg(long, value_name = "DIR")]
    upstream_dir: Option<PathBuf>,
    /// Also writes all samples to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draws them to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all was flat.
fn run(cli: &Cli) -> Result<bool> {
    rlimit::increase_nofile_limit(u64::MAX).context("raise the limit of open files")?;
    say!("building proxy-server and proxy-agent, unless they are up to date");
    let parts = Parts {
        ours: binaries()?.clone(),
        upstream: match cli.pair.has(Whose::Upstream) {
            true => upstream::find(cli.upstream_dir.as_deref())?,
            false => None,
        },
        pki: Arc::new(Pki::generate()?),
        target: Worker::start()?,
        distance: None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let samples = runtime.block_on(soak(cli, &parts))?;
    runtime.shutdown_background();
    if let Some(file) = &cli.json {
        let text = serde_json::to_string_pretty(&samples)? + "\n";
        fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
    }
    if let Some(file) = &cli.svg {
        draw(file, cli, &samples)?;
    }
    let verdicts = watch::judge(&samples);
    for verdict in &verdicts {
        say!("{verdict}");
    }
    Ok(verdicts.iter().all(Verdict::is_flat))
}

async fn soak(cli: &Cli, parts: &Parts) -> Result<Vec<Sample>> {
    let rig = Rig::start(parts, cli.pair, Frontend::HttpUds).await?;
    let length = Duration::from_secs(60 * cli.minutes);
    let progress = ProgressBar::new(length.as_secs());
    progress.set_style(ProgressStyle::with_template(
        "{elapsed_precise} [{bar:30}] {msg}",
    )?);
    let start = Instant::now();
    let work = Work::start(&rig.dialer);
    let mut samples = Vec::new();
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while start.elapsed() < length {
        tick.tick().await;
        let sample = Sample::take(&rig, start.elapsed())?;
        progress.set_position(start.elapsed().as_secs());
        progress.set_message(format!("{sample}; {work}"));
        samples.push(sample);
        work.check()?;
    }
    progress.finish_and_clear();
    say!("{work}");
    work.stop().await;
    sleep(REST).await;
    let mut last = Sample::take(&rig, start.elapsed())?;
    last.is_rest = true;
    samples.push(last);
    Ok(samples)
}

fn draw(file: &std::path::Path, cli: &Cli, samples: &[Sample]) -> Result<()> {
    let line = |name: &str, of: fn(&Sample) -> f64| Series {
        name: name.to_owned(),
        points: samples
            .iter()
            .map(|sample| (sample.seconds / 60.0, of(sample)))
            .collect(),
    };
    chart::lines(
        file,
        &format!(
            "Mixed load on {}, for {} minutes",
            cli.pair.name(),
            cli.minutes
        ),
        "minutes",
        "MiB; tens of descriptors; threads",
        &[
            line("server RSS, MiB", |sample| sample.server.rss),
            line("agent RSS, MiB", |sample| sample.agent.rss),
            line("server descriptors / 10", |sample| {
                sample.server.files / 10.0
            }),
            line("agent descriptors / 10", |sample| sample.agent.files / 10.0),
            line("server threads", |sample| sample.server.threads),
            line("agent threads", |sample| sample.agent.threads),
        ],
    )
}
