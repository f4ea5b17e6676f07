//! A certificate chain with its private key, proved to belong together and to be in date.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::dates::{Timestamp, Validity};
use crate::pem::{self, LoadError};
use crate::tls;

/// Who we are in a handshake, as server or as client. Cheap to clone; `Debug` shows the file and dates, never the key.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    file: PathBuf,
    validities: Vec<Validity>,
}

impl Identity {
    /// Reads a chain (own certificate first, then intermediates) and the key to its first certificate.
    ///
    /// # Errors
    ///
    /// Whatever makes the pair useless now, with the file: unreadable, empty, no certificate or key in it, malformed,
    /// key of another certificate, expired, not valid yet. That an operator gave one file without the other is for the
    /// caller to say, who knows the flags.
    pub fn load(certificate_file: &Path, key_file: &Path) -> Result<Self, LoadError> {
        let chain = pem::certificates(certificate_file)?;
        let key = pem::private_key(key_file)?;
        let identity = Self::from_parts(certificate_file, chain, key_file, key)?;
        identity.check_dates(Timestamp::now())?;
        Ok(identity)
    }

    /// An identity from parts already in memory; errors name `certificate_file` and `key_file`. Dates are not looked at,
    /// see [`check_dates`](Self::check_dates).
    ///
    /// # Errors
    ///
    /// [`LoadError::NoCertificate`], [`LoadError::BadCertificate`], [`LoadError::BadKey`], [`LoadError::KeyMismatch`].
    pub fn from_parts(
        certificate_file: &Path,
        chain: Vec<CertificateDer<'static>>,
        key_file: &Path,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, LoadError> {
        let validities = pem::validities(certificate_file, &chain)?;
        if validities.is_empty() {
            return Err(LoadError::NoCertificate {
                file: certificate_file.to_owned(),
            });
        }
        let certified =
            CertifiedKey::from_der(chain, key, &tls::provider()).map_err(|error| match error {
                TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    LoadError::KeyMismatch {
                        certificate: certificate_file.to_owned(),
                        key: key_file.to_owned(),
                    }
                }
                // The certificate by webpki's rules, which are stricter than those it was parsed by so far.
                TlsError::InvalidCertificate(reason) => LoadError::BadCertificate {
                    file: certificate_file.to_owned(),
                    position: 1,
                    reason: reason.to_string(),
                },
                source => LoadError::BadKey {
                    file: key_file.to_owned(),
                    source,
                },
            })?;
        Ok(Self {
            certified: Arc::new(certified),
            file: certificate_file.to_owned(),
            validities,
        })
    }

    /// Whether every certificate of the chain is valid at `now`.
    ///
    /// # Errors
    ///
    /// [`LoadError::Expired`] or [`LoadError::NotYetValid`] with the date, for the first that is not.
    pub fn check_dates(&self, now: Timestamp) -> Result<(), LoadError> {
        for validity in &self.validities {
            if now > validity.not_after {
                return Err(LoadError::Expired {
                    file: self.file.clone(),
                    since: validity.not_after,
                });
            }
            if now < validity.not_before {
                return Err(LoadError::NotYetValid {
                    file: self.file.clone(),
                    before: validity.not_before,
                });
            }
        }
        Ok(())
    }

    /// The first moment at which some certificate of the chain is no longer valid.
    #[must_use]
    pub fn not_after(&self) -> Option<Timestamp> {
        self.validities
            .iter()
            .map(|validity| validity.not_after)
            .min()
    }

    /// The chain, own certificate first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("file", &self.file)
            .field("validities", &self.validities)
            .finish_non_exhaustive()
    }
}
