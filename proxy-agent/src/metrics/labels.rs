//! Values of labels.

use tunnel::{Kind, Tunnel};

/// How a dial to a target failed. Each counts under upstream's [`reason`](Self::reason) and under our
/// [`cause`](Self::cause).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DialFailureReason {
    /// No answer in time, of the target or of the resolver.
    Timeout,
    /// The target's host refuses connections to the port.
    Refused,
    /// There is no way to the target.
    Unreachable,
    /// The resolver knows no address.
    NoSuchHost,
    /// The lookup could not be made.
    Lookup,
    /// What was asked for is no address, or none that is dialled.
    BadAddress,
    /// This host has no socket left for it.
    NoSocket,
    /// The egress policy of this agent.
    Policy,
    /// All else; also upstream's word for all but the first.
    Unknown,
}

impl DialFailureReason {
    pub(super) const ALL: [Self; 9] = [
        Self::Timeout,
        Self::Refused,
        Self::Unreachable,
        Self::NoSuchHost,
        Self::Lookup,
        Self::BadAddress,
        Self::NoSocket,
        Self::Policy,
        Self::Unknown,
    ];

    /// Upstream tells two apart.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            _ => "unknown",
        }
    }

    /// No two alike.
    pub(super) const fn cause(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::NoSuchHost => "no_such_host",
            Self::Lookup => "lookup",
            Self::BadAddress => "bad_address",
            Self::NoSocket => "no_socket",
            Self::Policy => "policy",
            Self::Unknown => "unknown",
        }
    }
}

/// How an attempt to get a tunnel to one more server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// With a new tunnel.
    Added,
    /// With a tunnel in the place of one that was made with certificates of before, or whose server drained.
    Renewed,
    /// At a server that we have a tunnel to.
    Duplicate,
    /// Without an answer that can be used.
    Failed,
}

impl Attempt {
    pub(super) const ALL: [Self; 4] = [Self::Added, Self::Renewed, Self::Duplicate, Self::Failed];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Renewed => "renewed",
            Self::Duplicate => "duplicate",
            Self::Failed => "failed",
        }
    }
}

/// Why a connection of this node was not carried to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardFailure {
    /// No tunnel to a server that forwards.
    NoTunnel,
    /// The server said no, or its target did.
    Refused,
    /// The tunnel went away before the answer, and the next one as well.
    TunnelLost,
    /// No answer in time.
    Timeout,
    /// `--forward-max-connections`
    Limit,
}

impl ForwardFailure {
    pub(crate) const ALL: [Self; 5] = [
        Self::NoTunnel,
        Self::Refused,
        Self::TunnelLost,
        Self::Timeout,
        Self::Limit,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NoTunnel => "no_tunnel",
            Self::Refused => "refused",
            Self::TunnelLost => "tunnel_lost",
            Self::Timeout => "timeout",
            Self::Limit => "limit",
        }
    }
}

/// What a tunnel can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKind {
    /// Upstream's packets alone: the peer is a server of upstream.
    Packet,
    /// Flow control for each connection besides: the peer is ours.
    Credit,
    /// An HTTP/2 stream for each connection: the peer is ours.
    Stream,
}

impl TunnelKind {
    pub(super) const ALL: [Self; 3] = [Self::Packet, Self::Credit, Self::Stream];

    /// Of a tunnel that is up.
    pub(crate) fn of(tunnel: &Tunnel) -> Self {
        match tunnel.kind() {
            Kind::Packet => Self::Packet,
            Kind::Credit => Self::Credit,
            Kind::Stream => Self::Stream,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Credit => "credit",
            Self::Stream => "stream",
        }
    }
}
