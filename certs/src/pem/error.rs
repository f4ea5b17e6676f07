//! Everything that can be wrong with a file.

use std::io;
use std::path::PathBuf;

use rustls_pki_types::pem;

#[cfg(doc)]
use super::MAX_FILE_BYTES;
use crate::dates::Timestamp;

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
    /// A byte order mark ahead of the text, as some editors put it there.
    #[error("{} begins with a byte order mark; save it as plain ASCII", file.display())]
    ByteOrderMark {
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
    /// No subjectAltName: clients have stopped looking at the common name (RFC 9110, section 4.3.4), so that nobody can
    /// verify this server.
    #[error(
        "the server certificate in {} has no subjectAltName; issue it with the DNS names and IP addresses it is dialled by",
        file.display()
    )]
    NoSan {
        /// The file.
        file: PathBuf,
    },
    /// The chain names its issuer's certificate, but that did not sign it: left over from an authority of the same name.
    #[error(
        "the first certificate in {} is not signed by the issuer that follows it; give the chain of one authority",
        file.display()
    )]
    ChainBroken {
        /// The file.
        file: PathBuf,
    },
    /// Neither the file nor the CA bundle holds the issuer. A warning: the peer may know it all the same.
    #[error(
        "the issuer \"{issuer}\" is neither in {} nor in the CA bundle; if it is an intermediate, append its certificate",
        file.display()
    )]
    ChainIncomplete {
        /// The file.
        file: PathBuf,
        /// Subject of the certificate that is missing.
        issuer: String,
    },
    /// The extended key usage leaves out what the certificate is for. A warning: it is for the peer to refuse it.
    #[error("the certificate in {} is not meant for {wanted}; peers that look at its usage refuse it", file.display())]
    WrongUsage {
        /// The file.
        file: PathBuf,
        /// What it lacks.
        wanted: &'static str,
    },
    /// Not a certificate that signs others.
    #[error("the certificate in {} is not an authority's", file.display())]
    NotAnAuthority {
        /// The file.
        file: PathBuf,
    },
    /// A token file whose content cannot be a token.
    #[error("the token in {} {reason}", file.display())]
    BadToken {
        /// The file.
        file: PathBuf,
        /// What is wrong with it; never the token.
        reason: &'static str,
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

impl LoadError {
    /// Whether the material works all the same, with some peers: to be told, and used.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::ChainIncomplete { .. } | Self::WrongUsage { .. })
    }
}
