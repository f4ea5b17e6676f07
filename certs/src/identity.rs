//! A certificate chain with its private key, proved to belong together and to be in date.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::chain::{self, Issuer};
use crate::dates::{Timestamp, Validity};
use crate::pem::{self, LoadError, Roots};
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
        let certificate = pem::read(certificate_file)?;
        let key = pem::read(key_file)?;
        Self::from_pem(
            certificate_file,
            &certificate,
            key_file,
            &key,
            Timestamp::now(),
        )
    }

    /// As [`load`](Self::load), from bytes already read and for the moment `now`; the files are what errors name.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), less those of reading.
    pub fn from_pem(
        certificate_file: &Path,
        certificate: &[u8],
        key_file: &Path,
        key: &[u8],
        now: Timestamp,
    ) -> Result<Self, LoadError> {
        let chain = pem::certificates_in(certificate_file, certificate)?;
        let key = pem::private_key_in(key_file, key)?;
        let identity = Self::from_parts(certificate_file, chain, key_file, key)?;
        identity.check_dates(now)?;
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

    /// What a server meets with this identity, beyond what [`load`](Self::load) refuses: no subjectAltName, wrong usage,
    /// broken or incomplete chain. `ca` is the bundle next to it, if there is one: its certificates count as known.
    /// [`LoadError::is_warning`] tells which faults some peers accept.
    #[must_use]
    pub fn review_as_server(&self, ca: Option<&Roots>) -> Vec<LoadError> {
        let mut faults = self.review(ca, "serving", |uses| uses.server);
        let has_san = self.with_own(chain::has_san);
        if has_san == Some(false) {
            faults.push(LoadError::NoSan {
                file: self.file.clone(),
            });
        }
        faults
    }

    /// The same for a client: wrong usage, broken or incomplete chain.
    #[must_use]
    pub fn review_as_client(&self, ca: Option<&Roots>) -> Vec<LoadError> {
        self.review(ca, "clients", |uses| uses.client)
    }

    fn review(
        &self,
        ca: Option<&Roots>,
        wanted: &'static str,
        fits: impl Fn(chain::Uses) -> bool,
    ) -> Vec<LoadError> {
        let mut faults = Vec::new();
        if self.with_own(|own| fits(chain::uses(own))) == Some(false) {
            faults.push(LoadError::WrongUsage {
                file: self.file.clone(),
                wanted,
            });
        }
        faults.extend(self.chain_fault(ca));
        faults
    }

    fn chain_fault(&self, ca: Option<&Roots>) -> Option<LoadError> {
        let (own, others) = self.chain().split_first()?;
        let mut broken = false;
        // Along the chain, from signer to signer; a chain longer than its certificates would go in circles.
        let mut certificate = own;
        for _ in 0..self.chain().len() {
            if let Some(ca) = ca {
                match chain::issuer(certificate, ca.certificates()) {
                    Issuer::Itself | Issuer::Candidate(_) => return None,
                    Issuer::Impostor(_) | Issuer::Missing => {}
                }
            }
            match chain::issuer(certificate, others) {
                Issuer::Itself => return None,
                Issuer::Candidate(index) => certificate = others.get(index)?,
                Issuer::Impostor(_) => {
                    broken = true;
                    break;
                }
                Issuer::Missing => break,
            }
        }
        if broken {
            return Some(LoadError::ChainBroken {
                file: self.file.clone(),
            });
        }
        // Without a CA bundle, what is not here may well be a root that every peer knows.
        ca?;
        let issuer = X509Certificate::from_der(certificate)
            .map(|(_, parsed)| crate::peer::printable(&parsed.issuer().to_string()))
            .unwrap_or_default();
        Some(LoadError::ChainIncomplete {
            file: self.file.clone(),
            issuer,
        })
    }

    /// `None` only if a certificate that parsed before no longer does.
    fn with_own<T>(&self, look: impl FnOnce(&X509Certificate<'_>) -> T) -> Option<T> {
        let own = self.chain().first()?;
        X509Certificate::from_der(own)
            .ok()
            .map(|(_, parsed)| look(&parsed))
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
