//! PEM files to certificate chains, private keys and roots.
//!
//! A file is taken whole or refused: one CERTIFICATE block that does not parse refuses the file, as upstream does for
//! CA bundles (wire-protocol.md 4.9), because a bundle that lost a root silently fails much later and far away.
//! Text between blocks, and blocks of other kinds, are skipped.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls_pki_types::pem::{PemObject, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::dates::{self, Timestamp, Validity};

mod error;

pub use error::LoadError;

/// Largest file that is read, in bytes. The CA bundle of a whole operating system is a fifth of it.
pub const MAX_FILE_BYTES: usize = 1024 * 1024;

/// The certificates that peers' chains must end in, from one CA bundle. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Roots {
    certificates: Arc<[CertificateDer<'static>]>,
    validities: Vec<Validity>,
    file: PathBuf,
}

impl Roots {
    /// Reads a CA bundle. A bundle may hold certificates that are out of date, as it may with Go: a configuration made of
    /// it trusts those alone that are valid when it is made, since webpki does not look at the dates of a root.
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
        // Only to prove that each can be a root.
        let mut store = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            store
                .add(certificate.clone())
                .map_err(|error| LoadError::BadCertificate {
                    file: origin.to_owned(),
                    position: index + 1,
                    reason: error.to_string(),
                })?;
        }
        Ok(Self {
            certificates: certificates.into(),
            validities,
            file: origin.to_owned(),
        })
    }

    /// Whether some certificate is valid at `now`: with none, no peer can be verified.
    ///
    /// # Errors
    ///
    /// [`LoadError::Expired`] or [`LoadError::NotYetValid`] with the date of the one that was or will be valid nearest.
    pub fn check_dates(&self, now: Timestamp) -> Result<(), LoadError> {
        if self
            .validities
            .iter()
            .any(|validity| validity.contains(now))
        {
            return Ok(());
        }
        let to_come = self.validities.iter().map(|validity| validity.not_before);
        if let Some(before) = to_come.filter(|moment| *moment > now).min() {
            return Err(LoadError::NotYetValid {
                file: self.file.clone(),
                before,
            });
        }
        let past = self.validities.iter().map(|validity| validity.not_after);
        match past.max() {
            Some(since) => Err(LoadError::Expired {
                file: self.file.clone(),
                since,
            }),
            None => Ok(()),
        }
    }

    /// When the first of those that are still valid at `now` ends; without any, when the last did.
    #[must_use]
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let ends = || self.validities.iter().map(|validity| validity.not_after);
        ends().filter(|end| *end >= now).min().or(ends().max())
    }

    /// The certificates, in the order of the file.
    #[must_use]
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    /// When each certificate is valid, in the order of the file. Never empty.
    #[must_use]
    pub fn validities(&self) -> &[Validity] {
        &self.validities
    }

    /// Those that are valid at `now`, as rustls takes them.
    ///
    /// # Errors
    ///
    /// As [`check_dates`](Self::check_dates): with none there is no verifier.
    pub(crate) fn store_at(&self, now: Timestamp) -> Result<Arc<RootCertStore>, LoadError> {
        self.check_dates(now)?;
        let both = self.certificates.iter().zip(&self.validities);
        let valid = both.filter(|(_, validity)| validity.contains(now));
        let mut store = RootCertStore::empty();
        // Each was taken when the bundle was loaded.
        store.add_parsable_certificates(valid.map(|(certificate, _)| certificate.clone()));
        Ok(Arc::new(store))
    }

    /// The next moment after `now` at which one of them becomes valid or ceases to be.
    pub(crate) fn next_turn(&self, now: Timestamp) -> Option<Timestamp> {
        let turns = self
            .validities
            .iter()
            .flat_map(|validity| [validity.not_before, validity.not_after.plus_seconds(1)]);
        turns.filter(|turn| *turn > now).min()
    }
}

/// Every certificate of a file, in its order. At least one; each parses.
///
/// # Errors
///
/// Those of reading, [`LoadError::Pem`], [`LoadError::NoCertificate`], [`LoadError::BadCertificate`].
pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    certificates_in(file, &read(file)?)
}

/// As [`certificates`], from bytes already read; `file` is what errors name.
///
/// # Errors
///
/// As [`certificates`], less those of reading.
pub fn certificates_in(
    file: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    check_content(file, bytes)?;
    let certificates = CertificateDer::pem_slice_iter(bytes)
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
    private_key_in(file, &read(file)?)
}

/// As [`private_key`], from bytes already read; `file` is what errors name.
///
/// # Errors
///
/// As [`private_key`], less those of reading.
pub fn private_key_in(file: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, LoadError> {
    check_content(file, bytes)?;
    // Of both forms, PKCS#8's own label and the older header, neither is a key to the PEM reader.
    if contains(bytes, b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
        || contains(bytes, b"Proc-Type: 4,ENCRYPTED")
    {
        return Err(LoadError::EncryptedKey {
            file: file.to_owned(),
        });
    }
    for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(bytes) {
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
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, LoadError> {
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
    Ok(bytes)
}

/// Refuses what needs another word than "no certificate in it".
fn check_content(file: &Path, bytes: &[u8]) -> Result<(), LoadError> {
    // UTF-8's and both of UTF-16. A first line behind one is no first line: its block would be skipped.
    if [&b"\xef\xbb\xbf"[..], b"\xff\xfe", b"\xfe\xff"]
        .iter()
        .any(|mark| bytes.starts_with(mark))
    {
        return Err(LoadError::ByteOrderMark {
            file: file.to_owned(),
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
    Ok(())
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}
