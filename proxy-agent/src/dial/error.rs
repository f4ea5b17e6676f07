//! Why a dial failed, in Go's words.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use egress_policy::EgressRefused;
use tunnel::dial::RefusalKind;

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
    /// Several addresses, none of which could be connected to.
    Several {
        first: Box<Self>,
        others: Vec<SocketAddr>,
    },
    /// What this agent may not dial.
    Policy(EgressRefused),
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
        self.cause.reason()
    }

    /// As a stream tunnel tells it beside the words.
    pub(crate) fn kind(&self) -> RefusalKind {
        match self.reason() {
            DialFailureReason::Timeout => RefusalKind::TimedOut,
            DialFailureReason::BadAddress => RefusalKind::Malformed,
            DialFailureReason::Policy => RefusalKind::Forbidden,
            _ => RefusalKind::Failed,
        }
    }
}

impl Cause {
    fn reason(&self) -> DialFailureReason {
        match self {
            Self::TimedOut { .. } | Self::LookupTimedOut { .. } => DialFailureReason::Timeout,
            Self::Connect { source, .. } => match source.kind() {
                // Go's `net.Error.Timeout` is true for ETIMEDOUT as well.
                io::ErrorKind::TimedOut => DialFailureReason::Timeout,
                io::ErrorKind::ConnectionRefused => DialFailureReason::Refused,
                io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::NetworkDown => DialFailureReason::Unreachable,
                _ => DialFailureReason::Unknown,
            },
            Self::NoSuchHost { .. } => DialFailureReason::NoSuchHost,
            Self::Lookup { .. } => DialFailureReason::Lookup,
            Self::UnknownNetwork { .. }
            | Self::Address { .. }
            | Self::UnknownPort { .. }
            | Self::NoSuitableAddress { .. } => DialFailureReason::BadAddress,
            Self::Socket { .. } => DialFailureReason::NoSocket,
            Self::Several { first, .. } => first.reason(),
            Self::Policy(_) => DialFailureReason::Policy,
        }
    }

    fn write(&self, network: Network, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownNetwork { network } => write!(f, "dial: unknown network {network}"),
            Self::Address { address, reason } => {
                write!(f, "dial {network}: address {address}: {reason}")
            }
            Self::UnknownPort { port } => {
                write!(f, "dial {network}: lookup {network}/{port}: unknown port")
            }
            Self::NoSuchHost { host } => write!(f, "dial {network}: lookup {host}: no such host"),
            Self::LookupTimedOut { host } => {
                write!(f, "dial {network}: lookup {host}: i/o timeout")
            }
            Self::Lookup { host, source } => {
                write!(f, "dial {network}: lookup {host}: {}", Errno(source))
            }
            Self::NoSuitableAddress { host } => {
                write!(f, "dial {network}: address {host}: no suitable address")
            }
            Self::Socket { address, source } => {
                write!(f, "dial {network} {address}: socket: {}", Errno(source))
            }
            Self::Connect { address, source } => {
                write!(f, "dial {network} {address}: connect: {}", Errno(source))
            }
            Self::TimedOut { address } => write!(f, "dial {network} {address}: i/o timeout"),
            Self::Several { first, others } => {
                first.write(network, f)?;
                f.write_str(" (tried as well:")?;
                for other in others {
                    write!(f, " {other}")?;
                }
                f.write_str(")")
            }
            Self::Policy(refused) => {
                write!(
                    f,
                    "dial {network}: refused by egress policy of this agent: {refused}"
                )
            }
        }
    }
}

impl std::error::Error for DialFailure {}

impl fmt::Display for DialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.write(self.network, f)
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
    fn causes_are_told_apart() {
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
        assert_eq!(reason(connect(111)), DialFailureReason::Refused);
        assert_eq!(reason(connect(113)), DialFailureReason::Unreachable);
        assert_eq!(reason(connect(101)), DialFailureReason::Unreachable);
        assert_eq!(reason(connect(22)), DialFailureReason::Unknown);
        assert_eq!(
            reason(Cause::NoSuchHost {
                host: String::new()
            }),
            DialFailureReason::NoSuchHost
        );
        let first = Box::new(connect(111));
        let several = Cause::Several {
            first,
            others: vec![address],
        };
        assert_eq!(reason(several), DialFailureReason::Refused);
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
