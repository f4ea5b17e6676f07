//! Both lists, and what they say about a target.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::host::{self, Host};
use crate::refused::{Cause, EgressRefused};
use crate::rule::{Rule, RuleError};

/// Most rules of one list. All are looked at for each dial; a thousand cost some microseconds.
pub const MAX_RULES: usize = 1000;

/// Which targets may be dialled. The default has no rules and lets everything through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    allow: Vec<Rule>,
    deny: Vec<Rule>,
}

/// One of the two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// What may be dialled.
    Allow,
    /// What may not, whatever allows it.
    Deny,
}

/// Why there is no policy; the operator's fault. Names the flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A rule is wrong.
    #[error("{list}: rule {rule:?} {cause}")]
    Rule {
        /// The list that it is in.
        list: List,
        /// As it was written, cut if long.
        rule: String,
        /// What is wrong; part of this error's own text.
        cause: RuleError,
    },
    /// More than [`MAX_RULES`].
    #[error(
        "{list}: {count} rules, and at most {MAX_RULES} are taken; write networks instead of addresses"
    )]
    TooMany {
        /// The list.
        list: List,
        /// How many it has.
        count: usize,
    },
}

/// What is known of a target before its name is resolved, for [`Policy::check_address`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// The name is allowed, or there is no list of what is: its addresses need no rule.
    Name {
        /// Whether it is because a rule for names allows it.
        by_rule: bool,
    },
    /// Each address needs a rule that allows it.
    Address,
}

impl Policy {
    /// Reads both lists.
    ///
    /// # Errors
    ///
    /// All that is wrong, in the order of the lists.
    pub fn parse<S: AsRef<str>>(allow: &[S], deny: &[S]) -> Result<Self, Vec<PolicyError>> {
        let mut errors = Vec::new();
        let policy = Self {
            allow: read(List::Allow, allow, &mut errors),
            deny: read(List::Deny, deny, &mut errors),
        };
        if errors.is_empty() {
            Ok(policy)
        } else {
            Err(errors)
        }
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_unrestricted(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Looks at a target as it was asked for: the host without its port, which may be a name, an address, or empty for this
    /// host. Whoever resolves the name asks [`check_address`](Self::check_address) for each address that it dials.
    ///
    /// # Errors
    ///
    /// If no address that the name may have could be allowed.
    pub fn check_host(&self, host: &str, port: u16) -> Result<Clearance, EgressRefused> {
        if self.is_unrestricted() {
            return Ok(Clearance::Name { by_rule: false });
        }
        let refuse = |cause| EgressRefused::host(host, port, cause);
        let read = Host::read(host);
        if read == Host::Unnamed {
            for own in [IpAddr::V4(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
                self.look_at(own, port, Clearance::Address)
                    .map_err(refuse)?;
            }
            return Ok(Clearance::Address);
        }
        if let Host::Address(address) = read {
            self.look_at(address, port, Clearance::Address)
                .map_err(refuse)?;
            return Ok(Clearance::Address);
        }
        if let Some(rule) = self.deny.iter().find(|rule| rule.covers_host(&read, port)) {
            return Err(refuse(Cause::Denied {
                rule: rule.to_string(),
            }));
        }
        if self.allow.is_empty() {
            return Ok(Clearance::Name { by_rule: false });
        }
        if self.allow.iter().any(|rule| rule.covers_host(&read, port)) {
            return Ok(Clearance::Name { by_rule: true });
        }
        if self
            .allow
            .iter()
            .any(|rule| rule.may_cover_an_address(port))
        {
            return Ok(Clearance::Address);
        }
        Err(refuse(Cause::NotAllowed))
    }

    /// As [`check_host`](Self::check_host), for whoever resolves no names: what only a rule for addresses could allow is
    /// refused, if it is a name. Deny rules for addresses match no name; the agent, which resolves, has to hold them.
    ///
    /// # Errors
    ///
    /// If a rule denies the target, or there are rules that allow and none allows this one.
    pub fn check_unresolved(&self, host: &str, port: u16) -> Result<(), EgressRefused> {
        match (self.check_host(host, port)?, Host::read(host)) {
            (Clearance::Address, Host::Name(_)) => {
                Err(EgressRefused::host(host, port, Cause::NotAllowed))
            }
            _ => Ok(()),
        }
    }

    /// Looks at an address that `host` was resolved to; `clearance` is what [`check_host`](Self::check_host) said of it.
    /// The scope of an IPv6 address is not compared.
    ///
    /// # Errors
    ///
    /// If a rule denies the address, or it needs one that allows it and there is none.
    pub fn check_address(
        &self,
        clearance: Clearance,
        host: &str,
        address: SocketAddr,
    ) -> Result<(), EgressRefused> {
        if self.is_unrestricted() {
            return Ok(());
        }
        let (ip, port) = (address.ip().to_canonical(), address.port());
        self.look_at(ip, port, clearance)
            .map_err(|cause| match Host::read(host) {
                Host::Name(_) => EgressRefused::address(host, port, address.ip(), cause),
                _ => EgressRefused::host(&address.ip().to_string(), port, cause),
            })
    }

    /// `address` is no IPv4 address within IPv6.
    fn look_at(&self, address: IpAddr, port: u16, clearance: Clearance) -> Result<(), Cause> {
        let reached = host::reached(address);
        let denies =
            |rule: &&Rule| rule.covers_address(address, port) || rule.covers_address(reached, port);
        if let Some(rule) = self.deny.iter().find(denies) {
            return Err(Cause::Denied {
                rule: rule.to_string(),
            });
        }
        let allows = |rule: &Rule| rule.covers_address(reached, port);
        let is_allowed = self.allow.is_empty() || self.allow.iter().any(allows);
        match clearance {
            _ if is_allowed => Ok(()),
            Clearance::Address => Err(Cause::NotAllowed),
            Clearance::Name { by_rule: true } if host::is_own(reached) => Err(Cause::OwnAddress),
            Clearance::Name { .. } => Ok(()),
        }
    }
}

fn read<S: AsRef<str>>(list: List, texts: &[S], errors: &mut Vec<PolicyError>) -> Vec<Rule> {
    let count = texts.len();
    if count > MAX_RULES {
        errors.push(PolicyError::TooMany { list, count });
        return Vec::new();
    }
    let mut rules = Vec::with_capacity(count);
    for text in texts.iter().map(AsRef::as_ref) {
        match text.trim().parse() {
            Ok(rule) => rules.push(rule),
            Err(cause) => errors.push(PolicyError::Rule {
                list,
                rule: text.chars().take(80).collect(),
                cause,
            }),
        }
    }
    rules
}

impl fmt::Display for List {
    /// The flag.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "--egress-allow",
            Self::Deny => "--egress-deny",
        })
    }
}

impl fmt::Display for Policy {
    /// For the log: the flags that give this policy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_unrestricted() {
            return f.write_str("everything allowed");
        }
        let mut space = "";
        for (list, rules) in [(List::Allow, &self.allow), (List::Deny, &self.deny)] {
            let mut lead = format!("{space}{list}=");
            for rule in rules {
                write!(f, "{lead}{rule}")?;
                lead = ",".to_owned();
                space = " ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
