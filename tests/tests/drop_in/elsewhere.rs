//! D19 and D20: what other parts of the repository run, and what of it can be looked at here.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{Held, site::Site};

fn repository(file: &str) -> Result<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    fs::read_to_string(&path).with_context(|| format!("read {file}"))
}

/// Upstream's binaries of other versions take Go and a module proxy, which tests do without.
pub(crate) async fn version_skew(_: Site) -> Result<Held> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../interop/skew");
    let mut versions = Vec::new();
    for entry in fs::read_dir(&folder).context("list interop/skew")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let module = repository(&format!("interop/skew/{name}/go.mod"))?;
        ensure!(module.contains(&name), "{name} is not of that version");
        versions.push(name);
    }
    versions.sort_unstable();
    ensure!(versions.len() >= 4, "{versions:?}");
    Ok(Held::Elsewhere(format!(
        "it takes Go: `interop/run --parts skew`, with {}",
        versions.join(", ")
    )))
}

/// Building an image takes a container tool, which tests do without; the recipe can be read.
pub(crate) async fn entry_points(_: Site) -> Result<Held> {
    let recipe = repository("deploy/Containerfile")?;
    // One step makes all three of both binaries.
    for part in [
        "for binary in proxy-server proxy-agent",
        r#"cp "target/dist/$binary" "/image/$binary/$binary""#,
        r#"ln -s "/$binary" "/image/$binary/bin/$binary""#,
        r#"ln -s "/$binary" "/image/$binary/usr/bin/$binary""#,
        "COPY --from=build /image/proxy-server/ /",
        "COPY --from=build /image/proxy-agent/ /",
    ] {
        ensure!(recipe.contains(part), "the recipe lacks {part:?}");
    }
    let read = "the recipe was read: it puts both binaries at /, /bin and /usr/bin; building it takes a container tool";
    Ok(Held::Elsewhere(read.to_owned()))
}
