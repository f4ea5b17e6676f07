//! The seven packets of upstream's protocol (`konnectivity-client/proto/client/client.proto`).

use std::fmt;

use bytes::Bytes;

/// Identifies one dial from its request to its response; `random` on the wire.
///
/// Chosen by whoever asks. Nothing but equality is ever derived from it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialId(pub i64);

/// Identifies one established connection of one tunnel; `connectID` on the wire.
///
/// Chosen by the agent, unique within one agent stream only: the same number is live on many tunnels at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectId(pub i64);

impl ConnectId {
    /// What upstream's peers read as "no connection id"; never names a connection.
    pub const NONE: Self = Self(0);
}

impl fmt::Debug for DialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dial {}", self.0)
    }
}

impl fmt::Debug for ConnectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

impl fmt::Display for DialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ConnectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One message of a `Proxy` or `Connect` stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Asks for a connection to `address`.
    DialRequest {
        /// Go network name; upstream senders only ever say `tcp`.
        protocol: String,
        /// `host:port`; the host is a name, an IPv4 or a bracketed IPv6 address.
        address: String,
        /// Copied into the answer.
        dial: DialId,
    },
    /// Answers a dial.
    DialResponse {
        /// Empty on success; otherwise why there is no connection, and `conn` means nothing.
        error: String,
        /// The new connection.
        conn: ConnectId,
        /// The dial that this answers.
        dial: DialId,
    },
    /// Asks for the end of a connection, after all data sent before it.
    CloseRequest {
        /// The connection to end.
        conn: ConnectId,
    },
    /// Says that a connection has ended, asked or not.
    CloseResponse {
        /// Normally empty.
        error: String,
        /// The connection that ended.
        conn: ConnectId,
    },
    /// Payload. Never sent empty: upstream's client library takes that for the end of the stream.
    Data {
        /// The connection that it belongs to.
        conn: ConnectId,
        /// The bytes, shared with the buffer that they were received in.
        payload: Bytes,
    },
    /// Gives up a dial that has not been answered.
    CloseDial {
        /// The dial given up.
        dial: DialId,
    },
    /// The agent asks for no new dials.
    Drain,
}

impl Packet {
    /// The kind of this packet.
    #[must_use]
    pub fn kind(&self) -> PacketKind {
        match self {
            Self::DialRequest { .. } => PacketKind::DialRequest,
            Self::DialResponse { .. } => PacketKind::DialResponse,
            Self::CloseRequest { .. } => PacketKind::CloseRequest,
            Self::CloseResponse { .. } => PacketKind::CloseResponse,
            Self::Data { .. } => PacketKind::Data,
            Self::CloseDial { .. } => PacketKind::CloseDial,
            Self::Drain => PacketKind::Drain,
        }
    }
}

/// `PacketType` on the wire; the number is the enum value of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketKind {
    /// `DIAL_REQ`
    DialRequest = 0,
    /// `DIAL_RSP`
    DialResponse = 1,
    /// `CLOSE_REQ`
    CloseRequest = 2,
    /// `CLOSE_RSP`
    CloseResponse = 3,
    /// `DATA`
    Data = 4,
    /// `DIAL_CLS`
    CloseDial = 5,
    /// `DRAIN`
    Drain = 6,
}

impl PacketKind {
    /// Every kind, in the order of the wire numbers.
    pub const ALL: [Self; 7] = [
        Self::DialRequest,
        Self::DialResponse,
        Self::CloseRequest,
        Self::CloseResponse,
        Self::Data,
        Self::CloseDial,
        Self::Drain,
    ];

    /// The kind with this wire number, if it is one that this protocol knows.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        usize::try_from(number)
            .ok()
            .and_then(|n| Self::ALL.get(n))
            .copied()
    }

    /// Upstream's name, as it stands in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DialRequest => "DIAL_REQ",
            Self::DialResponse => "DIAL_RSP",
            Self::CloseRequest => "CLOSE_REQ",
            Self::CloseResponse => "CLOSE_RSP",
            Self::Data => "DATA",
            Self::CloseDial => "DIAL_CLS",
            Self::Drain => "DRAIN",
        }
    }
}

impl fmt::Display for PacketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_and_its_wire_number_name_each_other() {
        for kind in PacketKind::ALL {
            assert_eq!(PacketKind::from_number(kind as u32), Some(kind));
        }
        assert_eq!(PacketKind::from_number(7), None);
        assert_eq!(PacketKind::from_number(u32::MAX), None);
    }
}
