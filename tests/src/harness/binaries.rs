//! Where the binaries under test are.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use anyhow::{Context, Result, anyhow, bail, ensure};

/// Names a folder that holds the binaries already, so that nothing is built: to test what is about to be shipped.
const FOLDER_VARIABLE: &str = "ADIT_E2E_BIN_DIR";

/// The two binaries.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// `proxy-server`.
    pub server: PathBuf,
    /// `proxy-agent`.
    pub agent: PathBuf,
}

/// The binaries of this workspace, built in the profile and the target folder of the running program.
///
/// Cargo tells a test the path of a binary only if both are in one package, so cargo is asked to build them: once a
/// process, nothing to do if they are up to date, and its own lock keeps test processes that run at once apart. Blocks.
///
/// # Errors
/// If cargo cannot be run or the build fails; cargo's messages are part of the error.
pub fn binaries() -> Result<&'static Binaries> {
    static BINARIES: OnceLock<Result<Binaries, String>> = OnceLock::new();
    BINARIES
        .get_or_init(|| find().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| anyhow!("{error}"))
}

fn find() -> Result<Binaries> {
    let folder = match env::var_os(FOLDER_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => build()?,
    };
    let binaries = Binaries {
        server: folder.join("proxy-server"),
        agent: folder.join("proxy-agent"),
    };
    for file in [&binaries.server, &binaries.agent] {
        ensure!(file.is_file(), "no such file: {}", file.display());
    }
    Ok(binaries)
}

/// Builds, and returns the folder.
fn build() -> Result<PathBuf> {
    let program = env::current_exe().context("find the running program")?;
    let layout = Layout::of(&program)
        .with_context(|| format!("{} is in no target folder of cargo", program.display()))?;
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .args(["build", "--quiet", "--locked"])
        .args(["-p", "proxy-server", "-p", "proxy-agent", "--bins"])
        .arg("--profile")
        .arg(layout.profile)
        .arg("--target-dir")
        .arg(layout.target);
    if let Some(triple) = layout.triple {
        cargo.arg("--target").arg(triple);
    }
    let output = cargo.output().context("run cargo")?;
    if !output.status.success() {
        bail!(
            "build proxy-server and proxy-agent: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(layout.folder)
}

/// What the path of a program tells about the build that made it: `<target>[/<triple>]/<profile>[/deps|/examples]/<name>`.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    folder: PathBuf,
    target: PathBuf,
    triple: Option<OsString>,
    profile: OsString,
}

impl Layout {
    fn of(program: &Path) -> Option<Self> {
        let mut folder = program.parent()?;
        if folder.ends_with("deps") || folder.ends_with("examples") {
            folder = folder.parent()?;
        }
        let profile = match folder.file_name()? {
            name if name == "debug" => "dev".into(),
            name => name.to_owned(),
        };
        let mut target = folder.parent()?;
        let mut triple = None;
        // Cargo marks the folder that it was given, which is the one above a triple.
        if !target.join("CACHEDIR.TAG").exists()
            && let (Some(name), Some(above)) = (target.file_name(), target.parent())
            && above.join("CACHEDIR.TAG").exists()
        {
            triple = Some(name.to_owned());
            target = above;
        }
        Some(Self {
            folder: folder.to_owned(),
            target: target.to_owned(),
            triple,
            profile,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn profile_and_target_are_read_from_the_path_of_the_program() {
        let target = tempfile::tempdir().unwrap();
        let target = target.path();
        fs::write(target.join("CACHEDIR.TAG"), "").unwrap();
        let native = Layout::of(&target.join("debug/deps/dial-0123")).unwrap();
        assert_eq!(
            native,
            Layout {
                folder: target.join("debug"),
                target: target.to_owned(),
                triple: None,
                profile: "dev".into(),
            }
        );
        let cross = Layout::of(&target.join("x86_64-unknown-linux-musl/release/demo")).unwrap();
        assert_eq!(
            cross,
            Layout {
                folder: target.join("x86_64-unknown-linux-musl/release"),
                target: target.to_owned(),
                triple: Some("x86_64-unknown-linux-musl".into()),
                profile: "release".into(),
            }
        );
    }
}
