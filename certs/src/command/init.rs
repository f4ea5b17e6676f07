//! `certs init`: everything a first cluster needs.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use certs::issue::{AUTHORITY_DAYS, Authority, AuthoritySpec, Files, KeyType, LEAF_DAYS, Leaf};

use super::{replace, tell, tell_if_cut, validity};

#[derive(Debug, clap::Args)]
pub(crate) struct Init {
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
    /// Kind of every key: p256, p384, ed25519, rsa2048 (rsa) or rsa3072.
    #[arg(long, default_value_t)]
    key_type: KeyType,
    /// How long the authority is valid, in days.
    #[arg(long, default_value_t = AUTHORITY_DAYS)]
    ca_days: u16,
    /// How long the other certificates are valid, in days; no longer than the authority.
    #[arg(long, default_value_t = LEAF_DAYS)]
    days: u16,
    /// Replace files that exist. The old authority is then gone, and with it trust in what it signed.
    #[arg(long)]
    force: bool,
}

impl Init {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let files =
            ["ca", "server", "agent", "apiserver"].map(|stem| Files::named(&self.dir, stem));
        let replace = replace(self.force, &files)?;

        // All made before the first is written: a bad name leaves no half set behind.
        let sans: Vec<_> = self.server_sans.iter().map(String::as_str).collect();
        let spec = AuthoritySpec::new(&self.ca_name)
            .valid(validity(self.ca_days))
            .with_key_type(self.key_type);
        let authority = Authority::create(&spec)?;
        let validity = validity(self.days);
        let issue =
            |leaf: Leaf| authority.issue(&leaf.valid(validity).with_key_type(self.key_type));
        let server = issue(Leaf::server(&sans)).context("--server-san")?;
        let agent = issue(Leaf::client(&self.agent_name))?;
        let apiserver = issue(Leaf::client(&self.apiserver_name))?;
        tell_if_cut(&authority, validity.not_after)?;

        fs::create_dir_all(&self.dir)
            .with_context(|| format!("make the folder {}", self.dir.display()))?;
        tell(&authority.write(&self.dir, "ca", replace)?, "authority")?;
        for (issued, stem, what) in [
            (server, "server", "proxy-server, both listeners"),
            (agent, "agent", "proxy-agent, client"),
            (apiserver, "apiserver", "kube-apiserver, client"),
        ] {
            tell(&issued.write(&self.dir, stem, replace)?, what)?;
        }
        Ok(())
    }
}
