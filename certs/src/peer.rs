//! Who the peer is, from its certificate. For logs: what may pass is decided by the chain, never by these names.

use std::fmt;
use std::net::IpAddr;

use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::dates::{self, Timestamp};

/// Longest name kept, in characters. A certificate may carry megabytes; a log line should not.
pub const MAX_NAME_CHARS: usize = 253;

/// Most alternative names kept.
pub const MAX_SANS: usize = 16;

/// Names and last day of a peer's own certificate. Control characters in names are escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The subject's common name, the first if there are several.
    pub common_name: Option<String>,
    /// DNS names, IP addresses, URIs and mail addresses of subjectAltName, at most [`MAX_SANS`].
    pub sans: Vec<String>,
    /// Last moment of validity.
    pub not_after: Timestamp,
}

/// The peer's certificate is one that x509-parser cannot read, although the handshake took it.
#[derive(Debug, thiserror::Error)]
#[error("the peer's certificate does not parse: {reason}")]
pub struct BadPeerCertificate {
    reason: String,
}

impl Peer {
    /// Reads what `peer_certificates()` of a rustls connection gave after the handshake: `None` if the peer showed no
    /// certificate.
    ///
    /// # Errors
    ///
    /// [`BadPeerCertificate`]: log it and go on, the handshake has already decided about the certificate.
    pub fn from_certificates(
        chain: Option<&[CertificateDer<'_>]>,
    ) -> Result<Option<Self>, BadPeerCertificate> {
        let Some(own) = chain.and_then(<[_]>::first) else {
            return Ok(None);
        };
        match X509Certificate::from_der(own) {
            Ok((_, certificate)) => Ok(Some(Self::of(&certificate))),
            Err(error) => Err(BadPeerCertificate {
                reason: error.to_string(),
            }),
        }
    }

    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Self {
        let common_name = certificate
            .subject()
            .iter_common_name()
            .next()
            .and_then(|name| name.as_str().ok())
            .map(printable);
        // A malformed extension names nobody.
        let extension = certificate.subject_alternative_name().ok().flatten();
        let sans = extension
            .map(|sans| {
                sans.value
                    .general_names
                    .iter()
                    .filter_map(general_name)
                    .take(MAX_SANS)
                    .collect()
            })
            .unwrap_or_default();
        Self {
            common_name,
            sans,
            not_after: dates::validity(certificate).not_after,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.common_name.as_deref().unwrap_or("(no common name)"))?;
        if !self.sans.is_empty() {
            write!(f, " ({})", self.sans.join(", "))?;
        }
        Ok(())
    }
}

pub(crate) fn general_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(text) | GeneralName::URI(text) | GeneralName::RFC822Name(text) => {
            Some(printable(text))
        }
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let v6 = <[u8; 16]>::try_from(*bytes).map(IpAddr::from);
            v4.or(v6).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

/// `text` on one line of a log: bounded, control characters escaped.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .take(MAX_NAME_CHARS)
        .flat_map(|c| {
            // At most one of the two is not empty.
            let escaped = c.is_control().then(|| c.escape_default());
            let plain = (!c.is_control()).then_some(c);
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue::{Authority, Leaf};

    #[test]
    fn names_addresses_and_the_last_day_are_read_from_the_certificate() {
        let authority = Authority::generate("test CA").unwrap();
        let leaf = Leaf::client("system:agent").with_sans(&["a.example", "127.0.0.1", "::1"]);
        let issued = authority.issue(&leaf).unwrap();
        let peer = Peer::from_certificates(Some(&issued.chain()))
            .unwrap()
            .unwrap();
        assert_eq!(peer.common_name.as_deref(), Some("system:agent"));
        assert_eq!(peer.sans, ["a.example", "127.0.0.1", "::1"]);
        assert_eq!(peer.not_after, leaf.validity.not_after);
        assert_eq!(peer.to_string(), "system:agent (a.example, 127.0.0.1, ::1)");
    }

    #[test]
    fn a_peer_without_certificate_is_nobody() {
        assert_eq!(Peer::from_certificates(None).unwrap(), None);
        assert_eq!(Peer::from_certificates(Some(&[])).unwrap(), None);
    }

    #[test]
    fn bytes_that_are_no_certificate_are_an_error() {
        let garbage = [CertificateDer::from(vec![0x30, 0x03, 1, 2, 3])];
        assert!(Peer::from_certificates(Some(&garbage)).is_err());
    }

    #[test]
    fn names_in_logs_are_bounded_and_on_one_line() {
        let authority = Authority::generate("test CA").unwrap();
        let sans: Vec<_> = (0..100).map(|n| format!("n{n}.example")).collect();
        let sans: Vec<_> = sans.iter().map(String::as_str).collect();
        let leaf = Leaf::client("evil\nERROR \u{1b}[31m").with_sans(&sans);
        let issued = authority.issue(&leaf).unwrap();
        let peer = Peer::from_certificates(Some(&issued.chain()))
            .unwrap()
            .unwrap();
        assert_eq!(
            peer.common_name.as_deref(),
            Some("evil\\nERROR \\u{1b}[31m")
        );
        assert_eq!(peer.sans.len(), MAX_SANS);
        assert_eq!(
            printable(&"x".repeat(10_000)).chars().count(),
            MAX_NAME_CHARS
        );
    }
}
