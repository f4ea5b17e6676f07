//! Peers that mean harm on the stream tunnel: at worst their own tunnel ends. The process lives, its memory and its log stay small, and
//! everybody else is served meanwhile.
//!
//! Both ends are real processes; what attacks them is made by hand, frame by frame, so that it may be as wrong as it likes.
//!
//! | module | job |
//! |---|---|
//! | `frames` | HTTP/2 frames and HPACK, as bytes |
//! | `raw` | a peer that reads frames, answers what it must, and sends what it wants |
//! | `server` | a server under attack, and an agent that it serves meanwhile |
//! | `agent` | an agent under attack, and a server that it serves meanwhile |
//! | `hellos`, `floods` | attacks on a server, before and after its welcome |
//! | `answers`, `requests` | attacks on an agent, likewise |
//! | `waits` | attacks that a time limit ends |

mod agent;
mod answers;
mod floods;
mod frames;
mod hellos;
mod raw;
mod requests;
mod server;
mod waits;

use anyhow::{Result, ensure};
use e2e::harness::Process;

/// Words that must not begin a line of a log.
const FORGED: &str = "x\r\n\u{1b}[31mforged\u{0}\u{85}\u{2028}y";

/// Lines that one peer may add to a log.
const MAX_LINES: usize = 8;

/// Longest line of a log, in bytes: 4 KiB of somebody's words, six for one where they must be escaped, and what stands around them.
const MAX_LINE: usize = 25 * 1024;

/// What the peak of memory may rise by, in KiB. A debug build of either process has some 20 MiB to begin with.
const MAX_GROWTH_KIB: u64 = 64 * 1024;

/// A log, as it was before an attack.
struct Log {
    lines: usize,
}

impl Log {
    fn of(process: &Process) -> Self {
        Self {
            lines: process.log().lines().count(),
        }
    }

    /// Checks what `peers` peers have added to it.
    fn check(&self, process: &Process, peers: usize) -> Result<()> {
        let log = process.log();
        let added: Vec<_> = log.lines().skip(self.lines).collect();
        ensure!(
            added.len() <= peers * MAX_LINES,
            "{} lines of log, such as {:?}",
            added.len(),
            added.get(..4)
        );
        for line in added {
            ensure!(line.len() <= MAX_LINE, "a line of {} bytes", line.len());
            ensure!(
                line.starts_with("20") && !line.contains(char::is_control),
                "a peer has written a line of its own: {line:?}"
            );
        }
        Ok(())
    }
}
