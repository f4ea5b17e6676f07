//! Leaves that are signed.

use std::fmt;
use std::path::Path;

use rcgen::KeyPair;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{Files, IssueError, Replace, encode, files};
use crate::identity::Identity;
use crate::pem::LoadError;

/// A signed leaf with its key.
pub struct Issued {
    pub(super) subject: String,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: KeyPair,
}

impl Issued {
    /// The chain as PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        encode(&self.chain)
    }

    /// The key as PKCS#8 PEM. Secret.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// The certificate and the authorities above it up to, without, the root, which peers know.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.clone()
    }

    /// The key as PKCS#8 DER. Secret.
    #[must_use]
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.serialize_der()).into()
    }

    /// The pair as an identity, without files. Dates are not looked at.
    ///
    /// # Errors
    ///
    /// None that a leaf made here can meet.
    pub fn identity(&self) -> Result<Identity, LoadError> {
        let name = Path::new(&self.subject);
        Identity::from_parts(name, self.chain(), name, self.key())
    }

    /// Writes `<stem>.crt` and `<stem>.key` to an existing folder.
    ///
    /// # Errors
    ///
    /// [`IssueError::Write`], also if one of them exists and `replace` is [`Replace::No`].
    pub fn write(&self, dir: &Path, stem: &str, replace: Replace) -> Result<Files, IssueError> {
        self.write_to(Files::named(dir, stem), replace)
    }

    /// Writes to these files, in existing folders.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_to(&self, files: Files, replace: Replace) -> Result<Files, IssueError> {
        files::write_pair(files, &self.certificate_pem(), &self.key_pem(), replace)
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}
