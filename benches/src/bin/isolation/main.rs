//! `cargo run --release -p benches --bin isolation`: what connections that nobody reads cost all others of the same tunnel, in time
//! and in memory.
//!
//! Real `proxy-server` and `proxy-agent` processes of the same profile, HTTP CONNECT over a Unix socket, mTLS between them. This
//! process plays kube-apiserver and the targets. Nothing is asserted: the tables have a verdict, and the exit code is 0 whatever it says.
//!
//! | module | job |
//! |---|---|
//! | [`cli`] | flags |
//! | [`cluster`] | one server, one agent, a kind of tunnel |
//! | [`load`] | the others: echoes at a fixed rate, and dials beside them |
//! | [`stall`] | connections that are pushed until nothing more is taken |
//! | [`row`] | rounds of both, without and with |
//! | `usage` of the library | memory and CPU of a process |
//! | [`goal`] | what was to be reached |
//! | [`idle`] | `--idle`: memory of what does nothing |
//! | [`report`]; `table` and `figure` of the library | what is shown and written |

mod cli;
mod cluster;
mod goal;
mod idle;
mod load;
mod report;
mod row;
mod stall;

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::Parser;
use e2e::{harness::binaries, say};
use serde_json::Value;
use tokio::{
    signal::ctrl_c,
    task::{block_in_place, spawn_blocking},
};

use crate::cli::Cli;

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
    // Two descriptors here for each connection: the client's end and the target's.
    rlimit::increase_nofile_limit(u64::MAX).context("raise the limit of open files")?;
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
            measured = measure(cli) => measured,
        }
    });
    // A build that is under way when Ctrl-C comes has got it, too; it need not be waited for.
    runtime.shutdown_background();
    result
}

async fn measure(cli: &Cli) -> Result<()> {
    say!("building proxy-server and proxy-agent, unless they are up to date");
    spawn_blocking(|| binaries().map(drop)).await??;
    let written = if cli.idle {
        let costs = Box::pin(idle::measure(cli)).await?;
        report::print(&report::idle(&costs));
        report::idle_json(&costs)
    } else {
        let rows = Box::pin(row::measure_all(cli)).await?;
        report::print(&report::isolation(&rows, cli));
        report::isolation_json(&rows, cli)
    };
    if let Some(file) = &cli.json {
        block_in_place(|| write(file, &written))?;
    }
    Ok(())
}

fn write(file: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
}
