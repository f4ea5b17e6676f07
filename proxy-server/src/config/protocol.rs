//! `--tunnel-protocol`: which names agents may choose from by ALPN, and so which kinds of tunnel there are.

use certs::tls::ALPN_AGENT;
use clap::ValueEnum;
use tunnel::stream::ALPN;

/// Which tunnels agents can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum TunnelProtocol {
    /// The stream tunnel for those that offer it, the packet tunnel for all others.
    #[default]
    Auto,
    /// The packet tunnel alone, upstream's.
    Packet,
    /// The stream tunnel alone; agents of upstream cannot connect.
    Stream,
}

impl TunnelProtocol {
    /// What the agent listener takes, the most wanted first: the server's order decides (RFC 7301, section 3.2). The handshake of an
    /// agent that offers none of these fails, and the agent is told so by an alert.
    #[must_use]
    pub fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Self::Auto => &[ALPN, b"h2"],
            Self::Packet => ALPN_AGENT,
            Self::Stream => &[ALPN],
        }
    }
}
