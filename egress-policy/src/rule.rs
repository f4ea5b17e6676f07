//! One rule: whom it is about, and which ports.

mod parse;

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

pub use parse::RuleError;

use crate::host::Host;

/// Longest rule that is read: a name of 253 characters with ports.
pub const MAX_RULE_BYTES: usize = 270;

/// A line of `--egress-allow` or `--egress-deny`.
///
/// As text: an address or a network (`10.0.0.0/8`, `fd00::/8`, `192.0.2.1`), a name (`node1.example`), everything below a
/// name (`.svc.cluster.local`, which the name itself is not part of), or `*`; and behind it, if it is not about every port,
/// `:443` or `:1024-65535`. An IPv6 address with ports stands in brackets: `[fd00::/8]:443`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whom it is about.
    pub subject: Subject,
    /// Which ports of theirs.
    pub ports: Ports,
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// Every target, named or not.
    Any,
    /// The addresses of a network. IPv4 networks within IPv6 are kept as IPv4.
    Net(IpNet),
    /// One name, in lower case.
    Name(String),
    /// Every name that ends so, in lower case, with its leading dot.
    Below(String),
}

/// The ports of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ports {
    /// Every port.
    All,
    /// From one to another, both included.
    Range(RangeInclusive<u16>),
}

impl Rule {
    /// Whether the rule is about `port` of a host that `host` is all that is known of: an address is in no rule for names,
    /// and a name in none for addresses.
    pub(crate) fn covers_host(&self, host: &Host, port: u16) -> bool {
        let is_subject = match (&self.subject, host) {
            (Subject::Any, _) => true,
            (Subject::Net(net), Host::Address(address)) => net.contains(address),
            (Subject::Name(own), Host::Name(name)) => own == name,
            (Subject::Below(suffix), Host::Name(name)) => {
                name.len() > suffix.len() && name.ends_with(suffix.as_str())
            }
            _ => false,
        };
        is_subject && self.ports.contain(port)
    }

    /// Whether the rule is about `port` of `address`, which is no IPv4 address within IPv6.
    pub(crate) fn covers_address(&self, address: IpAddr, port: u16) -> bool {
        self.covers_host(&Host::Address(address), port)
    }

    /// Whether it may match an address whose name is all that is known.
    pub(crate) fn may_cover_an_address(&self, port: u16) -> bool {
        matches!(self.subject, Subject::Net(_) | Subject::Any) && self.ports.contain(port)
    }
}

impl Ports {
    fn contain(&self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Range(range) => range.contains(&port),
        }
    }
}

impl fmt::Display for Rule {
    /// In a form that parses to the same rule.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.subject, &self.ports) {
            (Subject::Net(IpNet::V6(_)), Ports::Range(_)) => {
                write!(f, "[{}]{}", self.subject, self.ports)
            }
            (subject, ports) => write!(f, "{subject}{ports}"),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Net(net) => net.fmt(f),
            Self::Name(name) | Self::Below(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Ports {
    /// With the colon that stands before them in a rule.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => Ok(()),
            Self::Range(range) if range.start() == range.end() => write!(f, ":{}", range.start()),
            Self::Range(range) => write!(f, ":{}-{}", range.start(), range.end()),
        }
    }
}
