//! Connections of this node through the tunnels of this agent.

use std::rc::Rc;

use tunnel::mux::Connection;

use super::{ClientSet, Connect};
use crate::forward::{Carry, OpenError};

impl<C: Connect> Carry for Rc<ClientSet<C>> {
    /// No packet tunnel can carry a connection to its server's side, and there are no others yet.
    async fn open(&self, _name: &str) -> Result<Connection, OpenError> {
        Err(OpenError::NoTunnel)
    }
}
