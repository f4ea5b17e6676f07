//! The command `proxy-server`.

use std::process::ExitCode;

use anyhow::Context as _;
use daemon::{flags, limits, logging, signals::Terminations};
use proxy_server::{
    cli::Cli,
    config::Config,
    server::{self, Exit},
};
use tikv_jemallocator::Jemalloc;
use tokio::{runtime, task::LocalSet};

/// The system's keeps what a burst took; a thread of this one gives it back within 10 s.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> ExitCode {
    let parsed = match flags::parse_or_exit_code::<Cli, _>(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(code) => return code,
    };
    parsed.note_deprecated(&[(
        "warn-on-channel-limit",
        "it has no effect: queues here are bounded in bytes",
    )]);
    let cli = parsed.cli;
    let filter = std::env::var(logging::FILTER_VARIABLE).ok();
    if let Err(error) = logging::init(&cli.log, "proxy-server", filter.as_deref()) {
        return flags::report(&anyhow::Error::from(error));
    }
    match run(&cli) {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Impatient) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!("{error:#}");
            flags::report(&error)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<Exit> {
    let config = Config::new(cli)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    match limits::raise_open_files() {
        Ok(limit) => tracing::info!(?limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit on open files stays as it is"),
    }
    // The worker: one thread, so that nothing on the data path is locked or sent between threads.
    let worker = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the worker")?;
    let local = LocalSet::new();
    let exit = local.block_on(&worker, async {
        let signals = Terminations::install().context("install signal handlers")?;
        let bound = server::bind(config)?;
        bound.run(signals).await
    });
    drop(local);
    // A file that the system has not finished reading must not hold the process up.
    worker.shutdown_background();
    exit
}
