//! What a person sees.

use std::{
    env,
    fmt::Display,
    future::Future,
    io::{self, IsTerminal, Write},
    sync::OnceLock,
};

use tokio::time::{Duration, Instant};

/// Width of a step's name.
const NAME: usize = 32;

/// Writes steps to standard output, in colour on a terminal.
#[derive(Debug)]
pub(crate) struct Story {
    is_coloured: bool,
    began: OnceLock<Instant>,
}

impl Story {
    pub(crate) fn new() -> Self {
        Self {
            is_coloured: io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none(),
            began: OnceLock::new(),
        }
    }

    /// The first heading; time runs from here.
    pub(crate) fn begin(&self, text: &str) {
        self.began.get_or_init(Instant::now);
        self.title(text);
    }

    /// A heading, with a line before it.
    pub(crate) fn title(&self, text: &str) {
        self.say(&format!("\n{}", self.paint("1", text)));
    }

    pub(crate) fn say(&self, text: &str) {
        // A closed pipe must not end the demo before it has cleaned up.
        drop(writeln!(io::stdout(), "{text}"));
    }

    /// Does a step and tells what it proved and how long it took, or why it failed.
    pub(crate) async fn step<T>(
        &self,
        name: &str,
        step: impl Future<Output = anyhow::Result<Done<T>>>,
    ) -> anyhow::Result<T> {
        let since = Instant::now();
        let outcome = step.await;
        let took = self.paint("2", format!("{:>9}", in_words(since.elapsed())));
        match outcome {
            Ok(Done { proved, value }) => {
                self.say(&format!(
                    "{} {name:<NAME$}{took}  {proved}",
                    self.paint("32", "✓")
                ));
                Ok(value)
            }
            Err(error) => {
                self.say(&format!(
                    "{} {name:<NAME$}{took}  {error:#}",
                    self.paint("31", "✗")
                ));
                Err(error)
            }
        }
    }

    /// A step that cannot be done here.
    pub(crate) fn left_out(&self, name: &str, why: &str) {
        self.say(&format!("- {name:<NAME$}{:9}  left out: {why}", ""));
    }

    /// The end, if it is a bad one.
    pub(crate) fn fail(&self, error: &anyhow::Error) {
        complain(&format!("demo: {error:#}"));
    }

    /// Time since [`Self::begin`].
    pub(crate) fn since_begin(&self) -> String {
        in_words(self.began.get().map_or(Duration::ZERO, Instant::elapsed))
    }

    fn paint(&self, code: &str, text: impl Display) -> String {
        if self.is_coloured {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_string()
        }
    }
}

/// A step that worked.
#[derive(Debug)]
pub(crate) struct Done<T> {
    proved: String,
    value: T,
}

/// A step that worked, what it proved, and what it made.
pub(crate) fn done<T>(proved: impl Into<String>, value: T) -> Done<T> {
    Done {
        proved: proved.into(),
        value,
    }
}

/// A line to standard error.
pub(crate) fn complain(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

fn in_words(took: Duration) -> String {
    if took < Duration::from_secs(1) {
        format!("{:.1} ms", took.as_secs_f64() * 1e3)
    } else {
        format!("{:.2} s", took.as_secs_f64())
    }
}
