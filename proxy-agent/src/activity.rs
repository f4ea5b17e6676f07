//! Whether anything uses this agent: dials under way, connections to targets. A drained agent leaves when nothing does.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// What is under way, and since when nothing is.
#[derive(Debug)]
pub(crate) struct Activity {
    under_way: Cell<usize>,
    quiet_since: Cell<Instant>,
    ended: Notify,
}

impl Activity {
    /// Nothing is under way.
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self {
            under_way: Cell::new(0),
            quiet_since: Cell::new(Instant::now()),
            ended: Notify::new(),
        })
    }

    /// Something is under way until the guard is dropped.
    pub(crate) fn begin(self: &Rc<Self>) -> Busy {
        self.under_way.update(|count| count + 1);
        Busy(self.clone())
    }

    /// Dials and connections under way now.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.get()
    }

    /// Waits until nothing has been under way for `idle`, counted from `start` at the earliest. Cancel safe.
    pub(crate) async fn quiet_for(&self, idle: Duration, start: Instant) {
        loop {
            if self.under_way.get() > 0 {
                self.ended.notified().await;
                continue;
            }
            let quiet_since = self.quiet_since.get().max(start);
            let Some(end) = quiet_since.checked_add(idle) else {
                return std::future::pending().await;
            };
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }
}

/// A dial or a connection.
#[derive(Debug)]
pub(crate) struct Busy(Rc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        let activity = &self.0;
        activity.under_way.update(|count| count.saturating_sub(1));
        if activity.under_way.get() == 0 {
            activity.quiet_since.set(Instant::now());
            activity.ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn quiet_is_when_nothing_has_been_under_way_for_long_enough() {
        let activity = Activity::new();
        let start = Instant::now();
        let idle = Duration::from_secs(5);
        let (one, two) = (activity.begin(), activity.begin());
        advance(Duration::from_secs(60)).await;
        drop(one);
        let waited = timeout(Duration::from_secs(60), activity.quiet_for(idle, start)).await;
        assert!(waited.is_err());
        drop(two);
        let quiet = Instant::now();
        activity.quiet_for(idle, start).await;
        assert_eq!(quiet.elapsed(), idle);
        // A start that is later counts.
        activity.quiet_for(idle, Instant::now()).await;
        assert_eq!(quiet.elapsed(), 2 * idle);
    }
}
