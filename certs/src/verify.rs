//! Would the other side let us in? The checks of a handshake, without one.

use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::dates::Timestamp;
use crate::describe;
use crate::pem::Roots;
use crate::tls::{self, ConfigError};

/// Why a peer refuses a certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The host is neither a DNS name nor an IP address.
    #[error("\"{host}\" is neither a DNS name nor an IP address")]
    Host {
        /// What was given.
        host: String,
    },
    /// The chain is empty.
    #[error("there is no certificate")]
    Empty,
    /// No verifier came out of the CA bundle.
    #[error(transparent)]
    Roots(ConfigError),
    /// No path from the certificate to the CA bundle.
    #[error(
        "the chain does not end in the CA bundle: it is of another authority, or an intermediate is missing behind the certificate"
    )]
    UnknownIssuer,
    /// An authority of the issuer's name is in the CA bundle or the chain, but another key signed.
    #[error(
        "a certificate of the chain is not signed by the authority of its issuer's name: the CA bundle or chain has an older or newer one of the same name"
    )]
    Signature,
    /// Another certificate of the path, or the certificate itself, is out of date.
    #[error("a certificate of the chain has expired")]
    Expired,
    /// The same, early.
    #[error("a certificate of the chain is not valid yet; compare the clocks")]
    NotYetValid,
    /// No alternative name matches.
    #[error("the certificate is not valid for {host}; its names are {names}", names = list(names))]
    Name {
        /// The host asked for.
        host: String,
        /// The names it holds.
        names: Vec<String>,
    },
    /// The extended key usage leaves this use out.
    #[error("the extended key usage of the certificate does not allow {wanted}")]
    Usage {
        /// What it lacks.
        wanted: &'static str,
    },
    /// Anything else.
    #[error("refused")]
    Refused(#[source] rustls::Error),
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "none (no subjectAltName)".to_owned()
    } else {
        names.join(", ")
    }
}

/// Whether a client with `roots` that dials `host` accepts a server with `chain` at `now`.
///
/// # Errors
///
/// [`VerifyError`], as the client would give up.
pub fn server(
    chain: &[CertificateDer<'_>],
    host: &str,
    roots: &Roots,
    now: Timestamp,
) -> Result<(), VerifyError> {
    // An address in brackets is how URLs have it.
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let name = ServerName::try_from(bare.unwrap_or(host)).map_err(|_| VerifyError::Host {
        host: host.to_owned(),
    })?;
    let (own, intermediates) = chain.split_first().ok_or(VerifyError::Empty)?;
    let store = roots
        .store_at(now)
        .map_err(|error| VerifyError::Roots(ConfigError::Roots(error)))?;
    let verifier = WebPkiServerVerifier::builder_with_provider(store, Arc::new(tls::provider()))
        .build()
        .map_err(|error| VerifyError::Roots(ConfigError::Verifier(error)))?;
    verifier
        .verify_server_cert(own, intermediates, &name, &[], unix_time(now))
        .map(|_| ())
        .map_err(|error| refusal(error, own, "serving (serverAuth)", host))
}

/// Whether a server with `roots` as client authorities accepts a client with `chain` at `now`.
///
/// # Errors
///
/// [`VerifyError`], as the server would give up.
pub fn client(
    chain: &[CertificateDer<'_>],
    roots: &Roots,
    now: Timestamp,
) -> Result<(), VerifyError> {
    let (own, intermediates) = chain.split_first().ok_or(VerifyError::Empty)?;
    let store = roots
        .store_at(now)
        .map_err(|error| VerifyError::Roots(ConfigError::Roots(error)))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(store, Arc::new(tls::provider()))
        .build()
        .map_err(|error| VerifyError::Roots(ConfigError::Verifier(error)))?;
    verifier
        .verify_client_cert(own, intermediates, unix_time(now))
        .map(|_| ())
        .map_err(|error| refusal(error, own, "clients (clientAuth)", ""))
}

fn unix_time(now: Timestamp) -> UnixTime {
    let seconds = u64::try_from(now.unix_seconds()).unwrap_or_default();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn refusal(
    error: rustls::Error,
    own: &CertificateDer<'_>,
    wanted: &'static str,
    host: &str,
) -> VerifyError {
    let rustls::Error::InvalidCertificate(reason) = &error else {
        return VerifyError::Refused(error);
    };
    match reason {
        CertificateError::UnknownIssuer => VerifyError::UnknownIssuer,
        CertificateError::BadSignature => VerifyError::Signature,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => VerifyError::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            VerifyError::NotYetValid
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            let parsed = X509Certificate::from_der(own);
            VerifyError::Name {
                host: host.to_owned(),
                names: parsed
                    .map_or_else(|_| Vec::new(), |(_, own)| describe::issuable_names(&own)),
            }
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            VerifyError::Usage { wanted }
        }
        _ => VerifyError::Refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue::{Authority, AuthoritySpec, Leaf};

    fn now() -> Timestamp {
        Timestamp::now()
    }

    #[test]
    fn a_server_passes_under_its_names_and_no_other() {
        let authority = Authority::generate("CA").unwrap();
        let roots = authority.roots().unwrap();
        let names = ["a.example", "192.0.2.7", "::1"];
        let chain = authority.issue_server(&names).unwrap().chain();
        for host in names.into_iter().chain(["[::1]"]) {
            server(&chain, host, &roots, now()).expect(host);
        }
        for host in ["b.example", "192.0.2.8", "::2"] {
            let error = server(&chain, host, &roots, now()).unwrap_err();
            assert!(matches!(error, VerifyError::Name { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.ends_with(&format!(
                    "for {host}; its names are a.example, 192.0.2.7, ::1"
                )),
                "{text}"
            );
        }
        let error = server(&chain, "no host", &roots, now()).unwrap_err();
        assert!(matches!(error, VerifyError::Host { .. }), "{error:?}");
    }

    #[test]
    fn a_server_without_names_passes_under_none() {
        let authority = Authority::generate("CA").unwrap();
        let chain = authority.issue(&Leaf::server(&[])).unwrap().chain();
        let error = server(&chain, "server", &authority.roots().unwrap(), now()).unwrap_err();
        assert!(error.to_string().contains("no subjectAltName"), "{error}");
    }

    #[test]
    fn each_use_needs_its_usage() {
        let authority = Authority::generate("CA").unwrap();
        let roots = authority.roots().unwrap();
        let serving = authority.issue_server(&["a.example"]).unwrap().chain();
        let dialling = Leaf::client("a").with_sans(&["a.example"]);
        let dialling = authority.issue(&dialling).unwrap().chain();
        client(&dialling, &roots, now()).unwrap();
        let error = client(&serving, &roots, now()).unwrap_err();
        assert!(error.to_string().contains("clientAuth"), "{error:?}");
        let error = server(&dialling, "a.example", &roots, now()).unwrap_err();
        assert!(error.to_string().contains("serverAuth"), "{error:?}");
    }

    #[test]
    fn another_authority_and_a_missing_intermediate_are_an_unknown_issuer() {
        let root = Authority::create(&AuthoritySpec::new("CA").with_intermediates(1)).unwrap();
        let chain = root.issue_authority("middle").unwrap();
        let chain = chain.issue_client("a").unwrap().chain();
        client(&chain, &root.roots().unwrap(), now()).unwrap();
        let other = Authority::generate("another").unwrap().roots().unwrap();
        for (chain, roots) in [(&chain[..1], root.roots().unwrap()), (&chain[..], other)] {
            let error = client(chain, &roots, now()).unwrap_err();
            assert!(matches!(error, VerifyError::UnknownIssuer), "{error:?}");
        }
    }

    #[test]
    fn an_authority_of_the_same_name_is_told_from_an_unknown_one() {
        let chain = Authority::generate("CA")
            .unwrap()
            .issue_client("a")
            .unwrap();
        let other = Authority::generate("CA").unwrap().roots().unwrap();
        let error = client(&chain.chain(), &other, now()).unwrap_err();
        assert!(matches!(error, VerifyError::Signature), "{error:?}");
    }

    #[test]
    fn a_root_that_is_out_of_date_verifies_nobody() {
        let over = crate::Validity::over();
        let old = Authority::generate_valid("old", over).unwrap().uncapped();
        let young = Authority::generate("young").unwrap();
        let chain = old.issue_client("a").unwrap().chain();
        let both = vec![young.certificate(), old.certificate()];
        let both = Roots::from_certificates("ca.crt".as_ref(), both).unwrap();
        let error = client(&chain, &both, now()).unwrap_err();
        assert!(matches!(error, VerifyError::UnknownIssuer), "{error:?}");
        let error = client(&chain, &old.roots().unwrap(), now()).unwrap_err();
        assert!(matches!(error, VerifyError::Roots(_)), "{error:?}");
        // As long as it was in date, it did.
        let mixed = old.issue(&Leaf::client("a").valid(over)).unwrap().chain();
        client(&mixed, &both, over.not_after).unwrap();
    }

    #[test]
    fn dates_count_at_the_moment_asked_for() {
        let validity = crate::Validity {
            not_before: now().plus_days(-1),
            not_after: now().plus_days(1000),
        };
        let authority = Authority::generate_valid("CA", validity).unwrap();
        let roots = authority.roots().unwrap();
        let leaf = Leaf::client("a");
        let chain = authority.issue(&leaf).unwrap().chain();
        let late = client(&chain, &roots, leaf.validity.not_after.plus_seconds(1));
        assert!(matches!(late, Err(VerifyError::Expired)), "{late:?}");
        let early = client(&chain, &roots, leaf.validity.not_before.plus_seconds(-1));
        assert!(matches!(early, Err(VerifyError::NotYetValid)), "{early:?}");
    }
}
