//! Rules from text. An operator's typing error must not become a rule that matches something else.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use super::{MAX_RULE_BYTES, Ports, Rule, Subject};

/// What is wrong with a rule; the operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// Nothing, or ports alone.
    #[error("names no target; write * for every target")]
    Empty,
    /// Longer than [`MAX_RULE_BYTES`].
    #[error("is longer than {MAX_RULE_BYTES} bytes")]
    TooLong,
    /// A port that is no number from 1 to 65535.
    #[error(
        "{port:?} is no port; write a number from 1 to 65535, or two with a hyphen between them"
    )]
    Port {
        /// As it was written.
        port: String,
    },
    /// A range that ends before it begins.
    #[error("the ports {first}-{last} end before they begin")]
    PortOrder {
        /// The first number.
        first: u16,
        /// The second.
        last: u16,
    },
    /// A bracket without its other half, or with something behind it that is no port.
    #[error("has brackets that hold no IPv6 address; write [ADDRESS]:PORT or [NETWORK/BITS]:PORT")]
    Brackets,
    /// Several colons outside brackets and no IPv6 address.
    #[error("has several colons and is no IPv6 address; with a port, that stands in brackets")]
    Colons,
    /// An address with a zone.
    #[error("has a zone; leave it out, zones are not compared")]
    Zone,
    /// A slash, and no network around it.
    #[error("is no network; write ADDRESS/BITS, such as 10.0.0.0/8")]
    Network,
    /// A network whose address has bits behind its prefix.
    #[error("has address bits behind its prefix; did you mean {meant}?")]
    HostBits {
        /// The network that the address is in.
        meant: IpNet,
    },
    /// A wildcard that is not the whole target.
    #[error("has a * within a name; for every name below one, begin with a dot: .example.com")]
    Wildcard,
    /// Neither an address nor a name.
    #[error("{text:?} is neither an address nor a host name")]
    Name {
        /// As it was written, without its port.
        text: String,
    },
}

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        if text.len() > MAX_RULE_BYTES {
            return Err(RuleError::TooLong);
        }
        if let Some(rest) = text.strip_prefix('[') {
            let (inner, behind) = rest.split_once(']').ok_or(RuleError::Brackets)?;
            if !inner.contains(':') {
                return Err(RuleError::Brackets);
            }
            let ports = match behind.strip_prefix(':') {
                Some(ports) => ports.parse()?,
                None if behind.is_empty() => Ports::All,
                None => return Err(RuleError::Brackets),
            };
            let subject = Subject::Net(network(inner)?);
            return Ok(Self { subject, ports });
        }
        if text.contains(['[', ']']) {
            return Err(RuleError::Brackets);
        }
        if text.matches(':').count() > 1 {
            let subject = Subject::Net(network(text)?);
            return Ok(Self {
                subject,
                ports: Ports::All,
            });
        }
        let (subject, ports) = match text.split_once(':') {
            Some((subject, ports)) => (subject, ports.parse()?),
            None => (text, Ports::All),
        };
        Ok(Self {
            subject: named(subject)?,
            ports,
        })
    }
}

impl FromStr for Ports {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (port(first)?, port(last)?);
        if first > last {
            return Err(RuleError::PortOrder { first, last });
        }
        Ok(Self::Range(first..=last))
    }
}

fn port(text: &str) -> Result<u16, RuleError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number
        .filter(|&port| port != 0)
        .ok_or_else(|| RuleError::Port {
            port: text.to_owned(),
        })
}

/// A subject without IPv6 in it.
fn named(text: &str) -> Result<Subject, RuleError> {
    if text.is_empty() || text == "." {
        return Err(RuleError::Empty);
    }
    if text == "*" {
        return Ok(Subject::Any);
    }
    if text.contains('*') {
        return Err(RuleError::Wildcard);
    }
    if text.contains('/') {
        return network(text).map(Subject::Net);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Subject::Net(address.into()));
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if !is_name(name.strip_prefix('.').unwrap_or(&name)) {
        return Err(RuleError::Name {
            text: text.to_owned(),
        });
    }
    Ok(if name.starts_with('.') {
        Subject::Below(name)
    } else {
        Subject::Name(name)
    })
}

/// A host name, with the underscores that DNS allows. One whose last label is a number is an address that went wrong: resolvers
/// would read it as one.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(letters)
    };
    let is_number =
        |label: &str| label.bytes().all(|byte| byte.is_ascii_digit()) || label.starts_with("0x");
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= 253 && text.split('.').all(is_label) && !is_number(last)
}

/// An address, which is a network of one, or a network.
fn network(text: &str) -> Result<IpNet, RuleError> {
    if text.contains('%') {
        return Err(RuleError::Zone);
    }
    if !text.contains('/') {
        let address = text.parse::<Ipv6Addr>().map_err(|_| RuleError::Colons)?;
        return Ok(IpAddr::V6(address).to_canonical().into());
    }
    let net: IpNet = text.parse().map_err(|_| RuleError::Network)?;
    let meant = net.trunc();
    if net != meant {
        return Err(RuleError::HostBits { meant });
    }
    Ok(unmapped(net))
}

/// A network of IPv4 addresses within IPv6 as the IPv4 network that it is.
fn unmapped(net: IpNet) -> IpNet {
    let IpNet::V6(v6) = net else { return net };
    let v4 = v6.addr().to_ipv4_mapped();
    let bits = v6.prefix_len().checked_sub(96);
    v4.zip(bits)
        .and_then(|(address, bits)| Ipv4Net::new(address, bits).ok())
        .map_or(net, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        text.parse::<Rule>()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
            .to_string()
    }

    fn error(text: &str) -> String {
        text.parse::<Rule>()
            .expect_err("it should not parse")
            .to_string()
    }

    #[test]
    fn every_form_of_a_rule_is_read_and_written_alike() {
        for text in [
            "10.0.0.0/8",
            "10.0.0.0/8:443",
            "192.0.2.1",
            "192.0.2.1:1-1024",
            "0.0.0.0/0",
            "::/0",
            "fd00::/8",
            "[fd00::/8]:1-1024",
            "[fd00::1]:22",
            "fd00::1",
            ".svc.cluster.local",
            ".internal:10250",
            "node1.example",
            "localhost:65535",
            "_kubelet.example",
            "*",
            "*:22",
        ] {
            assert_eq!(canonical(text), text);
        }
        for (text, same) in [
            ("Node1.Example.:22-22", "node1.example:22"),
            ("[fd00::0001]", "fd00::1"),
            ("10.0.0.1/32", "10.0.0.1"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("[::ffff:10.0.0.1]:1", "10.0.0.1:1"),
        ] {
            assert_eq!(canonical(text), same);
        }
    }

    #[test]
    fn a_rule_that_is_wrong_says_what_is_wrong() {
        let port = "; write a number from 1 to 65535, or two with a hyphen between them";
        for (text, expected) in [
            ("", "names no target; write * for every target".to_owned()),
            (
                ":22",
                "names no target; write * for every target".to_owned(),
            ),
            ("a:0", format!("\"0\" is no port{port}")),
            ("a:65536", format!("\"65536\" is no port{port}")),
            ("a:+1", format!("\"+1\" is no port{port}")),
            ("a:", format!("\"\" is no port{port}")),
            ("a:1-", format!("\"\" is no port{port}")),
            ("a:9-1", "the ports 9-1 end before they begin".to_owned()),
            (
                "10.0.0.5/8",
                "has address bits behind its prefix; did you mean 10.0.0.0/8?".to_owned(),
            ),
            (
                "10.0.0.0/33",
                "is no network; write ADDRESS/BITS, such as 10.0.0.0/8".to_owned(),
            ),
            (
                "10.0.0.300",
                "\"10.0.0.300\" is neither an address nor a host name".to_owned(),
            ),
            (
                "*.example.com",
                "has a * within a name; for every name below one, begin with a dot: .example.com"
                    .to_owned(),
            ),
            (
                "fe80::1%eth0",
                "has a zone; leave it out, zones are not compared".to_owned(),
            ),
        ] {
            assert_eq!(error(text), expected, "{text}");
        }
        for text in ["[10.0.0.1]:1", "[fd00::1", "[fd00::1]1", "a]", "[a]"] {
            assert_eq!(text.parse::<Rule>(), Err(RuleError::Brackets), "{text}");
        }
        assert_eq!("fd00::1::2".parse::<Rule>(), Err(RuleError::Colons));
        for text in ["a b", "..a", "a..b", "0x7f", "käse", "."] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
        let long = "a".repeat(MAX_RULE_BYTES + 1);
        assert_eq!(long.parse::<Rule>(), Err(RuleError::TooLong));
    }
}
