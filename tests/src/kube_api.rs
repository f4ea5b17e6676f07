//! Plays the Kubernetes API: `authentication.k8s.io/v1` TokenReview and `coordination.k8s.io/v1` Lease, over HTTPS with an
//! authority of its own, on loopback, in this process, on a thread of its own.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use e2e::kube_api::{Fault, KubeApi, Resource, ServiceAccount};
//!
//! let api = KubeApi::start()?;
//! let agent = ServiceAccount::new("kube-system", "konnectivity-agent")
//!     .audience("system:konnectivity-server")
//!     .node("node-a");
//! let token = api.token(&agent); // give it to an agent in a file; give a server `--kubeconfig`:
//! let flag = format!("--kubeconfig={}", api.kubeconfig().display());
//! api.fail(Resource::TokenReviews, Fault::Status(503)); // from now on
//! api.asked("create", Resource::TokenReviews, 2).await?; // waits until it was asked twice
//! api.heal();
//! let leases = api.leases_until("three servers", |leases| leases.len() == 3).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Right like the real one: credentials (a bearer token) and 401 without, audiences, versions of objects and conflicts,
//! selectors (`k=v`, `k==v`, `k!=v`, `k`, `!k`), watches with bookmarks and 410, preconditions of deletes. Not there:
//! RBAC, protobuf, paging, and whatever else nobody here asks for (404, 400).

mod fault;
mod lease;
mod request;
mod serve;
mod state;
mod token;

use std::{
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use anyhow::{Context as _, Result};
use certs::Authority;
use tempfile::TempDir;
use tokio::{runtime, sync::watch, time::timeout};

pub use fault::Fault;
pub use lease::Lease;
pub use request::Resource;
pub use token::ServiceAccount;

use crate::harness::PATIENCE;
use state::{Shared, State};

/// A running API server. Dropping it ends its thread and every connection.
#[derive(Debug)]
pub struct KubeApi {
    folder: TempDir,
    authority: Authority,
    address: SocketAddr,
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl KubeApi {
    /// Starts it on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If a port, a file or a thread cannot be had.
    pub fn start() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("adit-kube-").tempdir()?;
        let authority = Authority::generate("adit kube api")?;
        let identity = authority
            .issue_server(&["127.0.0.1", "localhost"])?
            .identity()?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("bind the API server")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(State::default()));
        let (stop, stopped) = watch::channel(false);
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let serving = serve::serve(
            listener,
            serve::acceptor(&identity)?,
            shared.clone(),
            stopped,
        );
        let thread = std::thread::Builder::new()
            .name("kube-api".to_owned())
            .spawn(move || runtime.block_on(serving))?;
        let api = Self {
            kubeconfig: folder.path().join("kubeconfig"),
            folder,
            authority,
            address,
            shared,
            stop,
            thread: Some(thread),
        };
        api.rotate_credentials()?;
        Ok(api)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig with the right authority and credentials.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Makes new credentials, writes them into the kubeconfig and takes only those from now on.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn rotate_credentials(&self) -> Result<()> {
        let token = format!("client-{:016x}", fastrand::u64(..));
        let ca = self.folder.path().join("ca.crt");
        std::fs::write(&ca, self.authority.certificate_pem())?;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: adit\n\
             clusters:\n- name: adit\n  cluster:\n    server: https://{}\n    certificate-authority: {}\n\
             users:\n- name: adit\n  user:\n    token: {token}\n\
             contexts:\n- name: adit\n  context:\n    cluster: adit\n    user: adit\n",
            self.address,
            ca.display(),
        );
        std::fs::write(&self.kubeconfig, text).context("write the kubeconfig")?;
        self.shared.change(|state| state.credentials = token);
        Ok(())
    }

    /// A token of `account`, good until [`revoke`](Self::revoke): a JWT in form, with a signature that is none.
    #[must_use]
    pub fn token(&self, account: &ServiceAccount) -> String {
        let token = account.to_jwt();
        self.shared.change(|state| {
            state.accounts.insert(token.clone(), account.clone());
        });
        token
    }

    /// Makes a token bad.
    pub fn revoke(&self, token: &str) {
        self.shared.change(|state| {
            state.accounts.remove(token);
        });
    }

    /// From now on requests about `resource` end in `fault`.
    pub fn fail(&self, resource: Resource, fault: Fault) {
        self.shared.change(|state| {
            state.faults.insert(resource, fault);
        });
    }

    /// No request ends in a fault any more; those that hang are answered now.
    pub fn heal(&self) {
        self.shared.change(|state| state.faults.clear());
    }

    /// How many requests of this kind came, whatever became of them. `verb` is `create`, `get`, `list`, `watch`, `update` or
    /// `delete`.
    #[must_use]
    pub fn count(&self, verb: &str, resource: Resource) -> usize {
        self.shared.look(|state| state.count(verb, resource))
    }

    /// Waits until [`count`](Self::count) is at least `times`.
    ///
    /// # Errors
    /// If it is not in time.
    pub async fn asked(&self, verb: &str, resource: Resource, times: usize) -> Result<()> {
        let what = format!("{verb} {resource} for the {times}th time");
        self.until(&what, |state| {
            (state.count(verb, resource) >= times).then_some(())
        })
        .await
    }

    /// All Leases of all namespaces, by name.
    #[must_use]
    pub fn leases(&self) -> Vec<Lease> {
        self.shared.look(|state| state.leases.all())
    }

    /// Waits until Leases are as `want` says, and gives them.
    ///
    /// # Errors
    /// If they are not in time; the error shows them.
    pub async fn leases_until(
        &self,
        what: &str,
        want: impl Fn(&[Lease]) -> bool,
    ) -> Result<Vec<Lease>> {
        self.until(what, |state| {
            let leases = state.leases.all();
            want(&leases).then_some(leases)
        })
        .await
        .with_context(|| format!("{:#?}", self.leases()))
    }

    /// Creates or replaces a Lease as another client would.
    pub fn put_lease(&self, lease: &Lease) {
        self.shared.change(|state| state.leases.put(lease));
    }

    /// Deletes a Lease as another client would; whether there was one.
    pub fn delete_lease(&self, namespace: &str, name: &str) -> bool {
        self.shared
            .change(|state| state.leases.remove(namespace, name))
    }

    /// Sends a bookmark to each watch that asked for them.
    pub fn bookmark(&self) {
        self.shared.change(|state| state.leases.bookmark());
    }

    /// Forgets history, so that watches from before end in an event with 410, and new ones from there likewise.
    pub fn compact(&self) {
        self.shared.change(|state| state.leases.compact());
    }

    /// Watches under way.
    #[must_use]
    pub fn watches(&self) -> usize {
        self.shared.look(|state| state.watches)
    }

    async fn until<T>(&self, what: &str, look: impl Fn(&State) -> Option<T>) -> Result<T> {
        let mut changes = self.shared.changes();
        let wait = async {
            loop {
                changes.borrow_and_update();
                if let Some(value) = self.shared.look(&look) {
                    return value;
                }
                // The sender lives as long as `shared`.
                drop(changes.changed().await);
            }
        };
        timeout(PATIENCE, wait)
            .await
            .with_context(|| format!("the Kubernetes API did not see in time: {what}"))
    }
}

impl Drop for KubeApi {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
