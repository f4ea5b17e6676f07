//! `certs issue` and `certs renew`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};
use certs::issue::{Files, KeyType, LEAF_DAYS, Leaf, Usage};
use certs::pem;
use clap::ValueEnum;

use super::{AuthorityFiles, folder, replace, tell, tell_if_cut, validity};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UsageName {
    /// To be dialled: the proxy-server.
    Server,
    /// To dial: an agent, or kube-apiserver.
    Client,
    /// Both.
    Both,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Issue {
    #[command(flatten)]
    authority: AuthorityFiles,
    /// What the certificate is for.
    #[arg(long)]
    usage: UsageName,
    /// Common name. A server's is its first --san unless given.
    #[arg(long)]
    name: Option<String>,
    /// An alternative name: DNS name, IP address, URI or mail address. Several by commas or by repeating the flag; a
    /// server needs at least one.
    #[arg(long = "san", value_delimiter = ',')]
    sans: Vec<String>,
    /// Kind of key: p256, p384, ed25519, rsa2048 (rsa) or rsa3072.
    #[arg(long, default_value_t)]
    key_type: KeyType,
    /// How long it is valid, in days; no longer than the authority.
    #[arg(long, default_value_t = LEAF_DAYS)]
    days: u16,
    /// Where to write; made if it is missing.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Name of the files, to which .crt and .key are added.
    #[arg(long)]
    stem: String,
    /// Replace files that exist.
    #[arg(long)]
    force: bool,
}

impl Issue {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let files = Files::named(&self.dir, &self.stem);
        let replace = replace(self.force, std::slice::from_ref(&files))?;
        let leaf = self.leaf()?;
        let authority = self.authority.load()?;
        let issued = authority.issue(&leaf)?;
        tell_if_cut(&authority, leaf.validity.not_after)?;
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("make the folder {}", self.dir.display()))?;
        tell(&issued.write_to(files, replace)?, &leaf.common_name)?;
        Ok(())
    }

    fn leaf(&self) -> anyhow::Result<Leaf> {
        let (usage, serves) = match self.usage {
            UsageName::Server => (Usage::Server, true),
            UsageName::Client => (Usage::Client, false),
            UsageName::Both => (Usage::Both, true),
        };
        if serves && self.sans.is_empty() {
            bail!("--usage server and both need a --san: clients do not look at the common name");
        }
        let Some(common_name) = self.name.as_ref().or(self.sans.first()) else {
            bail!("give a --name or a --san");
        };
        Ok(Leaf {
            common_name: common_name.clone(),
            sans: self.sans.clone(),
            usage,
            validity: validity(self.days),
            key_type: self.key_type,
        })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Renew {
    /// The certificate to make anew.
    file: PathBuf,
    #[command(flatten)]
    authority: AuthorityFiles,
    /// Where its key is; the same path with the extension .key unless given.
    #[arg(long)]
    key: Option<PathBuf>,
    /// Write to this folder, under the same file names, instead of replacing. Made if it is missing.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// How long the new one is valid, in days; as long as the old one unless given, and no longer than the authority.
    #[arg(long)]
    days: Option<u16>,
    /// Kind of the new key; as the old one unless given.
    #[arg(long)]
    key_type: Option<KeyType>,
    /// Replace files that exist, each by rename: key first. Whoever watches both sees a pair that matches within moments.
    #[arg(long)]
    force: bool,
}

impl Renew {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let key = match &self.key {
            Some(key) => key.clone(),
            None => self.file.with_extension("key"),
        };
        if key == self.file {
            bail!("--key is the certificate's own file; certificate and key are written apart");
        }
        let files = match &self.dir {
            None => Files {
                certificate: self.file.clone(),
                key,
            },
            Some(dir) => {
                let (Some(certificate), Some(key)) = (self.file.file_name(), key.file_name())
                else {
                    bail!("{} is not the path of a file", self.file.display());
                };
                Files {
                    certificate: dir.join(certificate),
                    key: dir.join(key),
                }
            }
        };
        let replace = replace(self.force, std::slice::from_ref(&files))?;

        let chain = pem::certificates(&self.file)?;
        let own = chain.first().context("the file has no certificate")?;
        let mut leaf = Leaf::like(&self.file, own)?;
        if let Some(days) = self.days {
            leaf.validity = validity(days);
        }
        if let Some(key_type) = self.key_type {
            leaf.key_type = key_type;
        }
        let authority = self.authority.load()?;
        let issued = authority.issue(&leaf)?;
        tell_if_cut(&authority, leaf.validity.not_after)?;
        let dir = folder(&files.certificate);
        fs::create_dir_all(dir).with_context(|| format!("make the folder {}", dir.display()))?;
        tell(&issued.write_to(files, replace)?, &leaf.common_name)?;
        Ok(())
    }
}
