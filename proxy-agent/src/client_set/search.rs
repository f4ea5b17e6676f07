//! Who looks for servers: one task that follows the addresses of their name, and one for each address that makes the attempts.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::time::{Instant, sleep_until};
use tunnel::backoff::Backoff;

use super::rhythm::{Need, Rhythm};
use super::route::Route;
use super::shortfall::{News, Shortfall};
use super::{ClientSet, Connect};
use crate::admin::STUCK_AFTER;
use crate::client::{Via, chain};
use crate::metrics::Attempt;

/// How often the servers' name is resolved when nothing gives cause to.
pub(super) const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);

/// Least time between two lookups, whatever gives cause to.
const LOOKUP_PAUSE: Duration = Duration::from_secs(2);

/// How often a waiting search says that it is alive, and looks whether servers have been missing for long.
const BEAT: Duration = Duration::from_secs(5);

impl<C: Connect> ClientSet<C> {
    /// Looks for servers for ever. Dropped, no more attempts are made.
    pub(super) async fn search(self: &Rc<Self>) {
        let mut tls = self.tls().clone();
        let mut leases = self.count.borrow().leases();
        let mut shortfall = Shortfall::new(Instant::now());
        let mut failures = Backoff::new(self.config.interval, self.config.cap);
        let mut next_lookup = Instant::now();
        let mut last_lookup = None;
        loop {
            let beat = Instant::now() + BEAT;
            let recounted = async {
                let has_changed = match &mut leases {
                    Some(leases) => leases.changed().await.is_ok(),
                    None => false,
                };
                // Nobody counts, or who counted has ended: the last count stands.
                if !has_changed {
                    pending::<()>().await;
                }
            };
            tokio::select! {
                biased;
                () = tls.changed() => self.on_new_certificates(),
                () = recounted => {}
                () = self.lookup.notified() => {
                    let earliest = last_lookup.map_or_else(Instant::now, |last| last + LOOKUP_PAUSE);
                    next_lookup = next_lookup.min(earliest);
                }
                () = sleep_until(next_lookup.min(beat)) => {}
            }
            let now = Instant::now();
            if next_lookup <= now {
                let failed = !self.look_up().await;
                let delay = if failed {
                    failures.next_delay()
                } else {
                    LOOKUP_INTERVAL
                };
                if !failed {
                    failures.reset();
                }
                last_lookup = Some(Instant::now());
                next_lookup = Instant::now() + delay;
            }
            if !self.is_stuck(Instant::now()) {
                self.heartbeat.beat();
            }
            self.recount();
            self.report(&mut shortfall);
        }
    }

    /// Brings the routes up to date with the name's addresses. Returns whether the lookup succeeded; otherwise all stays.
    async fn look_up(self: &Rc<Self>) -> bool {
        match self.connector.routes().await {
            Ok(found) => {
                self.take_up(&found);
                if self.lookup_failure.take().is_some() {
                    tracing::info!("the servers' name resolves again");
                }
                true
            }
            Err(error) => {
                let text = chain(&error);
                let is_news = self.lookup_failure.replace(Some(text.clone())).is_none();
                if is_news || self.routes.borrow().is_empty() {
                    tracing::warn!(
                        error = text,
                        "no tunnel to a server: where it is cannot be found out"
                    );
                    self.metrics().attempted(Attempt::Failed);
                } else {
                    tracing::debug!(error = text, "the servers' name does not resolve");
                }
                false
            }
        }
    }

    /// Starts attempts at addresses that are new, ends those at addresses that are gone. Their tunnels live on.
    fn take_up(self: &Rc<Self>, found: &[Via]) {
        let stop = self.dialer.tasks.stop();
        let clients = self.clients.clients();
        let mut routes = self.routes.borrow_mut();
        routes.retain(|route| {
            let stays = found.contains(&route.via);
            if !stays {
                tracing::info!(address = %route.via, "the servers' name has lost an address");
                route.gone.cancel();
            }
            stays
        });
        for &via in found {
            if routes.iter().any(|route| route.via == via) {
                continue;
            }
            tracing::debug!(address = %via, "the servers' name has an address");
            let rhythm = Rhythm::new(&self.config, Instant::now());
            let route = Rc::new(Route::new(via, rhythm, stop.child_token()));
            // A name may have more addresses than one answer holds, and give others each time.
            let known = clients.iter().find(|client| client.via == via);
            *route.led_to.borrow_mut() = known.map(|client| client.server_id.clone());
            routes.push(route.clone());
            let set = self.clone();
            self.dialer.tasks.spawn(async move {
                // Cancel safe, as the search is.
                route.gone.run_until_cancelled(set.attempts(&route)).await;
            });
        }
    }

    /// Makes attempts at one address for as long as it is one of the servers'.
    async fn attempts(self: &Rc<Self>, route: &Rc<Route>) {
        loop {
            if !self.is_wanted(route) {
                route.changed().await;
                continue;
            }
            tokio::select! {
                biased;
                () = sleep_until(route.due()) => {}
                () = route.changed() => continue,
            }
            let outcome = {
                let _attempt = route.attempt();
                Box::pin(self.connector.connect(route.via)).await
            };
            match outcome {
                Ok(tunnel) => {
                    if route.failure.take().is_some() {
                        tracing::info!(address = %route.via, "a server answers here");
                    }
                    self.on_tunnel(route, tunnel);
                }
                Err(error) => self.on_failure(route, chain(&error)),
            }
        }
    }

    /// While there is no tunnel each failure is a warning; otherwise the first, since an address that works may be enough.
    fn on_failure(&self, route: &Route, error: String) {
        let need = if self.clients.reached() == 0 {
            Need::Alone
        } else if self.is_short() {
            Need::Missing
        } else {
            Need::None
        };
        let now = Instant::now();
        let delay = route.with_rhythm(|rhythm| rhythm.on_failure(now, need));
        let is_news = route.failure.replace(Some(error.clone())).is_none();
        self.metrics().attempted(Attempt::Failed);
        if is_news || self.clients.reached() == 0 {
            tracing::warn!(address = %route.via, error, retry_in = ?delay, "no tunnel to a server");
        } else {
            tracing::debug!(address = %route.via, error, retry_in = ?delay, "no tunnel to a server");
        }
        self.lookup.notify_one();
        self.recount();
    }

    /// Whether an attempt at an address can be of use.
    fn is_wanted(&self, route: &Route) -> bool {
        self.is_renewing(route, &self.tls().current())
            || !self.clients.is_full()
                && (self.is_short() || self.config.forever || !self.is_settled(route))
    }

    /// Whether an address has led to a server that has a tunnel. A single one that has not is that of the only server, whose
    /// tunnel is missed anyway.
    pub(super) fn is_settled(&self, route: &Route) -> bool {
        let led_to = route.led_to.borrow();
        led_to.as_ref().is_some_and(|id| self.clients.has(id))
    }

    /// Whether a tunnel that was made with certificates of before may be replaced at this address: it was found here, or where no
    /// attempts are made any more.
    fn is_renewing(&self, route: &Route, current: &Arc<ClientConfig>) -> bool {
        let routes = self.routes.borrow();
        let is_known = |via: &Via| routes.iter().any(|route| route.via == *via);
        let outdated = self.clients.outdated(current);
        outdated
            .iter()
            .any(|via| *via == route.via || !is_known(via))
    }

    fn on_new_certificates(&self) {
        // Many agents see a change at the same time.
        let at = Instant::now() + self.config.interval.mul_f64(fastrand::f64());
        for route in self.routes() {
            route.with_rhythm(|rhythm| rhythm.start_over(at));
        }
    }

    /// Whether an attempt has lasted longer than any may.
    pub(super) fn is_stuck(&self, now: Instant) -> bool {
        let routes = self.routes.borrow();
        routes
            .iter()
            .filter_map(|route| route.attempting_since())
            .any(|since| now.saturating_duration_since(since) > STUCK_AFTER)
    }

    fn report(&self, shortfall: &mut Shortfall) {
        let (reached, wanted) = (self.clients.reached(), self.wanted.get());
        // Without any tunnel each failure has been told.
        if reached == 0 {
            return;
        }
        match shortfall.observe(reached, wanted, Instant::now()) {
            Some(News::Missing) => tracing::warn!(
                "reached {reached} of {wanted} servers: every other attempt fails or leads to a server that has a tunnel. \
                 Let --proxy-server-host be a name with an address for each server, or a load balancer that shares out; \
                 or give the servers the right --server-count"
            ),
            Some(News::Complete) => tracing::info!("reached {reached} of {wanted} servers"),
            None => {}
        }
    }
}
