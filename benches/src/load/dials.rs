//! Short connections.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::{task::JoinSet, time::Instant};

use super::{dialer::Dialer, echo::histogram, nanoseconds};

/// `count` times a dial, an echo of one byte, and a close, `at_once` at the same time; how long all took, and nanoseconds of each.
///
/// # Errors
/// If one fails.
pub async fn run(dialer: &Dialer, count: u32, at_once: u32) -> Result<(Duration, Histogram<u64>)> {
    let left = Arc::new(AtomicU32::new(0));
    let mut workers = JoinSet::new();
    let start = Instant::now();
    for _ in 0..at_once {
        let (dialer, left) = (dialer.clone(), Arc::clone(&left));
        workers.spawn(async move {
            let mut times = histogram()?;
            while left.fetch_add(1, Ordering::Relaxed) < count {
                let start = Instant::now();
                drop(dialer.echo().await?);
                times.record(nanoseconds(start.elapsed()))?;
            }
            anyhow::Ok(times)
        });
    }
    let mut times = histogram()?;
    while let Some(done) = workers.join_next().await {
        times.add(done??)?;
    }
    Ok((start.elapsed(), times))
}

/// `count` connections that have echoed a byte and then do nothing, `at_once` dialled at the same time.
///
/// # Errors
/// If a dial fails.
pub async fn idle(
    dialer: &Dialer,
    count: usize,
    at_once: usize,
) -> Result<Vec<e2e::client::Socket>> {
    let mut open = Vec::with_capacity(count);
    let mut dials = JoinSet::new();
    for number in 0..count {
        let dialer = dialer.clone();
        dials.spawn(async move { dialer.echo().await });
        if number >= at_once
            && let Some(done) = dials.join_next().await
        {
            open.push(done??);
        }
    }
    while let Some(done) = dials.join_next().await {
        open.push(done??);
    }
    Ok(open)
}
