//! `certs verify`: would the other side accept this certificate?

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use certs::{Identity, Roots, Timestamp, pem, verify};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verify {
    /// The proxy-server's certificate, dialled by an agent or by kube-apiserver.
    Server {
        #[command(flatten)]
        files: Files,
        /// The DNS name or IP address that is dialled.
        #[arg(long)]
        host: String,
    },
    /// An agent's certificate, shown to the proxy-server.
    Agent {
        #[command(flatten)]
        files: Files,
    },
    /// kube-apiserver's client certificate, shown to the proxy-server.
    ApiServer {
        #[command(flatten)]
        files: Files,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Files {
    /// The certificate with its chain.
    file: PathBuf,
    /// CA bundle of the other side.
    #[arg(long)]
    ca: PathBuf,
    /// The key, to check that it belongs to the certificate.
    #[arg(long)]
    key: Option<PathBuf>,
}

impl Verify {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let (files, host) = match self {
            Self::Server { files, host } => (files, Some(host)),
            Self::Agent { files } | Self::ApiServer { files } => (files, None),
        };
        let roots = Roots::load(&files.ca)?;
        let chain = pem::certificates(&files.file)?;
        if let Some(key) = &files.key {
            Identity::load(&files.file, key)?;
        }
        let now = Timestamp::now();
        let (verdict, role) = match host {
            Some(host) => (verify::server(&chain, host, &roots, now), "server"),
            None => (verify::client(&chain, &roots, now), "client"),
        };
        let (file, ca) = (files.file.display(), files.ca.display());
        verdict.with_context(|| format!("{file} does not pass as {role} under {ca}"))?;
        let host = host.map(|host| format!(" for {host}")).unwrap_or_default();
        writeln!(
            io::stdout().lock(),
            "ok: {file} passes as {role}{host} under {ca}"
        )?;
        Ok(())
    }
}
