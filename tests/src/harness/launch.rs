//! What servers and agents are started with alike.

use std::{path::Path, process::Command};

use anyhow::Result;

use super::{
    Pod, Process,
    process::{FileLimits, program},
};

/// The part of a builder that does not depend on the binary.
#[derive(Clone, Debug, Default)]
pub(super) struct Launch {
    /// Behind the harness' own, so that they win.
    pub(super) flags: Vec<String>,
    /// Environment variables.
    pub(super) variables: Vec<(String, String)>,
    pub(super) file_limits: Option<FileLimits>,
    pub(super) pod: Option<Pod>,
    /// Prints no log at the end.
    pub(super) is_quiet: bool,
}

impl Launch {
    /// The command of `binary` with the harness' own flags and these.
    pub(super) fn command(&self, binary: &Path, own: &[String]) -> Command {
        let mut command = program(binary, self.file_limits);
        command.args(own).args(&self.flags);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(pod) = &self.pod {
            pod.contain(&mut command);
        }
        command
    }

    /// Starts it.
    pub(super) fn spawn(&self, name: &str, command: Command) -> Result<Process> {
        let process = Process::spawn(name, command)?;
        Ok(if self.is_quiet {
            process.quiet()
        } else {
            process
        })
    }
}
