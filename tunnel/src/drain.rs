//! Stop, grace, cut: how a component ends.

use std::{future::Future, time::Duration};

use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How a component ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Everything ended by itself.
    Clean,
    /// The grace period passed; so many tasks were cut.
    Cut {
        /// Tasks that were still running.
        left: usize,
    },
}

/// The tasks of a component and the two signals that end them.
///
/// Clones are handles of the same component.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    cut: CancellationToken,
}

impl Tasks {
    /// Runs `task` on this thread's `LocalSet` until it ends or is cut.
    ///
    /// # Panics
    /// Outside a `LocalSet`.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let cut = self.cut.clone();
        self.tracker.spawn_local(async move {
            tokio::select! {
                biased;
                () = cut.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Resolves when no new work is wanted.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Tasks running now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Whether none is running.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty()
    }

    /// Stops new work, waits up to `grace` for the tasks to end, then drops those that have not.
    pub async fn finish(&self, grace: Duration) -> Drained {
        self.stop.cancel();
        self.tracker.close();
        if timeout(grace, self.tracker.wait()).await.is_ok() {
            return Drained::Clean;
        }
        let left = self.tracker.len();
        self.cut.cancel();
        self.tracker.wait().await;
        Drained::Cut { left }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tasks_that_heed_stop_end_cleanly() {
        LocalSet::new()
            .run_until(async {
                let tasks = Tasks::default();
                let stop = tasks.stop().clone();
                tasks.spawn(async move { stop.cancelled().await });
                assert_eq!(tasks.finish(Duration::from_secs(1)).await, Drained::Clean);
            })
            .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ignores_stop_is_cut_after_the_grace_period() {
        LocalSet::new()
            .run_until(async {
                let tasks = Tasks::default();
                tasks.spawn(pending());
                assert_eq!(
                    tasks.finish(Duration::from_secs(1)).await,
                    Drained::Cut { left: 1 }
                );
                assert!(tasks.is_empty());
            })
            .await;
    }
}
