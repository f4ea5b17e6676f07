//! Who is compared.

use clap::ValueEnum;

/// A server and an agent, or what stands in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Pair {
    /// Both of upstream's.
    Upstream,
    /// Both ours, packet tunnel.
    Packet,
    /// Both ours, stream tunnel: what they choose.
    Stream,
    /// Our server, upstream's agent.
    OursUpstream,
    /// Upstream's server, our agent.
    UpstreamOurs,
    /// A relay of two processes, a TLS connection for each connection.
    Bare,
    /// The same without TLS.
    Plain,
}

/// Whose binary an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// `proxy-server` or `proxy-agent`.
    Ours,
    /// Upstream's, of the same job.
    Upstream,
    /// An end of a relay.
    Relay,
}

impl Pair {
    /// In the order of tables.
    pub const ALL: [Self; 7] = [
        Self::Upstream,
        Self::Packet,
        Self::Stream,
        Self::OursUpstream,
        Self::UpstreamOurs,
        Self::Bare,
        Self::Plain,
    ];

    /// As flags and tables call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Packet => "packet",
            Self::Stream => "stream",
            Self::OursUpstream => "ours-upstream",
            Self::UpstreamOurs => "upstream-ours",
            Self::Bare => "bare",
            Self::Plain => "plain",
        }
    }

    /// Server and agent.
    #[must_use]
    pub const fn ends(self) -> (Whose, Whose) {
        match self {
            Self::Upstream => (Whose::Upstream, Whose::Upstream),
            Self::Packet | Self::Stream => (Whose::Ours, Whose::Ours),
            Self::OursUpstream => (Whose::Ours, Whose::Upstream),
            Self::UpstreamOurs => (Whose::Upstream, Whose::Ours),
            Self::Bare | Self::Plain => (Whose::Relay, Whose::Relay),
        }
    }

    /// Whether an end is of that kind.
    #[must_use]
    pub fn has(self, whose: Whose) -> bool {
        let (server, agent) = self.ends();
        server == whose || agent == whose
    }

    /// One end ours, one upstream's.
    #[must_use]
    pub fn is_mixed(self) -> bool {
        self.has(Whose::Ours) && self.has(Whose::Upstream)
    }

    /// No tunnel at all.
    #[must_use]
    pub fn is_relay(self) -> bool {
        self.has(Whose::Relay)
    }
}
