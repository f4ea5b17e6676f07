//! `NO_PROXY`, by the rules of Go's `httpproxy`: those of curl, on which hyper-util's matcher is modelled, know no ports and take
//! `.example` for `example` as well.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::server_address::ServerAddress;

/// Whether a server is reached without a proxy: by an entry of `exceptions`, or because it is on this machine.
///
/// Entries are separated by commas: `*`, an IP address, a CIDR, a host that includes its subdomains, or with a leading `.` or `*.`
/// the subdomains alone. All but a CIDR may end in `:port`.
pub(super) fn is_excepted(server: &ServerAddress, exceptions: &str) -> bool {
    let host = server.host().to_ascii_lowercase();
    let host = host.split_once('%').map_or(host.as_str(), |(host, _)| host);
    let ip = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    exceptions
        .split(',')
        .map(|entry| entry.trim().to_ascii_lowercase())
        .filter(|entry| !entry.is_empty())
        .any(|entry| matches(&entry, host, ip, server.port()))
}

fn matches(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Ok(network) = entry.parse::<IpNet>() {
        return ip.is_some_and(|ip| network.contains(&ip));
    }
    let (name, only) = with_port(entry);
    if only.is_some_and(|only| only.parse() != Ok(port)) {
        return false;
    }
    if let Ok(exception) = name.parse::<IpAddr>() {
        return ip == Some(exception.to_canonical());
    }
    let name = name.strip_prefix('*').unwrap_or(name);
    match name.strip_prefix('.') {
        Some(domain) => is_below(host, domain),
        None => host == name || is_below(host, name),
    }
}

/// `host`, `host:port`, `[IPv6]`, `[IPv6]:port`, or a bare IPv6 address.
fn with_port(entry: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = entry
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        return (host, rest.strip_prefix(':'));
    }
    match entry.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (entry, None),
    }
}

fn is_below(host: &str, domain: &str) -> bool {
    !domain.is_empty()
        && host
            .strip_suffix(domain)
            .is_some_and(|sub| sub.ends_with('.') && sub.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_direct(host: &str, exceptions: &str) -> bool {
        is_excepted(&ServerAddress::new(host, 8091), exceptions)
    }

    #[test]
    fn this_machine_needs_no_proxy() {
        for host in [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "[::1]",
        ] {
            assert!(is_direct(host, ""), "{host}");
        }
        assert!(!is_direct("localhost.example", ""));
        assert!(!is_direct("10.0.0.1", ""));
    }

    /// The rules of golang.org/x/net/http/httpproxy, `Config.NoProxy`.
    #[test]
    fn entries_are_hosts_suffixes_addresses_networks_and_ports() {
        for (host, exceptions, direct) in [
            ("a.example", "*", true),
            ("a.example", "b.test, A.EXAMPLE ,", true),
            ("sub.a.example", "a.example", true),
            ("xa.example", "a.example", false),
            ("a.example", ".a.example", false),
            ("sub.a.example", ".a.example", true),
            ("sub.a.example", "*.a.example", true),
            ("a.example", "*.a.example", false),
            ("a.example", "a.example:8091", true),
            ("a.example", "a.example:443", false),
            ("a.example", "a.example:x", false),
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("a.example", "10.0.0.0/8", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.3:8091", true),
            ("10.1.2.3", "10.1.2.3:1", false),
            ("fd00::1", "fd00::/8", true),
            ("[fd00::1]", "fd00:0::1", true),
            ("fd00::1", "[fd00::1]:8091", true),
            ("fd00::1", "[fd00::1]:1", false),
            ("fe80::1%eth0", "fe80::/10", true),
            ("a.example", ".", false),
            ("a.example", ",,", false),
        ] {
            assert_eq!(is_direct(host, exceptions), direct, "{host} {exceptions}");
        }
    }
}
