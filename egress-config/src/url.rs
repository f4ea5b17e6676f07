//! The parts of a proxy's URL that kube-apiserver uses, host and port, read as Go's `net/url` does.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Host and port of a proxy, of an `https://` URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProxyUrl {
    host: String,
    port: u16,
}

/// A URL taken apart, with whether it had parts that kube-apiserver drops without a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedUrl {
    /// The parts that count.
    pub url: ProxyUrl,
    /// Whether user information, a path other than `/`, a query or a fragment was there.
    pub has_ignored_parts: bool,
}

/// Why no dial can come of a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// Not `https://`, in lower case, as kube-apiserver compares it.
    #[error("does not begin with https:// in lower case; write https://HOST:PORT")]
    Scheme,
    /// Go's parser refuses it, and kube-apiserver does not start.
    #[error(
        "cannot be parsed by Go, so that kube-apiserver does not start: {reason}; write https://HOST:PORT"
    )]
    Malformed {
        /// What Go's parser trips over.
        reason: &'static str,
    },
    /// No host between `//` and the port.
    #[error("has no host; write https://HOST:PORT")]
    NoHost,
    /// A host that is neither a name nor an address.
    #[error(
        "names the host \"{host}\", which is neither a DNS name nor an IP address; write one of them"
    )]
    BadHost {
        /// The host.
        host: String,
    },
    /// There is no default port, not even 443.
    #[error("has no port, and there is no default; write https://HOST:PORT")]
    NoPort,
    /// 0, or more than 65535.
    #[error(
        "has the port {port}, which is not between 1 and 65535; write the one the proxy-server listens on"
    )]
    BadPort {
        /// The port as written.
        port: String,
    },
}

impl ProxyUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    ///
    /// [`UrlError`]. Of these only [`UrlError::Scheme`] and [`UrlError::Malformed`] stop kube-apiserver; with the others
    /// it starts and fails at each dial.
    pub fn parse(text: &str) -> Result<ParsedUrl, UrlError> {
        let rest = text.strip_prefix("https://").ok_or(UrlError::Scheme)?;
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err(UrlError::Malformed {
                reason: "it holds a control character",
            });
        }
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, tail) = rest.split_at(end);
        let (user, host_port) = match authority.rsplit_once('@') {
            Some((user, host_port)) => (Some(user), host_port),
            None => (None, authority),
        };
        let path_and_fragment = match tail.split_once('?') {
            None => (tail, ""),
            // A query may hold anything.
            Some((path, query)) => (
                path,
                query.split_once('#').map_or("", |(_, fragment)| fragment),
            ),
        };
        for part in [user.unwrap_or(""), path_and_fragment.0, path_and_fragment.1] {
            if escapes(part).any(|escape| escape.is_none()) {
                return Err(UrlError::Malformed {
                    reason: "it holds a % that is no escape of two hexadecimal digits",
                });
            }
        }
        let (host, port) = split_port(host_port)?;
        if host.is_empty() {
            return Err(UrlError::NoHost);
        }
        if !is_host(&host) {
            return Err(UrlError::BadHost { host });
        }
        let port = match port {
            None | Some("") => return Err(UrlError::NoPort),
            Some(digits) => match digits.parse() {
                Ok(port) if port != 0 => port,
                _ => {
                    return Err(UrlError::BadPort {
                        port: digits.to_owned(),
                    });
                }
            },
        };
        Ok(ParsedUrl {
            url: Self { host, port },
            has_ignored_parts: user.is_some() || !matches!(tail, "" | "/"),
        })
    }

    /// Name or address, an IPv6 one without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, never 0.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The host as an address, if it is one: its certificate then needs an IP SAN, or `tlsServerName` set.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "https://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "https://{}:{}", self.host, self.port)
        }
    }
}

/// Host without brackets, and the digits behind its colon, as far as Go's parser agrees.
fn split_port(host_port: &str) -> Result<(String, Option<&str>), UrlError> {
    let malformed = |reason| Err(UrlError::Malformed { reason });
    if host_port.contains([' ', '<', '>', '"', '\\', '^', '`', '{', '|', '}']) {
        return malformed("its host holds a character that no host has");
    }
    // In a host only %25, of an address's zone, and bytes beyond ASCII are escaped.
    if escapes(host_port).any(|escape| escape.is_none_or(|byte| byte < 0x80 && byte != b'%')) {
        return malformed("its host holds a % that is no escape a host may have");
    }
    let (host, behind) = if let Some(bracketed) = host_port.strip_prefix('[') {
        let Some((host, behind)) = bracketed.split_once(']') else {
            return malformed("its bracket is not closed");
        };
        (host, behind)
    } else {
        let colon = host_port.rfind(':').unwrap_or(host_port.len());
        let (host, behind) = host_port.split_at(colon);
        if host.contains(':') {
            return malformed("an IPv6 address must be in brackets");
        }
        (host, behind)
    };
    let port = match behind.strip_prefix(':') {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port),
        None if behind.is_empty() => None,
        _ => return malformed("its port is not a number"),
    };
    Ok((host.to_owned(), port))
}

/// The byte of each `%` escape, `None` where two hexadecimal digits do not follow.
fn escapes(text: &str) -> impl Iterator<Item = Option<u8>> {
    text.split('%').skip(1).map(|rest| {
        let digits = rest.get(..2)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)
    })
}

fn is_host(host: &str) -> bool {
    if host.contains(':') {
        // A zone is written %25eth0 in a URL.
        let address = host.split_once("%25").map_or(host, |(address, _)| address);
        return address.parse::<Ipv6Addr>().is_ok();
    }
    host.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_taken_and_the_rest_is_told() {
        for (text, host, port, ignored) in [
            ("https://proxy:8090", "proxy", 8090, false),
            ("https://proxy.example:1/", "proxy.example", 1, false),
            ("https://192.0.2.1:65535", "192.0.2.1", 65535, false),
            ("https://[2001:db8::1]:443", "2001:db8::1", 443, false),
            ("https://user:pw@proxy:8090", "proxy", 8090, true),
            ("https://proxy:8090/path", "proxy", 8090, true),
            ("https://proxy:8090?q", "proxy", 8090, true),
            ("https://proxy:8090#f", "proxy", 8090, true),
        ] {
            let parsed = ProxyUrl::parse(text).unwrap();
            assert_eq!(
                (parsed.url.host(), parsed.url.port()),
                (host, port),
                "{text}"
            );
            assert_eq!(parsed.has_ignored_parts, ignored, "{text}");
        }
    }

    #[test]
    fn a_url_prints_as_it_is_written() {
        for text in ["https://proxy:8090", "https://[2001:db8::1]:443"] {
            assert_eq!(ProxyUrl::parse(text).unwrap().url.to_string(), text);
        }
    }

    #[test]
    fn urls_that_no_dial_can_come_of_are_refused() {
        for (text, wanted) in [
            ("HTTPS://proxy:1", "https://"),
            ("http://proxy:1", "https://"),
            ("https://", "no host"),
            ("https://:8090", "no host"),
            ("https://proxy", "no port"),
            ("https://proxy:", "no port"),
            ("https://proxy:0", "port 0"),
            ("https://proxy:65536", "port 65536"),
            ("https://proxy:http", "not a number"),
            ("https://2001:db8::1", "in brackets"),
            ("https://[2001:db8::1", "not closed"),
            ("https://[2001:db8::1]x", "not a number"),
            ("https://pro xy:1", "cannot be parsed"),
            ("https://proxy\n:1", "control character"),
            ("https://pro%zzxy:1", "no escape a host may have"),
            ("https://pro%20xy:1", "no escape a host may have"),
            ("https://proxy:1/%zz", "two hexadecimal digits"),
            ("https://us%er@proxy:1", "two hexadecimal digits"),
            ("https://proxy:1/?%zz#%", "two hexadecimal digits"),
            ("https://pröxy:1", "neither"),
            ("https://[2001:db8::g]:1", "neither"),
        ] {
            let error = ProxyUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
