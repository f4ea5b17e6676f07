//! A certificate authority in memory and the leaves it signs: for tests, the demo and the `certs` command.
//!
//! Keys are ECDSA P-256, the cheapest to handshake with that every peer takes.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::dates::Validity;
use crate::identity::Identity;
use crate::pem::{LoadError, Roots};

/// How long an authority of [`Authority::generate`] is valid, in days.
pub const AUTHORITY_DAYS: u16 = 3650;

/// How long a leaf is valid unless told otherwise, in days.
pub const LEAF_DAYS: u16 = 365;

/// Why a certificate could not be made or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// A name that is neither an IP address nor something DNS allows in a certificate.
    #[error("\"{name}\" is neither an IP address nor a DNS name")]
    Name {
        /// The name.
        name: String,
    },
    /// Key generation or signing failed.
    #[error("make the certificate of {subject}")]
    Make {
        /// Whose certificate.
        subject: String,
        /// What failed.
        #[source]
        source: rcgen::Error,
    },
    /// A file could not be written; an existing one is only replaced on demand.
    #[error("write {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// What a leaf may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// To be dialled.
    Server,
    /// To dial.
    Client,
}

/// A leaf to be signed.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Common name of the subject.
    pub common_name: String,
    /// Alternative names, DNS or IP.
    pub sans: Vec<String>,
    /// Extended key usage.
    pub usage: Usage,
    /// From when to when.
    pub validity: Validity,
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
        }
    }

    /// The same with these alternative names.
    #[must_use]
    pub fn with_sans(mut self, sans: &[&str]) -> Self {
        self.sans = sans.iter().map(|&san| san.to_owned()).collect();
        self
    }

    /// The same with this validity, also one that is over or yet to come.
    #[must_use]
    pub fn valid(mut self, validity: Validity) -> Self {
        self.validity = validity;
        self
    }
}

/// A self-signed authority with its key.
pub struct Authority {
    name: String,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new authority named `name`, valid [`AUTHORITY_DAYS`].
    ///
    /// # Errors
    ///
    /// [`IssueError::Make`] if the system gives no randomness.
    pub fn generate(name: &str) -> Result<Self, IssueError> {
        Self::generate_valid(name, Validity::days(AUTHORITY_DAYS))
    }

    /// A new authority with a validity of its own.
    ///
    /// # Errors
    ///
    /// As [`generate`](Self::generate).
    pub fn generate_valid(name: &str, validity: Validity) -> Result<Self, IssueError> {
        let mut params = params(name, validity);
        // No further authority below it: path length 0.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = KeyPair::generate()
            .and_then(|key| CertifiedIssuer::self_signed(params, key))
            .map_err(|source| IssueError::Make {
                subject: name.to_owned(),
                source,
            })?;
        Ok(Self {
            name: name.to_owned(),
            issuer,
        })
    }

    /// A server's certificate for these DNS names and IP addresses.
    ///
    /// # Errors
    ///
    /// [`IssueError::Name`] for a name that cannot stand in a certificate.
    pub fn issue_server(&self, sans: &[&str]) -> Result<Issued, IssueError> {
        self.issue(&Leaf::server(sans))
    }

    /// A client's certificate.
    ///
    /// # Errors
    ///
    /// [`IssueError::Make`].
    pub fn issue_client(&self, common_name: &str) -> Result<Issued, IssueError> {
        self.issue(&Leaf::client(common_name))
    }

    /// Any leaf, with a new key.
    ///
    /// # Errors
    ///
    /// [`IssueError::Name`], [`IssueError::Make`].
    pub fn issue(&self, leaf: &Leaf) -> Result<Issued, IssueError> {
        let mut params = params(&leaf.common_name, leaf.validity);
        for name in &leaf.sans {
            // Given one by one, so that the error can say which.
            let one = CertificateParams::new(vec![name.clone()])
                .map_err(|_| IssueError::Name { name: name.clone() })?;
            params.subject_alt_names.extend(one.subject_alt_names);
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match leaf.usage {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let (certificate, key) = KeyPair::generate()
            .and_then(|key| Ok((params.signed_by(&key, &self.issuer)?, key)))
            .map_err(|source| IssueError::Make {
                subject: leaf.common_name.clone(),
                source,
            })?;
        Ok(Issued {
            subject: leaf.common_name.clone(),
            certificate_pem: certificate.pem(),
            certificate: certificate.der().clone(),
            key,
        })
    }

    /// The authority's certificate as PEM: the CA bundle to give to peers.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        self.issuer.pem()
    }

    /// The authority as roots, without a file.
    ///
    /// # Errors
    ///
    /// None that an authority made here can meet.
    pub fn roots(&self) -> Result<Roots, LoadError> {
        Roots::from_certificates(Path::new(&self.name), vec![self.issuer.der().clone()])
    }

    /// Writes `<stem>.crt` and `<stem>.key` to an existing folder.
    ///
    /// # Errors
    ///
    /// [`IssueError::Write`], also if one of them exists and `replace` is [`Replace::No`].
    pub fn write(&self, dir: &Path, stem: &str, replace: Replace) -> Result<Files, IssueError> {
        let key = self.issuer.key().serialize_pem();
        write_pair(dir, stem, &self.issuer.pem(), &key, replace)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A signed leaf with its key.
pub struct Issued {
    subject: String,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    key: KeyPair,
}

impl Issued {
    /// The certificate as PEM.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The key as PKCS#8 PEM. Secret.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// The certificate as DER, the whole chain: the authority is known to peers.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
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
        write_pair(dir, stem, &self.certificate_pem, &self.key_pem(), replace)
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued")
            .field("subject", &self.subject)
            .finish_non_exhaustive()
    }
}

/// Where a pair was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The certificate, mode 0644 less the umask.
    pub certificate: PathBuf,
    /// The key, mode 0600 less the umask.
    pub key: PathBuf,
}

/// Whether a file that exists may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// Yes, by rename: a reader sees the old file or the new one, whole.
    Yes,
    /// No, it is an error.
    No,
}

fn params(common_name: &str, validity: Validity) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.not_before = validity.not_before.date_time();
    params.not_after = validity.not_after.date_time();
    params
}

fn write_pair(
    dir: &Path,
    stem: &str,
    certificate_pem: &str,
    key_pem: &str,
    replace: Replace,
) -> Result<Files, IssueError> {
    let files = Files {
        certificate: dir.join(format!("{stem}.crt")),
        key: dir.join(format!("{stem}.key")),
    };
    // The key first: a certificate without its key is the harder half to explain.
    write_file(&files.key, key_pem, 0o600, replace)?;
    write_file(&files.certificate, certificate_pem, 0o644, replace)?;
    Ok(files)
}

/// Creates `file` with `mode` from the start, so that a key is at no moment readable by others.
fn write_file(file: &Path, text: &str, mode: u32, replace: Replace) -> Result<(), IssueError> {
    let create = |path: &Path| {
        let mut open = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)?;
        open.write_all(text.as_bytes())?;
        open.sync_all()
    };
    let written = match replace {
        Replace::No => create(file),
        Replace::Yes => {
            let mut fresh = file.as_os_str().to_owned();
            fresh.push(".new");
            let fresh = PathBuf::from(fresh);
            // Left by a run that was cut off; with create_new it would be in the way for ever.
            match fs::remove_file(&fresh) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => create(&fresh).and_then(|()| fs::rename(&fresh, file)),
            }
        }
    };
    written.map_err(|source| IssueError::Write {
        file: file.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_file_is_readable_by_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("test CA").unwrap();
        for replace in [Replace::No, Replace::Yes] {
            let files = authority.write(dir.path(), "ca", replace).unwrap();
            let mode = fs::metadata(&files.key).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    }

    #[test]
    fn an_existing_file_is_kept_unless_replacing_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::generate("test CA").unwrap();
        let files = authority.issue_client("a").unwrap();
        let files = files.write(dir.path(), "a", Replace::No).unwrap();
        let before = fs::read(&files.key).unwrap();

        let again = authority.issue_client("a").unwrap();
        let error = again.write(dir.path(), "a", Replace::No).unwrap_err();
        assert!(error.to_string().contains("a.key"), "{error}");
        assert_eq!(fs::read(&files.key).unwrap(), before);

        again.write(dir.path(), "a", Replace::Yes).unwrap();
        assert_eq!(fs::read_to_string(&files.key).unwrap(), again.key_pem());
        Identity::load(&files.certificate, &files.key).unwrap();
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            2,
            "nothing left behind"
        );
    }

    #[test]
    fn a_name_that_cannot_stand_in_a_certificate_is_refused_by_name() {
        let authority = Authority::generate("test CA").unwrap();
        let error = authority
            .issue_server(&["ok.example", "ümlaut"])
            .unwrap_err();
        assert!(error.to_string().contains("ümlaut"), "{error}");
    }

    #[test]
    fn debug_output_holds_no_key() {
        let authority = Authority::generate("test CA").unwrap();
        let issued = authority.issue_client("a").unwrap();
        let identity = issued.identity().unwrap();
        assert_eq!(
            format!("{authority:?}"),
            "Authority { name: \"test CA\", .. }"
        );
        assert_eq!(format!("{issued:?}"), "Issued { subject: \"a\", .. }");
        assert!(!format!("{identity:?}").to_lowercase().contains("key"));
    }
}
