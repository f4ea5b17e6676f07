//! `benches/load`: load on a proxy server that runs already, whoever's it is, through its Unix socket. The targets are this process, so
//! the agents must reach this machine's loopback, or what `--listen` names.
//!
//! ```sh
//! benches/load --uds-name /run/proxy.sock bulk --direction down --streams 16 --seconds 10
//! benches/load --uds-name /run/proxy.sock rate --rate 10000 --seconds 10
//! ```

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, Result};
use benches::load::{
    bulk::{self, Direction},
    dialer::Dialer,
    dials,
    echo::{self, Enough},
    stall,
    target::Worker,
};
use clap::{Parser, Subcommand, ValueEnum};
use e2e::{
    client::{Client, Endpoint, Frontend},
    say,
};
use hdrhistogram::Histogram;
use tokio::time::{Instant, sleep};

/// Load on a proxy server through its Unix socket.
#[derive(Debug, Parser)]
#[command(name = "load", version)]
struct Cli {
    /// The server's Unix socket, as its flag of this name says.
    #[arg(long)]
    uds_name: PathBuf,
    /// The server's `--mode`.
    #[arg(long, default_value = "http-connect")]
    mode: Mode,
    /// Address to listen on, which agents must reach.
    #[arg(long, default_value = "127.0.0.1")]
    listen: String,
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    HttpConnect,
    Grpc,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Way {
    /// To the targets.
    Up,
    /// From the targets.
    Down,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Transfers, one behind the other on each of some streams.
    Bulk {
        /// Which way.
        #[arg(long, default_value = "down")]
        direction: Way,
        /// Streams at once.
        #[arg(long, default_value_t = 1)]
        streams: usize,
        /// MiB of each transfer.
        #[arg(long, default_value_t = 256)]
        mib: u64,
        /// For how long, at least.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// 256 bytes there and back, one behind the other.
    Echo {
        /// How many.
        #[arg(long, default_value_t = 20_000)]
        count: u32,
    },
    /// The same at a fixed rate, whether or not earlier ones are back.
    Rate {
        /// Connections.
        #[arg(long, default_value_t = 64)]
        connections: usize,
        /// A second, of all connections together.
        #[arg(long, default_value_t = 10_000)]
        rate: u32,
        /// For how long.
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Dial, a byte there and back, close.
    Dials {
        /// How many.
        #[arg(long, default_value_t = 6_000)]
        count: u32,
        /// At the same time.
        #[arg(long, default_value_t = 32)]
        at_once: u32,
    },
    /// Connections that do nothing.
    Idle {
        /// How many.
        #[arg(long, default_value_t = 1_000)]
        count: usize,
        /// For how long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Connections that nobody reads, and echoes beside them.
    Stalled {
        /// How many.
        #[arg(long, default_value_t = 1)]
        count: usize,
        /// For how long.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
}

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
    rlimit::increase_nofile_limit(u64::MAX).context("raise the limit of open files")?;
    let target = Worker::on(&cli.listen)?;
    let frontend = match cli.mode {
        Mode::HttpConnect => Frontend::HttpUds,
        Mode::Grpc => Frontend::GrpcUds,
    };
    let dialer = Dialer::Frontend {
        client: Client::new(frontend, Endpoint::Uds(cli.uds_name.clone())),
        target: target.name().to_owned(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(load(&cli.what, &dialer, &target))
}

async fn load(what: &What, dialer: &Dialer, target: &Worker) -> Result<()> {
    match *what {
        What::Bulk {
            direction,
            streams,
            mib,
            seconds,
        } => {
            let direction = match direction {
                Way::Up => Direction::Up,
                Way::Down => Direction::Down,
            };
            let (start, time) = (Instant::now(), Duration::from_secs(seconds));
            let mut moved = bulk::Moved::default();
            while moved.bytes == 0 || start.elapsed() < time {
                let (all, _) = bulk::many(dialer, direction, streams, mib << 20).await?;
                moved.bytes += all.bytes;
            }
            moved.took = start.elapsed();
            say!(
                "{:.0} MiB {} in {:.1} s: {:.0} MiB/s",
                moved.mib(),
                direction.name(),
                moved.took.as_secs_f64(),
                moved.rate()
            );
        }
        What::Echo { count } => {
            say_times(
                "echo",
                &echo::closed_loop(dialer, enough(count, None)).await?,
            );
        }
        What::Rate {
            connections,
            rate,
            seconds,
        } => {
            let time = Duration::from_secs(seconds);
            let times = echo::open_loop(dialer, connections, rate, time).await?;
            say_times("echo", &times);
        }
        What::Dials { count, at_once } => {
            let (took, times) = dials::run(dialer, count, at_once).await?;
            say!("{:.0} dials/s", f64::from(count) / took.as_secs_f64());
            say_times("dial", &times);
        }
        What::Idle { count, seconds } => {
            let open = dials::idle(dialer, count, 32).await?;
            say!("{} connections are open", open.len());
            sleep(Duration::from_secs(seconds)).await;
        }
        What::Stalled { count, seconds } => {
            let stalled = stall::open(dialer, target, count).await?;
            say!(
                "{} connections are stalled, {} KiB were taken of all",
                stalled.len(),
                target.sent() / 1024
            );
            let time = Duration::from_secs(seconds);
            say_times(
                "echo",
                &echo::closed_loop(dialer, enough(u32::MAX / 2, Some(time))).await?,
            );
        }
    }
    Ok(())
}

fn enough(count: u32, time: Option<Duration>) -> Enough {
    Enough {
        count,
        time: time.unwrap_or(Duration::MAX / 16),
        limit: Duration::from_secs(10),
    }
}

fn say_times(what: &str, times: &Histogram<u64>) {
    let us = |quantile| times.value_at_quantile(quantile) as f64 / 1_000.0;
    say!(
        "{} of {what}: p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, longest {:.0} us",
        times.len(),
        us(0.5),
        us(0.99),
        us(0.999),
        times.max() as f64 / 1_000.0
    );
}
