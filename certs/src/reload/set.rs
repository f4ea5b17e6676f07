//! One set of files: what is in use, what was seen since.

use std::error::Error;

use tokio::sync::watch;
use tracing::{info, warn};

use super::MAX_RESTLESS_POLLS;
use crate::dates::Timestamp;
use crate::pem::{self, LoadError};
use crate::status::{FileState, FileStatus, Status};
use crate::store::recipe::{Facts, Recipe};
use crate::store::{Current, StoreError};

/// A set of files that are taken up together.
pub(super) trait Set: Send {
    /// Reads the files once, and publishes or refuses what is new.
    fn poll(&mut self, now: Timestamp);
    /// Adds the state of its files.
    fn report(&self, status: &mut Status);
}

/// What a read gave: bytes, or why there are none, in words so that two can be compared. One entry a file.
type Reading = Vec<Result<Vec<u8>, String>>;

pub(super) struct Watched<R: Recipe> {
    recipe: R,
    published: watch::Sender<R::Product>,
    /// What the product in use was made of. Holds key bytes, as the product does.
    good: Vec<Vec<u8>>,
    files: Vec<FileStatus>,
    /// When to make the product anew of `good`.
    until: Option<Timestamp>,
    /// What the last poll read, unless that was `good`.
    seen: Option<Seen>,
}

struct Seen {
    reading: Reading,
    /// Polls without two equal readings.
    restless: u32,
    /// Whether it was refused, and that was told.
    told: bool,
}

impl<R: Recipe> Watched<R> {
    /// Loads the files for the first time.
    pub(super) fn load(
        recipe: R,
        now: Timestamp,
    ) -> Result<(Self, Current<R::Product>), StoreError> {
        let paths = recipe.files();
        let good = paths
            .iter()
            .map(|file| pem::read(file))
            .collect::<Result<Vec<_>, LoadError>>()?;
        let proof = recipe.make(&good, now)?;
        let (published, receiver) = watch::channel(proof.product);
        let mut set = Self {
            recipe,
            published,
            good,
            files: paths.iter().map(|file| FileStatus::new(file)).collect(),
            until: None,
            seen: None,
        };
        set.note(proof.facts);
        Ok((set, Current::new(receiver)))
    }

    /// Keeps what is known of the files' content, and warns of what is odd and was not before.
    fn note(&mut self, facts: Vec<Facts>) {
        self.until = facts.iter().filter_map(|facts| facts.until).min();
        for (status, facts) in self.files.iter_mut().zip(facts) {
            for note in &facts.notes {
                if !status.notes.contains(note) {
                    warn!(file = %status.file().display(), "{note}");
                }
            }
            status.not_after = facts.not_after;
            status.notes = facts.notes;
        }
    }

    fn read(&self) -> Reading {
        let files = self.files.iter();
        files
            .map(|status| pem::read(status.file()).map_err(|error| in_full(&error)))
            .collect()
    }

    /// Whether what was read is in use.
    fn is_good(&self, reading: &Reading) -> bool {
        let mut both = reading.iter().zip(&self.good);
        both.all(|(read, good)| read.as_ref() == Ok(good))
    }

    /// The same content means something else once a root begins or ends.
    fn remake_if_due(&mut self, now: Timestamp) {
        if self.until.is_none_or(|until| now < until) {
            return;
        }
        self.until = None;
        match self.recipe.make(&self.good, now) {
            Ok(proof) => {
                self.note(proof.facts);
                self.published.send_replace(proof.product);
            }
            // The last root ended, or the own certificate before it. There is nothing better to use: peers whose
            // certificates outlive their root stay accepted until new files come.
            Err(error) => warn!("files in use are no longer good: {}", in_full(&error)),
        }
    }

    /// Whether `reading` is worth a try: at rest, or restless for long.
    fn ripe(&mut self, reading: Reading) -> bool {
        match &mut self.seen {
            Some(seen) if seen.reading == reading => true,
            Some(seen) => {
                let restless = seen.restless + 1;
                let ripe = restless >= MAX_RESTLESS_POLLS;
                *seen = Seen {
                    reading,
                    restless: if ripe { 0 } else { restless },
                    told: false,
                };
                ripe
            }
            None => {
                self.seen = Some(Seen {
                    reading,
                    restless: 1,
                    told: false,
                });
                false
            }
        }
    }

    fn accept(&mut self, contents: Vec<Vec<u8>>, product: R::Product, facts: Vec<Facts>) {
        for ((status, old), new) in self.files.iter_mut().zip(&self.good).zip(&contents) {
            if old != new {
                status.reloaded += 1;
                info!(file = %status.file().display(), "reloaded");
            }
            status.state = FileState::Fresh;
        }
        self.note(facts);
        self.good = contents;
        self.seen = None;
        self.published.send_replace(product);
    }

    fn refuse(&mut self, reason: &str, now: Timestamp) {
        let Some(seen) = &mut self.seen else {
            return;
        };
        let first_time = !std::mem::replace(&mut seen.told, true);
        let both = seen.reading.iter().zip(&self.good);
        for (status, (read, good)) in self.files.iter_mut().zip(both) {
            if read.as_ref() == Ok(good) {
                status.state = FileState::Fresh;
                continue;
            }
            let since = match &status.state {
                FileState::Stale { since, .. } => *since,
                FileState::Fresh => now,
            };
            status.state = FileState::Stale {
                reason: reason.to_owned(),
                since,
            };
            if first_time {
                status.refused += 1;
                warn!(
                    file = %status.file().display(),
                    "changed, but its last good content stays in use: {reason}"
                );
            }
        }
    }
}

impl<R: Recipe> Set for Watched<R> {
    fn poll(&mut self, now: Timestamp) {
        let reading = self.read();
        if self.is_good(&reading) {
            self.seen = None;
            self.remake_if_due(now);
            for status in &mut self.files {
                if status.state != FileState::Fresh {
                    status.state = FileState::Fresh;
                    info!(file = %status.file().display(), "holds its last good content again");
                }
            }
            return;
        }
        let contents = reading.iter().cloned().collect::<Result<Vec<_>, _>>();
        if !self.ripe(reading) {
            return;
        }
        let made = contents.and_then(|contents| {
            let proof = self.recipe.make(&contents, now);
            proof
                .map(|proof| (contents, proof))
                .map_err(|error| in_full(&error))
        });
        match made {
            Ok((contents, proof)) => self.accept(contents, proof.product, proof.facts),
            Err(reason) => self.refuse(&reason, now),
        }
    }

    fn report(&self, status: &mut Status) {
        for file in &self.files {
            status.add(file.clone());
        }
    }
}

/// An error with its causes on one line.
fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
