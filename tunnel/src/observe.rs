//! What a tunnel tells whoever counts.

use std::time::Duration;

use crate::packet::PacketKind;

/// Hears of the events of a tunnel. Called on the data path: must be cheap and must not call back into the tunnel.
///
/// A stream tunnel has no packets: what a packet would have said counts as that packet, so that numbers can be compared.
pub trait Observe: std::fmt::Debug {
    /// A packet came. `None`: of a type that this protocol does not know.
    fn received(&self, kind: Option<PacketKind>) {
        let _: Option<PacketKind> = kind;
    }

    /// A packet was handed to HTTP/2.
    fn sent(&self, kind: PacketKind) {
        let _: PacketKind = kind;
    }

    /// Payload of a connection came.
    fn data_received(&self, bytes: usize) {
        let _: usize = bytes;
    }

    /// Payload of a connection was handed to HTTP/2.
    fn data_sent(&self, bytes: usize) {
        let _: usize = bytes;
    }

    /// Received payload went on to its reader, who let it wait for this long.
    fn delivered(&self, waited: Duration) {
        let _: Duration = waited;
    }

    /// The agent answered a dial that nobody waits for: it was given up, or never made.
    fn unrecognized_answer(&self) {}

    /// A packet made no sense: payload and type disagree, wrong direction, id out of range.
    fn violation(&self) {}

    /// A connection was reset because its reader held more than its share and had read nothing for too long.
    fn stalled(&self) {}

    /// A bound of the tunnel was hit.
    fn limited(&self, limit: Limit) {
        let _: Limit = limit;
    }
}

/// The bounds of one tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`crate::mux::MAX_PENDING_DIALS`]
    PendingDials,
    /// [`crate::mux::MAX_CONNECTIONS`]
    Connections,
    /// [`crate::mux::MAX_CONTROL`]
    ControlQueue,
    /// The peer's data is paced because readers hold most of the tunnel's window.
    Paced,
}

impl Limit {
    /// Every limit.
    pub const ALL: [Self; 4] = [
        Self::PendingDials,
        Self::Connections,
        Self::ControlQueue,
        Self::Paced,
    ];

    /// As it stands in a metric label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PendingDials => "pending_dials",
            Self::Connections => "connections",
            Self::ControlQueue => "control_queue",
            Self::Paced => "paced",
        }
    }
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observe for Unobserved {}
