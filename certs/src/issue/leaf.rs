//! Leaves to be signed.

use std::path::Path;

use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use super::{IssueError, KeyType, LEAF_DAYS};
use crate::dates::{self, Validity};
use crate::pem::LoadError;
use crate::{chain, describe};

/// What a leaf may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// To be dialled.
    Server,
    /// To dial.
    Client,
    /// Both: one certificate for a host that is dialled and dials.
    Both,
}

/// A leaf to be signed.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Common name of the subject.
    pub common_name: String,
    /// Alternative names: DNS names, IP addresses, URIs (`scheme://…`), mail addresses.
    pub sans: Vec<String>,
    /// Extended key usage.
    pub usage: Usage,
    /// From when to when. Its end is never later than the authority's.
    pub validity: Validity,
    /// The kind of key to make.
    pub key_type: KeyType,
}

impl Leaf {
    /// A server that is dialled as any of `sans`; the first is its common name. Valid [`LEAF_DAYS`].
    #[must_use]
    pub fn server(sans: &[&str]) -> Self {
        Self {
            common_name: sans.first().copied().unwrap_or("server").to_owned(),
            sans: sans.iter().map(|&san| san.to_owned()).collect(),
            usage: Usage::Server,
            validity: Validity::days(LEAF_DAYS),
            key_type: KeyType::default(),
        }
    }

    /// A client named `common_name`. Valid [`LEAF_DAYS`].
    #[must_use]
    pub fn client(common_name: &str) -> Self {
        Self {
            common_name: common_name.to_owned(),
            sans: Vec::new(),
            usage: Usage::Client,
            validity: Validity::days(LEAF_DAYS),
            key_type: KeyType::default(),
        }
    }

    /// The same with these alternative names.
    #[must_use]
    pub fn with_sans(mut self, sans: &[&str]) -> Self {
        self.sans = sans.iter().map(|&san| san.to_owned()).collect();
        self
    }

    /// The same with this kind of key.
    #[must_use]
    pub fn with_key_type(mut self, key_type: KeyType) -> Self {
        self.key_type = key_type;
        self
    }

    /// A leaf like a certificate that exists: its common name, alternative names and usage, valid as long as that was,
    /// from now. Other parts of the subject and other extensions are not taken over.
    ///
    /// # Errors
    ///
    /// [`IssueError::Authority`] with [`LoadError::BadCertificate`] if it does not parse.
    pub fn like(file: &Path, certificate: &CertificateDer<'_>) -> Result<Self, IssueError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| {
            IssueError::Authority(LoadError::BadCertificate {
                file: file.to_owned(),
                position: 1,
                reason: error.to_string(),
            })
        })?;
        let common_name = parsed.subject().iter_common_name().next();
        let common_name = common_name.and_then(|name| name.as_str().ok());
        let uses = chain::uses(&parsed);
        let validity = dates::validity(&parsed);
        let seconds = validity.not_after.seconds_after(validity.not_before);
        let not_before = Validity::days(0).not_before;
        Ok(Self {
            common_name: common_name.unwrap_or_default().to_owned(),
            sans: describe::issuable_names(&parsed),
            usage: match (uses.server, uses.client) {
                (true, false) => Usage::Server,
                (false, true) => Usage::Client,
                _ => Usage::Both,
            },
            validity: Validity {
                not_before,
                not_after: not_before.plus_seconds(seconds),
            },
            key_type: describe::key_type(&parsed).unwrap_or_default(),
        })
    }

    /// The same with this validity, also one that is over or yet to come.
    #[must_use]
    pub fn valid(mut self, validity: Validity) -> Self {
        self.validity = validity;
        self
    }
}
