//! The commands, a file each.

pub(crate) mod check;
pub(crate) mod explain;
pub(crate) mod generate;
pub(crate) mod validate;

use std::io;
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use egress_config::{EgressSelector, Files, LoadError, Report, inspect, inspect_file, load};

/// How to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For scripts.
    Json,
}

/// A file's report; `-` is standard input. The error names the file once, in front.
fn report(file: &Path, files: Files) -> anyhow::Result<Report> {
    if file == Path::new("-") {
        let bytes = load::read(io::stdin().lock()).context("read standard input")?;
        return inspect(&bytes, files).context("standard input");
    }
    match inspect_file(file, files) {
        Err(LoadError::Document { file, source }) => {
            Err(anyhow::Error::new(source).context(file.display().to_string()))
        }
        other => Ok(other?),
    }
}

/// The selector of a file, or an error with all that stands in the way.
fn selector(file: &Path, files: Files) -> anyhow::Result<EgressSelector> {
    let report = report(file, files)?;
    report.selector().cloned().with_context(|| {
        let lines: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        format!("{} cannot be used\n{}", file.display(), lines.join("\n"))
    })
}
