//! How a server leaves: new work goes elsewhere, what is established may end, the rest is cut.
//!
//! There is one deadline, and nothing may hold the process beyond it: neither streams that nobody uses (with upstream's
//! gRPC frontend one of them blocks the end for ever) nor agents. Agents are not told by GOAWAY: one of upstream's would cut its
//! connections at once (trap T8).

use std::{rc::Rc, time::Duration};

use tokio::time::{Instant, interval, timeout_at};
use tunnel::drain::Tasks;

use crate::dial::Core;

/// How long the admin listeners may take to end responses that are under way.
pub(super) const ADMIN_LIMIT: Duration = Duration::from_millis(500);

/// How long the accept loops may take to end: they do at once, unless one is in the middle of something.
const ACCEPT_LIMIT: Duration = Duration::from_millis(500);

/// How long clients may take to hear of the end of the last connection. Those of a reusable tunnel do not leave by themselves.
const FAREWELL: Duration = Duration::from_millis(250);

/// What is to end.
pub(super) struct Shutdown {
    pub(super) core: Rc<Core>,
    /// The accept loops.
    pub(super) accepting: Tasks,
    /// What serves kube-apiserver.
    pub(super) clients: Tasks,
    /// What serves agents.
    pub(super) tunnels: Tasks,
}

impl Shutdown {
    /// Ends everything, within `grace` and a second.
    ///
    /// Not cancel safe: dropped, it leaves things half ended, for a process that ends anyway.
    pub(super) async fn run(self, grace: Duration) {
        let started = Instant::now();
        // None: the clock cannot hold it, so for ever.
        let deadline = started.checked_add(grace);
        self.core.stop.cancel();
        // Ours look for another server; established connections go on.
        self.core.registry.send_drain();
        // With the accept loops end the listeners.
        self.accepting.finish(ACCEPT_LIMIT).await;
        let farewell = self.wait(deadline).await;
        // Before anything is cut, as cutting one side ends the other.
        let established = self.core.metrics.established.get();
        let pending = self.core.registry.pending_dials();
        let forwards = self.core.metrics.forward_connections.get();
        let agents = self.core.registry.len();
        self.clients.finish(farewell).await;
        self.tunnels.finish(Duration::ZERO).await;
        if established > 0 || pending > 0 || forwards > 0 {
            tracing::warn!(
                established,
                pending,
                forwards,
                ?grace,
                "time is up: connections and dials were cut"
            );
        }
        tracing::info!(after = ?started.elapsed(), cut = established, agents, "shut down");
    }

    /// Waits until nothing is under way or the time is up. Returns how long clients may take to leave.
    async fn wait(&self, deadline: Option<Instant>) -> Duration {
        match deadline {
            None => self.until_idle().await,
            Some(deadline) => {
                if timeout_at(deadline, self.until_idle()).await.is_err() {
                    return Duration::ZERO;
                }
                return deadline
                    .saturating_duration_since(Instant::now())
                    .min(FAREWELL);
            }
        }
        FAREWELL
    }

    /// Whether there is a connection or a dial, in either direction.
    fn is_busy(&self) -> bool {
        let metrics = &self.core.metrics;
        metrics.established.get() > 0
            || metrics.forward_connections.get() > 0
            || self.core.registry.pending_dials() > 0
    }

    async fn until_idle(&self) {
        let mut tick = interval(Duration::from_millis(20));
        while self.is_busy() {
            tick.tick().await;
        }
    }
}

#[cfg(test)]
mod tests;
