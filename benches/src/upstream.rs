//! Where upstream's binaries are.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, bail};
use e2e::harness::Binaries;

/// Those in `folder`, or else the youngest that `interop/run` keeps; none if it has built none.
///
/// # Errors
/// If `folder` lacks one, or what is kept cannot be read.
pub fn find(folder: Option<&Path>) -> Result<Option<Binaries>> {
    if let Some(folder) = folder {
        return match inside(folder) {
            Some(binaries) => Ok(Some(binaries)),
            None => bail!("no files server and agent in {}", folder.display()),
        };
    }
    let Some(cache) = cache() else {
        return Ok(None);
    };
    let Ok(entries) = fs::read_dir(cache.join("adit/interop")) else {
        return Ok(None);
    };
    let mut youngest: Option<(SystemTime, Binaries)> = None;
    for entry in entries {
        let path = entry.context("list what interop/run keeps")?.path();
        let is_newest = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("newest-"));
        if is_newest && let Some(binaries) = inside(&path) {
            let built = fs::metadata(&binaries.server)?.modified()?;
            if youngest.as_ref().is_none_or(|(other, _)| *other < built) {
                youngest = Some((built, binaries));
            }
        }
    }
    Ok(youngest.map(|(_, binaries)| binaries))
}

fn cache() -> Option<PathBuf> {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))
}

fn inside(folder: &Path) -> Option<Binaries> {
    let binaries = Binaries {
        server: folder.join("server"),
        agent: folder.join("agent"),
    };
    (binaries.server.is_file() && binaries.agent.is_file()).then_some(binaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_named_must_have_both() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("server"), "").unwrap();
        find(Some(folder.path())).unwrap_err();
        fs::write(folder.path().join("agent"), "").unwrap();
        assert!(find(Some(folder.path())).unwrap().is_some());
    }
}
