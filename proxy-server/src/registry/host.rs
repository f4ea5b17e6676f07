//! Hosts as they are compared: what a dial goes to, and what agents say they reach.

use std::{fmt, net::IpAddr};

/// A host, by value: an address in any spelling is the same host, as is a name in any case and with or without its final dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address; IPv4 within IPv6 is IPv4.
    Address(IpAddr),
    /// What is no address: lower case, no final dot. May be nonsense, which then matches itself alone.
    Name(Box<str>),
}

impl Host {
    /// Reads a name or address without brackets.
    #[must_use]
    pub fn read(text: &str) -> Self {
        match text.parse::<IpAddr>() {
            Ok(address) => Self::Address(address.to_canonical()),
            Err(_) => {
                let name = text.strip_suffix('.').unwrap_or(text);
                Self::Name(name.to_lowercase().into())
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// A host, and a port if one is meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The host.
    pub host: Host,
    /// The port; `None` for any, or if there is none.
    pub port: Option<u16>,
}

impl Destination {
    /// Takes `host`, `host:port`, `[v6]`, `[v6]:port` or `v6` apart; total, as what is dialled may be nonsense.
    ///
    /// As upstream's `RemovePortFromHost`, except that `[v6]` keeps its last group.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let (host, port) = split(text);
        Self {
            host: Host::read(host),
            port: port.and_then(|port| port.parse().ok()),
        }
    }

    /// The same host with any port.
    #[must_use]
    pub fn without_port(&self) -> Self {
        Self {
            host: self.host.clone(),
            port: None,
        }
    }
}

fn split(text: &str) -> (&str, Option<&str>) {
    if let Some(inner) = text.strip_prefix('[') {
        return match inner.split_once(']') {
            Some((host, rest)) => (host, rest.strip_prefix(':')),
            None => (inner, None),
        };
    }
    // With more than one colon it is an address, whose last group is no port.
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Host, Option<u16>) {
        let destination = Destination::read(text);
        (destination.host, destination.port)
    }

    #[test]
    fn the_port_is_found_in_every_form_of_an_address() {
        let v6 = Host::read("fd00::7");
        assert_eq!(v6, Host::Address("fd00::7".parse().unwrap()));
        for (text, host, port) in [
            ("10.0.0.7:443", Host::read("10.0.0.7"), Some(443)),
            ("10.0.0.7", Host::read("10.0.0.7"), None),
            ("node-1:10250", Host::read("node-1"), Some(10250)),
            ("[fd00::7]:443", v6.clone(), Some(443)),
            ("[fd00::7]", v6.clone(), None),
            ("fd00::7", v6.clone(), None),
            ("node-1:http", Host::read("node-1"), None),
            ("node-1:65536", Host::read("node-1"), None),
            ("", Host::read(""), None),
            (":443", Host::read(""), Some(443)),
            ("[", Host::read(""), None),
            ("[]:1", Host::read(""), Some(1)),
            ("a:b:c", Host::read("a:b:c"), None),
        ] {
            assert_eq!(read(text), (host, port), "{text}");
        }
    }

    #[test]
    fn hosts_are_the_same_by_value() {
        for (one, other) in [
            ("fd00::7", "fd00:0:0::7"),
            ("fd00::7", "FD00:0000::0007"),
            ("::ffff:10.0.0.7", "10.0.0.7"),
            ("Node-1.Example.", "node-1.example"),
        ] {
            assert_eq!(Host::read(one), Host::read(other), "{one} {other}");
        }
        assert_ne!(Host::read("node-1"), Host::read("node-2"));
        assert_ne!(Host::read("10.0.0.7"), Host::read("10.0.0.70"));
    }
}
