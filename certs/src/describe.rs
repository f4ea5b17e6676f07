//! What a person wants to know about certificates: names, dates, key, usage, issuer, and what each can serve as in Adit.

use rustls_pki_types::CertificateDer;
use serde::Serialize;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;

use crate::chain::{self, Issuer};
use crate::dates::{self, Timestamp, Validity};
use crate::issue::KeyType;
use crate::peer;

/// What a certificate can stand for in a cluster with Adit, as far as it decides that itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The proxy-server, to agents (`--cluster-cert`) and to kube-apiserver (`--server-cert`).
    ProxyServer,
    /// The proxy-agent (`--agent-cert`).
    Agent,
    /// kube-apiserver as client of the proxy-server (`clientCert` of the egress selector).
    ApiServer,
    /// A root or intermediate in a bundle (`--ca-cert`, `--cluster-ca-cert`, `--server-ca-cert`, `caBundle`).
    Authority,
}

impl Role {
    /// The name, as JSON has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ProxyServer => "proxy-server",
            Self::Agent => "agent",
            Self::ApiServer => "api-server",
            Self::Authority => "authority",
        }
    }
}

/// Whether a certificate is in date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Yes.
    Valid,
    /// No longer.
    Expired,
    /// Not before its first day.
    NotYetValid,
}

impl State {
    fn at(validity: Validity, now: Timestamp) -> Self {
        if now > validity.not_after {
            Self::Expired
        } else if now < validity.not_before {
            Self::NotYetValid
        } else {
            Self::Valid
        }
    }
}

/// One certificate of a file. Text is bounded and on one line.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// Distinguished name of the subject.
    pub subject: String,
    /// Distinguished name of the issuer.
    pub issuer: String,
    /// Which certificate of the file signed this one, from 1; itself if it is self-signed; `None` if none did.
    pub signed_by: Option<usize>,
    /// Whether one in the file bears the issuer's name but did not sign.
    pub issuer_is_impostor: bool,
    /// DNS names, IP addresses, URIs and mail addresses.
    pub names: Vec<String>,
    /// First second of validity, RFC 3339.
    pub not_before: String,
    /// Last second of validity, RFC 3339.
    pub not_after: String,
    /// Whether it is valid now.
    pub state: State,
    /// Seconds until it expires, negative once it has.
    pub expires_in_seconds: i64,
    /// Kind and size of the key.
    pub key: String,
    /// `authority`, `server`, `client`.
    pub usage: Vec<&'static str>,
    /// What it can serve as.
    pub roles: Vec<Role>,
}

/// Describes each certificate of a file; one that does not parse is left out (those of [`crate::pem`] all parse).
#[must_use]
pub fn describe(certificates: &[CertificateDer<'_>], now: Timestamp) -> Vec<Description> {
    let one = |(index, der): (usize, &CertificateDer<'_>)| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let issuer = chain::issuer(der, certificates);
        let validity = dates::validity(&certificate);
        let uses = chain::uses(&certificate);
        let has_san = chain::has_san(&certificate);
        Some(Description {
            subject: peer::printable(&certificate.subject().to_string()),
            issuer: peer::printable(&certificate.issuer().to_string()),
            signed_by: match issuer {
                Issuer::Itself => Some(index + 1),
                Issuer::Candidate(signer) => Some(signer + 1),
                Issuer::Impostor(_) | Issuer::Missing => None,
            },
            issuer_is_impostor: matches!(issuer, Issuer::Impostor(_)),
            names: issuable_names(&certificate),
            not_before: validity.not_before.rfc3339(),
            not_after: validity.not_after.rfc3339(),
            state: State::at(validity, now),
            expires_in_seconds: validity.not_after.seconds_after(now),
            key: key(&certificate),
            usage: named(&[
                (uses.authority, "authority"),
                (uses.server, "server"),
                (uses.client, "client"),
            ]),
            roles: named(&[
                (uses.server && has_san, Role::ProxyServer),
                (uses.client, Role::Agent),
                (uses.client, Role::ApiServer),
                (uses.authority, Role::Authority),
            ]),
        })
    };
    certificates.iter().enumerate().filter_map(one).collect()
}

/// Every alternative name of a kind that [`crate::issue`] can write again.
pub(crate) fn issuable_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let extension = certificate.subject_alternative_name().ok().flatten();
    extension
        .map(|sans| {
            let names = sans.value.general_names.iter();
            names.filter_map(peer::general_name).collect()
        })
        .unwrap_or_default()
}

/// The kind of key, if it is one we can make.
pub(crate) fn key_type(certificate: &X509Certificate<'_>) -> Option<KeyType> {
    let key = certificate.public_key();
    match key.parsed() {
        Ok(PublicKey::EC(point)) => match point.key_size() {
            256 => Some(KeyType::P256),
            384 => Some(KeyType::P384),
            _ => None,
        },
        Ok(PublicKey::RSA(rsa)) if rsa.key_size() <= 2048 => Some(KeyType::Rsa2048),
        Ok(PublicKey::RSA(_)) => Some(KeyType::Rsa3072),
        _ if key.algorithm.algorithm.to_id_string() == ED25519 => Some(KeyType::Ed25519),
        _ => None,
    }
}

/// id-Ed25519 (RFC 8410, section 3).
const ED25519: &str = "1.3.101.112";

fn key(certificate: &X509Certificate<'_>) -> String {
    let key = certificate.public_key();
    match key.parsed() {
        Ok(PublicKey::EC(point)) => format!("ECDSA, {} bits", point.key_size()),
        Ok(PublicKey::RSA(rsa)) => format!("RSA, {} bits", rsa.key_size()),
        _ if key.algorithm.algorithm.to_id_string() == ED25519 => "Ed25519".to_owned(),
        _ => format!("algorithm {}", key.algorithm.algorithm),
    }
}

fn named<T: Copy>(choices: &[(bool, T)]) -> Vec<T> {
    let chosen = choices.iter().filter(|(holds, _)| *holds);
    chosen.map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue::{Authority, AuthoritySpec, Leaf};

    fn of(certificates: &[CertificateDer<'_>]) -> Vec<Description> {
        describe(certificates, Timestamp::now())
    }

    #[test]
    fn roles_follow_from_usage_and_names() {
        let authority = Authority::generate("CA").unwrap();
        let roles = |leaf: &Leaf| {
            let chain = authority.issue(leaf).unwrap().chain();
            of(&chain)[0].roles.clone()
        };
        assert_eq!(roles(&Leaf::server(&["a.example"])), [Role::ProxyServer]);
        assert_eq!(roles(&Leaf::server(&[])), [], "no name to dial it by");
        assert_eq!(roles(&Leaf::client("a")), [Role::Agent, Role::ApiServer]);
        assert_eq!(of(&[authority.certificate()])[0].roles, [Role::Authority]);
    }

    #[test]
    fn the_issuer_chain_is_told_by_position() {
        let root = Authority::create(&AuthoritySpec::new("root").with_intermediates(1)).unwrap();
        let middle = root.issue_authority("middle").unwrap();
        let mut chain = middle.issue_client("leaf").unwrap().chain();
        let signers = |chain: &[CertificateDer<'_>]| -> Vec<_> {
            of(chain).iter().map(|one| one.signed_by).collect()
        };
        assert_eq!(signers(&chain), [Some(2), None]);
        chain.push(root.certificate());
        assert_eq!(signers(&chain), [Some(2), Some(3), Some(3)]);
    }

    #[test]
    fn every_kind_of_key_is_recognised_as_what_it_was_made_as() {
        let authority = Authority::generate("CA").unwrap();
        for key_type in KeyType::ALL {
            let leaf = Leaf::client("a").with_key_type(key_type);
            let chain = authority.issue(&leaf).unwrap().chain();
            let (_, certificate) = X509Certificate::from_der(&chain[0]).unwrap();
            assert_eq!(super::key_type(&certificate), Some(key_type));
        }
    }

    #[test]
    fn dates_are_told_against_the_moment_asked_for() {
        let authority = Authority::generate("CA").unwrap();
        let leaf = Leaf::client("a");
        let chain = authority.issue(&leaf).unwrap().chain();
        let at = |moment| describe(&chain, moment)[0].state;
        let Validity {
            not_before,
            not_after,
        } = leaf.validity;
        assert_eq!(at(not_before), State::Valid);
        assert_eq!(at(not_after), State::Valid);
        assert_eq!(at(not_before.plus_seconds(-1)), State::NotYetValid);
        assert_eq!(at(not_after.plus_seconds(1)), State::Expired);
    }
}
