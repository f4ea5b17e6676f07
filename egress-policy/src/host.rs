//! The host of a dial, as rules see it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What a host is once its spelling no longer matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// An address; an IPv4 address within IPv6 as that IPv4 address.
    Address(IpAddr),
    /// A name: lower case, no final dot.
    Name(String),
    /// Nothing, which Go's dialler and ours take for this host.
    Unnamed,
}

impl Host {
    /// Reads a host without its port. Brackets and zones of IPv6 addresses are taken off.
    pub(crate) fn read(text: &str) -> Self {
        let inner = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        if inner.is_empty() {
            return Self::Unnamed;
        }
        let name = inner.trim_end_matches('.');
        match address(name) {
            Some(address) => Self::Address(address.to_canonical()),
            None => Self::Name(name.to_ascii_lowercase()),
        }
    }
}

/// Where Linux connects to instead of an unspecified address; other addresses are themselves.
pub(crate) fn reached(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        other => other,
    }
}

/// Whether an address is this host's own or only means something on its link: what no resolver should lead to.
pub(crate) fn is_own(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_loopback() || v4.is_link_local() || v4.is_multicast() || v4.is_broadcast()
        }
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast(),
    }
}

/// An address in any spelling that a resolver takes for one.
fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    if let Some((v6, _zone)) = text.split_once('%') {
        return v6.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    }
    inet_aton(text).map(IpAddr::V4)
}

/// One to four numbers, decimal, octal (`0…`) or hexadecimal (`0x…`), the last of which fills what is left: inet_aton(3).
/// `getaddrinfo` reads hosts by it, so `2130706433` and `0x7f.1` reach 127.0.0.1.
fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<&str> = text.split('.').collect();
    let (last, leading) = parts.split_last()?;
    if leading.len() > 3 {
        return None;
    }
    let mut value: u32 = 0;
    for part in leading {
        let byte = u8::try_from(number(part)?).ok()?;
        value = (value << 8) | u32::from(byte);
    }
    let last = number(last)?;
    let bits = 32 - 8 * u32::try_from(leading.len()).ok()?;
    if bits < 32 && last >> bits != 0 {
        return None;
    }
    // With nothing before it, the last number is all of the address.
    let before = value.checked_shl(bits).unwrap_or(0);
    Some(Ipv4Addr::from_bits(before | last))
}

fn number(text: &str) -> Option<u32> {
    let (digits, radix) = if let Some(hex) = text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        (hex, 16)
    } else if text.len() > 1 && text.starts_with('0') {
        (text, 8)
    } else {
        (text, 10)
    };
    // `from_str_radix` would take a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
    plain
        .then(|| u32::from_str_radix(digits, radix).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address_of(text: &str) -> IpAddr {
        match Host::read(text) {
            Host::Address(address) => reached(address),
            other => panic!("{text} is {other:?}"),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn spellings_of_an_address_are_one_address() {
        for text in [
            "127.0.0.1",
            "[::ffff:127.0.0.1]",
            "::ffff:7f00:1",
            "0.0.0.0",
            "0",
            "127.1",
            "0x7f.1",
            "0177.0.0.01",
            "2130706433",
            "0x7F000001",
            "127.0.0.1.",
        ] {
            assert_eq!(address_of(text), ip("127.0.0.1"), "{text}");
        }
        for text in ["::1", "[::1]", "::", "::1%lo", "0:0:0:0:0:0:0:1"] {
            assert_eq!(address_of(text), ip("::1"), "{text}");
        }
        assert_eq!(address_of("[FE80::1%eth0]"), ip("fe80::1"));
        assert_eq!(address_of("10.1.65535"), ip("10.1.255.255"));
    }

    #[test]
    fn what_is_no_address_is_a_name_in_lower_case_without_final_dot() {
        for (text, name) in [
            ("Node1.Example.", "node1.example"),
            ("256.0.0.1", "256.0.0.1"),
            ("1.2.3.4.5", "1.2.3.4.5"),
            ("10.1.65536", "10.1.65536"),
            ("0x", "0x"),
            ("+1", "+1"),
            ("08", "08"),
            ("4294967296", "4294967296"),
            ("a%b", "a%b"),
            ("127.0.0.1%lo", "127.0.0.1%lo"),
        ] {
            assert_eq!(Host::read(text), Host::Name(name.to_owned()), "{text}");
        }
        assert_eq!(Host::read(""), Host::Unnamed);
        assert_eq!(Host::read("[]"), Host::Unnamed);
    }
}
