//! `certs`: makes and renews the certificates of a cluster, shows what is in a certificate file, and says whether the other
//! side would accept it.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod command;

use command::{init, inspect, issue, verify};

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
    /// client of the proxy-server). Keys have mode 0600.
    Init(init::Init),
    /// Make one more certificate, signed by an authority in files.
    Issue(issue::Issue),
    /// Make a certificate anew, with a new key: same names, usage, kind of key and length of validity as before.
    Renew(issue::Renew),
    /// Show names, dates, key, usage, issuer and possible roles of every certificate in a PEM file.
    Inspect(inspect::Inspect),
    /// Check whether the other side accepts a certificate. Exit code 0 if so, else 1 and the reason.
    #[command(subcommand)]
    Verify(verify::Verify),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Init(init) => init.run(),
        Command::Issue(issue) => issue.run(),
        Command::Renew(renew) => renew.run(),
        Command::Inspect(inspect) => inspect.run(),
        Command::Verify(verify) => verify.run(),
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
