//! `--forward LISTEN=NAME`: where connections of this node are taken, and to which target of the servers they go.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest name of a target in bytes, as servers take them.
const MAX_NAME: usize = 63;

/// `--forward-max-connections`, unless it is given.
pub const MAX_CONNECTIONS: usize = 1024;

/// What stands before the path of a Unix socket.
const UNIX: &str = "unix:";

/// A listener of this node and the target that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where connections are taken.
    pub listen: Listen,
    /// What servers call the target: 1 to 63 letters, digits, `-`, `_` and `.`, a letter or digit first and last.
    pub name: String,
}

/// Where connections of this node are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At a TCP port.
    Tcp {
        /// An address or a name, never empty; an IPv6 address is without its brackets.
        host: String,
        /// Zero lets the kernel choose.
        port: u16,
    },
    /// At the absolute path of a Unix socket.
    Unix(PathBuf),
}

/// Why a value of `--forward` is refused; the operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// No `=`, or nothing before it.
    #[error("must be LISTEN=NAME, for example 127.0.0.1:6443=api or unix:/run/api.sock=api")]
    Form,
    /// A name that no server has.
    #[error(
        "target name {0:?} must have 1 to {MAX_NAME} letters, digits, '-', '_' or '.', and begin and end with a letter or digit"
    )]
    Name(String),
    /// A port without a host.
    #[error(
        "say which address port {0} is for: 127.0.0.1:{0} for this node alone, 0.0.0.0:{0} for everybody who reaches it"
    )]
    NoHost(u16),
    /// No port, or none that is one.
    #[error("{0:?} must be HOST:PORT with a port from 0 to 65535, or unix:/PATH")]
    Port(String),
    /// An address with colons that is none, or that lacks its brackets.
    #[error("{0:?} is no IPv6 address in brackets, such as [::1]")]
    Host(String),
    /// A path that depends on where the process was started, or none.
    #[error("{0:?} must be the absolute path of a socket")]
    Path(String),
}

impl FromStr for Forward {
    type Err = ForwardError;

    /// The name follows the last `=`: a path may have others.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (listen, name) = text.rsplit_once('=').ok_or(ForwardError::Form)?;
        if listen.is_empty() {
            return Err(ForwardError::Form);
        }
        if !is_name(name) {
            return Err(ForwardError::Name(name.to_owned()));
        }
        Ok(Self {
            listen: listen.parse()?,
            name: name.to_owned(),
        })
    }
}

impl FromStr for Listen {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return if path.starts_with('/') && !path.ends_with('/') && !path.contains('\0') {
                Ok(Self::Unix(path.into()))
            } else {
                Err(ForwardError::Path(path.to_owned()))
            };
        }
        let (host, port) = text
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host, parse_port(port)?)))
            .ok_or_else(|| ForwardError::Port(text.to_owned()))?;
        let bare = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').filter(|bare| is_ipv6(bare)),
            None => Some(host).filter(|host| !host.contains([':', ']'])),
        };
        match bare {
            Some("") => Err(ForwardError::NoHost(port)),
            Some(host) => Ok(Self::Tcp {
                host: host.to_owned(),
                port,
            }),
            None => Err(ForwardError::Host(host.to_owned())),
        }
    }
}

/// As `--forward` has it.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// As `--forward` has it.
impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.listen, self.name)
    }
}

/// Digits alone: no sign, which the standard library would take.
fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// With a zone or without.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "lo"));
    address.parse::<Ipv6Addr>().is_ok() && !zone.is_empty()
}

fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= MAX_NAME
        && ends
            .iter()
            .all(|end| end.is_some_and(u8::is_ascii_alphanumeric))
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Listen {
        Listen::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    fn error(text: &str) -> String {
        text.parse::<Forward>().unwrap_err().to_string()
    }

    #[test]
    fn ports_and_sockets_lead_to_names() {
        for (text, listen, name) in [
            ("127.0.0.1:6443=api", tcp("127.0.0.1", 6443), "api"),
            ("0.0.0.0:0=a", tcp("0.0.0.0", 0), "a"),
            ("localhost:1=a-b.c_d9", tcp("localhost", 1), "a-b.c_d9"),
            ("[::1]:65535=API", tcp("::1", 65535), "API"),
            ("[fe80::1%eth0]:1=a", tcp("fe80::1%eth0", 1), "a"),
            (
                "unix:/run/a=b.sock=api",
                Listen::Unix("/run/a=b.sock".into()),
                "api",
            ),
        ] {
            let forward: Forward = text.parse().unwrap();
            assert_eq!(forward.listen, listen, "{text}");
            assert_eq!(forward.name, name, "{text}");
            assert_eq!(forward.to_string(), text);
        }
        let longest = "a".repeat(MAX_NAME);
        assert!(format!("h:1={longest}").parse::<Forward>().is_ok());
    }

    #[test]
    fn a_port_without_a_host_is_refused_with_advice() {
        for text in [":6443=api", "[]:6443=api"] {
            let told = error(text);
            if text.starts_with(':') {
                assert!(
                    told.contains("127.0.0.1:6443 for this node alone"),
                    "{told}"
                );
                assert!(told.contains("0.0.0.0:6443"), "{told}");
            } else {
                assert_eq!(told, "\"[]\" is no IPv6 address in brackets, such as [::1]");
            }
        }
    }

    #[test]
    fn what_is_no_listener_is_refused() {
        let form = "must be LISTEN=NAME, for example 127.0.0.1:6443=api or unix:/run/api.sock=api";
        assert_eq!(error(""), form);
        assert_eq!(error("127.0.0.1:6443"), form);
        assert_eq!(error("=api"), form);
        for text in ["h=a", "h:=a", "h:65536=a", "h:-1=a", "h:+1=a"] {
            assert!(error(text).contains("must be HOST:PORT"), "{text}");
        }
        for text in [
            "::1:80=a",
            "[::1:80=a",
            "::1]:80=a",
            "[::1%]:80=a",
            "[h]:80=a",
        ] {
            assert!(
                error(text).contains("no IPv6 address in brackets"),
                "{text}"
            );
        }
        for text in ["unix:=a", "unix:run/a=a", "unix:/run/=a", "unix:@a=a"] {
            assert!(error(text).contains("must be the absolute path"), "{text}");
        }
    }

    #[test]
    fn a_name_that_no_server_has_is_refused() {
        for name in [
            "",
            "-a",
            "a-",
            ".a",
            "a/b",
            "a b",
            "ä",
            "a:1",
            &"a".repeat(64),
        ] {
            let told = error(&format!("127.0.0.1:1={name}"));
            assert!(
                told.starts_with(&format!("target name {name:?} ")),
                "{told}"
            );
        }
    }
}
