//! `explain`: which traffic goes where.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use egress_config::Files;
use egress_config::explain::Explanation;

use super::selector;

#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// The file; `-` for standard input.
    file: PathBuf,
}

impl Explain {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let selector = selector(&self.file, Files::Elsewhere)?;
        write!(io::stdout(), "{}", Explanation::of(&selector))?;
        Ok(ExitCode::SUCCESS)
    }
}
