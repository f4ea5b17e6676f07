//! `certs`: makes the certificates of a first cluster, and shows what is in a certificate file.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use certs::issue::{Authority, Replace};
use clap::{Parser, Subcommand};

mod inspect;

#[derive(Debug, Parser)]
#[command(name = "certs", version, about = "Certificates for Adit")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an authority and the certificates of server, agent and API server in one folder.
    ///
    /// Files: ca.crt and ca.key (the authority; keep ca.key away from the cluster), server.crt and server.key (both
    /// listeners of the proxy-server), agent.crt and agent.key, apiserver.crt and apiserver.key (kube-apiserver as
    /// client of the proxy-server). Keys are ECDSA P-256 with mode 0600.
    Init(Init),
    /// Show names, dates, key and usage of every certificate in a PEM file.
    Inspect {
        /// The PEM file.
        file: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Init {
    /// Where to write; made if it is missing.
    #[arg(long)]
    dir: PathBuf,
    /// A DNS name or IP address under which agents or kube-apiserver reach the proxy-server. Give one or more, by commas
    /// or by repeating the flag.
    #[arg(long = "server-san", required = true, value_delimiter = ',')]
    server_sans: Vec<String>,
    /// Common name of the authority.
    #[arg(long, default_value = "adit CA")]
    ca_name: String,
    /// Common name in the agents' certificate.
    #[arg(long, default_value = "system:konnectivity-agent")]
    agent_name: String,
    /// Common name in kube-apiserver's client certificate.
    #[arg(long, default_value = "kube-apiserver")]
    apiserver_name: String,
    /// Replace files that exist. The old authority is then gone, and with it trust in what it signed.
    #[arg(long)]
    force: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Init(init) => run_init(&init),
        Command::Inspect { file } => inspect::run(&file),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed there is nobody left to tell; the exit code says it too.
            drop(writeln!(io::stderr(), "certs: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run_init(init: &Init) -> anyhow::Result<()> {
    let replace = if init.force {
        Replace::Yes
    } else {
        refuse_existing(&init.dir)?;
        Replace::No
    };
    // All made before the first is written: a bad name leaves no half set behind.
    let sans: Vec<_> = init.server_sans.iter().map(String::as_str).collect();
    let authority = Authority::generate(&init.ca_name)?;
    let server = authority.issue_server(&sans).context("--server-san")?;
    let agent = authority.issue_client(&init.agent_name)?;
    let apiserver = authority.issue_client(&init.apiserver_name)?;

    fs::create_dir_all(&init.dir)
        .with_context(|| format!("make the folder {}", init.dir.display()))?;
    let mut out = io::stdout().lock();
    for (files, what) in [
        (authority.write(&init.dir, "ca", replace)?, "authority"),
        (
            server.write(&init.dir, "server", replace)?,
            "proxy-server, both listeners",
        ),
        (
            agent.write(&init.dir, "agent", replace)?,
            "proxy-agent, client",
        ),
        (
            apiserver.write(&init.dir, "apiserver", replace)?,
            "kube-apiserver, client",
        ),
    ] {
        writeln!(
            out,
            "{}  {}  ({what})",
            files.certificate.display(),
            files.key.display()
        )?;
    }
    Ok(())
}

/// Looks for all files before any is written, so that a refusal changes nothing.
fn refuse_existing(dir: &Path) -> anyhow::Result<()> {
    for stem in ["ca", "server", "agent", "apiserver"] {
        for extension in ["crt", "key"] {
            let file = dir.join(format!("{stem}.{extension}"));
            if file.symlink_metadata().is_ok() {
                bail!(
                    "{} exists; choose another --dir, or --force to replace what is there",
                    file.display()
                );
            }
        }
    }
    Ok(())
}
