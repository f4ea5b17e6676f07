//! Writing certificates and keys to files.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::IssueError;

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

impl Files {
    /// `<stem>.crt` and `<stem>.key` in `dir`.
    #[must_use]
    pub fn named(dir: &Path, stem: &str) -> Self {
        Self {
            certificate: dir.join(format!("{stem}.crt")),
            key: dir.join(format!("{stem}.key")),
        }
    }
}

pub(super) fn write_pair(
    files: Files,
    certificate_pem: &str,
    key_pem: &str,
    replace: Replace,
) -> Result<Files, IssueError> {
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
