//! What the owner of a tunnel must act on, whatever kind of tunnel it is.

use crate::{dial::IncomingDial, stream::IncomingForward};

/// Something that the owner of a tunnel must act on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// To an agent: dial this.
    Dial(IncomingDial),
    /// The peer wants no new dials. To a server: choose another agent. To an agent, by our servers alone: find another server.
    Drain,
    /// To an agent: there are so many servers.
    ServerCount(u32),
    /// To a server: the agent wants a connection to one of its targets.
    Forward(IncomingForward),
}
