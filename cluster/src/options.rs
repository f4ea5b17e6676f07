//! What the flags say about the Kubernetes API.

use std::{path::PathBuf, time::Duration};

/// Requests per second unless a flag says otherwise: client-go's default.
pub const DEFAULT_QPS: f32 = 5.0;

/// Requests at once, ahead of the rate, unless a flag says otherwise: client-go's default.
pub const DEFAULT_BURST: u32 = 10;

/// How long a request may take unless [`ClientOptions::deadline`] says otherwise: less than an agent waits for the server's
/// greeting, so that it hears why there is none.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(8);

/// How to reach the Kubernetes API, from `--kubeconfig`, `--kubeconfig-qps`, `--kubeconfig-burst` and
/// `--kube-api-content-type`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientOptions {
    /// A kubeconfig file, of which the current context is used; none: the service account of the Pod that we run in.
    pub kubeconfig: Option<PathBuf>,
    /// Requests per second, on average; 0 means [`DEFAULT_QPS`] for each API group, less than 0 means no limit, as in
    /// client-go.
    pub qps: f32,
    /// Requests that may go ahead of the rate; 0 or less means [`DEFAULT_BURST`].
    pub burst: i32,
    /// The content type that the flag asks for. We speak JSON whatever it says: every API server does.
    pub content_type: String,
    /// How long a request may take from its making to the end of its answer, the wait for its turn and further attempts
    /// included; a watch has it for the head of its answer. No flag sets it.
    pub deadline: Duration,
    /// What we call ourselves, e.g. `proxy-server`.
    pub user_agent: &'static str,
}

impl ClientOptions {
    /// In-cluster, with the default limits.
    #[must_use]
    pub fn new(user_agent: &'static str) -> Self {
        Self {
            kubeconfig: None,
            qps: 0.0,
            burst: 0,
            content_type: String::from("application/vnd.kubernetes.protobuf"),
            deadline: DEFAULT_DEADLINE,
            user_agent,
        }
    }
}
