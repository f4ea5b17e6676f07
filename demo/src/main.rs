//! `cargo run --release -p demo`: the whole of Adit on this machine, told step by step.
//!
//! Real `proxy-server` and `proxy-agent` processes, real mutual TLS, and a stand-in for kube-apiserver that dials a target
//! behind the agents; the same parts that the end-to-end tests are made of. Everything lives in temporary folders and on free
//! ports, and ends with the demo, however that comes.
//!
//! The binaries are real ones, built by asking cargo: `cargo run -p demo` itself builds only their libraries. One executable that
//! plays all the roles would need no second build, but would show something that nobody deploys.

mod checks;
mod egress;
mod http;
mod scene;
mod story;
mod target;

use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use e2e::harness::binaries;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::{LocalSet, spawn_blocking},
    time::{Duration, sleep},
};

use crate::{scene::Scene, story::Story};

/// A build that takes longer is announced: otherwise the first run looks as if it hung.
const SILENT_BUILD: Duration = Duration::from_secs(1);

/// Adit end to end on one machine: certificates, servers, agents, a target, and a stand-in for kube-apiserver.
#[derive(Debug, Parser)]
#[command(name = "demo", version)]
struct Cli {
    /// End after the checks, with 0 if all passed, instead of serving until Ctrl-C.
    #[arg(long)]
    once: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let story = Story::new();
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
        .and_then(|runtime| {
            let result =
                runtime.block_on(LocalSet::new().run_until(until_stopped(cli.once, &story)));
            // A build that is under way when Ctrl-C comes has got it, too; it need not be waited for.
            runtime.shutdown_background();
            result
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            story.fail(&error);
            ExitCode::FAILURE
        }
    }
}

/// Plays until the end or a signal. Whatever runs by then is ended by being dropped.
async fn until_stopped(once: bool, story: &Story) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("watch for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("watch for SIGTERM")?;
    let mut hang_up = signal(SignalKind::hangup()).context("watch for the terminal's end")?;
    let stopped = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
        }
    };
    tokio::pin!(stopped);
    let mut scene = tokio::select! {
        biased;
        () = &mut stopped => bail!("stopped before the end"),
        scene = play(story) => scene?,
    };
    if once {
        return Ok(());
    }
    scene.tell_how_to_use(story);
    tokio::select! {
        biased;
        () = &mut stopped => {
            story.say("\nended");
            Ok(())
        }
        error = scene.until_broken() => Err(error),
    }
}

/// Sets the scene and checks it.
async fn play(story: &Story) -> anyhow::Result<Scene> {
    build().await?;
    story.begin("Adit: from kube-apiserver to a target behind an agent, all on this machine");
    let scene = Scene::set(story).await?;
    let failed = checks::run(story, &scene).await;
    story.say("");
    ensure!(failed == 0, "failed checks: {failed}");
    story.say(&format!(
        "All passed, {} after the first step.",
        story.since_begin()
    ));
    Ok(scene)
}

/// Makes sure that the binaries are there and up to date, which cargo alone knows.
async fn build() -> anyhow::Result<()> {
    let build = spawn_blocking(|| binaries().map(drop));
    tokio::pin!(build);
    let built = tokio::select! {
        built = &mut build => built,
        () = sleep(SILENT_BUILD) => {
            story::complain("building proxy-server and proxy-agent, which takes a minute the first time ...");
            build.await
        }
    };
    built.context("build")?
}
