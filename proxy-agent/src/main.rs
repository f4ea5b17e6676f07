//! The `proxy-agent` process: flags, logging, runtime, signals, exit code.

use std::env;
use std::process::ExitCode;

use anyhow::Context as _;
use daemon::flags::Parsed;
use daemon::signals::Terminations;
use daemon::{flags, limits, logging};
use proxy_agent::cli::AGENT_ID_VARIABLE;
use proxy_agent::{Agent, Cli, Config};
use tikv_jemallocator::Jemalloc;
use tokio_util::sync::CancellationToken;

/// The system's keeps what a burst took; a thread of this one gives it back within 10 s.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let parsed = match flags::parse_or_exit_code::<Cli, _>(env::args_os()) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    parsed.note_deprecated(&[("lease-label", "Use --lease-label-selector instead")]);
    match run(&parsed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => flags::report(&error),
    }
}

fn run(parsed: &Parsed<Cli>) -> anyhow::Result<()> {
    let filter = env::var(logging::FILTER_VARIABLE).ok();
    logging::init(&parsed.cli.log, "proxy-agent", filter.as_deref())?;
    let config = Config::new(
        &parsed.cli,
        &env::var(AGENT_ID_VARIABLE).unwrap_or_default(),
    )?
    .through_proxy(|name| env::var(name).ok())?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), ?config, "starting");
    for flag in [
        "enable-contention-profiling",
        "kube-api-content-type",
        "xfr-channel-size",
        "warn-on-channel-limit",
        "probe-interval",
    ] {
        if parsed.given(flag) {
            tracing::info!("--{flag} has no effect here, see --help");
        }
    }
    match limits::raise_open_files() {
        Ok(limit) => tracing::info!(%limit, "open files"),
        Err(error) => tracing::warn!(%error, "could not raise the limit on open files"),
    }
    let agent = Agent::bind(config)?;
    tracing::info!(health = %agent.health_addr(), admin = %agent.admin_addr(), "listening");
    for (forward, port) in agent.forwards() {
        let port = port.map(tracing::field::display);
        tracing::info!(%forward, port, "connections of this node are taken");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let ended = runtime.block_on(serve(agent));
    // Name lookups that the system has not finished must not hold the process up.
    runtime.shutdown_background();
    ended
}

/// The first signal drains, the second ends.
async fn serve(agent: Agent) -> anyhow::Result<()> {
    let mut signals = Terminations::install().context("take over SIGINT and SIGTERM")?;
    let (drain, stop) = (CancellationToken::new(), CancellationToken::new());
    let listen = async {
        loop {
            let (signal, count) = signals.recv().await;
            if count == 1 {
                tracing::info!(%signal, "draining; a second signal ends the process");
                drain.cancel();
            } else {
                tracing::info!(%signal, "stopping");
                stop.cancel();
            }
        }
    };
    tokio::select! {
        ended = Box::pin(agent.run(drain.clone(), stop.clone())) => Ok(ended?),
        () = listen => Ok(()),
    }
}
