//! What an agent says it reaches: the header `agentidentifiers` (wire-protocol, sections 2.2 and 2.4).

#[cfg(test)]
mod tests;

use std::{borrow::Cow, collections::HashSet, net::IpAddr};

use http::HeaderMap;
use tunnel::grpc::{Code, Status};

use super::host::Destination;

/// Longest header that is taken, in bytes. An agent of a node has a few hundred.
pub const MAX_BYTES: usize = 16 * 1024;

/// Most values that are taken of one agent.
pub const MAX_VALUES: usize = 512;

const HEADER: &str = "agentidentifiers";

/// What kind of thing an identifier names. Others are ignored, as newer agents may send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A host name.
    Host,
    /// A network. Kept, and used for no dial, as upstream.
    Cidr,
}

impl Kind {
    fn of(key: &str) -> Option<Self> {
        Some(match key {
            "ipv4" => Self::Ipv4,
            "ipv6" => Self::Ipv6,
            "host" => Self::Host,
            "cidr" => Self::Cidr,
            _ => return None,
        })
    }

    /// Its key in the header.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Host => "host",
            Self::Cidr => "cidr",
        }
    }

    /// Whether `value` can be what this kind names.
    fn fits(self, value: &str) -> bool {
        match self {
            Self::Ipv4 => matches!(value.parse(), Ok(IpAddr::V4(_))),
            Self::Ipv6 => matches!(value.parse(), Ok(IpAddr::V6(_))),
            Self::Host => !value.is_empty() && !value.contains(['$', '{', ' ', '/']),
            Self::Cidr => value.split_once('/').is_some_and(|(network, bits)| {
                network.parse::<IpAddr>().is_ok_and(|network| {
                    let most = if network.is_ipv4() { 32 } else { 128 };
                    bits.parse::<u8>().is_ok_and(|bits| bits <= most)
                })
            }),
        }
    }
}

/// One claim, as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identifier {
    /// What it names.
    pub kind: Kind,
    /// The decoded value.
    pub value: String,
}

/// All claims of one agent; within [`MAX_BYTES`] and [`MAX_VALUES`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identifiers {
    claims: Vec<Identifier>,
    is_default_route: bool,
}

/// Why an agent's identifiers are not taken. Upstream's words, where it refuses too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifiersError {
    /// More than one header.
    #[error("expected at most one set of agent identifiers in the context, got [{}]", .0.join(" "))]
    Repeated(Vec<String>),
    /// Go's words for a `;`.
    #[error("fail to parse url encoded string: invalid semicolon separator in query")]
    Semicolon,
    /// Go's words for a `%` without two hexadecimal digits.
    #[error("fail to parse url encoded string: invalid URL escape {0:?}")]
    Escape(String),
    /// [`MAX_BYTES`]
    #[error("agent identifiers of {0} bytes are longer than {MAX_BYTES}")]
    TooLong(usize),
    /// [`MAX_VALUES`]
    #[error("more than {MAX_VALUES} agent identifiers")]
    TooMany,
}

impl From<IdentifiersError> for Status {
    fn from(error: IdentifiersError) -> Self {
        Self::new(Code::Unknown, error.to_string())
    }
}

impl Identifiers {
    /// Of an agent's request; none if it sent none.
    ///
    /// # Errors
    /// [`IdentifiersError`]. A value that is not what its key says is no error, see [`Self::misfits`].
    pub fn from_headers(headers: &HeaderMap) -> Result<Self, IdentifiersError> {
        let mut sets = headers.get_all(HEADER).iter();
        let set = sets.next().map(http::HeaderValue::as_bytes);
        if sets.next().is_some() {
            let all = headers.get_all(HEADER).iter();
            let all = all.map(|set| cut(&String::from_utf8_lossy(set.as_bytes())));
            return Err(IdentifiersError::Repeated(all.take(8).collect()));
        }
        Self::parse(&String::from_utf8_lossy(set.unwrap_or_default()))
    }

    /// Reads a URL query as Go's `url.ParseQuery` does: every pair is looked at before an error counts, a later `;` takes the
    /// place of an earlier error.
    ///
    /// # Errors
    /// As [`Self::from_headers`].
    pub fn parse(query: &str) -> Result<Self, IdentifiersError> {
        if query.len() > MAX_BYTES {
            return Err(IdentifiersError::TooLong(query.len()));
        }
        let mut claims = Vec::new();
        let mut default_route = None;
        let mut error = None;
        for pair in query.split('&') {
            if pair.contains(';') {
                error = Some(IdentifiersError::Semicolon);
                continue;
            }
            if pair.is_empty() {
                continue;
            }
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = match (unescape(key), unescape(value)) {
                (Ok(key), Ok(value)) => (key, value),
                (Err(bad), _) | (_, Err(bad)) => {
                    error.get_or_insert(IdentifiersError::Escape(bad));
                    continue;
                }
            };
            if key == "default-route" {
                default_route.get_or_insert(is_true(&value));
            } else if let Some(kind) = Kind::of(&key) {
                if claims.len() == MAX_VALUES {
                    return Err(IdentifiersError::TooMany);
                }
                let value = value.into_owned();
                claims.push(Identifier { kind, value });
            }
        }
        match error {
            Some(error) => Err(error),
            None => Ok(Self {
                claims,
                is_default_route: default_route.unwrap_or(false),
            }),
        }
    }

    /// Every claim, in the order in which they were sent.
    pub fn claims(&self) -> impl Iterator<Item = &Identifier> {
        self.claims.iter()
    }

    /// Whether the agent calls itself a default route.
    #[must_use]
    pub fn is_default_route(&self) -> bool {
        self.is_default_route
    }

    /// What the strategy `destHost` finds the agent by: each host or address once. A `host` with a port is found by dials to
    /// that port of that host alone; upstream would never find it.
    #[must_use]
    pub fn destinations(&self) -> HashSet<Destination> {
        let claims = self.claims.iter();
        claims
            .filter(|claim| claim.kind != Kind::Cidr)
            .map(|claim| Destination::read(&claim.value))
            .collect()
    }

    /// Claims that are not what their key says, for example `ipv4=${HOST_IP}` of a manifest whose variable nobody replaced. They
    /// are kept and match nothing but themselves; the operator should hear of them.
    pub fn misfits(&self) -> impl Iterator<Item = String> {
        let misfits = self
            .claims
            .iter()
            .filter(|claim| !claim.kind.fits(&claim.value));
        misfits.map(|claim| format!("{}={}", claim.kind.name(), cut(&claim.value)))
    }
}

/// Go's `strconv.ParseBool`; what it does not know is false.
fn is_true(value: &str) -> bool {
    matches!(value, "1" | "t" | "T" | "TRUE" | "true" | "True")
}

/// Go's `url.QueryUnescape`; the error is what could not be read, as Go shows it.
fn unescape(text: &str) -> Result<Cow<'_, str>, String> {
    if !text.contains(['%', '+']) {
        return Ok(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = behind.split_at_checked(2).and_then(|(digits, behind)| {
                    let &[high, low] = digits else { return None };
                    Some((hex(high)? << 4 | hex(low)?, behind))
                });
                let Some((decoded, behind)) = digits else {
                    let digits = behind.get(..2).unwrap_or(behind);
                    return Err(format!("%{}", String::from_utf8_lossy(digits)));
                };
                rest = behind;
                decoded
            }
            other => other,
        });
    }
    Ok(Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()))
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

/// As much of an agent's words as is worth a log line.
fn cut(text: &str) -> String {
    text.chars().take(128).collect()
}
