//! One client for each server: the sync loop (wire-protocol.md 4.2 to 4.4, improved).
//!
//! - While there are fewer tunnels than servers, connections are tried one at a time. A lost tunnel is replaced at once,
//!   failures back off from `--sync-interval` to its cap with jitter.
//! - All connections go to one address, so a further server is found by luck: an attempt that reaches a server we have is a
//!   *duplicate* and dropped. Duplicates are retried fast at first and ever more slowly while nothing new comes
//!   ([`pace`]), where upstream makes one a second for ever.
//! - How many servers there are is what the last new server said.
//! - A client is removed by what it is, not by its server's id: the end of an old tunnel never removes a new one (W22).
//! - When the agent's certificate or the CA bundle changed, each tunnel is replaced make-before-break: connections are made
//!   until one reaches the same server, new dials go to that one, and the old tunnel ends when its last connection has
//!   ([`retire`]). An attempt that fails leaves the old one as it is.
//! - The signal to drain ends waits and attempts; every tunnel then tells its server once.

mod pace;
mod retire;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use certs::Current;
use hashbrown::HashMap;
use rustls::ClientConfig;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use tunnel::backoff::Backoff;
use tunnel::mux::Mux;

use crate::admin::Heartbeat;
use crate::client::{ConnectError, Connector, Material, Tunnel, TunnelEnd, chain};
use crate::config::SyncConfig;
use crate::endpoint::{Dialer, Endpoints};
use crate::metrics::{Attempt, Metrics, Open};
use pace::Pace;

/// Tunnels of one agent at most, whatever servers say of their number; and as many that were replaced and are still in use.
pub(crate) const MAX_TUNNELS: usize = 256;

/// A tunnel that was lost sooner than this counts as a failed attempt: its server takes calls and drops them.
const SHORT_LIVED: Duration = Duration::from_secs(10);

/// How often a waiting loop says that it is alive.
const BEAT: Duration = Duration::from_secs(5);

/// What opens tunnels.
pub(crate) trait Connect {
    /// A tunnel to whichever server answers. Cancel safe, and bounded in time.
    async fn connect(&self) -> Result<Tunnel, ConnectError>;

    /// What it connects with.
    fn tls(&self) -> &Current<Arc<ClientConfig>>;
}

impl Connect for Connector {
    async fn connect(&self) -> Result<Tunnel, ConnectError> {
        Self::connect(self).await
    }

    fn tls(&self) -> &Current<Arc<ClientConfig>> {
        &self.tls
    }
}

/// The tunnels of this agent, and what keeps their number up.
#[derive(Debug)]
pub(crate) struct ClientSet<C> {
    connector: C,
    /// What tunnels should be made with; tells of changes.
    tls: Current<Arc<ClientConfig>>,
    config: SyncConfig,
    dialer: Dialer,
    heartbeat: Arc<Heartbeat>,
    clients: Clients,
    failures: Backoff,
    flaps: Backoff,
    pace: Pace,
    wanted: usize,
}

/// Tunnels by server id.
type Clients = Rc<ClientTable>;

#[derive(Debug, Default)]
struct ClientTable {
    by_server: RefCell<HashMap<String, Rc<Client>>>,
    /// Clients that were replaced and still run.
    retired: Cell<usize>,
    lost: Notify,
    /// Whether the last loss was that of a tunnel that had just come.
    was_short_lived: Cell<bool>,
}

/// One tunnel.
#[derive(Debug)]
struct Client {
    mux: Rc<Mux>,
    material: Material,
    /// Cancelled when another one has taken its place.
    retired: CancellationToken,
    /// The gauge that it counts in.
    counted: RefCell<Open>,
}

/// What to do after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// The next attempt.
    After(Duration),
    /// Nothing, until a tunnel is lost.
    Rest,
}

impl<C: Connect> ClientSet<C> {
    /// A set without tunnels. Dials of its tunnels are served by `dialer`; all runs as `dialer.tasks`.
    pub(crate) fn new(
        connector: C,
        config: SyncConfig,
        dialer: Dialer,
        heartbeat: Arc<Heartbeat>,
    ) -> Self {
        Self {
            tls: connector.tls().clone(),
            connector,
            dialer,
            heartbeat,
            clients: Clients::default(),
            failures: Backoff::new(config.interval, config.cap),
            flaps: Backoff::new(config.interval, config.cap),
            pace: Pace::new(config.interval),
            wanted: 1,
            config,
        }
    }

    /// Opens tunnels and replaces lost ones until the tasks are to stop; then tells every server to send no new dials.
    /// What runs goes on.
    pub(crate) async fn sync(&mut self) {
        let stop = self.dialer.tasks.stop().clone();
        // Cancel safe: an attempt that is dropped closes its connection, a tunnel is added without a wait.
        stop.run_until_cancelled(self.sync_for_ever()).await;
        let clients = self.clients.by_server.borrow();
        tracing::info!(
            tunnels = clients.len(),
            "draining: no new tunnels, servers are told to send no new dials"
        );
        for client in clients.values() {
            client.mux.send_drain();
        }
    }

    async fn sync_for_ever(&mut self) {
        loop {
            self.heartbeat.beat();
            let next = self.round().await;
            self.wait(next).await;
        }
    }

    /// One attempt, if one is due.
    async fn round(&mut self) -> Next {
        self.metrics().know_servers(self.wanted);
        if !self.is_looking() {
            return Next::Rest;
        }
        match Box::pin(self.connector.connect()).await {
            Ok(tunnel) => {
                self.failures.reset();
                self.on_tunnel(tunnel)
            }
            Err(error) => {
                let delay = self.failures.next_delay();
                tracing::warn!(error = chain(&error), retry_in = ?delay, "no tunnel to a server");
                self.metrics().attempted(Attempt::Failed);
                Next::After(delay)
            }
        }
    }

    /// Whether one more tunnel is wanted, or another in the place of one.
    fn is_looking(&self) -> bool {
        let open = self.clients.by_server.borrow().len();
        open < MAX_TUNNELS && (open < self.wanted || self.config.forever) || self.is_renewing()
    }

    /// Whether a tunnel was made with certificates of before.
    fn is_renewing(&self) -> bool {
        let current = self.tls.current();
        let by_server = self.clients.by_server.borrow();
        self.clients.retired.get() < MAX_TUNNELS
            && by_server
                .values()
                .any(|client| client.material.is_outdated(&current))
    }

    /// Whether a tunnel to `server_id` would be one too many.
    fn is_surplus(&self, server_id: &str, tunnel: &Tunnel) -> bool {
        let current = self.tls.current();
        let by_server = self.clients.by_server.borrow();
        match by_server.get(server_id) {
            // Certificates may have changed once more during the handshake.
            Some(known) => {
                !known.material.is_outdated(&current) || tunnel.material().is_outdated(&current)
            }
            None => by_server.len() >= MAX_TUNNELS,
        }
    }

    fn on_tunnel(&mut self, tunnel: Tunnel) -> Next {
        let greeting = tunnel.greeting().clone();
        if self.is_surplus(&greeting.server_id, &tunnel) {
            self.metrics().attempted(Attempt::Duplicate);
            tracing::debug!(server = greeting.server_id, peer = %tunnel.peer(), "connected to this server already");
            self.dialer.tasks.spawn(tunnel.say_goodbye());
            return Next::After(self.pace.next_delay(Instant::now()));
        }
        self.wanted = greeting.server_count;
        self.metrics().know_servers(self.wanted);
        match self.add(greeting.server_id, tunnel) {
            None => self.metrics().attempted(Attempt::Added),
            Some(old) => {
                self.metrics().attempted(Attempt::Renewed);
                self.retire(&old);
            }
        }
        self.pace.restart(Instant::now());
        if !self.is_looking() {
            Next::Rest
        } else if self.clients.by_server.borrow().len() < self.wanted || self.is_renewing() {
            Next::After(Duration::ZERO)
        } else {
            Next::After(self.pace.next_delay(Instant::now()))
        }
    }

    /// Lets a client that another one has taken the place of come to its end.
    fn retire(&self, old: &Client) {
        *old.counted.borrow_mut() = self.metrics().tunnel_retired();
        self.clients.retired.update(|count| count + 1);
        old.mux.send_drain();
        old.retired.cancel();
    }

    /// Registers a tunnel and runs it. Returns the client in whose place it is.
    fn add(&self, server_id: String, tunnel: Tunnel) -> Option<Rc<Client>> {
        let span = tracing::info_span!("tunnel", server = %server_id.escape_debug(), peer = %tunnel.peer());
        let client = Rc::new(Client {
            mux: tunnel.mux().clone(),
            material: tunnel.material().clone(),
            retired: CancellationToken::new(),
            counted: RefCell::new(self.metrics().tunnel_opened()),
        });
        let replaced = self
            .clients
            .by_server
            .borrow_mut()
            .insert(server_id.clone(), client.clone());
        let endpoints = Endpoints::new(self.dialer.clone(), client.mux.clone());
        let registered = Registered {
            clients: self.clients.clone(),
            server_id,
            client,
            since: Instant::now(),
        };
        let metrics = self.metrics().clone();
        let server_count = self.wanted;
        let run = async move {
            tracing::info!(server_count, "tunnel up");
            let unused = async {
                registered.client.retired.cancelled().await;
                tracing::info!(
                    connections = endpoints.connections(),
                    "certificates changed: another tunnel to this server takes new dials"
                );
                retire::unused(&endpoints).await;
            };
            let end = Box::pin(tunnel.run(|event| endpoints.on_event(event), unused)).await;
            if let Some(code) = end.code() {
                metrics.tunnel_failed(code);
            }
            let lived = registered.since.elapsed();
            match end {
                TunnelEnd::Finished => tracing::info!(?lived, "replaced tunnel closed"),
                end => tracing::warn!(reason = chain(&end), ?lived, "tunnel down"),
            }
        };
        self.dialer.tasks.spawn(run.instrument(span));
        replaced
    }

    /// Until the next attempt is due, or a tunnel is lost.
    async fn wait(&mut self, next: Next) {
        let mut due = match next {
            Next::After(delay) => Some(Instant::now() + delay),
            Next::Rest => None,
        };
        loop {
            let beat = Instant::now() + BEAT;
            tokio::select! {
                biased;
                () = self.clients.lost.notified() => {
                    let now = Instant::now();
                    self.pace.restart(now);
                    if self.clients.was_short_lived.get() {
                        let at = now + self.flaps.next_delay();
                        due = Some(due.map_or(at, |due| due.max(at)));
                    } else {
                        self.flaps.reset();
                        return;
                    }
                }
                () = self.tls.changed() => {
                    // Many agents see a change at the same time.
                    let at = Instant::now() + self.config.interval.mul_f64(fastrand::f64());
                    self.pace.restart(at);
                    self.failures.reset();
                    due = Some(due.map_or(at, |due| due.min(at)));
                }
                () = sleep_until(due.unwrap_or(beat).min(beat)) => {
                    if due.is_some_and(|due| due <= Instant::now()) {
                        return;
                    }
                    self.heartbeat.beat();
                }
            }
        }
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.dialer.metrics
    }
}

/// A client's place in the table, left when dropped.
#[derive(Debug)]
struct Registered {
    clients: Clients,
    server_id: String,
    client: Rc<Client>,
    since: Instant,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.client.retired.is_cancelled() {
            // Another one is in its place: nothing is lost.
            self.clients.retired.update(|count| count.saturating_sub(1));
            return;
        }
        let mut by_server = self.clients.by_server.borrow_mut();
        if by_server
            .get(&self.server_id)
            .is_some_and(|client| Rc::ptr_eq(client, &self.client))
        {
            by_server.remove(&self.server_id);
        }
        self.clients
            .was_short_lived
            .set(self.since.elapsed() < SHORT_LIVED);
        self.clients.lost.notify_one();
    }
}

#[cfg(test)]
mod tests;
