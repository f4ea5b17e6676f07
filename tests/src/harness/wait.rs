//! Waiting for a state.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// Pause between two looks at a state that cannot be subscribed to.
const PAUSE: Duration = Duration::from_millis(20);

/// Asks `look` until it gives a value, or fails with `what` and the last complaint when `within` is over.
///
/// # Errors
/// If no value came in time.
pub async fn eventually<T, F>(what: &str, within: Duration, mut look: F) -> Result<T>
where
    F: AsyncFnMut() -> Result<T>,
{
    let deadline = Instant::now() + within;
    loop {
        match look().await {
            Ok(value) => return Ok(value),
            Err(complaint) if Instant::now() >= deadline => {
                bail!("not within {within:?}: {what}: {complaint:#}")
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
