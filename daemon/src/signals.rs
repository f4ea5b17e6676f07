//! Requests to terminate.
//!
//! SIGINT and SIGTERM mean the same; how many have come matters. The first begins a drain, a second ends the process at
//! once, and what that means differs between server and agent (wire-protocol.md T14, 4.10, 5.9), so only the count is
//! kept here.

use std::fmt;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that asked the process to terminate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Termination {
    /// SIGINT, as Ctrl-C sends.
    Interrupt,
    /// SIGTERM, as the kubelet sends.
    Terminate,
}

impl fmt::Display for Termination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        })
    }
}

/// The stream of termination signals. From its creation on, they no longer end the process by themselves, not even
/// after this value is dropped.
#[derive(Debug)]
pub struct Terminations {
    interrupt: Signal,
    terminate: Signal,
    seen: u32,
}

impl Terminations {
    /// Takes the signals over. Must be called within a tokio runtime with I/O enabled, and early: what came before is
    /// not seen.
    ///
    /// # Errors
    ///
    /// If the handler cannot be installed.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            seen: 0,
        })
    }

    /// Waits for the next signal and counts it: the first is 1. Two signals of one kind that come before this is polled
    /// are one, as with signals everywhere.
    ///
    /// Cancel safe: a signal that was not returned is returned by the next call.
    pub async fn recv(&mut self) -> (Termination, u32) {
        let kind = tokio::select! {
            biased;
            Some(()) = self.terminate.recv() => Termination::Terminate,
            Some(()) = self.interrupt.recv() => Termination::Interrupt,
            // Only without a runtime do the streams end, and then nothing can be waited for.
            else => std::future::pending().await,
        };
        self.seen = self.seen.saturating_add(1);
        (kind, self.seen)
    }
}
