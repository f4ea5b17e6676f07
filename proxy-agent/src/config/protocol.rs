//! `--tunnel-protocol` and `--alpn-proto`: which names are offered by ALPN, and so which kind of tunnel a server can choose.

use clap::ValueEnum;
use tunnel::stream::ALPN as STREAM;

/// The name of the packet tunnel, which is upstream's: gRPC over HTTP/2.
pub(crate) const H2: &[u8] = b"h2";

/// Which tunnels are offered to servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum TunnelProtocol {
    /// Both; a server of ours chooses the stream tunnel, one of upstream's knows the packet tunnel alone.
    #[default]
    Auto,
    /// The packet tunnel alone, upstream's.
    Packet,
    /// The stream tunnel alone; servers of upstream's refuse it.
    Stream,
}

impl TunnelProtocol {
    /// The name of the tunnel that this excludes, which `--alpn-proto` must not have then.
    pub(super) fn excluded(self) -> Option<&'static [u8]> {
        match self {
            Self::Auto => None,
            Self::Packet => Some(STREAM),
            Self::Stream => Some(H2),
        }
    }

    /// As it is written.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Packet => "packet",
            Self::Stream => "stream",
        }
    }

    /// What is offered: `names` in their order, then the kinds' own names as far as they are not among them, the stream tunnel's
    /// first.
    pub(super) fn offer(self, mut names: Vec<String>) -> Vec<String> {
        let own: &[&[u8]] = match self {
            Self::Auto => &[STREAM, H2],
            Self::Packet => &[H2],
            Self::Stream => &[STREAM],
        };
        for name in own {
            if !names.iter().any(|known| known.as_bytes() == *name) {
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(protocol: TunnelProtocol, names: &[&str]) -> Vec<String> {
        protocol.offer(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn names_for_a_router_come_first_and_no_name_twice() {
        use TunnelProtocol::{Auto, Packet, Stream};
        assert_eq!(offer(Packet, &["a", "b"]), ["a", "b", "h2"]);
        assert_eq!(offer(Packet, &["h2", "a"]), ["h2", "a"]);
        assert_eq!(offer(Stream, &["a"]), ["a", "adit/1"]);
        assert_eq!(offer(Stream, &["adit/1", "a"]), ["adit/1", "a"]);
        assert_eq!(offer(Auto, &["a"]), ["a", "adit/1", "h2"]);
        assert_eq!(offer(Auto, &["h2", "adit/1"]), ["h2", "adit/1"]);
    }
}
