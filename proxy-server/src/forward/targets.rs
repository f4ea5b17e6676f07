//! What agents can ask for, and who may have it. Pure: nothing here looks a name up or opens a socket.

use std::{collections::BTreeMap, fmt, net::Ipv6Addr, sync::Arc};

use super::{Glob, GlobError, VerifiedNames};

/// Longest name of a target, in bytes: a label of DNS.
pub const MAX_NAME: usize = 63;

/// Most targets.
pub const MAX_TARGETS: usize = 100;

/// Most `--forward-allow` of all targets together. Each costs at most some microseconds a connection.
pub const MAX_PATTERNS: usize = 1000;

/// Longest host of a target, in bytes: a name in DNS with its final dot (RFC 1035).
const MAX_HOST: usize = 254;

/// Longest reason of a refusal, in characters; it fits a message of the control stream.
pub const MAX_REASON: usize = 800;

const TARGET: &str = "--forward-target";
const ALLOW: &str = "--forward-allow";

/// Every `--forward-target` with its `--forward-allow`. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardTargets(BTreeMap<String, Arc<Target>>);

/// Where connections of one name go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    name: String,
    host: String,
    port: u16,
    allowed: Vec<Glob>,
}

/// Why the flags name no targets; the operator's fault. Names flag and value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// No `=`.
    #[error("{TARGET}={value}: must be NAME=HOST:PORT, for example api=10.0.0.1:6443")]
    NoTarget {
        /// As it was written.
        value: String,
    },
    /// A name that cannot be asked for.
    #[error(
        "{TARGET}={value}: the name must have 1 to {MAX_NAME} letters, digits, '-', '_' or '.', and begin and end with a letter or digit"
    )]
    Name {
        /// As it was written.
        value: String,
    },
    /// A second target of one name.
    #[error("{TARGET}={value}: {name} is there already, and leads to {first}")]
    Duplicate {
        /// As it was written.
        value: String,
        /// The name.
        name: String,
        /// Host and port of the first.
        first: String,
    },
    /// No port, or none from 1 to 65535.
    #[error("{TARGET}={value}: must end with a port from 1 to 65535")]
    Port {
        /// As it was written.
        value: String,
    },
    /// No host, or what cannot be one.
    #[error(
        "{TARGET}={value}: must have a name or an address before the port, an IPv6 address in brackets"
    )]
    Host {
        /// As it was written.
        value: String,
    },
    /// No `=`.
    #[error("{ALLOW}={value}: must be NAME=PATTERN, for example api=node-*")]
    NoPattern {
        /// As it was written.
        value: String,
    },
    /// A pattern for a target that nobody names.
    #[error("{ALLOW}={value}: no {TARGET} is called {name:?}")]
    NoSuchTarget {
        /// As it was written.
        value: String,
        /// The name.
        name: String,
    },
    /// Not a pattern.
    #[error("{ALLOW}={value}: {cause}")]
    Pattern {
        /// As it was written.
        value: String,
        /// What is wrong; part of this error's own text.
        cause: GlobError,
    },
    /// More than [`MAX_TARGETS`] or [`MAX_PATTERNS`].
    #[error("{flag}: given {count} times, and at most {most} are taken")]
    TooMany {
        /// The flag.
        flag: &'static str,
        /// How many there are.
        count: usize,
        /// How many are taken.
        most: usize,
    },
}

/// Why an agent cannot have a target; the agent's fault or the operator's.
///
/// Both read the same to the agent: what it may not use it need not know of. What would have to be done is said, with the names that the
/// agent is verified as, which it knows anyway. This server's log and metrics tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardRefusal {
    /// There is no such target.
    Unknown,
    /// No pattern of the target matches what was verified of the agent.
    NotAllowed,
}

impl ForwardTargets {
    /// Reads the values of `--forward-target` and `--forward-allow`.
    ///
    /// # Errors
    ///
    /// All that is wrong, in the order of the flags.
    pub fn parse<S: AsRef<str>>(targets: &[S], allow: &[S]) -> Result<Self, Vec<TargetError>> {
        let mut errors = Vec::new();
        for (flag, count, most) in [
            (TARGET, targets.len(), MAX_TARGETS),
            (ALLOW, allow.len(), MAX_PATTERNS),
        ] {
            if count > most {
                errors.push(TargetError::TooMany { flag, count, most });
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut reading = Reading::default();
        let added = targets.iter().map(|value| reading.add(value.as_ref()));
        errors.extend(added.filter_map(Result::err));
        let allowed = allow.iter().map(|value| reading.allow(value.as_ref()));
        errors.extend(allowed.filter_map(Result::err));
        if !errors.is_empty() {
            return Err(errors);
        }
        let targets = reading.0.into_iter();
        Ok(Self(
            targets
                .map(|(name, target)| (name, Arc::new(target)))
                .collect(),
        ))
    }

    /// The target that an agent of these names asks for. `name` is compared byte for byte.
    ///
    /// # Errors
    /// [`ForwardRefusal`]
    pub fn check(&self, name: &str, names: &VerifiedNames) -> Result<&Arc<Target>, ForwardRefusal> {
        let target = self.0.get(name).ok_or(ForwardRefusal::Unknown)?;
        if target.allows(names) {
            Ok(target)
        } else {
            Err(ForwardRefusal::NotAllowed)
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Target> {
        self.0.values().map(Arc::as_ref)
    }
}

/// Those of flags that are still being read.
#[derive(Default)]
struct Reading(BTreeMap<String, Target>);

impl Reading {
    fn add(&mut self, value: &str) -> Result<(), TargetError> {
        let owned = || value.to_owned();
        let no_target = || TargetError::NoTarget { value: owned() };
        let (name, address) = value.split_once('=').ok_or_else(no_target)?;
        if !is_name(name) {
            return Err(TargetError::Name { value: owned() });
        }
        let no_port = || TargetError::Port { value: owned() };
        let (host, port) = address.rsplit_once(':').ok_or_else(no_port)?;
        let port = parse_port(port).ok_or_else(no_port)?;
        let no_host = || TargetError::Host { value: owned() };
        let target = Target {
            name: name.to_owned(),
            host: parse_host(host).ok_or_else(no_host)?.to_owned(),
            port,
            allowed: Vec::new(),
        };
        if let Some(first) = self.0.get(name) {
            return Err(TargetError::Duplicate {
                value: owned(),
                name: name.to_owned(),
                first: first.to_string(),
            });
        }
        self.0.insert(name.to_owned(), target);
        Ok(())
    }

    fn allow(&mut self, value: &str) -> Result<(), TargetError> {
        let owned = || value.to_owned();
        let no_pattern = || TargetError::NoPattern { value: owned() };
        let (name, pattern) = value.split_once('=').ok_or_else(no_pattern)?;
        let no_such_target = || TargetError::NoSuchTarget {
            value: owned(),
            name: name.to_owned(),
        };
        let target = self.0.get_mut(name).ok_or_else(no_such_target)?;
        let bad = |cause| TargetError::Pattern {
            value: owned(),
            cause,
        };
        target.allowed.push(pattern.parse().map_err(bad)?);
        Ok(())
    }
}

impl Target {
    /// What agents call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A name, or an address without brackets; never empty.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Never 0.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether any agent at all may use it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.allowed.is_empty()
    }

    fn allows(&self, names: &VerifiedNames) -> bool {
        let mut patterns = self.allowed.iter();
        patterns.any(|pattern| names.iter().any(|name| pattern.matches(name)))
    }
}

impl fmt::Display for Target {
    /// As `HOST:PORT`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl ForwardRefusal {
    /// What an agent of these names is told that asked for `name`: one line of at most [`MAX_REASON`] characters.
    #[must_use]
    pub fn reason(self, name: &str, names: &VerifiedNames) -> String {
        let name: String = name.chars().take(MAX_NAME).collect();
        let mut reason = format!(
            "no forward target {name:?} is open to this agent: the server must have a {TARGET} of that name, and "
        );
        reason += &if names.is_empty() {
            "the agent a certificate or a token bound to a Pod, as nothing shows who it is"
                .to_owned()
        } else {
            format!("a {ALLOW} for it that matches what the agent is verified as: {names}")
        };
        reason.chars().take(MAX_REASON).collect()
    }

    /// What this server's operator is told.
    #[must_use]
    pub fn cause(self) -> &'static str {
        match self {
            Self::Unknown => "no --forward-target has that name",
            Self::NotAllowed => "no --forward-allow of that target matches the agent",
        }
    }
}

/// What agents of ours take for a name, too.
fn is_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric();
    bytes.len() <= MAX_NAME
        && ends.iter().all(|end| end.is_some_and(is_letter))
        && bytes
            .iter()
            .all(|byte| is_letter(byte) || matches!(byte, b'-' | b'_' | b'.'))
}

/// Digits alone: no sign, which the standard library would take.
fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| is_number && port != 0)
}

/// A host without brackets.
fn parse_host(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix('[') {
        let inner = rest.strip_suffix(']')?;
        return inner.parse::<Ipv6Addr>().is_ok().then_some(inner);
    }
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_host = !text.is_empty() && text.len() <= MAX_HOST && text.bytes().all(is_host);
    is_host.then_some(text)
}

#[cfg(test)]
mod tests;
