//! How certificates of a file hang together: who signed whom, by signature and not by name alone.

use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::error::X509Error;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

/// Most candidates for an issuer that are looked at: signatures are dear, and a bundle may hold thousands.
const MAX_CANDIDATES: usize = 256;

/// What is known of a certificate's issuer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issuer {
    /// It signed itself.
    Itself,
    /// The candidate of this index signed it.
    Candidate(usize),
    /// A candidate bears the issuer's name, yet did not sign.
    Impostor(usize),
    /// None of the candidates bears the issuer's name.
    Missing,
}

/// Who signed `certificate`: itself or one of `candidates`, of which it may be one. What does not parse is nobody.
#[must_use]
pub fn issuer(certificate: &CertificateDer<'_>, candidates: &[CertificateDer<'_>]) -> Issuer {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Issuer::Missing;
    };
    if parsed.issuer().as_raw() == parsed.subject().as_raw() && signed(&parsed, &parsed) {
        return Issuer::Itself;
    }
    let mut impostor = None;
    for (index, candidate) in candidates.iter().enumerate().take(MAX_CANDIDATES) {
        if candidate == certificate {
            continue;
        }
        let Ok((_, candidate)) = X509Certificate::from_der(candidate) else {
            continue;
        };
        if candidate.subject().as_raw() != parsed.issuer().as_raw() {
            continue;
        }
        if signed(&candidate, &parsed) {
            return Issuer::Candidate(index);
        }
        impostor.get_or_insert(index);
    }
    impostor.map_or(Issuer::Missing, Issuer::Impostor)
}

/// Whether `issuer`'s key made the signature of `certificate`. An algorithm we cannot check is taken on trust: whoever uses
/// the chain checks it again.
fn signed(issuer: &X509Certificate<'_>, certificate: &X509Certificate<'_>) -> bool {
    matches!(
        certificate.verify_signature(Some(issuer.public_key())),
        Ok(()) | Err(X509Error::SignatureUnsupportedAlgorithm)
    )
}

/// What a certificate lets itself be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uses {
    pub(crate) authority: bool,
    pub(crate) server: bool,
    pub(crate) client: bool,
}

/// By basicConstraints and extendedKeyUsage. Without the latter nothing is excluded (RFC 5280, section 4.2.1.12).
pub(crate) fn uses(certificate: &X509Certificate<'_>) -> Uses {
    let authority = certificate.is_ca();
    let (server, client) = match certificate.extended_key_usage() {
        Ok(Some(extended)) => (
            extended.value.any || extended.value.server_auth,
            extended.value.any || extended.value.client_auth,
        ),
        Ok(None) => (true, true),
        Err(_) => (false, false),
    };
    // An authority's certificate is refused as a leaf by webpki, whatever else it says.
    Uses {
        authority,
        server: server && !authority,
        client: client && !authority,
    }
}

/// Whether a subjectAltName holds at least one name.
pub(crate) fn has_san(certificate: &X509Certificate<'_>) -> bool {
    certificate.extensions().iter().any(|extension| {
        matches!(extension.parsed_extension(), ParsedExtension::SubjectAlternativeName(san)
            if !san.general_names.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue::{Authority, AuthoritySpec, KeyType};

    fn root(name: &str) -> Authority {
        Authority::create(&AuthoritySpec::new(name).with_intermediates(1)).unwrap()
    }

    #[test]
    fn a_chain_is_followed_by_signature_from_leaf_to_root() {
        for key_type in [KeyType::P256, KeyType::P384, KeyType::Ed25519] {
            let spec = AuthoritySpec::new("root")
                .with_intermediates(1)
                .with_key_type(key_type);
            let root = Authority::create(&spec).unwrap();
            let middle = root.issue_authority("middle").unwrap();
            let leaf = middle.issue_client("leaf").unwrap().chain();
            let all = [leaf[0].clone(), root.certificate(), middle.certificate()];
            assert_eq!(issuer(&all[0], &all), Issuer::Candidate(2), "{key_type}");
            assert_eq!(issuer(&all[2], &all), Issuer::Candidate(1), "{key_type}");
            assert_eq!(issuer(&all[1], &all), Issuer::Itself, "{key_type}");
        }
    }

    #[test]
    fn an_authority_of_the_same_name_but_another_key_is_an_impostor() {
        let (old, new) = (root("CA"), root("CA"));
        let leaf = new.issue_client("leaf").unwrap().chain();
        let found = issuer(&leaf[0], &[old.certificate()]);
        assert_eq!(found, Issuer::Impostor(0));
        let found = issuer(&leaf[0], &[old.certificate(), new.certificate()]);
        assert_eq!(found, Issuer::Candidate(1));
    }

    #[test]
    fn an_issuer_that_is_not_there_is_missing() {
        let leaf = root("CA").issue_client("leaf").unwrap().chain();
        assert_eq!(issuer(&leaf[0], &leaf), Issuer::Missing);
        assert_eq!(
            issuer(&leaf[0], &[root("B").certificate()]),
            Issuer::Missing
        );
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_issuer() {
        let garbage = CertificateDer::from(vec![0x30, 0]);
        assert_eq!(issuer(&garbage, &[]), Issuer::Missing);
    }
}
