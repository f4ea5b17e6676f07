//! A certificate authority in memory and the leaves it signs: for tests, the demo and the `certs` command.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use ::pem::{LineEnding, Pem};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::chain;
use crate::dates::{self, Validity};
use crate::identity::Identity;
use crate::pem::{self, LoadError, Roots};

mod files;
mod issued;
mod key_type;
mod leaf;

pub use files::{Files, Replace};
pub use issued::Issued;
pub use key_type::{KeyType, UnknownKeyType};
pub use leaf::{Leaf, Usage};

/// How long an authority of [`Authority::generate`] is valid, in days.
pub const AUTHORITY_DAYS: u16 = 3650;

/// How long a leaf is valid unless told otherwise, in days.
pub const LEAF_DAYS: u16 = 365;

/// Why a certificate could not be made or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// A name that no form of alternative name holds.
    #[error("\"{name}\" is neither an IP address nor a DNS name, a URI or a mail address")]
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
    /// The files of an authority cannot be used.
    #[error("load the authority")]
    Authority(#[source] LoadError),
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

/// An authority to be made.
#[derive(Clone, Debug)]
pub struct AuthoritySpec {
    name: String,
    validity: Validity,
    key_type: KeyType,
    intermediates: u8,
}

impl AuthoritySpec {
    /// One named `name`, valid [`AUTHORITY_DAYS`], that signs leaves only.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            validity: Validity::days(AUTHORITY_DAYS),
            key_type: KeyType::default(),
            intermediates: 0,
        }
    }

    /// The same with this validity.
    #[must_use]
    pub fn valid(mut self, validity: Validity) -> Self {
        self.validity = validity;
        self
    }

    /// The same with this kind of key.
    #[must_use]
    pub fn with_key_type(mut self, key_type: KeyType) -> Self {
        self.key_type = key_type;
        self
    }

    /// The same with room for this many authorities between it and a leaf (RFC 5280's path length).
    #[must_use]
    pub fn with_intermediates(mut self, intermediates: u8) -> Self {
        self.intermediates = intermediates;
        self
    }

    fn params(&self) -> CertificateParams {
        let mut params = params(&self.name, self.validity);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(self.intermediates));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }
}

/// An authority with its key: self-signed, or signed by another.
pub struct Authority {
    name: String,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    /// What a leaf carries between itself and a root: this authority and those above it, unless they are roots.
    intermediates: Vec<CertificateDer<'static>>,
    validity: Validity,
    /// Of the authorities below it, how many may stand above a leaf.
    path_length: u8,
}

impl Authority {
    /// A new authority named `name`, valid [`AUTHORITY_DAYS`].
    ///
    /// # Errors
    ///
    /// [`IssueError::Make`] if the system gives no randomness.
    pub fn generate(name: &str) -> Result<Self, IssueError> {
        Self::create(&AuthoritySpec::new(name))
    }

    /// A new authority with a validity of its own.
    ///
    /// # Errors
    ///
    /// As [`generate`](Self::generate).
    pub fn generate_valid(name: &str, validity: Validity) -> Result<Self, IssueError> {
        Self::create(&AuthoritySpec::new(name).valid(validity))
    }

    /// A new self-signed authority.
    ///
    /// # Errors
    ///
    /// As [`generate`](Self::generate).
    pub fn create(spec: &AuthoritySpec) -> Result<Self, IssueError> {
        let params = spec.params();
        let (certificate, key) = spec
            .key_type
            .generate()
            .and_then(|key| Ok((params.self_signed(&key)?, key)))
            .map_err(make(&spec.name))?;
        Ok(Self {
            name: spec.name.clone(),
            issuer: Issuer::new(params, key),
            certificate: certificate.der().clone(),
            intermediates: Vec::new(),
            validity: spec.validity,
            path_length: spec.intermediates,
        })
    }

    /// A new authority that this one signs, valid as long, with a P-256 key. Needs
    /// [`with_intermediates`](AuthoritySpec::with_intermediates) above it.
    ///
    /// # Errors
    ///
    /// As [`generate`](Self::generate).
    pub fn issue_authority(&self, name: &str) -> Result<Self, IssueError> {
        let path_length = self.path_length.saturating_sub(1);
        let spec = AuthoritySpec::new(name)
            .valid(self.validity)
            .with_intermediates(path_length);
        let mut params = spec.params();
        params.use_authority_key_identifier_extension = true;
        let (certificate, key) = spec
            .key_type
            .generate()
            .and_then(|key| Ok((params.signed_by(&key, &self.issuer)?, key)))
            .map_err(make(name))?;
        let certificate = certificate.der().clone();
        let mut intermediates = vec![certificate.clone()];
        intermediates.extend(self.intermediates.iter().cloned());
        Ok(Self {
            name: name.to_owned(),
            issuer: Issuer::new(params, key),
            certificate,
            intermediates,
            validity: self.validity,
            path_length,
        })
    }

    /// An authority from its files: its certificate first, then what stands above it; the key in any form that
    /// [`pem::private_key`] reads.
    ///
    /// # Errors
    ///
    /// [`IssueError::Authority`], also for a certificate that is no authority's or is out of date; [`IssueError::Make`]
    /// for a key that TLS knows but that cannot sign certificates here.
    pub fn load(certificate_file: &Path, key_file: &Path) -> Result<Self, IssueError> {
        let identity = Identity::load(certificate_file, key_file).map_err(IssueError::Authority)?;
        let not_an_authority = || {
            IssueError::Authority(LoadError::NotAnAuthority {
                file: certificate_file.to_owned(),
            })
        };
        let certificate = identity.chain().first().ok_or_else(not_an_authority)?;
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| not_an_authority())?;
        if !chain::uses(&parsed).authority {
            return Err(not_an_authority());
        }
        let name = parsed.subject().iter_common_name().next();
        let name = name
            .and_then(|name| name.as_str().ok())
            .unwrap_or("authority");
        let path_length = parsed
            .basic_constraints()
            .ok()
            .flatten()
            .and_then(|constraints| constraints.value.path_len_constraint)
            .map_or(u8::MAX, |length| u8::try_from(length).unwrap_or(u8::MAX));
        let key = pem::private_key(key_file).map_err(IssueError::Authority)?;
        let issuer = KeyPair::try_from(&key)
            .and_then(|key| Issuer::from_ca_cert_der(certificate, key))
            .map_err(make(name))?;
        let intermediates = identity
            .chain()
            .iter()
            .filter(|certificate| chain::issuer(certificate, &[]) != chain::Issuer::Itself);
        Ok(Self {
            name: name.to_owned(),
            issuer,
            certificate: certificate.clone(),
            intermediates: intermediates.cloned().collect(),
            validity: dates::validity(&parsed),
            path_length,
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
        let mut params = params(&leaf.common_name, self.within(leaf.validity));
        for name in &leaf.sans {
            params.subject_alt_names.push(alternative_name(name)?);
        }
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match leaf.usage {
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Both => vec![
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
        };
        let (certificate, key) = leaf
            .key_type
            .generate()
            .and_then(|key| Ok((params.signed_by(&key, &self.issuer)?, key)))
            .map_err(make(&leaf.common_name))?;
        let mut chain = vec![certificate.der().clone()];
        chain.extend(self.intermediates.iter().cloned());
        Ok(Issued {
            subject: leaf.common_name.clone(),
            chain,
            key,
        })
    }

    /// The authority's certificate as PEM: the CA bundle to give to peers, if it is a root.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        encode(std::slice::from_ref(&self.certificate))
    }

    /// The authority's certificate.
    #[must_use]
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.certificate.clone()
    }

    /// From when to when the authority is valid.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }

    /// The authority as roots, without a file.
    ///
    /// # Errors
    ///
    /// None that an authority made here can meet.
    pub fn roots(&self) -> Result<Roots, LoadError> {
        Roots::from_certificates(Path::new(&self.name), vec![self.certificate()])
    }

    /// Writes `<stem>.crt` and `<stem>.key` to an existing folder.
    ///
    /// # Errors
    ///
    /// [`IssueError::Write`], also if one of them exists and `replace` is [`Replace::No`].
    pub fn write(&self, dir: &Path, stem: &str, replace: Replace) -> Result<Files, IssueError> {
        let key = self.issuer.key().serialize_pem();
        files::write_pair(
            Files::named(dir, stem),
            &self.certificate_pem(),
            &key,
            replace,
        )
    }

    /// The same, signing leaves that outlive it.
    #[cfg(test)]
    pub(crate) fn uncapped(mut self) -> Self {
        self.validity.not_after = self.validity.not_after.plus_days(100_000);
        self
    }

    /// A leaf that outlives its authority misleads: it fails with its dates in order.
    fn within(&self, validity: Validity) -> Validity {
        Validity {
            not_before: validity.not_before,
            not_after: validity.not_after.min(self.validity.not_after),
        }
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn make(subject: &str) -> impl FnOnce(rcgen::Error) -> IssueError {
    let subject = subject.to_owned();
    move |source| IssueError::Make { subject, source }
}

/// A URI if it has a scheme with authority, a mail address if it has an `@`, else an IP address or DNS name.
fn alternative_name(name: &str) -> Result<SanType, IssueError> {
    let unfit = || IssueError::Name {
        name: name.to_owned(),
    };
    if name.contains("://") {
        return name.try_into().map(SanType::URI).map_err(|_| unfit());
    }
    if name.contains('@') {
        return name
            .try_into()
            .map(SanType::Rfc822Name)
            .map_err(|_| unfit());
    }
    // By rcgen's own reading, which tells addresses from names.
    let params = CertificateParams::new(vec![name.to_owned()]).map_err(|_| unfit())?;
    params
        .subject_alt_names
        .into_iter()
        .next()
        .ok_or_else(unfit)
}

fn encode(certificates: &[CertificateDer<'_>]) -> String {
    let config = ::pem::EncodeConfig::new().set_line_ending(LineEnding::LF);
    certificates
        .iter()
        .map(|certificate| {
            let block = Pem::new("CERTIFICATE", certificate.to_vec());
            ::pem::encode_config(&block, config)
        })
        .collect()
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::dates::Timestamp;

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
    fn an_authority_of_any_kind_of_key_signs_again_after_loading() {
        let dir = tempfile::tempdir().unwrap();
        for key_type in KeyType::ALL {
            let spec = AuthoritySpec::new("test CA").with_key_type(key_type);
            let made = Authority::create(&spec).unwrap();
            let files = made
                .write(dir.path(), key_type.name(), Replace::No)
                .unwrap();
            let loaded = Authority::load(&files.certificate, &files.key).unwrap();
            assert_eq!(loaded.certificate_pem(), made.certificate_pem());
            let chain = loaded.issue_client("a").unwrap().chain();
            let roots = made.roots().unwrap();
            crate::verify::client(&chain, &roots, Timestamp::now()).unwrap();
        }
    }

    #[test]
    fn a_loaded_intermediate_goes_into_the_chain_and_its_root_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let root = Authority::create(&AuthoritySpec::new("root").with_intermediates(1)).unwrap();
        let middle = root.issue_authority("middle").unwrap();
        let files = middle.write(dir.path(), "ca", Replace::No).unwrap();
        let both = middle.certificate_pem() + &root.certificate_pem();
        fs::write(&files.certificate, both).unwrap();
        let loaded = Authority::load(&files.certificate, &files.key).unwrap();
        let chain = loaded.issue_client("a").unwrap().chain();
        assert_eq!(chain[1..], [middle.certificate()]);
        crate::verify::client(&chain, &root.roots().unwrap(), Timestamp::now()).unwrap();
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
