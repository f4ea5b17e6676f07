//! Adit's proxy agent: connects out to proxy servers, and dials targets for them.
//!
//! | Module | Job |
//! |---|---|
//! | [`cli`] | the flags, under upstream's names |
//! | [`config`] | flags and files, checked once, into a [`Config`] |
//! | [`agent`] | start, run until told to drain, run until told to stop |
//! | [`metrics`] | every metric of this process |
//!
//! Inside: `client_set` keeps one tunnel to each server, `server_count` says how many there are, `client` makes one, `proxy` is what may
//! stand in between, `endpoint` serves the dials that come over it, `dial` opens TCP connections, `forward` carries connections of this
//! node the other way, `activity` and `drain` say when an agent that is not wanted any more leaves, `admin` and `standing` answer
//! probes and scrapes.
//!
//! The data path is one thread: a current-thread runtime with a `LocalSet`, one [`tunnel::ledger::Ledger`], no locks. Probes
//! and scrapes are answered by threads of their own, which read atomics.

pub mod agent;
pub mod cli;
pub mod config;
pub mod lease_count;
pub mod metrics;

mod activity;
mod admin;
mod client;
mod client_set;
mod dial;
mod drain;
mod endpoint;
mod forward;
mod proxy;
mod server_address;
mod server_count;
mod standing;

#[cfg(test)]
mod fake_server;

pub use agent::{Agent, RunError, StartError};
pub use cli::Cli;
pub use config::{Config, ConfigError};
