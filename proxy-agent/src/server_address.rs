//! Where the servers are, and what they are called on the way there.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use rustls::pki_types::ServerName;

/// Host and port of the servers. All tunnels go there: a load balancer or several DNS addresses lead to different servers.
///
/// An IPv6 address may have a zone, `fe80::1%eth0`. It says which of our own links to use, so nobody else is told of it (RFC 4007,
/// section 11.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    host: String,
    port: u16,
}

impl ServerAddress {
    /// An address; `host` is a name or an IP address, IPv6 with or without brackets.
    pub(crate) fn new(host: &str, port: u16) -> Self {
        let bare = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        Self {
            host: bare.unwrap_or(host).to_owned(),
            port,
        }
    }

    /// The host, IPv6 without brackets, with its zone.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// What the server's certificate must be issued to; sent as SNI if it is a name.
    ///
    /// # Errors
    /// If the host is neither an IP address nor a DNS name.
    pub(crate) fn name(
        &self,
    ) -> Result<ServerName<'static>, rustls::pki_types::InvalidDnsNameError> {
        ServerName::try_from(self.zoneless().to_owned())
    }

    /// `:authority` of the call, as grpc-go sends it: without a port when the agent has a client certificate.
    pub(crate) fn authority(&self, has_client_certificate: bool) -> String {
        if has_client_certificate {
            self.bracketed()
        } else {
            self.to_string()
        }
    }

    fn zoneless(&self) -> &str {
        match self.host.split_once('%') {
            Some((address, _)) if address.parse::<Ipv6Addr>().is_ok() => address,
            _ => &self.host,
        }
    }

    fn bracketed(&self) -> String {
        let host = self.zoneless();
        match host.parse() {
            Ok(IpAddr::V6(_)) => format!("[{host}]"),
            _ => host.to_owned(),
        }
    }
}

/// `host:port` as others are told, IPv6 in brackets and without its zone.
impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.bracketed(), self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_has_a_port_only_without_a_client_certificate() {
        let of = |host, certificate| ServerAddress::new(host, 8091).authority(certificate);
        assert_eq!(of("server.example", true), "server.example");
        assert_eq!(of("server.example", false), "server.example:8091");
        assert_eq!(of("10.0.0.1", false), "10.0.0.1:8091");
        assert_eq!(of("fd00::1", true), "[fd00::1]");
        assert_eq!(of("[fd00::1]", false), "[fd00::1]:8091");
        assert_eq!(of("::1", false), "[::1]:8091");
    }

    #[test]
    fn a_host_is_proved_by_the_name_or_the_address() {
        let name = |host| ServerAddress::new(host, 1).name();
        assert!(matches!(name("server.example"), Ok(ServerName::DnsName(_))));
        assert!(matches!(name("[fd00::1]"), Ok(ServerName::IpAddress(_))));
        assert!(name("not a name").is_err());
        assert!(name("").is_err());
    }

    /// field-tests.md R131.
    #[test]
    fn a_zone_is_for_dialling_alone() {
        for host in ["fe80::1%eth0", "[fe80::1%eth0]"] {
            let server = ServerAddress::new(host, 8091);
            assert_eq!(server.host(), "fe80::1%eth0");
            assert_eq!(server.authority(true), "[fe80::1]");
            assert_eq!(server.to_string(), "[fe80::1]:8091");
            assert!(matches!(server.name(), Ok(ServerName::IpAddress(_))));
        }
        assert!(ServerAddress::new("name%eth0", 1).name().is_err());
    }
}
