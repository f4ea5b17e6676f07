//! The Kubernetes API as both of Adit's processes need it: nothing of it ever runs on the data worker.
//!
//! | module | job |
//! |---|---|
//! | [`options`] | what the flags say |
//! | [`labels`] | `--lease-label`: a set of labels |
//! | [`selector`] | `--lease-label-selector`: the whole selector syntax, checked |
//! | [`thread`] | the thread that everything runs on |
//! | [`client`] | requests: in turn, within [`ClientOptions::deadline`], answers of a bounded size |
//! | [`error`] | what a request can end in |
//! | [`token_review`] | whose a token is |
//! | [`leases`] | Leases: get, create, update, delete, list, watch |
//! | [`lease`] | when a Lease is valid, whatever the clocks |
//!
//! We speak JSON. Of the crate `kube` we use what reads kubeconfigs and service accounts and makes TLS; requests are our
//! own, since they are bounded in time and size and leave no answer, which may repeat a token, in the log. A watch
//! is a loop of twenty lines for whoever needs one (the agent), not `kube`'s `watcher`, whose lines have no bound.

mod connection;
mod limiter;

pub mod client;
pub mod error;
pub mod labels;
pub mod lease;
pub mod leases;
pub mod options;
pub mod selector;
pub mod thread;
pub mod token_review;

pub use client::{Client, Event};
pub use connection::ConfigError;
pub use error::{ApiError, Cause};
pub use k8s_openapi::jiff::Timestamp;
pub use labels::Labels;
pub use lease::Lease;
pub use leases::Leases;
pub use options::ClientOptions;
pub use selector::Selector;
pub use thread::Thread;
