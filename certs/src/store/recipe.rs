//! How products are made of file contents, and proved on the way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::{ClientConfig, ServerConfig};

use super::{ClientFiles, ServerFiles, StoreError, Token};
use crate::dates::Timestamp;
use crate::identity::Identity;
use crate::options::TlsOptions;
use crate::pem::{self, LoadError, Roots};
use crate::tls;

/// What is known of a file's content once it is proved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// When it expires, if it does.
    pub(crate) not_after: Option<Timestamp>,
    /// What is odd about it.
    pub(crate) notes: Vec<String>,
    /// When the product should be made anew of the same content: a root becomes valid or ceases to be.
    pub(crate) until: Option<Timestamp>,
}

/// A product whose making proved the contents it was made of.
#[derive(Debug)]
pub(crate) struct Proof<P> {
    pub(crate) product: P,
    /// One a file, in the order of [`Recipe::files`].
    pub(crate) facts: Vec<Facts>,
}

/// How a product is made of files.
pub(crate) trait Recipe: Send {
    type Product: Clone + Send + Sync + 'static;

    /// The files, always the same ones.
    fn files(&self) -> Vec<PathBuf>;

    /// Proves `contents`, one a file in the order of [`files`](Self::files), as of `now`.
    fn make(
        &self,
        contents: &[Vec<u8>],
        now: Timestamp,
    ) -> Result<Proof<Self::Product>, StoreError>;
}

/// The content of the file at `index`. Empty if there is none, which no recipe takes.
fn content(contents: &[Vec<u8>], index: usize) -> &[u8] {
    contents.get(index).map_or(&[], Vec::as_slice)
}

/// Faults that only some peers mind, as notes; the first other one as an error.
fn notes(faults: Vec<LoadError>) -> Result<Vec<String>, LoadError> {
    faults
        .into_iter()
        .map(|fault| {
            if fault.is_warning() {
                Ok(fault.to_string())
            } else {
                Err(fault)
            }
        })
        .collect()
}

fn roots(file: &Path, bytes: &[u8], now: Timestamp) -> Result<(Roots, Facts), LoadError> {
    let roots = Roots::from_certificates(file, pem::certificates_in(file, bytes)?)?;
    roots.check_dates(now)?;
    let all = roots.validities().iter();
    let out_of_date = all.filter(|validity| !validity.contains(now)).count();
    let mut facts = Facts {
        not_after: roots.next_expiry(now),
        notes: Vec::new(),
        until: roots.next_turn(now),
    };
    if out_of_date > 0 {
        facts.notes.push(format!(
            "{out_of_date} of {} certificates are out of date and verify nobody",
            roots.validities().len()
        ));
    }
    Ok((roots, facts))
}

fn owned(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|protocol| protocol.to_vec()).collect()
}

fn borrowed(alpn: &[Vec<u8>]) -> Vec<&[u8]> {
    alpn.iter().map(Vec::as_slice).collect()
}

/// A listener's configuration.
pub(crate) struct ServerRecipe {
    files: ServerFiles,
    alpn: Vec<Vec<u8>>,
    options: TlsOptions,
}

impl ServerRecipe {
    pub(crate) fn new(files: ServerFiles, alpn: &[&[u8]], options: TlsOptions) -> Self {
        Self {
            files,
            alpn: owned(alpn),
            options,
        }
    }
}

impl Recipe for ServerRecipe {
    type Product = Arc<ServerConfig>;

    fn files(&self) -> Vec<PathBuf> {
        let ServerFiles {
            certificate,
            key,
            client_ca,
        } = self.files.clone();
        [certificate, key].into_iter().chain(client_ca).collect()
    }

    fn make(
        &self,
        contents: &[Vec<u8>],
        now: Timestamp,
    ) -> Result<Proof<Self::Product>, StoreError> {
        let files = &self.files;
        let identity = Identity::from_pem(
            &files.certificate,
            content(contents, 0),
            &files.key,
            content(contents, 1),
            now,
        )?;
        let ca = match &files.client_ca {
            Some(file) => Some(roots(file, content(contents, 2), now)?),
            None => None,
        };
        let client_ca = ca.as_ref().map(|(roots, _)| roots);
        let own = Facts {
            not_after: identity.not_after(),
            notes: notes(identity.review_as_server(client_ca))?,
            until: None,
        };
        let product = tls::server_config_at(
            &identity,
            client_ca,
            &borrowed(&self.alpn),
            &self.options,
            now,
        )?;
        let mut facts = vec![own, Facts::default()];
        facts.extend(ca.map(|(_, facts)| facts));
        Ok(Proof { product, facts })
    }
}

/// A dialler's configuration.
pub(crate) struct ClientRecipe {
    files: ClientFiles,
    alpn: Vec<Vec<u8>>,
    options: TlsOptions,
}

impl ClientRecipe {
    pub(crate) fn new(files: ClientFiles, alpn: &[&[u8]], options: TlsOptions) -> Self {
        Self {
            files,
            alpn: owned(alpn),
            options,
        }
    }
}

impl Recipe for ClientRecipe {
    type Product = Arc<ClientConfig>;

    fn files(&self) -> Vec<PathBuf> {
        let mut files = vec![self.files.ca.clone()];
        if let Some((certificate, key)) = self.files.identity.clone() {
            files.extend([certificate, key]);
        }
        files
    }

    fn make(
        &self,
        contents: &[Vec<u8>],
        now: Timestamp,
    ) -> Result<Proof<Self::Product>, StoreError> {
        let (roots, ca) = roots(&self.files.ca, content(contents, 0), now)?;
        let mut facts = vec![ca];
        let mut identity = None;
        if let Some((certificate, key)) = &self.files.identity {
            let own = Identity::from_pem(
                certificate,
                content(contents, 1),
                key,
                content(contents, 2),
                now,
            )?;
            let own_facts = Facts {
                not_after: own.not_after(),
                notes: notes(own.review_as_client(Some(&roots)))?,
                until: None,
            };
            facts.extend([own_facts, Facts::default()]);
            identity = Some(own);
        }
        let alpn = borrowed(&self.alpn);
        let product = tls::client_config_at(&roots, identity.as_ref(), &alpn, &self.options, now)?;
        Ok(Proof { product, facts })
    }
}

/// A token.
pub(crate) struct TokenRecipe {
    pub(crate) file: PathBuf,
}

impl Recipe for TokenRecipe {
    type Product = Token;

    fn files(&self) -> Vec<PathBuf> {
        vec![self.file.clone()]
    }

    fn make(&self, contents: &[Vec<u8>], _: Timestamp) -> Result<Proof<Token>, StoreError> {
        Ok(Proof {
            product: Token::from_bytes(&self.file, content(contents, 0))?,
            facts: vec![Facts::default()],
        })
    }
}
