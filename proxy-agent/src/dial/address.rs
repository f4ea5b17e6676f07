//! `network` and `host:port` as Go's `net.Dial` reads them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::error::{Cause, DialFailure};

/// What may be dialled. Upstream dials whatever Go knows, Unix sockets of the node among it; we keep to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// `tcp`: either family.
    Tcp,
    /// `tcp4`
    Tcp4,
    /// `tcp6`
    Tcp6,
}

impl Network {
    /// Whether an address is of this network.
    pub(crate) fn suits(self, address: &SocketAddr) -> bool {
        match self {
            Self::Tcp => true,
            Self::Tcp4 => address.is_ipv4(),
            Self::Tcp6 => address.is_ipv6(),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tcp4 => "tcp4",
            Self::Tcp6 => "tcp6",
        })
    }
}

/// Where to dial. The host is a name, an IP address, or empty for this machine, as in Go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    network: Network,
    host: String,
    port: u16,
}

impl Target {
    /// A target whose parts are known.
    pub(crate) fn new(host: &str, port: u16) -> Self {
        Self {
            network: Network::Tcp,
            host: host.to_owned(),
            port,
        }
    }

    /// Reads a dial request.
    ///
    /// # Errors
    /// [`DialFailure`], in Go's words.
    pub(crate) fn parse(network: &str, address: &str) -> Result<Self, DialFailure> {
        let network = match network {
            "tcp" => Network::Tcp,
            "tcp4" => Network::Tcp4,
            "tcp6" => Network::Tcp6,
            other => return Err(DialFailure::unknown_network(other)),
        };
        let fail = |cause| DialFailure { network, cause };
        let (host, port) = split(address).map_err(|reason| {
            fail(Cause::Address {
                address: address.to_owned(),
                reason,
            })
        })?;
        Ok(Self {
            network,
            host: host.to_owned(),
            port: parse_port(port).map_err(fail)?,
        })
    }

    /// A failure to dial it.
    pub(super) fn failure(&self, cause: Cause) -> DialFailure {
        DialFailure {
            network: self.network,
            cause,
        }
    }

    /// The network.
    pub(crate) fn network(&self) -> Network {
        self.network
    }

    /// The host, IPv6 without brackets.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The addresses, if no name has to be resolved for them.
    pub(crate) fn literal(&self) -> Option<Vec<SocketAddr>> {
        if self.host.is_empty() {
            let loopback = [
                IpAddr::from(Ipv4Addr::LOCALHOST),
                Ipv6Addr::LOCALHOST.into(),
            ];
            return Some(loopback.map(|ip| SocketAddr::new(ip, self.port)).into());
        }
        let ip = self.host.parse::<IpAddr>().ok()?;
        Some(vec![SocketAddr::new(ip, self.port)])
    }
}

/// Go's `net.SplitHostPort`: host without brackets, and port.
fn split(address: &str) -> Result<(&str, &str), &'static str> {
    let (before, port) = address.rsplit_once(':').ok_or("missing port in address")?;
    let (host, outside) = if let Some(bracketed) = address.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').ok_or("missing ']' in address")?;
        match rest.strip_prefix(':') {
            Some(_) if rest.len() == port.len() + 1 => (host, ""),
            // `[::1]:80:90` and `[::1]80`, told apart as Go does.
            Some(_) => return Err("too many colons in address"),
            None => return Err("missing port in address"),
        }
    } else if before.contains(':') {
        return Err("too many colons in address");
    } else {
        (before, before)
    };
    if host.contains('[') || outside.contains('[') || port.contains('[') {
        return Err("unexpected '[' in address");
    }
    if outside.contains(']') || port.contains(']') {
        return Err("unexpected ']' in address");
    }
    Ok((host, port))
}

/// Go's `net.LookupPort`, without its list of service names. An empty port is 0, which nobody listens on.
fn parse_port(port: &str) -> Result<u16, Cause> {
    let digits = port.strip_prefix(['+', '-']).unwrap_or(port);
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Cause::UnknownPort {
            port: port.to_owned(),
        });
    }
    let number = if digits.is_empty() {
        Ok(0)
    } else {
        digits.parse::<u16>()
    };
    match number {
        Ok(0) => Ok(0),
        Ok(number) if !port.starts_with('-') => Ok(number),
        _ => Err(Cause::Address {
            address: port.to_owned(),
            reason: "invalid port",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(address: &str) -> (String, u16) {
        let target = Target::parse("tcp", address).unwrap();
        (target.host, target.port)
    }

    fn error(network: &str, address: &str) -> String {
        Target::parse(network, address).unwrap_err().to_string()
    }

    #[test]
    fn hosts_are_names_addresses_or_nothing() {
        assert_eq!(parsed("localhost:10250"), ("localhost".to_owned(), 10250));
        assert_eq!(parsed("10.0.0.1:1"), ("10.0.0.1".to_owned(), 1));
        assert_eq!(parsed("[fd00::1]:65535"), ("fd00::1".to_owned(), 65535));
        assert_eq!(parsed(":80"), (String::new(), 80));
        assert_eq!(parsed("host:"), ("host".to_owned(), 0));
    }

    /// Texts as Go's `net.Dial` gives them.
    #[test]
    fn bad_addresses_fail_in_gos_words() {
        for (address, text) in [
            (
                "127.0.0.1",
                "dial tcp: address 127.0.0.1: missing port in address",
            ),
            ("", "dial tcp: address : missing port in address"),
            ("[::1]", "dial tcp: address [::1]: missing port in address"),
            (
                "[::1]80",
                "dial tcp: address [::1]80: missing port in address",
            ),
            (
                "::1:80",
                "dial tcp: address ::1:80: too many colons in address",
            ),
            (
                "[::1]:80:90",
                "dial tcp: address [::1]:80:90: too many colons in address",
            ),
            (
                "[::1:80",
                "dial tcp: address [::1:80: missing ']' in address",
            ),
            (
                "a[b:80",
                "dial tcp: address a[b:80: unexpected '[' in address",
            ),
            (
                "a]b:80",
                "dial tcp: address a]b:80: unexpected ']' in address",
            ),
            ("h:99999", "dial tcp: address 99999: invalid port"),
            ("h:-1", "dial tcp: address -1: invalid port"),
            (
                "h:99999999999999999999",
                "dial tcp: address 99999999999999999999: invalid port",
            ),
            ("h:http", "dial tcp: lookup tcp/http: unknown port"),
        ] {
            assert_eq!(error("tcp", address), text);
        }
    }

    #[test]
    fn only_tcp_is_dialled() {
        assert_eq!(error("udp", "h:1"), "dial: unknown network udp");
        assert_eq!(
            error("unix", "/run/containerd.sock"),
            "dial: unknown network unix"
        );
        assert_eq!(error("", "h:1"), "dial: unknown network ");
        assert_eq!(
            error("tcp4", "h"),
            "dial tcp4: address h: missing port in address"
        );
    }
}
