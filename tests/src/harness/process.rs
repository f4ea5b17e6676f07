//! A child process that ends with its owner and whose stderr is kept.

use std::{
    collections::VecDeque,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStderr, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::eventually;

/// Lines of stderr that are kept: the first ones, which say how the process was set up, and the last ones.
const FIRST_LINES: usize = 300;
const LAST_LINES: usize = 2_000;

/// How much of a log a failing test shows.
const SHOWN_LINES: usize = 60;

/// Limits of open files for a child.
#[derive(Clone, Copy, Debug)]
pub struct FileLimits {
    /// The limit that it starts with.
    pub soft: u64,
    /// What it may raise that to; as it is for this process if unset.
    pub hard: Option<u64>,
}

/// How a child ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stderr.
    pub log: String,
}

/// The command of `program`, under these limits.
pub(super) fn program(program: &Path, limits: Option<FileLimits>) -> Command {
    let Some(limits) = limits else {
        return Command::new(program);
    };
    let hard = limits.hard.map(|hard| format!("ulimit -H -n {hard} && "));
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!(
            r#"ulimit -S -n {} && {}exec "$0" "$@""#,
            limits.soft,
            hard.unwrap_or_default()
        ))
        .arg(program);
    command
}

/// A running child. Dropping it kills it, waits for its end, and prints the end of its log, which the test runner shows
/// when the test fails.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: Arc<Mutex<Log>>,
    reader: Option<JoinHandle<()>>,
    is_quiet: bool,
}

#[derive(Debug, Default)]
struct Log {
    first: Vec<String>,
    last: VecDeque<String>,
}

impl Log {
    fn push(&mut self, line: String) {
        if self.first.len() < FIRST_LINES {
            self.first.push(line);
            return;
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    fn lines(&self) -> Vec<&str> {
        self.first
            .iter()
            .chain(&self.last)
            .map(String::as_str)
            .collect()
    }
}

impl Process {
    /// Starts `command`, with `name` for messages.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(name: &str, mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {name}: {command:?}"))?;
        let log = Arc::new(Mutex::new(Log::default()));
        let reader = child
            .stderr
            .take()
            .map(|stderr| thread::spawn(keep(stderr, Arc::clone(&log))));
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
            reader,
            is_quiet: false,
        })
    }

    /// Prints nothing when it is dropped.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("send {signal:?} to {}", self.name))
    }

    /// SIGTERM.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// If the process cannot be waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill")?;
        self.child.wait().context("wait")?;
        Ok(())
    }

    /// The status, if the process has ended.
    ///
    /// # Errors
    /// If the system cannot say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end, and for the last line of the log.
    ///
    /// # Errors
    /// If it does not end within `within`.
    pub async fn exit(&mut self, within: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        let status = eventually(&format!("{name} ends"), within, async || {
            self.ended()?.context("still running")
        })
        .await?;
        // Its stderr is at its end, so the reader is about to be, too.
        if let Some(reader) = self.reader.take()
            && reader.join().is_err()
        {
            bail!("the reader of {name}'s log panicked");
        }
        Ok(status)
    }

    /// Waits for the end, for the last time.
    ///
    /// # Errors
    /// If it does not end within `within`.
    pub async fn into_ended(mut self, within: Duration) -> Result<Ended> {
        let status = self.exit(within).await?;
        Ok(Ended {
            code: status.code(),
            log: self.log(),
        })
    }

    /// What it wrote to stderr, less what was too much to keep.
    #[must_use]
    pub fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.lines().join("\n")
    }

    /// Descriptors that are open.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn open_files(&self) -> Result<usize> {
        let folder = format!("/proc/{}/fd", self.id());
        Ok(fs::read_dir(&folder)
            .with_context(|| format!("list {folder}"))?
            .count())
    }

    /// Memory in RAM now, in KiB.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn resident_kib(&self) -> Result<u64> {
        self.status_kib("VmRSS:")
    }

    /// The most memory that was ever in RAM, in KiB.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn peak_kib(&self) -> Result<u64> {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, field: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.id());
        let status = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let value = status
            .lines()
            .find_map(|line| line.strip_prefix(field))
            .with_context(|| format!("no {field} in {path}"))?;
        Ok(value.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended long ago, then there is nothing to kill.
        self.child.kill().ok();
        self.child.wait().ok();
        if let Some(reader) = self.reader.take() {
            reader.join().ok();
        }
        if !self.is_quiet {
            let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            let lines = log.lines();
            let shown = lines
                .get(lines.len().saturating_sub(SHOWN_LINES)..)
                .unwrap_or_default();
            crate::say!("--- end of the log of {}:", self.name);
            for line in shown {
                crate::say_line(line);
            }
        }
    }
}

fn keep(stderr: ChildStderr, log: Arc<Mutex<Log>>) -> impl FnOnce() {
    move || {
        for line in BufReader::new(stderr).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).into_owned();
            log.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(line);
        }
    }
}
