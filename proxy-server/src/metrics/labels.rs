//! Values of labels.

/// Where a packet came from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// From kube-apiserver.
    FromClient,
    /// To kube-apiserver.
    ToClient,
    /// From an agent.
    FromAgent,
    /// To an agent.
    ToAgent,
}

impl Segment {
    pub(super) const ALL: [Self; 4] = [
        Self::FromClient,
        Self::ToClient,
        Self::FromAgent,
        Self::ToAgent,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FromClient => "from_client",
            Self::ToClient => "to_client",
            Self::FromAgent => "from_agent",
            Self::ToAgent => "to_agent",
        }
    }
}

/// Why a dial failed. Each counts once under upstream's `reason` and once under our `cause`,
/// which tells apart what upstream's does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFailure {
    /// No agent is connected.
    NoAgent,
    /// This server takes no more dials.
    ShuttingDown,
    /// The agent could not reach the target.
    ErrorResponse,
    /// The agent said yes to a dial that is not pending: it answered too late.
    UnrecognizedResponse,
    /// The agent said yes, and the frontend could not be told.
    SendResponse,
    /// The agent's tunnel went away.
    BackendClose,
    /// The agent gave the dial up (DIAL_CLS).
    GivenUp,
    /// The agent did not answer in time.
    BackendDialTimeout,
    /// Whoever asked went away.
    FrontendClose,
    /// A bound was hit. Ours.
    Limit,
    /// What was asked for is no address. Ours.
    BadTarget,
    /// The egress policy of this server. Ours.
    Policy,
}

impl DialFailure {
    pub(super) const ALL: [Self; 12] = [
        Self::NoAgent,
        Self::ShuttingDown,
        Self::ErrorResponse,
        Self::UnrecognizedResponse,
        Self::SendResponse,
        Self::BackendClose,
        Self::GivenUp,
        Self::BackendDialTimeout,
        Self::FrontendClose,
        Self::Limit,
        Self::BadTarget,
        Self::Policy,
    ];

    /// In upstream's words, and `limit` for what upstream has no word for.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::NoAgent | Self::ShuttingDown => "no_agent",
            Self::ErrorResponse => "error_response",
            Self::UnrecognizedResponse => "unrecognized_response",
            Self::SendResponse => "send_rsp",
            Self::BackendClose | Self::GivenUp => "backend_close",
            Self::BackendDialTimeout => "backend_dial_timeout",
            Self::FrontendClose => "frontend_close",
            Self::Limit | Self::BadTarget | Self::Policy => "limit",
        }
    }

    /// In ours, no two alike.
    pub(super) const fn cause(self) -> &'static str {
        match self {
            Self::NoAgent => "no_agent",
            Self::ShuttingDown => "shutting_down",
            Self::ErrorResponse => "agent_error",
            Self::UnrecognizedResponse => "late_answer",
            Self::SendResponse => "answer_not_taken",
            Self::BackendClose => "tunnel_lost",
            Self::GivenUp => "agent_gave_up",
            Self::BackendDialTimeout => "timeout",
            Self::FrontendClose => "client_gone",
            Self::Limit => "limit",
            Self::BadTarget => "bad_target",
            Self::Policy => "policy",
        }
    }

    pub(super) const fn outcome(self) -> Outcome {
        match self {
            Self::BackendDialTimeout => Outcome::TimedOut,
            Self::FrontendClose => Outcome::Abandoned,
            _ => Outcome::Failed,
        }
    }
}

/// How a dial ended, for its latency: few, as each is a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Connected,
    Failed,
    TimedOut,
    Abandoned,
}

impl Outcome {
    pub(super) const ALL: [Self; 4] = [
        Self::Connected,
        Self::Failed,
        Self::TimedOut,
        Self::Abandoned,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::Abandoned => "abandoned",
        }
    }
}

/// Why a dial was sent to another agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialRetry {
    /// The tunnel went away before the answer.
    TunnelLost,
    /// The agent gave no sign of life.
    NoSignOfLife,
    /// Too many dials were pending on the tunnel.
    Limit,
}

impl DialRetry {
    pub(super) const ALL: [Self; 3] = [Self::TunnelLost, Self::NoSignOfLife, Self::Limit];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::TunnelLost => "tunnel_lost",
            Self::NoSignOfLife => "no_sign_of_life",
            Self::Limit => "limit",
        }
    }
}

/// Why an agent's forward gave no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardFailure {
    /// There is no such target.
    Unknown,
    /// The agent may not use it.
    NotAllowed,
    /// The agent has too many.
    Limit,
    /// The target cannot be reached.
    Dial,
    /// The agent gave it up, did not answer, or is gone.
    Abandoned,
    /// This server takes no more.
    ShuttingDown,
}

impl ForwardFailure {
    pub(crate) const ALL: [Self; 6] = [
        Self::Unknown,
        Self::NotAllowed,
        Self::Limit,
        Self::Dial,
        Self::Abandoned,
        Self::ShuttingDown,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::NotAllowed => "not_allowed",
            Self::Limit => "limit",
            Self::Dial => "dial",
            Self::Abandoned => "abandoned",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

/// Which listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// kube-apiserver's.
    Frontend,
    /// The agents'.
    Agent,
}

impl Listener {
    pub(super) const ALL: [Self; 2] = [Self::Frontend, Self::Agent];

    /// As it stands in a metric label and in the log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frontend => "frontend",
            Self::Agent => "agent",
        }
    }
}

/// What an agent is good for; each tunnel is in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// Takes dials.
    Ready,
    /// Said that it is leaving.
    Draining,
    /// A newer tunnel of the same agent id took its place.
    Superseded,
    /// Gives no sign of life.
    Suspect,
}

impl AgentState {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Draining, Self::Superseded, Self::Suspect];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Superseded => "superseded",
            Self::Suspect => "suspect",
        }
    }
}

/// What a tunnel can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelKind {
    /// Upstream's packets alone: the peer is an agent of upstream.
    Packet,
    /// Flow control for each connection besides: the peer is ours.
    Credit,
    /// An HTTP/2 stream for each connection: the peer is ours.
    Stream,
}

impl TunnelKind {
    pub(super) const ALL: [Self; 3] = [Self::Packet, Self::Credit, Self::Stream];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Credit => "credit",
            Self::Stream => "stream",
        }
    }
}
