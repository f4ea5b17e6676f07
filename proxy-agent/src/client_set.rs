//! One tunnel to each server, and what finds them (wire-protocol.md 4.2 to 4.4, improved).
//!
//! - The name of the servers is resolved again and again. Each address is a [`Route`] with a task of its own, which makes
//!   attempts there and backs off for itself, so a dead address delays no other. Behind a proxy there is one route, to it.
//! - An address that has not led to a server with a tunnel is tried, however many servers there are said to be. While fewer are
//!   reached than wanted ([`ServerCount`]), all are tried: one may be that of a load balancer.
//! - An attempt that reaches a server which has a tunnel is a *duplicate* and dropped. Duplicates are retried fast at first and
//!   ever more slowly while nothing new comes ([`pace`]), where upstream makes one a second for ever.
//! - A lost tunnel is looked for at once where it was found; a server that sends DRAIN no longer counts, is looked for likewise,
//!   and its connections go on.
//! - When the agent's certificate or the CA bundle changed, each tunnel is replaced make-before-break: connections are made
//!   until one reaches the same server, new dials go to that one, and the old tunnel ends when its last connection has
//!   ([`retire`]). An attempt that fails leaves the old one as it is.
//! - The signal to drain ends waits and attempts; every tunnel then tells its server once.

mod carry;
mod pace;
mod retire;
mod rhythm;
mod route;
mod search;
mod shortfall;
mod table;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use certs::Current;
use hashbrown::HashSet;
use rustls::ClientConfig;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use tunnel::event::Event;

use crate::admin::Heartbeat;
use crate::client::{ConnectError, Connector, Tunnel, TunnelEnd, Via, chain};
use crate::config::SyncConfig;
use crate::endpoint::{Dialer, Endpoints};
use crate::metrics::{Attempt, Metrics, TunnelKind};
use crate::server_count::{CountSource, ServerCount};
use crate::standing::{MAX_TROUBLES, Server, Standing};
use route::Route;
use table::{Client, Place, Table};

/// Tunnels of one agent at most, whatever servers say of their number; and as many that were replaced and are still in use.
pub(crate) const MAX_TUNNELS: usize = 256;

/// A tunnel that was lost sooner than this counts as a failed attempt: its server takes calls and drops them.
const SHORT_LIVED: Duration = Duration::from_secs(10);

/// How often the log tells that one server knows another number of servers; more often it is told at debug.
const COUNT_TOLD_EVERY: Duration = Duration::from_secs(60);

/// What opens tunnels.
pub(crate) trait Connect: 'static {
    /// Where servers may be: at least one place, few. Cancel safe, and bounded in time.
    async fn routes(&self) -> Result<Vec<Via>, ConnectError>;

    /// A tunnel to whichever server answers there. Cancel safe, and bounded in time.
    async fn connect(&self, via: Via) -> Result<Tunnel, ConnectError>;

    /// What it connects with.
    fn tls(&self) -> &Current<Arc<ClientConfig>>;

    /// The proxy on the way, without credentials.
    fn proxy(&self) -> Option<String>;
}

impl Connect for Connector {
    async fn routes(&self) -> Result<Vec<Via>, ConnectError> {
        Self::routes(self).await
    }

    async fn connect(&self, via: Via) -> Result<Tunnel, ConnectError> {
        Self::connect(self, via).await
    }

    fn tls(&self) -> &Current<Arc<ClientConfig>> {
        &self.tls
    }

    fn proxy(&self) -> Option<String> {
        self.proxy.as_ref().map(ToString::to_string)
    }
}

/// The tunnels of this agent, and what keeps their number up. A handle: clones are the same set.
#[derive(Debug)]
pub(crate) struct ClientSet<C> {
    connector: C,
    config: SyncConfig,
    dialer: Dialer,
    heartbeat: Arc<Heartbeat>,
    clients: Table,
    routes: RefCell<Vec<Rc<Route>>>,
    count: RefCell<ServerCount>,
    /// The number of servers wanted, as last computed.
    wanted: Cell<usize>,
    /// The servers' name should be resolved anew.
    lookup: Notify,
    /// Why the last lookup failed, until one succeeds.
    lookup_failure: RefCell<Option<String>>,
    /// Server ids that two addresses were warned of for.
    same_ids: RefCell<HashSet<String>>,
    /// Cancelled when all tunnels are to end in order.
    leave: CancellationToken,
    /// The load that servers were told last.
    told_load: Cell<Option<(u32, u32)>>,
    standing: watch::Sender<Standing>,
}

impl<C: Connect> ClientSet<C> {
    /// A set without tunnels. Dials of its tunnels are served by `dialer`; all runs as `dialer.tasks`.
    pub(crate) fn new(
        connector: C,
        config: SyncConfig,
        count: CountSource,
        dialer: Dialer,
        heartbeat: Arc<Heartbeat>,
        standing: watch::Sender<Standing>,
    ) -> Rc<Self> {
        Rc::new(Self {
            connector,
            config,
            dialer,
            heartbeat,
            clients: Table::default(),
            routes: RefCell::default(),
            count: RefCell::new(ServerCount::new(count)),
            wanted: Cell::new(1),
            lookup: Notify::new(),
            lookup_failure: RefCell::default(),
            same_ids: RefCell::default(),
            leave: CancellationToken::new(),
            told_load: Cell::new(None),
            standing,
        })
    }

    /// Opens tunnels and replaces lost ones until the tasks are to stop; then tells every server to send no new dials.
    /// What runs goes on.
    pub(crate) async fn sync(self: &Rc<Self>) {
        let stop = self.dialer.tasks.stop().clone();
        // Cancel safe: an attempt that is dropped closes its connection, a tunnel is added without a wait.
        stop.run_until_cancelled(self.search()).await;
        let clients = self.clients.clients();
        tracing::info!(
            tunnels = clients.len(),
            "draining: no new tunnels, servers are told to send no new dials"
        );
        for client in clients {
            client.tunnel.send_drain();
        }
    }

    /// Ends all tunnels in order; their tasks then end by themselves.
    pub(crate) fn leave(&self) {
        self.leave.cancel();
    }

    /// Takes a tunnel up that was found at `route`, or ends it again if its server has one.
    fn on_tunnel(self: &Rc<Self>, route: &Route, tunnel: Tunnel) {
        let greeting = tunnel.greeting().clone();
        let current = self.tls().current();
        let place = self
            .clients
            .place(&greeting.server_id, tunnel.material(), &current);
        let attempt = match place {
            Place::Free => Attempt::Added,
            Place::Successor => Attempt::Renewed,
            Place::Taken | Place::Full => Attempt::Duplicate,
        };
        if place != Place::Full {
            let mut count = self.count.borrow_mut();
            count.heard(&greeting.server_id, greeting.server_count);
        }
        self.metrics().attempted(attempt);
        *route.led_to.borrow_mut() = Some(greeting.server_id.clone());
        match place {
            Place::Free | Place::Successor => {
                if let Some(old) = self.add(greeting.server_id, route.via, tunnel) {
                    self.retire(&old);
                }
            }
            Place::Taken | Place::Full => {
                tracing::debug!(server = greeting.server_id, peer = %tunnel.peer(), ?place, "a tunnel too many");
                self.warn_of_same_id(&greeting.server_id, route.via);
                self.dialer.tasks.spawn(tunnel.say_goodbye());
            }
        }
        let now = Instant::now();
        let share = self.share();
        route.with_rhythm(|rhythm| rhythm.on_answer(now, share));
        self.recount();
        if attempt != Attempt::Duplicate {
            for other in self.routes() {
                other.with_rhythm(|rhythm| rhythm.on_progress(now));
            }
        }
        if !self.is_short() && self.clients.outdated(&current).is_empty() {
            let routes = self.routes();
            for route in routes.iter().filter(|route| self.is_settled(route)) {
                route.with_rhythm(|rhythm| rhythm.rest(now, share));
            }
        }
    }

    /// Lets a client that another one has taken the place of come to its end.
    fn retire(&self, old: &Client) {
        *old.counted.borrow_mut() = self.metrics().tunnel_retired();
        old.tunnel.send_drain();
        old.retired.cancel();
    }

    /// Registers a tunnel and runs it. Returns the client in whose place it is.
    fn add(self: &Rc<Self>, server_id: String, via: Via, tunnel: Tunnel) -> Option<Rc<Client>> {
        let span = tracing::info_span!("tunnel", server = %server_id.escape_debug(), peer = %tunnel.peer());
        let client = Rc::new(Client {
            via,
            peer: tunnel.peer(),
            since: Instant::now(),
            tunnel: tunnel.handle().clone(),
            forwards: tunnel.greeting().forwards,
            material: tunnel.material().clone(),
            is_draining: Cell::new(false),
            count_told: Cell::new(None),
            retired: CancellationToken::new(),
            counted: RefCell::new(self.metrics().tunnel_opened()),
            _kind: self.metrics().tunnel_of(TunnelKind::of(tunnel.handle())),
            server_id,
        });
        let replaced = self.clients.insert(client.clone());
        // Its server knows nothing of the others' yet.
        self.told_load.set(None);
        let registered = Registered {
            set: self.clone(),
            client,
        };
        let server_count = tunnel.greeting().server_count;
        let run = async move {
            tracing::info!(server_count, "tunnel up");
            let (set, client) = (&registered.set, &registered.client);
            let endpoints = Endpoints::new(set.dialer.clone(), client.tunnel.clone());
            let unused = async {
                tokio::select! {
                    () = set.leave.cancelled() => return,
                    () = client.retired.cancelled() => {}
                }
                tracing::info!(
                    connections = endpoints.connections(),
                    "another tunnel to this server takes new dials"
                );
                retire::unused(&endpoints).await;
            };
            let on_event = |event| match event {
                Event::Dial(dial) => endpoints.on_dial(dial),
                Event::Drain => set.on_server_drains(client),
                Event::ServerCount(count) => set.on_server_count(client, count),
                // A server's end says nothing else.
                _ => {}
            };
            let end = Box::pin(tunnel.run(on_event, unused)).await;
            if let Some(code) = end.code() {
                set.metrics().tunnel_failed(code);
            }
            let lived = client.since.elapsed();
            match end {
                TunnelEnd::Finished => tracing::info!(?lived, "tunnel closed"),
                end if client.is_draining.get() => {
                    tracing::info!(reason = chain(&end), ?lived, "drained server's tunnel down");
                }
                end => tracing::warn!(reason = chain(&end), ?lived, "tunnel down"),
            }
        };
        self.dialer.tasks.spawn(run.instrument(span));
        replaced
    }

    /// A server is about to leave: another one is looked for, or its successor, and what runs goes on.
    fn on_server_drains(&self, client: &Rc<Client>) {
        if client.is_draining.replace(true) || client.retired.is_cancelled() {
            return;
        }
        tracing::info!(
            connections = client.tunnel.connections(),
            "the server drains: another tunnel is looked for, connections go on"
        );
        self.on_server_gone(client);
    }

    /// A server has heard of others.
    fn on_server_count(&self, client: &Client, count: u32) {
        let count = usize::try_from(count).unwrap_or(usize::MAX).max(1);
        let now = Instant::now();
        let is_news = (client.count_told.get()).is_none_or(|told| now - told >= COUNT_TOLD_EVERY);
        if is_news {
            client.count_told.set(Some(now));
            tracing::info!(count, "the server tells another number of servers");
        } else {
            tracing::debug!(count, "the server tells another number of servers");
        }
        self.count.borrow_mut().heard(&client.server_id, count);
        self.recount();
    }

    /// Tells servers what this agent carries, where they can hear it.
    pub(crate) fn send_load(&self) {
        let clients = self.clients.clients();
        let connections: usize = clients
            .iter()
            .map(|client| client.tunnel.connections())
            .sum();
        let under_way = self.dialer.activity.under_way();
        let dials = under_way.saturating_sub(connections);
        let bounded = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let load = (bounded(connections), bounded(dials));
        if self.told_load.replace(Some(load)) != Some(load) {
            for client in clients {
                client.tunnel.send_load(load.0, load.1);
            }
        }
    }

    /// A tunnel has ended.
    fn on_end(&self, client: &Rc<Client>) {
        // If another one is in its place, or its server has drained, then what is to be done has been done.
        if self.clients.remove(client) && !client.is_draining.get() {
            self.on_server_gone(client);
        }
        self.recount();
    }

    fn on_server_gone(&self, client: &Client) {
        let now = Instant::now();
        self.count.borrow_mut().lost(&client.server_id, now);
        self.lookup.notify_one();
        let was_short_lived = client.since.elapsed() < SHORT_LIVED;
        let share = self.share();
        let is_alone = self.clients.reached() == 0;
        for route in self.routes() {
            route.with_rhythm(|rhythm| {
                if route.via == client.via {
                    rhythm.on_loss(now, was_short_lived, is_alone);
                } else {
                    rhythm.hurry(now, share, is_alone);
                }
            });
        }
        self.recount();
    }

    /// Two addresses lead to servers of one id: if these are two, one of them is never used (wire-protocol.md W38). A name with
    /// an address of each family is that of one server.
    fn warn_of_same_id(&self, server_id: &str, via: Via) {
        let Some(known) = self.clients.get(server_id) else {
            return;
        };
        let (Via::Address(one), Via::Address(other)) = (known.via, via) else {
            return;
        };
        let mut same_ids = self.same_ids.borrow_mut();
        if one != other
            && one.is_ipv4() == other.is_ipv4()
            && same_ids.len() < MAX_TUNNELS
            && same_ids.insert(server_id.to_owned())
        {
            tracing::warn!(server = server_id, %one, %other,
                "two addresses lead to one server id: if these are two servers, give each its own --server-id, for only one is used");
        }
    }

    /// Brings the wanted number up to date, and everybody who looks at it.
    fn recount(&self) {
        let now = Instant::now();
        let wanted = self.count.borrow_mut().wanted(now);
        let grew = wanted > self.wanted.replace(wanted);
        if grew && self.is_short() {
            // Many agents hear of it at the same time.
            let at = now + self.config.interval.mul_f64(fastrand::f64());
            for route in self.routes() {
                route.with_rhythm(|rhythm| rhythm.start_over(at));
            }
        }
        for route in self.routes() {
            route.wake();
        }
        self.publish(wanted);
    }

    fn publish(&self, wanted: usize) {
        let reached = self.clients.reached();
        self.metrics().know_servers(wanted);
        self.metrics().reach_servers(reached);
        let clients = self.clients.clients();
        let servers = clients.iter().map(|client| Server {
            id: client.server_id.clone(),
            address: client.peer.to_string(),
            since: client.since,
            is_draining: client.is_draining.get(),
        });
        let lookup = self.lookup_failure.borrow().clone();
        let lookup = lookup.map(|failure| ("lookup".to_owned(), failure));
        let routes = self.routes();
        let failures = routes.iter().filter_map(|route| {
            let failure = route.failure.borrow().clone()?;
            Some((route.via.to_string(), failure))
        });
        self.standing.send_replace(Standing {
            wanted,
            reached,
            servers: servers.collect(),
            troubles: lookup
                .into_iter()
                .chain(failures)
                .take(MAX_TROUBLES)
                .collect(),
            proxy: self.connector.proxy(),
        });
    }

    /// Whether servers are missing.
    fn is_short(&self) -> bool {
        self.clients.reached() < self.wanted.get()
    }

    fn routes(&self) -> Vec<Rc<Route>> {
        self.routes.borrow().clone()
    }

    /// Addresses that attempts go to.
    fn share(&self) -> u32 {
        u32::try_from(self.routes.borrow().len())
            .unwrap_or(u32::MAX)
            .max(1)
    }

    fn tls(&self) -> &Current<Arc<ClientConfig>> {
        self.connector.tls()
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.dialer.metrics
    }
}

/// A client's place in the table, left when dropped.
struct Registered<C: Connect> {
    set: Rc<ClientSet<C>>,
    client: Rc<Client>,
}

impl<C: Connect> Drop for Registered<C> {
    fn drop(&mut self) {
        self.set.on_end(&self.client);
    }
}

#[cfg(test)]
mod tests;
