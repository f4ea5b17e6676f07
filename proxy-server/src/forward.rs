//! Connections from nodes to the control plane: what `--forward` of an agent takes, carried to a target that this server names
//! and allows. Ours; off unless a target is named.
//!
//! An agent asks for a *name*. What is behind it ([`targets`]) and who may use it is the operator's to say, here. Whether an agent
//! may is decided by what was *verified* of it ([`VerifiedNames`]), never by what it calls itself: neither its id nor its
//! identifiers are looked at. By default nobody may.
//!
//! What it costs a peer to ask, and us: a refusal spawns nothing and looks nothing up. A connection is one task, one socket and one of
//! the agent's `--forward-max-connections`.

mod connect;
mod glob;
mod names;
mod serve;
pub mod targets;

pub use connect::{CONNECT_LIMIT, MAX_ADDRESSES, MAX_LOOKUPS};
pub use glob::{Glob, GlobError};
pub use names::VerifiedNames;
pub use serve::{ANSWER_LIMIT, AgentForwards, ForwardRequest, Forwarder};
pub use targets::{ForwardRefusal, ForwardTargets, Target, TargetError};
