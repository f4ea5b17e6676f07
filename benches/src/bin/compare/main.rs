//! `benches/compare`: what a byte, an exchange, a dial, a connection and an agent cost, of our pairs, of upstream's, and of bare relays,
//! side by side on this machine; rows E1 to E17 of the goals.
//!
//! Real processes with the same flags, HTTP CONNECT over a Unix socket, mTLS between server and agent, logging and metrics as they are
//! by default. This process plays kube-apiserver and the targets. Every round measures everything of every pair, one behind the
//! other; what is reported are medians of the rounds' ratios, as nothing else holds on a machine that does other things, too.
//!
//! | module | job |
//! |---|---|
//! | [`cli`] | flags, and how much of everything |
//! | [`metric`] | what is measured, and what was to be reached |
//! | [`measure`] | a round |
//! | [`rounds`] | rounds, those apart in which the machine was busy |
//! | [`report`] | tables, JSON, chart |
//! | `rig`, `load`, `relay` of the library | processes, load, the yardstick |

mod cli;
mod measure;
mod metric;
mod report;
mod rounds;

use std::{process::ExitCode, sync::Arc};

use anyhow::{Context, Result, bail};
use benches::{load::target::Worker, rig::Parts, upstream};
use clap::Parser;
use e2e::{
    harness::{Pki, binaries},
    say,
};
use tikv_jemallocator::Jemalloc;
use tokio::signal::ctrl_c;

use crate::{
    cli::{Cli, Command},
    rounds::Outcome,
};

/// As in our binaries: relays are this program.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The machine was too busy for a report.
const DISTURBED: u8 = 3;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Some(Command::Relay(relay)) => relay.run().map(|()| ExitCode::SUCCESS),
        None => run(&cli),
    };
    result.unwrap_or_else(|error| {
        say!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(cli: &Cli) -> Result<ExitCode> {
    // Two descriptors here for each connection: the client's end and the target's.
    rlimit::increase_nofile_limit(u64::MAX).context("raise the limit of open files")?;
    say!("building proxy-server and proxy-agent, unless they are up to date");
    let parts = Parts {
        ours: binaries()?.clone(),
        upstream: upstream::find(cli.upstream_dir.as_deref())?,
        pki: Arc::new(Pki::generate()?),
        target: Worker::start()?,
        distance: cli.distance(),
    };
    let pairs = cli.pairs(parts.upstream.is_some())?;
    // One worker, so that what is measured has the other core of a small machine.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(async {
        tokio::select! {
            // Dropping what runs ends its processes.
            interrupt = ctrl_c() => {
                interrupt.context("watch for Ctrl-C")?;
                bail!("stopped before the end")
            }
            outcome = rounds::measure(cli, &parts, &pairs) => outcome,
        }
    });
    runtime.shutdown_background();
    let outcome = result?;
    report::write(cli, &pairs, &outcome)?;
    if matches!(outcome, Outcome::Disturbed(_)) && !cli.disturbed {
        return Ok(ExitCode::from(DISTURBED));
    }
    Ok(ExitCode::SUCCESS)
}
