//! What is in the certificate files: kube-apiserver looks at it only after it found the file valid.

use std::path::Path;

use certs::{Identity, LoadError, Roots, Timestamp, pem};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::finding::Rule;
use crate::selection::FilePath;

pub(crate) const CA_BUNDLE: &str = "caBundle";
pub(crate) const CLIENT_CERT: &str = "clientCert";
pub(crate) const CLIENT_KEY: &str = "clientKey";

/// Something wrong with a file that exists.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) rule: Rule,
    /// Which field of `tlsConfig`.
    pub(crate) field: &'static str,
    pub(crate) problem: String,
}

/// Faults of a CA bundle: unreadable or without certificate (kube-apiserver does not start), or out of date as a whole.
pub(crate) fn ca_bundle(file: &FilePath) -> Vec<Fault> {
    let fault = |rule, problem| Fault {
        rule,
        field: CA_BUNDLE,
        problem,
    };
    let roots = match Roots::load(file.as_path()) {
        Ok(roots) => roots,
        Err(error) => {
            let problem = format!(
                "cannot be used, and kube-apiserver does not start: {}; give it a PEM file with the authority of the proxy's certificate",
                chain(&error)
            );
            return vec![fault(Rule::CaBundleUnusable, problem)];
        }
    };
    let now = Timestamp::now();
    if roots.validities().iter().any(|one| one.contains(now)) {
        return Vec::new();
    }
    let problem = format!(
        "names {file}, in which every certificate is out of date, so that every handshake fails; renew the authority"
    );
    vec![fault(Rule::CertificateUnfit, problem)]
}

/// Faults of the client's certificate and key: unreadable or of different pairs (kube-apiserver does not start), out of date
/// or not for clients.
pub(crate) fn client(certificate: &FilePath, key: &FilePath) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Err(error) = Identity::load(certificate.as_path(), key.as_path()) {
        faults.push(identity_fault(&error, key.as_path()));
    }
    if let Ok(chain) = pem::certificates(certificate.as_path())
        && let Some(own) = chain.first()
        && !is_for_clients(own)
    {
        faults.push(Fault {
            rule: Rule::CertificateUnfit,
            field: CLIENT_CERT,
            problem: format!("names {certificate}, whose extended key usage is not for clients, so that the proxy refuses it; issue it with clientAuth"),
        });
    }
    faults
}

fn identity_fault(error: &LoadError, key: &Path) -> Fault {
    let is_out_of_date = matches!(
        error,
        LoadError::Expired { .. } | LoadError::NotYetValid { .. }
    );
    if is_out_of_date {
        return Fault {
            rule: Rule::CertificateUnfit,
            field: CLIENT_CERT,
            problem: format!("is out of date, so that the proxy refuses it: {error}; renew it"),
        };
    }
    let is_key = match error {
        LoadError::NoKey { .. }
        | LoadError::EncryptedKey { .. }
        | LoadError::BadKey { .. }
        | LoadError::KeyMismatch { .. } => true,
        LoadError::Read { file, .. }
        | LoadError::NotAFile { file }
        | LoadError::TooLarge { file, .. }
        | LoadError::Empty { file }
        | LoadError::Der { file }
        | LoadError::Pem { file, .. } => file == key,
        _ => false,
    };
    Fault {
        rule: Rule::KeyPairUnusable,
        field: if is_key { CLIENT_KEY } else { CLIENT_CERT },
        problem: format!(
            "cannot be used, and kube-apiserver does not start: {}; give clientCert and clientKey the PEM files of one pair",
            chain(error)
        ),
    }
}

/// Whether it has no extended key usage, or one that clients may have.
fn is_for_clients(certificate: &[u8]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return true; // Told already.
    };
    match certificate.extended_key_usage() {
        Ok(Some(usage)) => usage.value.any || usage.value.client_auth,
        _ => true,
    }
}

fn chain(error: &LoadError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
