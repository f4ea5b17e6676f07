//! Targets that speak first, such as SSH, SMTP and MySQL.
//!
//! kube-apiserver fails a dial whose answer comes in one read with bytes of the target, so the server holds those back for
//! a moment. A client that is itself off the processor for that long reads both at once, whatever the server does. So
//! everything here runs on one thread, which knows when it stood still; a dial that fails just then is made again, and told.

use std::{cell::Cell, rc::Rc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    client::{Client, DialFailure, Frontend},
    exchange::echo,
    harness::Cluster,
    say,
    targets::Target,
};
use tokio::{
    io::AsyncReadExt,
    task::LocalSet,
    time::{Instant, interval},
};

const DIALS: usize = 200;

/// At the same time.
const WORKERS: usize = 5;

/// Shorter than what the server holds bytes back for, 50 ms.
const STANDSTILL: Duration = Duration::from_millis(25);

/// Dials that may have to be made again before the machine counts as unusable.
const MAX_REPEATED: usize = 100;

/// A line of a protocol that everybody knows, and one that takes more than any single packet.
static SHORT: &[u8] = b"SSH-2.0-OpenSSH_9.6\r\n";
static LONG: &[u8] = &[b'*'; 100_000];

#[tokio::test]
async fn every_greeting_comes_whole_over_http_and_a_unix_socket() -> Result<()> {
    every_greeting_comes_whole(Frontend::HttpUds).await
}

#[tokio::test]
async fn every_greeting_comes_whole_over_http_and_tls() -> Result<()> {
    every_greeting_comes_whole(Frontend::HttpTls).await
}

#[tokio::test]
async fn every_greeting_comes_whole_over_grpc_and_a_unix_socket() -> Result<()> {
    every_greeting_comes_whole(Frontend::GrpcUds).await
}

#[tokio::test]
async fn every_greeting_comes_whole_over_grpc_and_tls() -> Result<()> {
    every_greeting_comes_whole(Frontend::GrpcTls).await
}

async fn every_greeting_comes_whole(frontend: Frontend) -> Result<()> {
    let mut cluster = Cluster::with(frontend).await?;
    let before = cluster.footprint()?;
    let targets = [
        (Target::greeter(SHORT).await?, SHORT),
        (Target::greeter(LONG).await?, LONG),
    ];
    let dials: Rc<Cell<usize>> = Rc::default();
    let repeated: Rc<Cell<usize>> = Rc::default();
    let pulse = Pulse::default();
    let local = LocalSet::new();
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let (dials, repeated, pulse) = (dials.clone(), repeated.clone(), pulse.clone());
        let client = cluster.client()?;
        let targets = targets
            .each_ref()
            .map(|(target, text)| (target.name(), *text));
        workers.push(local.spawn_local(async move {
            while dials.get() < DIALS {
                let number = dials.replace(dials.get() + 1);
                let [short, long] = &targets;
                let (name, greeting) = if number % 2 == 0 { short } else { long };
                while !greets(&client, name, greeting, &pulse).await? {
                    repeated.set(repeated.get() + 1);
                    ensure!(repeated.get() <= MAX_REPEATED, "no processor to test on");
                }
            }
            anyhow::Ok(())
        }));
    }
    let beat = local.spawn_local(pulse.clone().beat());
    local
        .run_until(async {
            for worker in workers {
                worker.await??;
            }
            anyhow::Ok(())
        })
        .await?;
    beat.abort();
    say!(
        "{frontend}: {DIALS} of {DIALS} greetings came whole; {} dials were repeated, as this process stood still",
        repeated.get()
    );
    ensure!(
        targets
            .iter()
            .map(|(target, _)| target.accepted())
            .sum::<usize>()
            >= DIALS
    );
    cluster.settle(before).await
}

/// Whether the greeting came whole; `false` if that cannot be said.
async fn greets(client: &Client, target: &str, greeting: &[u8], pulse: &Pulse) -> Result<bool> {
    pulse.reset();
    let mut stream = match client.dial(target).await {
        Ok(stream) => stream,
        Err(failure @ DialFailure::EarlyBytes { .. }) => {
            pulse.next().await;
            if pulse.longest() >= STANDSTILL {
                return Ok(false);
            }
            return Err(failure.into());
        }
        Err(failure) => return Err(failure.into()),
    };
    let mut received = vec![0; greeting.len()];
    if let Err(error) = stream.read_exact(&mut received).await {
        pulse.next().await;
        if pulse.longest() >= STANDSTILL && error.to_string().contains("behind DIAL_RSP") {
            return Ok(false);
        }
        return Err(error).context("read the greeting");
    }
    if received != greeting {
        bail!("another greeting came");
    }
    echo(&mut stream, 100).await?;
    stream.close().await?;
    Ok(true)
}

/// Knows when this thread stood still.
#[derive(Clone, Default)]
struct Pulse {
    beats: Rc<Cell<u64>>,
    longest: Rc<Cell<Duration>>,
}

impl Pulse {
    async fn beat(self) {
        let mut tick = interval(Duration::from_millis(1));
        let mut last = Instant::now();
        loop {
            tick.tick().await;
            let now = Instant::now();
            self.longest.set(self.longest.get().max(now - last));
            last = now;
            self.beats.set(self.beats.get() + 1);
        }
    }

    /// The longest pause between two beats since the last reset.
    fn longest(&self) -> Duration {
        self.longest.get()
    }

    fn reset(&self) {
        self.longest.set(Duration::ZERO);
    }

    /// Waits for a beat that began after now.
    async fn next(&self) {
        let seen = self.beats.get();
        while self.beats.get() < seen + 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
