//! What shows a claim: names of a certificate, names of a token review.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::{DEFAULT_ROUTE_URI, Value};

/// Keys of a TokenReview's `extra` for a token that is bound to a pod (Kubernetes,
/// `staging/src/k8s.io/apiserver/pkg/authentication/serviceaccount`); the node's from 1.30 on.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Most names kept of one certificate. More show nothing: refusing is the safe side.
const MAX_NAMES: usize = 256;

/// Alternative names of an agent's certificate, by kind. Without a certificate: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerNames {
    values: Vec<Value>,
    default_route: bool,
}

/// The agent's certificate cannot be read here, although the handshake took it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent's certificate does not parse: {reason}")]
pub struct BadCertificate {
    reason: String,
}

impl PeerNames {
    /// Reads the chain that the handshake has verified, own certificate first.
    ///
    /// # Errors
    ///
    /// [`BadCertificate`]. With a binding, such an agent has shown nothing.
    pub fn from_certificates(chain: Option<&[CertificateDer<'_>]>) -> Result<Self, BadCertificate> {
        let Some(own) = chain.and_then(<[_]>::first) else {
            return Ok(Self::default());
        };
        let bad = |reason: String| BadCertificate { reason };
        let (_, certificate) =
            X509Certificate::from_der(own).map_err(|error| bad(error.to_string()))?;
        let extension = certificate
            .subject_alternative_name()
            .map_err(|error| bad(error.to_string()))?;
        let names = extension.map_or(&[][..], |san| san.value.general_names.as_slice());
        let mut read = Self::default();
        for name in names.iter().take(MAX_NAMES) {
            match name {
                // A DNS name that looks like an address shows no address: it was not checked as one when it was signed.
                GeneralName::DNSName(name) => read.values.push(Value::name(name)),
                GeneralName::IPAddress(bytes) => read.values.extend(address(bytes)),
                GeneralName::URI(uri) => read.default_route |= *uri == DEFAULT_ROUTE_URI,
                _ => {}
            }
        }
        Ok(read)
    }

    pub(super) fn has(&self, value: &Value) -> bool {
        self.values.contains(value)
    }

    pub(super) fn may_be_default_route(&self) -> bool {
        self.default_route
    }
}

/// Four bytes or sixteen (RFC 5280, section 4.2.1.6).
fn address(bytes: &[u8]) -> Option<Value> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    let address = v4.or(v6).ok()?;
    Some(Value::Address(address.to_canonical()))
}

/// The pod and node that a reviewed token is bound to. Without a review, or for a token that is bound to none: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReviewedNames {
    pod: Option<Value>,
    node: Option<Value>,
}

impl ReviewedNames {
    /// From names that the review gave. A node is called as it is, also if that is an address.
    #[must_use]
    pub fn new(pod: Option<&str>, node: Option<&str>) -> Self {
        Self {
            pod: pod.map(Value::read),
            node: node.map(Value::read),
        }
    }

    /// From `status.user.extra` of a TokenReview. A key with several values names nothing.
    #[must_use]
    pub fn from_extra<'a>(extra: impl IntoIterator<Item = (&'a str, &'a [String])>) -> Self {
        let (mut pod, mut node) = (None, None);
        for (key, values) in extra {
            match (key, values) {
                (POD_NAME, [name]) => pod = Some(name.as_str()),
                (NODE_NAME, [name]) => node = Some(name.as_str()),
                _ => {}
            }
        }
        Self::new(pod, node)
    }

    pub(super) fn is_node(&self, value: &Value) -> bool {
        self.node.as_ref() == Some(value)
    }

    pub(super) fn is_pod(&self, value: &Value) -> bool {
        self.pod.as_ref() == Some(value)
    }
}
