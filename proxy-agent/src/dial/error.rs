//! Why a dial failed, in Go's words.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::Network;
use crate::metrics::DialFailureReason;

/// Longest network name that is repeated to the peer.
const MAX_NETWORK_NAME: usize = 64;

/// Why a dial gave no connection. `Display` is what the server is told; it must keep Go's shape.
#[derive(Debug)]
pub(crate) struct DialFailure {
    pub(super) network: Network,
    pub(super) cause: Cause,
}

/// What went wrong.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Not a network that we dial.
    UnknownNetwork { network: String },
    /// Not `host:port`.
    Address {
        address: String,
        reason: &'static str,
    },
    /// A port that is no number.
    UnknownPort { port: String },
    /// The resolver knows no address.
    NoSuchHost { host: String },
    /// The resolver had no answer in time.
    LookupTimedOut { host: String },
    /// The lookup could not be made.
    Lookup { host: String, source: io::Error },
    /// Addresses, but none of the network's family.
    NoSuitableAddress { host: String },
    /// No socket.
    Socket {
        address: SocketAddr,
        source: io::Error,
    },
    /// No connection.
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    /// No answer in time.
    TimedOut { address: SocketAddr },
}

impl DialFailure {
    /// A network that we do not dial.
    pub(super) fn unknown_network(network: &str) -> Self {
        let network = network.chars().take(MAX_NETWORK_NAME).collect();
        Self {
            network: Network::Tcp,
            cause: Cause::UnknownNetwork { network },
        }
    }

    /// As a label.
    pub(crate) fn reason(&self) -> DialFailureReason {
        match &self.cause {
            Cause::TimedOut { .. } | Cause::LookupTimedOut { .. } => DialFailureReason::Timeout,
            // Go's `net.Error.Timeout` is true for ETIMEDOUT as well.
            Cause::Connect { source, .. } if source.kind() == io::ErrorKind::TimedOut => {
                DialFailureReason::Timeout
            }
            _ => DialFailureReason::Unknown,
        }
    }
}

impl std::error::Error for DialFailure {}

impl fmt::Display for DialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = self.network;
        match &self.cause {
            Cause::UnknownNetwork { network } => write!(f, "dial: unknown network {network}"),
            Cause::Address { address, reason } => {
                write!(f, "dial {network}: address {address}: {reason}")
            }
            Cause::UnknownPort { port } => {
                write!(f, "dial {network}: lookup {network}/{port}: unknown port")
            }
            Cause::NoSuchHost { host } => write!(f, "dial {network}: lookup {host}: no such host"),
            Cause::LookupTimedOut { host } => {
                write!(f, "dial {network}: lookup {host}: i/o timeout")
            }
            Cause::Lookup { host, source } => {
                write!(f, "dial {network}: lookup {host}: {}", Errno(source))
            }
            Cause::NoSuitableAddress { host } => {
                write!(f, "dial {network}: address {host}: no suitable address")
            }
            Cause::Socket { address, source } => {
                write!(f, "dial {network} {address}: socket: {}", Errno(source))
            }
            Cause::Connect { address, source } => {
                write!(f, "dial {network} {address}: connect: {}", Errno(source))
            }
            Cause::TimedOut { address } => write!(f, "dial {network} {address}: i/o timeout"),
        }
    }
}

/// A system error as Go words it. C libraries differ (musl says "Host is unreachable"), so those that matter to the peer
/// stand here.
struct Errno<'a>(&'a io::Error);

impl fmt::Display for Errno<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The numbers are those of every architecture of Linux but MIPS, Alpha and SPARC.
        let words = match self.0.raw_os_error() {
            Some(1) => "operation not permitted",
            Some(12) => "cannot allocate memory",
            Some(13) => "permission denied",
            Some(22) => "invalid argument",
            Some(23) => "too many open files in system",
            Some(24) => "too many open files",
            Some(97) => "address family not supported by protocol",
            Some(99) => "cannot assign requested address",
            Some(100) => "network is down",
            Some(101) => "network is unreachable",
            Some(103) => "software caused connection abort",
            Some(104) => "connection reset by peer",
            Some(105) => "no buffer space available",
            Some(110) => "connection timed out",
            Some(111) => "connection refused",
            Some(112) => "host is down",
            Some(113) => "no route to host",
            _ => return write!(f, "{}", self.0),
        };
        f.write_str(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(cause: Cause) -> String {
        DialFailure {
            network: Network::Tcp,
            cause,
        }
        .to_string()
    }

    /// wire-protocol.md 4.6.
    #[test]
    fn system_errors_have_gos_words_and_not_the_c_librarys() {
        let address: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let connect = |number| {
            text(Cause::Connect {
                address,
                source: io::Error::from_raw_os_error(number),
            })
        };
        assert_eq!(
            connect(111),
            "dial tcp 10.0.0.1:80: connect: connection refused"
        );
        assert_eq!(
            connect(113),
            "dial tcp 10.0.0.1:80: connect: no route to host"
        );
        assert_eq!(
            connect(101),
            "dial tcp 10.0.0.1:80: connect: network is unreachable"
        );
        assert_eq!(
            connect(110),
            "dial tcp 10.0.0.1:80: connect: connection timed out"
        );
        let source = io::Error::from_raw_os_error(24);
        assert_eq!(
            text(Cause::Socket {
                address: "[::1]:80".parse().unwrap(),
                source
            }),
            "dial tcp [::1]:80: socket: too many open files"
        );
    }

    #[test]
    fn only_a_lack_of_answer_counts_as_a_timeout() {
        let address: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let reason = |cause| {
            DialFailure {
                network: Network::Tcp,
                cause,
            }
            .reason()
        };
        let connect = |number| Cause::Connect {
            address,
            source: io::Error::from_raw_os_error(number),
        };
        assert_eq!(
            reason(Cause::TimedOut { address }),
            DialFailureReason::Timeout
        );
        assert_eq!(reason(connect(110)), DialFailureReason::Timeout);
        assert_eq!(reason(connect(111)), DialFailureReason::Unknown);
        assert_eq!(
            reason(Cause::NoSuchHost {
                host: String::new()
            }),
            DialFailureReason::Unknown
        );
    }

    #[test]
    fn a_network_name_of_any_length_makes_a_short_answer() {
        assert!(
            DialFailure::unknown_network(&"x".repeat(1 << 20))
                .to_string()
                .len()
                < 100
        );
    }
}
