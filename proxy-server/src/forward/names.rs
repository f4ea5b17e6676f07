//! What is known of an agent for certain.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

/// Most alternative names kept of one certificate. More open nothing: refusing is the safe side.
const MAX_NAMES: usize = 256;

/// Longest name that is kept, in bytes, with its final dot: that of a name in DNS (RFC 1035).
const MAX_BYTES: usize = 254;

/// Most names that a text about an agent has.
const MAX_SHOWN: usize = 4;

/// Names that were *verified* of an agent: the common name and the DNS names of its certificate, and the Pod and node that its reviewed
/// token is bound to. Lower case, without a final dot. All are in one name space: whoever issues certificates and tokens to agents says
/// what they are called.
///
/// A wildcard is kept as it is written. Without a certificate that the handshake asked for, and without a token review, there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedNames(Vec<String>);

impl VerifiedNames {
    /// From a chain that the handshake has verified, the agent's own certificate first, and from what a token review gave.
    ///
    /// A certificate that does not parse here has no names, though the handshake took it; so has a subject with several common names:
    /// nobody could say which is meant.
    #[must_use]
    pub fn new(chain: &[CertificateDer<'_>], pod: Option<&str>, node: Option<&str>) -> Self {
        let mut names = Self::default();
        if let Some(own) = chain.first()
            && let Ok((_, certificate)) = X509Certificate::from_der(own)
        {
            names.add_certificate(&certificate);
        }
        for name in [pod, node].into_iter().flatten() {
            names.add(name);
        }
        names
    }

    fn add_certificate(&mut self, certificate: &X509Certificate<'_>) {
        let mut common = certificate.subject().iter_common_name();
        if let (Some(only), None) = (common.next(), common.next())
            && let Ok(name) = only.as_str()
        {
            self.add(name);
        }
        // An error: the extension is there more than once.
        if let Ok(Some(extension)) = certificate.subject_alternative_name() {
            let names = &extension.value.general_names;
            for name in names.iter().take(MAX_NAMES) {
                if let GeneralName::DNSName(name) = name {
                    self.add(name);
                }
            }
        }
    }

    fn add(&mut self, name: &str) {
        if name.len() > MAX_BYTES {
            return;
        }
        let name = normal(name);
        if !name.is_empty() && !self.0.contains(&name) {
            self.0.push(name);
        }
    }

    /// The names, those of the certificate first.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for VerifiedNames {
    /// The first few, quoted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("no name");
        }
        for (index, name) in self.iter().take(MAX_SHOWN).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name:?}")?;
        }
        match self.0.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A name as it is compared.
pub(super) fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use certs::issue::{Authority, Leaf};

    use super::*;

    fn of(common_name: &str, sans: &[&str]) -> VerifiedNames {
        let leaf = Leaf::client(common_name).with_sans(sans);
        let issued = Authority::generate("test CA")
            .unwrap()
            .issue(&leaf)
            .unwrap();
        VerifiedNames::new(&issued.chain(), None, None)
    }

    fn list(names: &VerifiedNames) -> Vec<&str> {
        names.iter().collect()
    }

    #[test]
    fn a_certificate_gives_its_common_name_and_its_dns_names() {
        let names = of("Node-1", &["node-1.Example", "10.0.0.7", "node-1"]);
        assert_eq!(list(&names), ["node-1", "node-1.example"]);
        assert_eq!(names.to_string(), "\"node-1\", \"node-1.example\"");
    }

    #[test]
    fn a_review_gives_pod_and_node_besides() {
        let names = VerifiedNames::new(&[], Some("agent-x7"), Some("Node-1."));
        assert_eq!(list(&names), ["agent-x7", "node-1"]);
    }

    #[test]
    fn without_proof_there_is_no_name() {
        let garbage = [CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])];
        for names in [
            VerifiedNames::default(),
            VerifiedNames::new(&[], None, None),
            VerifiedNames::new(&[], Some(""), Some(".")),
            VerifiedNames::new(&garbage, None, None),
        ] {
            assert!(names.is_empty(), "{names}");
            assert_eq!(names.to_string(), "no name");
        }
    }

    #[test]
    fn names_beyond_any_measure_are_not_kept() {
        let long = "a".repeat(255);
        assert!(of(&long, &[]).is_empty());
        let many: Vec<_> = (0..300).map(|number| format!("n{number}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        let names = of("cn", &many);
        assert_eq!(names.iter().count(), MAX_NAMES + 1);
        assert_eq!(
            names.to_string(),
            "\"cn\", \"n0\", \"n1\", \"n2\" and 253 more"
        );
    }
}
