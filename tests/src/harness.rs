//! Real processes of the real binaries.
//!
//! [`Cluster`] is what most tests want: one server and its agents, ready. [`Server`] and [`Agent`] are its parts, for those
//! that restart or misconfigure one.

mod agent;
mod balancer;
mod binaries;
mod cluster;
mod launch;
mod link;
mod pki;
mod pod;
mod ports;
mod probe;
mod process;
mod server;
mod wait;

pub use agent::{Agent, AgentBuilder};
pub use balancer::Balancer;
pub use binaries::{Binaries, binaries};
pub use cluster::{Cluster, ClusterBuilder, Footprint, TunnelKind};
pub use link::SlowLink;
pub use pki::{NAME, Pki};
pub use pod::Pod;
pub use ports::free_port;
pub use probe::{Reply, get, metric};
pub use process::{Ended, FileLimits, Process};
pub use server::{Server, ServerBuilder};
pub use wait::eventually;

use std::time::Duration;

/// How long anything that normally takes milliseconds may take on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
