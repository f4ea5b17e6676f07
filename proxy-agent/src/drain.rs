//! When an agent that drains leaves. Upstream's never does by itself (wire-protocol.md W36).

use std::future::{Future, pending};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::activity::Activity;
use crate::config::DrainConfig;

/// Waits, from the signal to drain on, until the agent has been idle for long enough or its time is up. Cancel safe.
///
/// The wait for idleness begins with the signal: servers send dials until they have heard of it, and those of before v0.35 go on
/// doing so.
pub(crate) async fn drained(activity: &Activity, config: DrainConfig) {
    let start = Instant::now();
    tokio::select! {
        biased;
        () = unless_never(config.idle, |idle| activity.quiet_for(idle, start)) => {
            tracing::info!(after = ?start.elapsed(), "drained: nothing uses this agent any more");
        }
        () = unless_never(config.timeout, sleep) => {
            let left = activity.under_way();
            tracing::warn!(left, "the time to drain is up: dials and connections are cut");
        }
    }
}

async fn unless_never<F: Future<Output = ()>>(
    after: Option<Duration>,
    wait: impl FnOnce(Duration) -> F,
) {
    match after {
        Some(after) => wait(after).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const IDLE: Duration = Duration::from_secs(5);
    const HOUR: Duration = Duration::from_secs(3600);

    async fn after(activity: &Activity, idle: Option<Duration>, limit: Option<Duration>) -> u64 {
        let start = Instant::now();
        let config = DrainConfig {
            idle,
            timeout: limit,
        };
        let ended = timeout(10 * HOUR, drained(activity, config)).await;
        ended.map_or(u64::MAX, |()| start.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_agent_leaves_soon_a_busy_one_when_its_time_is_up_and_zero_is_never() {
        let activity = Activity::new();
        assert_eq!(after(&activity, Some(IDLE), Some(HOUR)).await, 5);
        assert_eq!(after(&activity, None, Some(HOUR)).await, 3600);
        assert_eq!(after(&activity, None, None).await, u64::MAX);
        let _busy = activity.begin();
        assert_eq!(after(&activity, Some(IDLE), Some(HOUR)).await, 3600);
        assert_eq!(after(&activity, Some(IDLE), None).await, u64::MAX);
    }
}
