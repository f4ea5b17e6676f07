//! Certificates for everyone: one authority, one leaf a role.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use anyhow::{Context, Result};
use certs::{
    Authority, Identity, Roots,
    issue::{Files, Replace},
};
use tempfile::TempDir;

/// A name of the server that no resolver knows.
pub const NAME: &str = "konnectivity.example";

/// An authority, and what it signed for server, agent and kube-apiserver.
#[derive(Debug)]
pub struct Pki {
    folder: TempDir,
    authority: Authority,
    /// The authority's certificate as a file.
    pub ca: PathBuf,
    /// For both TLS listeners of the server; valid for `localhost`, 127.0.0.1, ::1, and [`NAME`], which nobody resolves.
    pub server: Files,
    /// For agents.
    pub agent: Files,
    /// kube-apiserver's client certificate.
    pub apiserver: Files,
    apiserver_identity: Identity,
    roots: Roots,
}

impl Pki {
    /// Makes and writes everything anew.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn generate() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("adit-pki-").tempdir()?;
        let dir = folder.path();
        let authority = Authority::generate("adit e2e")?;
        let ca = authority.write(dir, "ca", Replace::No)?.certificate;
        let apiserver = authority.issue_client("kube-apiserver")?;
        Ok(Self {
            ca,
            server: authority
                .issue_server(&["localhost", "127.0.0.1", "::1", NAME])?
                .write(dir, "server", Replace::No)?,
            agent: authority.issue_client("konnectivity-agent")?.write(
                dir,
                "agent",
                Replace::No,
            )?,
            apiserver_identity: apiserver.identity()?,
            apiserver: apiserver.write(dir, "apiserver", Replace::No)?,
            roots: authority.roots()?,
            authority,
            folder,
        })
    }

    /// The one that whoever needs one at the same time in this process shares. The last to drop it removes its files.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn shared() -> Result<Arc<Self>> {
        static SHARED: Mutex<Weak<Pki>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pki) = shared.upgrade() {
            return Ok(pki);
        }
        let pki = Arc::new(Self::generate().context("make certificates")?);
        *shared = Arc::downgrade(&pki);
        Ok(pki)
    }

    /// To sign more.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The folder of the files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// kube-apiserver's identity.
    #[must_use]
    pub fn apiserver_identity(&self) -> &Identity {
        &self.apiserver_identity
    }

    /// The authority as roots.
    #[must_use]
    pub fn roots(&self) -> &Roots {
        &self.roots
    }
}
