//! The subcommands, and what several of them share.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::bail;
use certs::issue::{Authority, Files, Replace};
use certs::{Timestamp, Validity};

pub(crate) mod init;
pub(crate) mod inspect;
pub(crate) mod issue;
pub(crate) mod verify;

/// Where the authority's files are.
#[derive(Debug, clap::Args)]
pub(crate) struct AuthorityFiles {
    /// The authority's certificate, followed by those above it if it is an intermediate.
    #[arg(long, default_value = "ca.crt")]
    ca_cert: PathBuf,
    /// The authority's key.
    #[arg(long, default_value = "ca.key")]
    ca_key: PathBuf,
}

impl AuthorityFiles {
    fn load(&self) -> anyhow::Result<Authority> {
        Ok(Authority::load(&self.ca_cert, &self.ca_key)?)
    }
}

/// From now (an hour back, for slow clocks) for `days` days.
fn validity(days: u16) -> Validity {
    Validity::days(days)
}

/// Looks for all files before any is written, so that a refusal changes nothing.
fn replace(force: bool, files: &[Files]) -> anyhow::Result<Replace> {
    if force {
        return Ok(Replace::Yes);
    }
    let all = files.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
    for file in all {
        if file.symlink_metadata().is_ok() {
            bail!(
                "{} exists; choose another --dir, or --force to replace what is there",
                file.display()
            );
        }
    }
    Ok(Replace::No)
}

/// A line on stdout for a pair that was written.
fn tell(files: &Files, what: &str) -> io::Result<()> {
    writeln!(
        io::stdout().lock(),
        "{}  {}  ({what})",
        files.certificate.display(),
        files.key.display()
    )
}

/// What a leaf that should outlive its authority is told by, on stderr.
fn tell_if_cut(authority: &Authority, wanted: Timestamp) -> io::Result<()> {
    let end = authority.validity().not_after;
    if wanted > end {
        writeln!(
            io::stderr(),
            "certs: the authority itself ends at {end}, and so does the certificate"
        )?;
    }
    Ok(())
}

/// The folder of `file`, `.` if it has none.
fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
