//! A refusal, in an operator's words.

use std::fmt;
use std::net::IpAddr;

/// Longest host that a refusal repeats, in characters.
const MAX_HOST_CHARS: usize = 253;

/// A target that the policy does not let through. `Display` names the target and what decided; put
/// `refused by egress policy of this agent: ` or the like before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressRefused {
    target: String,
    /// Behind the target: what its name resolved to.
    resolved: Option<IpAddr>,
    cause: Cause,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A rule denies it.
    Denied { rule: String },
    /// Something is allowed, but not this.
    NotAllowed,
    /// An allowed name leads to this host or its link.
    OwnAddress,
}

impl EgressRefused {
    pub(crate) fn host(host: &str, port: u16, cause: Cause) -> Self {
        // A peer chose it: bounded, and on one line.
        let host: String = host
            .chars()
            .take(MAX_HOST_CHARS)
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect();
        let target = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        Self {
            target,
            resolved: None,
            cause,
        }
    }

    pub(crate) fn address(host: &str, port: u16, address: IpAddr, cause: Cause) -> Self {
        Self {
            resolved: Some(address),
            ..Self::host(host, port, cause)
        }
    }
}

impl std::error::Error for EgressRefused {}

impl fmt::Display for EgressRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = &self.target;
        match (&self.cause, self.resolved) {
            (Cause::Denied { rule }, None) => write!(f, "rule {rule} denies {target}"),
            (Cause::Denied { rule }, Some(address)) => {
                write!(
                    f,
                    "rule {rule} denies {address}, which {target} resolves to"
                )
            }
            (Cause::NotAllowed, None) => write!(f, "no rule allows {target}"),
            (Cause::NotAllowed, Some(address)) => {
                write!(
                    f,
                    "no rule allows {target} or {address}, which it resolves to"
                )
            }
            (Cause::OwnAddress, address) => {
                write!(f, "{target} resolves to ")?;
                if let Some(address) = address {
                    write!(f, "{address}, ")?;
                }
                f.write_str(
                    "an address of the host or link itself, which only a rule for addresses allows",
                )
            }
        }
    }
}
