//! `egress-config`: checks, explains, tries and writes the file of kube-apiserver's `--egress-selector-config-file`.

mod command;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(
    name = "egress-config",
    version,
    about = "Checks, explains, tries and writes kube-apiserver's EgressSelectorConfiguration"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say everything that is wrong with a file. Exits 0 if kube-apiserver takes it, 1 if not.
    Validate(command::validate::Validate),
    /// Say which traffic goes where.
    Explain(command::explain::Explain),
    /// Print a file for a given proxy-server.
    Generate(command::generate::Generate),
    /// Dial each proxy of a file as kube-apiserver would. Exits 0 if every step succeeds, 1 if not.
    Check(command::check::Check),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Validate(validate) => validate.run(),
        Command::Explain(explain) => explain.run(),
        Command::Generate(generate) => generate.run(),
        Command::Check(check) => check.run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            // If stderr is closed there is nobody left to tell; the exit code says it too.
            drop(writeln!(io::stderr(), "egress-config: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
