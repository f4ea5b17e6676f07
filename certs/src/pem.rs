//! PEM files to certificate chains, private keys and roots.
//!
//! A file is taken whole or refused: one CERTIFICATE block that does not parse refuses the file, as upstream does for
//! CA bundles (wire-protocol.md 4.9), because a bundle that lost a root silently fails much later and far away.
//! Text between blocks, and blocks of other kinds, are skipped.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::pem::{self, PemObject, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::dates::{self, Timestamp, Validity};

/// Largest file that is read, in bytes. The CA bundle of a whole operating system is a fifth of it.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;

/// Why a certificate, key or CA file cannot be used. Every variant names the file; the fault is the operator's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Missing, not permitted, or an I/O fault.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A directory, socket, pipe or device. Refused before it is opened, since opening a pipe may wait for ever.
    #[error("{} is not a regular file", file.display())]
    NotAFile {
        /// The path.
        file: PathBuf,
    },
    /// Larger than [`MAX_FILE_BYTES`].
    #[error("{} is larger than {max_bytes} bytes, which no certificate file is", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
        /// The limit.
        max_bytes: usize,
    },
    /// Nothing in it but white space.
    #[error("{} is empty", file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// Raw DER.
    #[error("{} is DER, not PEM; convert it with `openssl x509 -inform der` or `openssl pkey -inform der`", file.display())]
    Der {
        /// The file.
        file: PathBuf,
    },
    /// A PEM block that is cut off, has a broken first line, or is not base64.
    #[error("{} has a broken PEM block", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// What is broken.
        #[source]
        source: pem::Error,
    },
    /// No block of type CERTIFICATE.
    #[error("no certificate in {}", file.display())]
    NoCertificate {
        /// The file.
        file: PathBuf,
    },
    /// A CERTIFICATE block whose content is not an X.509 certificate we can use.
    #[error("certificate {position} in {} does not parse: {reason}", file.display())]
    BadCertificate {
        /// The file.
        file: PathBuf,
        /// Which CERTIFICATE block, from 1.
        position: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// No block of type PRIVATE KEY, EC PRIVATE KEY or RSA PRIVATE KEY.
    #[error("no private key in {}", file.display())]
    NoKey {
        /// The file.
        file: PathBuf,
    },
    /// The key is protected by a passphrase, which nobody could type here.
    #[error("the private key in {} is encrypted; store it without a passphrase", file.display())]
    EncryptedKey {
        /// The file.
        file: PathBuf,
    },
    /// The key block is malformed or of an algorithm that TLS does not use.
    #[error("the private key in {} cannot be used", file.display())]
    BadKey {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        #[source]
        source: rustls::Error,
    },
    /// Certificate and key are of different pairs.
    #[error("the key in {} does not match the certificate in {}", key.display(), certificate.display())]
    KeyMismatch {
        /// The certificate file.
        certificate: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// A certificate of the chain is past its last day.
    #[error("the certificate in {} expired, its last moment was {since}", file.display())]
    Expired {
        /// The file.
        file: PathBuf,
        /// Its `notAfter`.
        since: Timestamp,
    },
    /// A certificate of the chain is before its first day; often a wrong clock.
    #[error("the certificate in {} is not valid before {before}; check this machine's clock", file.display())]
    NotYetValid {
        /// The file.
        file: PathBuf,
        /// Its `notBefore`.
        before: Timestamp,
    },
}

/// The certificates that peers' chains must end in, from one CA bundle. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Roots {
    store: Arc<RootCertStore>,
    validities: Vec<Validity>,
}

impl Roots {
    /// Reads a CA bundle. A bundle may hold a certificate that has expired, as it may with Go: it only never verifies.
    ///
    /// # Errors
    ///
    /// As [`certificates`], and [`LoadError::BadCertificate`] for one that cannot be a trust anchor.
    pub fn load(file: &Path) -> Result<Self, LoadError> {
        Self::from_certificates(file, certificates(file)?)
    }

    /// Roots from certificates already in memory; `origin` is what errors name.
    ///
    /// # Errors
    ///
    /// [`LoadError::NoCertificate`] for an empty list, [`LoadError::BadCertificate`] for one that does not parse.
    pub fn from_certificates(
        origin: &Path,
        certificates: Vec<CertificateDer<'static>>,
    ) -> Result<Self, LoadError> {
        if certificates.is_empty() {
            return Err(LoadError::NoCertificate {
                file: origin.to_owned(),
            });
        }
        let validities = validities(origin, &certificates)?;
        let mut store = RootCertStore::empty();
        for (index, certificate) in certificates.into_iter().enumerate() {
            store
                .add(certificate)
                .map_err(|error| LoadError::BadCertificate {
                    file: origin.to_owned(),
                    position: index + 1,
                    reason: error.to_string(),
                })?;
        }
        Ok(Self {
            store: Arc::new(store),
            validities,
        })
    }

    /// When each certificate is valid, in the order of the file. Never empty.
    #[must_use]
    pub fn validities(&self) -> &[Validity] {
        &self.validities
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.store)
    }
}

/// Every certificate of a file, in its order. At least one; each parses.
///
/// # Errors
///
/// Those of reading, [`LoadError::Pem`], [`LoadError::NoCertificate`], [`LoadError::BadCertificate`].
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let certificates = CertificateDer::pem_slice_iter(&read(file)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| LoadError::Pem {
            file: file.to_owned(),
            source,
        })?;
    if certificates.is_empty() {
        return Err(LoadError::NoCertificate {
            file: file.to_owned(),
        });
    }
    validities(file, &certificates)?;
    Ok(certificates)
}

/// The first private key of a file: PKCS#8 (`PRIVATE KEY`), SEC1 (`EC PRIVATE KEY`) or PKCS#1 (`RSA PRIVATE KEY`).
///
/// # Errors
///
/// Those of reading, [`LoadError::Pem`], [`LoadError::NoKey`], [`LoadError::EncryptedKey`]. Whether the key works is seen
/// by [`crate::Identity`], which needs the provider.
pub fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, LoadError> {
    let bytes = read(file)?;
    // Of both forms, PKCS#8's own label and the older header, neither is a key to the PEM reader.
    if contains(&bytes, b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        || contains(&bytes, b"Proc-Type: 4,ENCRYPTED")
    {
        return Err(LoadError::EncryptedKey {
            file: file.to_owned(),
        });
    }
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(&bytes) {
        let (kind, der) = section.map_err(|source| LoadError::Pem {
            file: file.to_owned(),
            source,
        })?;
        if let Some(key) = PrivateKeyDer::from_pem(kind, der) {
            return Ok(key);
        }
    }
    Err(LoadError::NoKey {
        file: file.to_owned(),
    })
}

/// When each certificate is valid; proves on the way that each parses and has no bytes behind it.
pub(crate) fn validities(
    file: &Path,
    certificates: &[CertificateDer<'_>],
) -> Result<Vec<Validity>, LoadError> {
    let bad = |index: usize, reason: String| LoadError::BadCertificate {
        file: file.to_owned(),
        position: index + 1,
        reason,
    };
    certificates
        .iter()
        .enumerate()
        .map(
            |(index, certificate)| match X509Certificate::from_der(certificate) {
                Ok(([], parsed)) => Ok(dates::validity(&parsed)),
                Ok((rest, _)) => Err(bad(index, format!("{} bytes behind it", rest.len()))),
                Err(error) => Err(bad(index, error.to_string())),
            },
        )
        .collect()
}

/// The whole of a regular file of at most [`MAX_FILE_BYTES`], symlinks followed (a mounted Secret is one).
fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
    let unreadable = |source| LoadError::Read {
        file: file.to_owned(),
        source,
    };
    if !std::fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err(LoadError::NotAFile {
            file: file.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    // One byte more than allowed tells "too large" from "exactly as large as allowed", also while the file grows.
    let limit = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX) + 1;
    File::open(file)
        .and_then(|open| open.take(limit).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(LoadError::TooLarge {
            file: file.to_owned(),
            max_bytes: MAX_FILE_BYTES,
        });
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(LoadError::Empty {
            file: file.to_owned(),
        });
    }
    // A DER certificate or key is a SEQUENCE of more than 127 bytes: tag 0x30, then a length in the long form.
    if matches!(bytes.get(..2), Some([0x30, 0x81..=0x84])) {
        return Err(LoadError::Der {
            file: file.to_owned(),
        });
    }
    Ok(bytes)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}
