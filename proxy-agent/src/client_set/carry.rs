//! Connections of this node through the tunnels of this agent.

use std::rc::Rc;

use tunnel::connection::Connection;
use tunnel::stream::ForwardError;

use super::{Client, ClientSet, Connect};
use crate::forward::{Carry, OpenError};

impl<C: Connect> Carry for Rc<ClientSet<C>> {
    async fn open(&self, name: &str) -> Result<Connection, OpenError> {
        let client = self.carrier().ok_or(OpenError::NoTunnel)?;
        let opened = match client.tunnel.forward(name) {
            Ok(forward) => forward.await,
            Err(error) => Err(error),
        };
        opened.map(Connection::from).map_err(|error| match error {
            ForwardError::TunnelLost => OpenError::TunnelLost,
            ForwardError::Unsupported => OpenError::NoTunnel,
            error => OpenError::Refused(error.to_string()),
        })
    }
}

impl<C: Connect> ClientSet<C> {
    /// The tunnel that a connection of this node takes: of those whose server forwards, the one with the fewest connections; one whose
    /// server drains if there is no other.
    fn carrier(&self) -> Option<Rc<Client>> {
        let clients = self.clients.clients().into_iter();
        clients
            .filter(|client| client.forwards && !client.tunnel.is_lost())
            .min_by_key(|client| {
                let is_leaving = client.is_draining.get() || client.retired.is_cancelled();
                (is_leaving, client.tunnel.connections())
            })
    }
}
