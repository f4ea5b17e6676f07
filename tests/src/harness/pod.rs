//! What kubelet gives a container and no flag can say: names, and the service account at its one place.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

/// A file system that differs from this machine's by `/etc/hosts`, and by `/run` if there is a service account. It takes
/// namespaces of mounts and users, which not every machine lets its users make; see [`is_permitted`](Self::is_permitted).
#[derive(Clone, Debug)]
pub struct Pod {
    hosts: PathBuf,
    account: Option<(PathBuf, SocketAddr)>,
}

impl Pod {
    /// One in which `name` has these addresses, as a headless Service has, and no other name any.
    /// The file is made in `folder`, which must outlive the processes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn resolving(folder: &Path, name: &str, addresses: &[&str]) -> Result<Self> {
        let hosts = folder.join(format!("hosts-{:x}", fastrand::u64(..)));
        let lines = addresses
            .iter()
            .map(|address| format!("{address} {name}\n"));
        fs::write(&hosts, lines.collect::<String>())?;
        Ok(Self {
            hosts,
            account: None,
        })
    }

    /// The same, with `secrets` at `/var/run/secrets` and the Kubernetes API at `api`.
    #[must_use]
    pub fn with_service_account(mut self, secrets: PathBuf, api: SocketAddr) -> Self {
        self.account = Some((secrets, api));
        self
    }

    /// Whether this machine lets us. Blocks for as long as a process takes to start.
    #[must_use]
    pub fn is_permitted() -> bool {
        let mut unshare = unshare();
        unshare.args(["mount --bind /etc/hosts /etc/hosts"]);
        unshare.output().is_ok_and(|output| output.status.success())
    }

    /// Has the command run inside. Its process stays the one that is started. What was set of the command but program and
    /// arguments is lost.
    pub fn contain(&self, command: &mut Command) {
        let mut inside = unshare();
        inside
            .arg(
                r#"mount --bind "$0" /etc/hosts
                if [ -n "$1" ]; then
                    mount -t tmpfs tmpfs /run
                    mkdir -p /var/run/secrets
                    mount --bind "$1" /var/run/secrets
                fi
                shift
                exec "$@""#,
            )
            .arg(&self.hosts);
        match &self.account {
            None => {
                inside.arg("");
            }
            Some((secrets, api)) => {
                inside
                    .arg(secrets)
                    .env("KUBERNETES_SERVICE_HOST", api.ip().to_string())
                    .env("KUBERNETES_SERVICE_PORT", api.port().to_string());
            }
        }
        inside.arg(command.get_program()).args(command.get_args());
        *command = inside;
    }
}

/// A shell in namespaces of its own, which takes its script next.
fn unshare() -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "sh", "-ec"]);
    unshare
}
