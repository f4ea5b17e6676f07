//! Adit's proxy server: kube-apiserver on one side, agents on the other.
//!
//! * [`cli`] and [`config`]: upstream's flags, checked once;
//! * [`server`]: binds everything, runs, ends;
//! * [`frontend`]: how kube-apiserver reaches us: gRPC and HTTP CONNECT, over a Unix socket or mTLS;
//! * [`backend`]: one agent's stream; [`registry`]: all of them, and which one a dial goes to;
//! * [`forward`]: the other direction, from nodes to targets of the control plane;
//! * [`dial`]: what both frontends ask for, and what each answers when it fails;
//! * [`admin`], [`metrics`]: health, readiness, numbers.
//!
//! Everything but the admin listeners runs on one thread, the worker.

pub mod admin;
pub mod backend;
pub mod binding;
pub mod cli;
pub mod config;
pub mod dial;
pub mod forward;
pub mod frontend;
pub mod lease;
pub mod metrics;
pub mod registry;
pub mod server;

#[cfg(test)]
mod testing;
pub mod token_review;
