//! A tunnel, as everything above it uses it: it opens connections, whatever carries them.

use std::rc::Rc;

use crate::{
    dial::Dial,
    mux::Mux,
    stream::{Forward, ForwardError, Session},
};

/// One end of a tunnel. Clones are handles of the same.
#[derive(Clone, Debug)]
pub enum Tunnel {
    /// Upstream's protocol: packets of all connections on one gRPC stream.
    Packet(Rc<Mux>),
    /// Ours: one HTTP/2 stream a connection.
    Stream(Rc<Session>),
}

/// What flow control a tunnel's connections have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// None of their own: the peer is upstream's.
    Packet,
    /// Packets, with credit for each connection ([`crate::credit`]).
    Credit,
    /// A stream of HTTP/2 each.
    Stream,
}

impl From<Rc<Mux>> for Tunnel {
    fn from(mux: Rc<Mux>) -> Self {
        Self::Packet(mux)
    }
}

impl From<Rc<Session>> for Tunnel {
    fn from(session: Rc<Session>) -> Self {
        Self::Stream(session)
    }
}

impl Tunnel {
    /// What flow control its connections have.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Packet(mux) if mux.uses_credit() => Kind::Credit,
            Self::Packet(_) => Kind::Packet,
            Self::Stream(_) => Kind::Stream,
        }
    }

    /// Asks the agent for a connection. Resolves with the agent's answer; dropping it gives the dial up. Of a server's end.
    pub fn dial(&self, network: &str, address: &str) -> Dial {
        match self {
            Self::Packet(mux) => Dial::Packet(mux.dial(network, address)),
            Self::Stream(session) => Dial::Stream(session.dial(network, address)),
        }
    }

    /// Asks the server for a connection to its target of that name. Of an agent's end.
    ///
    /// # Errors
    /// [`ForwardError::Unsupported`] on a packet tunnel; [`ForwardError::TunnelLost`], [`ForwardError::TooMany`]
    pub fn forward(&self, name: &str) -> Result<Forward, ForwardError> {
        match self {
            Self::Packet(_) => Err(ForwardError::Unsupported),
            Self::Stream(session) => session.forward(name),
        }
    }

    /// Connections established now.
    #[must_use]
    pub fn connections(&self) -> usize {
        match self {
            Self::Packet(mux) => mux.connections(),
            Self::Stream(session) => session.connections(),
        }
    }

    /// Dials waiting for an answer.
    #[must_use]
    pub fn pending_dials(&self) -> usize {
        match self {
            Self::Packet(mux) => mux.pending_dials(),
            Self::Stream(session) => session.pending_dials(),
        }
    }

    /// Connections that take nothing more from their sockets until some of it has been sent.
    #[must_use]
    pub fn full_connections(&self) -> usize {
        match self {
            Self::Packet(mux) => mux.full_connections(),
            Self::Stream(session) => session.full_connections(),
        }
    }

    /// Whether the tunnel holds back its peer because readers hold most of its window. A stream tunnel never does.
    #[must_use]
    pub fn is_paced(&self) -> bool {
        match self {
            Self::Packet(mux) => mux.is_paced(),
            Self::Stream(_) => false,
        }
    }

    /// Whether peers get less window than they could use, because readers hold much.
    #[must_use]
    pub fn is_withholding(&self) -> bool {
        match self {
            Self::Packet(mux) => mux.is_withholding(),
            Self::Stream(session) => session.window() < crate::stream::window::BASE,
        }
    }

    /// How often something has come from the peer: it moves as long as the peer is alive and has something to say.
    #[must_use]
    pub fn signs(&self) -> u64 {
        match self {
            Self::Packet(mux) => mux.chunks_received(),
            Self::Stream(session) => session.signs(),
        }
    }

    /// Connections and dials of the whole agent, as it said last; `None` if it says nothing of it. Of a server's end.
    #[must_use]
    pub fn reported_load(&self) -> Option<usize> {
        match self {
            Self::Packet(_) => None,
            Self::Stream(session) => session.reported_load(),
        }
    }

    /// Tells the server what the whole agent carries, where it can hear it. Of an agent's end.
    pub fn send_load(&self, connections: u32, dials: u32) {
        match self {
            Self::Packet(_) => {}
            Self::Stream(session) => session.send_load(connections, dials),
        }
    }

    /// Tells the agent how many servers there are, where it can hear it. Of a server's end.
    pub fn send_server_count(&self, count: u32) {
        match self {
            Self::Packet(_) => {}
            Self::Stream(session) => session.send_server_count(count),
        }
    }

    /// Tells the peer that no new dials are wanted here. Upstream's agents ignore it.
    pub fn send_drain(&self) {
        match self {
            Self::Packet(mux) => mux.send_drain(),
            Self::Stream(session) => session.send_drain(),
        }
    }

    /// Whether there is something to send that has not been.
    #[must_use]
    pub fn has_outgoing(&self) -> bool {
        match self {
            Self::Packet(mux) => mux.has_outgoing(),
            Self::Stream(session) => session.has_outgoing(),
        }
    }

    /// Whether the tunnel is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Packet(mux) => mux.is_lost(),
            Self::Stream(session) => session.is_lost(),
        }
    }

    /// Whether both are handles of one tunnel.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Packet(one), Self::Packet(other)) => Rc::ptr_eq(one, other),
            (Self::Stream(one), Self::Stream(other)) => Rc::ptr_eq(one, other),
            (Self::Packet(_) | Self::Stream(_), _) => false,
        }
    }
}
