//! Exchanges of a few bytes.

use std::{thread, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::client::Socket;
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{dialer::Dialer, nanoseconds};

/// Bytes of an exchange, each way.
pub const SIZE: usize = 256;

/// Figures of a histogram's three significant digits.
const DIGITS: u8 = 3;

/// An empty histogram, of nanoseconds.
///
/// # Errors
/// None in practice.
pub fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new(DIGITS)?)
}

async fn exchange(stream: &mut Socket) -> Result<()> {
    let sent = [b'e'; SIZE];
    let mut came = [0; SIZE];
    stream.write_all(&sent).await?;
    stream.flush().await?;
    stream.read_exact(&mut came).await?;
    ensure!(sent == came, "other bytes came back");
    Ok(())
}

/// When a row of exchanges is over: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Enough {
    /// Recorded exchanges.
    pub count: u32,
    /// Time, from the first that is recorded.
    pub time: Duration,
    /// One that takes longer stands still: it counts as so long, and none comes after it.
    pub limit: Duration,
}

/// Exchanges on one connection, one behind the other, after a tenth that is not recorded; nanoseconds of each.
///
/// # Errors
/// If the dial fails, or the connection ends.
pub async fn closed_loop(dialer: &Dialer, enough: Enough) -> Result<Histogram<u64>> {
    let mut times = histogram()?;
    let Ok(stream) = timeout(enough.limit, dialer.echo()).await else {
        times.record(nanoseconds(enough.limit))?;
        return Ok(times);
    };
    let mut stream = stream?;
    let mut first = Instant::now();
    let warm_up = enough.count / 10;
    for number in 0..enough.count + warm_up {
        let start = Instant::now();
        match timeout(enough.limit, exchange(&mut stream)).await {
            Ok(done) => done.context("an exchange")?,
            Err(_) => {
                times.record(nanoseconds(enough.limit))?;
                return Ok(times);
            }
        }
        if number < warm_up && first.elapsed() * 10 < enough.time {
            continue;
        }
        if times.is_empty() {
            first = start;
        }
        times.record(nanoseconds(start.elapsed()))?;
        if first.elapsed() > enough.time {
            break;
        }
    }
    Ok(times)
}

/// Exchanges on `connections` connections in turn, `rate` a second for `time`, whether or not earlier ones are back; nanoseconds of each
/// from the moment at which it should have started, so that a pause counts for all that waited.
///
/// # Errors
/// If a dial fails, or a connection ends.
pub async fn open_loop(
    dialer: &Dialer,
    connections: usize,
    rate: u32,
    time: Duration,
) -> Result<Histogram<u64>> {
    let mut senders = Vec::new();
    let mut tasks = JoinSet::new();
    let all = u32::try_from(u128::from(rate) * time.as_millis() / 1_000)?;
    // Every exchange has room, so that the pacer never waits.
    let room = all as usize / connections.max(1) + 2;
    for _ in 0..connections {
        let mut stream = dialer.echo().await?;
        let (sender, mut due) = mpsc::channel::<Instant>(room);
        senders.push(sender);
        tasks.spawn(async move {
            let mut times = histogram()?;
            while let Some(due) = due.recv().await {
                exchange(&mut stream).await.context("an exchange")?;
                times.record(nanoseconds(due.elapsed()))?;
            }
            anyhow::Ok(times)
        });
    }
    let pacer = thread::spawn(move || pace(&senders, all, rate));
    let mut times = histogram()?;
    while let Some(done) = tasks.join_next().await {
        times.add(done??)?;
    }
    ensure!(pacer.join().is_ok(), "the pacer panicked");
    Ok(times)
}

/// Tells each of `senders` in turn that one is due, at the moment it is.
#[expect(
    clippy::disallowed_methods,
    reason = "the runtime's timers are precise to a millisecond only, the kernel's to a twentieth of that"
)]
fn pace(senders: &[mpsc::Sender<Instant>], count: u32, rate: u32) {
    let start = Instant::now();
    let period = Duration::from_secs(1) / rate.max(1);
    for (number, sender) in (0..count).zip(senders.iter().cycle()) {
        let due = start + period * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if sender.try_send(due).is_err() {
            return;
        }
    }
}
