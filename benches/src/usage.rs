//! What a process uses, as Linux tells.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use e2e::harness::{PATIENCE, eventually};
use tokio::time::sleep;

/// `USER_HZ`, which is 100 on every Linux that we run on.
const TICK: Duration = Duration::from_millis(10);

/// Memory, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Pages in RAM, shared ones included: those of the binary and of libraries.
    pub rss: u64,
    /// The same, each page divided by the number of processes that have it.
    pub pss: u64,
    /// Pages that nobody else has.
    pub private: u64,
}

impl Memory {
    /// What `process` has now.
    ///
    /// # Errors
    /// If it has ended.
    pub fn of(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        Self::parse(&text).with_context(|| format!("parse {path}"))
    }

    fn parse(text: &str) -> Result<Self> {
        let field = |name: &str| -> Result<u64> {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .with_context(|| format!("no {name}"))?;
            Ok(value.trim().trim_end_matches(" kB").parse()?)
        };
        Ok(Self {
            rss: field("Rss")?,
            pss: field("Pss")?,
            private: field("Private_Clean")? + field("Private_Dirty")?,
        })
    }

    /// Waits until it stands still, as far as an allocator does.
    ///
    /// # Errors
    /// If it goes on moving, or the process has ended.
    pub async fn still(process: u32) -> Result<Self> {
        /// Between two looks.
        const PAUSE: Duration = Duration::from_millis(500);
        /// KiB.
        const LITTLE: u64 = 16;
        let mut last = Self::default();
        eventually("memory stands still", PATIENCE, async || {
            sleep(PAUSE).await;
            let now = Self::of(process)?;
            let before = std::mem::replace(&mut last, now);
            anyhow::ensure!(
                now.private.abs_diff(before.private) <= LITTLE,
                "{before:?}, then {now:?}"
            );
            Ok(now)
        })
        .await
    }
}

/// CPU time, user and system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cpu(pub Duration);

impl Cpu {
    /// What `process` has used so far, to a tick of 10 ms.
    ///
    /// # Errors
    /// If it has ended.
    pub fn of(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        Self::parse(&text).with_context(|| format!("parse {path}"))
    }

    /// What the living threads of `process` have used so far, to the nanosecond; what those had that have ended is not in it.
    ///
    /// # Errors
    /// If it has ended.
    pub fn of_threads(process: u32) -> Result<Self> {
        let folder = format!("/proc/{process}/task");
        let mut sum = Duration::ZERO;
        for thread in fs::read_dir(&folder).with_context(|| format!("list {folder}"))? {
            let path = thread?.path().join("schedstat");
            // A thread may end in between.
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let first = text.split_whitespace().next().context("empty schedstat")?;
            sum += Duration::from_nanos(first.parse()?);
        }
        Ok(Self(sum))
    }

    fn parse(text: &str) -> Result<Self> {
        // The name of the program is in brackets and may hold anything.
        let (_, fields) = text.rsplit_once(')').context("no name")?;
        let mut times = fields.split_whitespace().skip(11);
        let mut time = || -> Result<u32> { Ok(times.next().context("too short")?.parse()?) };
        Ok(Self(TICK * (time()? + time()?)))
    }

    /// What came on top of `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Duration {
        self.0.saturating_sub(before.0)
    }
}

/// Threads of `process`.
///
/// # Errors
/// If it has ended.
pub fn threads(process: u32) -> Result<usize> {
    let folder = format!("/proc/{process}/task");
    Ok(fs::read_dir(&folder)
        .with_context(|| format!("list {folder}"))?
        .count())
}

/// What the kernel holds in buffers of all TCP sockets of the machine, in KiB; no process is charged for it here.
///
/// # Errors
/// If the kernel does not tell.
pub fn tcp_buffers() -> Result<u64> {
    /// KiB.
    const PAGE: u64 = 4;
    let path = "/proc/net/sockstat";
    let text = fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    let pages = text
        .lines()
        .find_map(|line| line.strip_prefix("TCP:")?.split_once(" mem "))
        .with_context(|| format!("no memory of TCP in {path}"))?
        .1;
    Ok(pages.trim().parse::<u64>()? * PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_a_rollup() {
        let text = "55e0-7ffc ---p 00000000 00:00 0  [rollup]\nRss:     9216 kB\nPss:     4611 kB\nPss_Dirty: 9 kB\n\
                    Private_Clean:   100 kB\nPrivate_Dirty:  2000 kB\n";
        let memory = Memory::parse(text).unwrap();
        assert_eq!((memory.rss, memory.pss, memory.private), (9216, 4611, 2100));
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let text = "7 (a) b (c) S 1 1 1 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0 1";
        assert_eq!(Cpu::parse(text).unwrap().0, Duration::from_secs(2));
    }

    #[test]
    fn this_process_uses_something() {
        let process = std::process::id();
        let memory = Memory::of(process).unwrap();
        assert!(memory.private > 0 && memory.private <= memory.rss);
        Cpu::of(process).unwrap();
        assert!(Cpu::of_threads(process).unwrap().0 > Duration::ZERO);
        tcp_buffers().unwrap();
    }
}
