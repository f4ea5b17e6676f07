//! What an agent may call itself: its claims against what its certificate or its reviewed token shows. Ours; off by default.
//!
//! Upstream believes an agent's identifiers, so one stolen agent certificate or token attracts the traffic of any node
//! (strategy `destHost`), and an agent that takes another's id replaces it. With a binding:
//!
//! | claim | what shows it in a certificate | in a token |
//! |---|---|---|
//! | `host` | the DNS name; for an address in words, the IP address | the node that the token is bound to |
//! | `ipv4`, `ipv6` | the IP address | nothing: a review names no addresses |
//! | `default-route` | the URI [`DEFAULT_ROUTE_URI`] | nothing |
//! | agent id | a DNS name or IP address; or it is a UUID | the node or the pod; or it is a UUID |
//!
//! Only subjectAltName counts, not the common name. Names are compared in any case and without a final dot, addresses by
//! value; a wildcard shows nothing. A UUID, which is what agents call themselves if nobody names them, needs no proof: it
//! is nobody's name. `cidr` routes nothing and is not looked at. The strategy `default` sends any dial to any agent, bound or not.

mod names;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

pub use names::{BadCertificate, PeerNames, ReviewedNames};

/// The URI in a certificate's subjectAltName that lets its agent claim `default-route`.
pub const DEFAULT_ROUTE_URI: &str = "adit://default-route";

/// `--bind-agent-identity`: what must show an agent's claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// Nothing; as upstream.
    #[default]
    None,
    /// Its certificate.
    Certificate,
    /// The pod and node of its reviewed token.
    Token,
    /// For each claim, one of the two.
    CertificateOrToken,
}

/// A value that is none of [`Binding`]'s; the operator's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown binding {value:?}; it is one of none, certificate, token, certificate-or-token")]
pub struct UnknownBinding {
    value: String,
}

/// What an agent says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims<'a> {
    /// Its id.
    pub agent_id: &'a str,
    /// Values of `host`, `ipv4` and `ipv6`: what the strategy `destHost` finds it by.
    pub targets: Vec<&'a str>,
    /// Whether it claims `default-route`.
    pub default_route: bool,
}

/// A claim that nothing shows; the agent's fault, or that of whoever made its certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindingError {
    /// A host or an address.
    #[error("identifier {claim:?} is not shown by {proof}")]
    Target {
        /// The claim, cut if long.
        claim: String,
        /// What was looked at.
        proof: Binding,
    },
    /// The id.
    #[error("agent id {claim:?} is no UUID and is not shown by {proof}")]
    AgentId {
        /// The claim, cut if long.
        claim: String,
        /// What was looked at.
        proof: Binding,
    },
    /// `default-route`.
    #[error(
        "default-route is not shown by {proof}; a certificate shows it by the URI {DEFAULT_ROUTE_URI}"
    )]
    DefaultRoute {
        /// What was looked at.
        proof: Binding,
    },
}

/// Longest claim that an error repeats, in characters.
const MAX_CLAIM_CHARS: usize = 253;

impl Binding {
    /// Compares every claim with what shows it. Pass what is known, empty if nothing is.
    ///
    /// # Errors
    ///
    /// The first claim that nothing shows. Its text is for the agent's status and for the log.
    pub fn check(
        self,
        peer: &PeerNames,
        reviewed: &ReviewedNames,
        claims: &Claims<'_>,
    ) -> Result<(), BindingError> {
        let (by_certificate, by_token) = match self {
            Self::None => return Ok(()),
            Self::Certificate => (true, false),
            Self::Token => (false, true),
            Self::CertificateOrToken => (true, true),
        };
        let cut = |claim: &str| claim.chars().take(MAX_CLAIM_CHARS).collect();
        let is_shown = |claim: &str, names: &dyn Fn(&Value) -> bool| {
            let value = Value::read(claim);
            by_certificate && peer.has(&value) || by_token && names(&value)
        };
        for claim in &claims.targets {
            if !is_shown(claim, &|value| reviewed.is_node(value)) {
                let (claim, proof) = (cut(claim), self);
                return Err(BindingError::Target { claim, proof });
            }
        }
        let id = claims.agent_id;
        let shows_id = |value: &Value| reviewed.is_node(value) || reviewed.is_pod(value);
        if !is_uuid(id) && !is_shown(id, &shows_id) {
            let (claim, proof) = (cut(id), self);
            return Err(BindingError::AgentId { claim, proof });
        }
        if claims.default_route && !(by_certificate && peer.may_be_default_route()) {
            return Err(BindingError::DefaultRoute { proof: self });
        }
        Ok(())
    }
}

/// A name or address as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// An IPv4 address within IPv6 is that IPv4 address.
    Address(IpAddr),
    /// Lower case, no final dot.
    Name(String),
}

impl Value {
    fn read(text: &str) -> Self {
        match text.parse::<IpAddr>() {
            Ok(address) => Self::Address(address.to_canonical()),
            Err(_) => Self::name(text),
        }
    }

    /// A text that is a name even if it looks like an address.
    fn name(text: &str) -> Self {
        Self::Name(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase())
    }
}

/// In the hyphenated form, which alone agents make.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && uuid::Uuid::try_parse(text).is_ok()
}

impl FromStr for Binding {
    type Err = UnknownBinding;

    fn from_str(text: &str) -> Result<Self, UnknownBinding> {
        match text {
            "none" => Ok(Self::None),
            "certificate" => Ok(Self::Certificate),
            "token" => Ok(Self::Token),
            "certificate-or-token" => Ok(Self::CertificateOrToken),
            other => Err(UnknownBinding {
                value: other.chars().take(80).collect(),
            }),
        }
    }
}

impl fmt::Display for Binding {
    /// The flag's value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Certificate => "certificate",
            Self::Token => "token",
            Self::CertificateOrToken => "certificate-or-token",
        })
    }
}

#[cfg(test)]
mod tests;
