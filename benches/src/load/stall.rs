//! Connections that nobody reads.

use std::time::Duration;

use anyhow::Result;
use e2e::client::Socket;
use tokio::time::{Instant, sleep};

use super::{
    dialer::Dialer,
    target::{Job, Worker},
};

/// When no byte more has been taken of anybody for so long, they are as full as they get.
const STILL: Duration = Duration::from_millis(500);

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// How long that may take.
const LIMIT: Duration = Duration::from_secs(30);

/// `count` connections whose target sends for ever and whose client reads nothing, as full as they get.
///
/// # Errors
/// If a dial fails.
pub async fn open(dialer: &Dialer, target: &Worker, count: usize) -> Result<Vec<Socket>> {
    let mut stalled = Vec::with_capacity(count);
    for _ in 0..count {
        stalled.push(dialer.ask(Job::Send(u64::MAX)).await?);
    }
    let start = Instant::now();
    let mut last = (target.sent(), Instant::now());
    while last.1.elapsed() < STILL && start.elapsed() < LIMIT {
        sleep(PAUSE).await;
        let now = target.sent();
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
    Ok(stalled)
}
