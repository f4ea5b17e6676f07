//! What became of the watched files: for readiness, for metrics, for people.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::dates::Timestamp;
use crate::expiry;

/// Whether what is in use is what the file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileState {
    /// Yes.
    Fresh,
    /// No: the file changed or cannot be read, and the last good content stays in use.
    Stale {
        /// Why the file's content is not used, with causes.
        reason: String,
        /// When it was first refused.
        since: Timestamp,
    },
}

/// How a change of a file ended. Labels of a metric, see [`name`](Self::name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The new content is in use.
    Reloaded,
    /// The new content was refused, once for each content.
    Refused,
}

impl Outcome {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Reloaded, Self::Refused];

    /// The value for a metric's label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Reloaded => "reloaded",
            Self::Refused => "refused",
        }
    }
}

/// One watched file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStatus {
    file: PathBuf,
    pub(crate) state: FileState,
    pub(crate) not_after: Option<Timestamp>,
    pub(crate) notes: Vec<String>,
    pub(crate) reloaded: u64,
    pub(crate) refused: u64,
}

impl FileStatus {
    pub(crate) fn new(file: &Path) -> Self {
        Self {
            file: file.to_owned(),
            state: FileState::Fresh,
            not_after: None,
            notes: Vec::new(),
            reloaded: 0,
            refused: 0,
        }
    }

    /// The path, as it was given.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether what is in use is what the file holds.
    #[must_use]
    pub fn state(&self) -> &FileState {
        &self.state
    }

    /// When what is in use expires: the first certificate of a chain; of a CA bundle the first of those that are valid. `None`
    /// for keys and tokens.
    #[must_use]
    pub fn not_after(&self) -> Option<Timestamp> {
        self.not_after
    }

    /// Seconds from `now` until what is in use expires, negative once it has. For a gauge.
    #[must_use]
    pub fn expiry_seconds(&self, now: Timestamp) -> Option<i64> {
        self.not_after.map(|end| end.seconds_after(now))
    }

    /// What an operator should know of the content in use, although it works.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// How many changes ended so since the start. For a counter.
    #[must_use]
    pub fn changes(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Reloaded => self.reloaded,
            Outcome::Refused => self.refused,
        }
    }

    /// The same file in another set of files: the worse state, the earlier end, the larger counts (both sets saw the
    /// same changes).
    fn merge(&mut self, other: Self) {
        if self.state == FileState::Fresh {
            self.state = other.state;
        }
        self.not_after = match (self.not_after, other.not_after) {
            (Some(one), Some(another)) => Some(one.min(another)),
            (one, another) => one.or(another),
        };
        for note in other.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        self.reloaded = self.reloaded.max(other.reloaded);
        self.refused = self.refused.max(other.refused);
    }

    fn line(&self, now: Timestamp) -> impl fmt::Display {
        let mut line = format!("{}: ", self.file.display());
        match &self.state {
            FileState::Fresh => line.push_str("ok"),
            FileState::Stale { reason, since } => {
                line.push_str(&format!(
                    "stale since {since}, the last good content stays in use: {reason}"
                ));
            }
        }
        if let Some(left) = self.expiry_seconds(now) {
            if left < 0 {
                line.push_str(&format!("; EXPIRED {} ago", expiry::in_words(-left)));
            } else {
                line.push_str(&format!("; expires in {}", expiry::in_words(left)));
            }
        }
        for note in &self.notes {
            line.push_str(&format!("; note: {note}"));
        }
        line
    }
}

/// All watched files, in the order in which they were added; a file in several sets is here once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    files: Vec<FileStatus>,
}

impl Status {
    /// The files.
    #[must_use]
    pub fn files(&self) -> &[FileStatus] {
        &self.files
    }

    /// Whether each file's content is in use. A stale file is no reason to be unready: what worked still does.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        let mut states = self.files.iter().map(FileStatus::state);
        states.all(|state| *state == FileState::Fresh)
    }

    /// A line for each file, as a readiness page shows them.
    #[must_use]
    pub fn describe(&self, now: Timestamp) -> String {
        let lines = self
            .files
            .iter()
            .map(|file| format!("{}\n", file.line(now)));
        lines.collect()
    }

    pub(crate) fn add(&mut self, status: FileStatus) {
        let known = self
            .files
            .iter_mut()
            .find(|known| known.file == status.file);
        match known {
            Some(known) => known.merge(status),
            None => self.files.push(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stale(file: &str) -> FileStatus {
        FileStatus {
            state: FileState::Stale {
                reason: "it is empty".to_owned(),
                since: Timestamp::now(),
            },
            refused: 1,
            ..FileStatus::new(Path::new(file))
        }
    }

    #[test]
    fn a_file_in_two_sets_is_shown_once_with_the_worse_state_and_the_earlier_end() {
        let now = Timestamp::now();
        let ends = |days| FileStatus {
            not_after: Some(now.plus_days(days)),
            ..FileStatus::new(Path::new("a"))
        };
        let mut status = Status::default();
        status.add(ends(9));
        status.add(stale("a"));
        status.add(ends(5));
        let [file] = status.files() else {
            panic!("{status:?}")
        };
        assert!(matches!(file.state(), FileState::Stale { .. }));
        assert_eq!(file.expiry_seconds(now), Some(5 * 86_400));
        assert_eq!(file.changes(Outcome::Refused), 1);
        assert_eq!(file.changes(Outcome::Reloaded), 0);
        assert!(!status.is_fresh());
    }

    #[test]
    fn the_description_has_a_line_a_file_with_state_time_left_and_notes() {
        let now = Timestamp::now();
        let mut status = Status::default();
        status.add(FileStatus {
            not_after: Some(now.plus_days(29)),
            notes: vec!["think of it".to_owned()],
            ..FileStatus::new(Path::new("a"))
        });
        status.add(stale("b"));
        status.add(FileStatus {
            not_after: Some(now.plus_seconds(-60)),
            ..FileStatus::new(Path::new("c"))
        });
        let text = status.describe(now);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "a: ok; expires in 29 days; note: think of it");
        assert!(lines[1].starts_with("b: stale since "), "{text}");
        assert!(lines[1].ends_with(": it is empty"), "{text}");
        assert_eq!(lines[2], "c: ok; EXPIRED 1 minute ago");
    }
}
