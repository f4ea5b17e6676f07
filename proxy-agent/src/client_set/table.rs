//! The tunnels of this agent, at most one in use for a server.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use hashbrown::HashMap;
use rustls::ClientConfig;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tunnel::Tunnel;

use super::MAX_TUNNELS;
use crate::client::{Material, Via};
use crate::metrics::Open;

/// One tunnel.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) server_id: String,
    /// Where it was found.
    pub(super) via: Via,
    /// Where it goes.
    pub(super) peer: SocketAddr,
    pub(super) since: Instant,
    pub(super) tunnel: Tunnel,
    /// Whether its server carries connections of this node.
    pub(super) forwards: bool,
    pub(super) material: Material,
    /// Whether its server is about to leave.
    pub(super) is_draining: Cell<bool>,
    /// When the log last told that its server knows another number of servers.
    pub(super) count_told: Cell<Option<Instant>>,
    /// Cancelled when it is to end as soon as nothing uses it.
    pub(super) retired: CancellationToken,
    /// The gauge that it counts in.
    pub(super) counted: RefCell<Open>,
    /// Counts it by its kind.
    pub(super) _kind: Open,
}

/// What to do with a tunnel that has just come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Its server had none.
    Free,
    /// It takes the place of one with outdated certificates, or whose server was leaving and has come back.
    Successor,
    /// Its server has one.
    Taken,
    /// There are too many.
    Full,
}

/// Clients by server id, and how many run beside it because another one took their place.
#[derive(Debug, Default)]
pub(super) struct Table {
    by_server: RefCell<HashMap<String, Rc<Client>>>,
    retired: Cell<usize>,
}

impl Table {
    /// Where a tunnel to `server_id` would go that was made with `material`, while `current` is what tunnels are made with.
    pub(super) fn place(
        &self,
        server_id: &str,
        material: &Material,
        current: &Arc<ClientConfig>,
    ) -> Place {
        let by_server = self.by_server.borrow();
        let Some(known) = by_server.get(server_id) else {
            return if by_server.len() < MAX_TUNNELS {
                Place::Free
            } else {
                Place::Full
            };
        };
        // Certificates may have changed once more during the handshake.
        let is_renewal = known.material.is_outdated(current) && !material.is_outdated(current);
        if !is_renewal && !known.is_draining.get() {
            Place::Taken
        } else if self.retired.get() < MAX_TUNNELS {
            Place::Successor
        } else {
            Place::Full
        }
    }

    /// Takes a client up. The one whose place it takes is returned, counts as retired, and must be told.
    pub(super) fn insert(&self, client: Rc<Client>) -> Option<Rc<Client>> {
        let id = client.server_id.clone();
        let old = self.by_server.borrow_mut().insert(id, client);
        if old.is_some() {
            self.retired.update(|count| count + 1);
        }
        old
    }

    /// Takes out a client that has ended, by what it is and not by its server's id: the end of an old tunnel never removes a new
    /// one (wire-protocol.md W22). Returns whether it was in use.
    pub(super) fn remove(&self, client: &Rc<Client>) -> bool {
        let mut by_server = self.by_server.borrow_mut();
        let is_in_use = by_server
            .get(&client.server_id)
            .is_some_and(|known| Rc::ptr_eq(known, client));
        if is_in_use {
            by_server.remove(&client.server_id);
        } else {
            self.retired.update(|count| count.saturating_sub(1));
        }
        is_in_use
    }

    /// The client of a server.
    pub(super) fn get(&self, server_id: &str) -> Option<Rc<Client>> {
        self.by_server.borrow().get(server_id).cloned()
    }

    /// All that are in use, the oldest first.
    pub(super) fn clients(&self) -> Vec<Rc<Client>> {
        let mut clients: Vec<_> = self.by_server.borrow().values().cloned().collect();
        clients.sort_by_key(|client| client.since);
        clients
    }

    /// Servers that have a tunnel and stay.
    pub(super) fn reached(&self) -> usize {
        let by_server = self.by_server.borrow();
        let stays = |client: &&Rc<Client>| !client.is_draining.get();
        by_server.values().filter(stays).count()
    }

    /// Whether a server has a tunnel and stays.
    pub(super) fn has(&self, server_id: &str) -> bool {
        let by_server = self.by_server.borrow();
        by_server
            .get(server_id)
            .is_some_and(|client| !client.is_draining.get())
    }

    /// Whether no server more can be had.
    pub(super) fn is_full(&self) -> bool {
        self.by_server.borrow().len() >= MAX_TUNNELS
    }

    /// Where those were found that another one should take the place of, since `current` is not what they were made with.
    pub(super) fn outdated(&self, current: &Arc<ClientConfig>) -> Vec<Via> {
        if self.retired.get() >= MAX_TUNNELS {
            return Vec::new();
        }
        let by_server = self.by_server.borrow();
        by_server
            .values()
            .filter(|client| client.material.is_outdated(current))
            .map(|client| client.via)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use tunnel::conn::Role;
    use tunnel::ledger::Ledger;
    use tunnel::observe::Unobserved;

    use super::*;
    use crate::fake_server::{FakeServers, PEER};
    use crate::metrics::{Metrics, TunnelKind};
    use tunnel::mux::Mux;

    /// wire-protocol.md W22.
    #[tokio::test]
    async fn the_end_of_an_old_client_does_not_remove_a_new_one() {
        let metrics = Metrics::new(certs::Current::fixed(Arc::default())).unwrap();
        let servers = FakeServers::new([]);
        let current = servers.connector.tls.current();
        let client = || {
            Rc::new(Client {
                server_id: "a".to_owned(),
                via: Via::Address(PEER),
                peer: PEER,
                since: Instant::now(),
                tunnel: Mux::new(Role::Agent, Rc::new(Ledger::new(0)), Rc::new(Unobserved)).into(),
                forwards: false,
                material: Material::of(&current),
                is_draining: Cell::new(false),
                count_told: Cell::new(None),
                retired: CancellationToken::new(),
                counted: RefCell::new(metrics.tunnel_opened()),
                _kind: metrics.tunnel_of(TunnelKind::Packet),
            })
        };
        let (old, new) = (client(), client());
        let table = Table::default();
        assert!(table.insert(old.clone()).is_none());
        let material = Material::of(&current);
        let place = |id| table.place(id, &material, &current);
        assert_eq!((place("a"), place("b")), (Place::Taken, Place::Free));
        old.is_draining.set(true);
        assert_eq!((place("a"), table.reached()), (Place::Successor, 0));
        assert!(
            table
                .insert(new.clone())
                .is_some_and(|replaced| Rc::ptr_eq(&replaced, &old))
        );
        assert!(!table.remove(&old));
        assert!(table.has("a") && table.reached() == 1);
        assert!(table.remove(&new));
        assert!(table.get("a").is_none());
        assert_eq!(table.retired.get(), 0);
    }
}
