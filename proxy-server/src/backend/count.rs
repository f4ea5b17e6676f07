//! How many servers there are, as agents are told.

use tokio::sync::watch;

/// What `--server-count` says, and how many servers live by their Leases.
#[derive(Clone, Debug)]
pub struct ServerCount {
    configured: u32,
    live: watch::Receiver<u32>,
    /// What [`ServerCount::changed`] said last.
    told: u32,
}

impl ServerCount {
    /// `live` holds how many servers are known to live, zero if nobody counts them.
    #[must_use]
    pub fn new(configured: u32, live: watch::Receiver<u32>) -> Self {
        Self {
            configured,
            live,
            told: configured,
        }
    }

    /// What the flag says, with Leases as well: as upstream's, whose agents count those themselves.
    pub(super) fn configured(&self) -> u32 {
        self.configured
    }

    /// The larger of both, for agents that hear of it when it changes.
    pub(super) fn known(&self) -> u32 {
        self.configured.max(*self.live.borrow())
    }

    /// Resolves with the number when it is another than last time, at first than the flag's. Never, once nobody counts. Cancel
    /// safe.
    pub(super) async fn changed(&mut self) -> u32 {
        loop {
            let known = self.configured.max(*self.live.borrow_and_update());
            if known != std::mem::replace(&mut self.told, known) {
                return known;
            }
            if self.live.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_larger_number_counts_and_only_its_changes_are_told() {
        let (live, seen) = watch::channel(0);
        let mut count = ServerCount::new(2, seen);
        assert_eq!((count.configured(), count.known()), (2, 2));
        let (three, ()) = tokio::join!(count.changed(), async {
            for number in [1, 2, 3] {
                live.send_replace(number);
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(three, 3);
        live.send_replace(1);
        assert_eq!(count.changed().await, 2);
        assert_eq!(count.configured(), 2);
    }
}
