//! Load on a tunnel: what plays kube-apiserver and the targets.
//!
//! | module | job |
//! |---|---|
//! | [`target`] | does what a connection asks for: takes, sends, echoes |
//! | [`dialer`] | a way to the target, through a frontend or a relay |
//! | [`bulk`] | transfers |
//! | [`echo`] | exchanges, one behind the other or at a fixed rate |
//! | [`dials`] | short connections, many at once |
//! | [`stall`] | connections that nobody reads |
//! | [`agents`] | tunnels of many agents in one process |
//! | [`delay`] | a long way between two processes |
//!
//! Targets run on a thread of their own, so that both ends of a connection do not wait for one another here.

pub mod agents;
pub mod bulk;
pub mod delay;
pub mod dialer;
pub mod dials;
pub mod echo;
pub mod stall;
pub mod target;

use std::time::Duration;

/// Nanoseconds for a histogram.
#[must_use]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
