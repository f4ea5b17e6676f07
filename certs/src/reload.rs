//! Takes up changed certificates, keys, CA bundles and tokens while everything runs.
//!
//! Contents are compared on a timer, not file events: a mounted Secret changes by a swapped symlink two folders up, which
//! watches on the file itself miss. One [`Watcher`] holds all sets of files of a process; a set (certificate, key and CA of
//! one listener) is taken up together or not at all.
//!
//! ```text
//!            contents differ            the same at the next poll,          published
//! in use ---------------------> seen ------- and proved -----------------> in use
//!    ^                           |   `------ and refused: warn, count ---> stale, still in use
//!    `--- contents as before ----'                                          | proved at a later poll,
//!    `----------------------------------------------------------------------' or contents as before
//! ```
//!
//! A change counts once two polls in a row read the same bytes, since a file that is being written may well parse: a CA
//! bundle cut off between two certificates does. With [`DEFAULT_INTERVAL`] new handshakes are on new material within
//! about two seconds of the last write. Files that never come to rest are tried as they are at every
//! [`MAX_RESTLESS_POLLS`]th poll. What was refused is tried again at each poll: a certificate of the near future becomes
//! valid without another change.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::{ClientConfig, ServerConfig};
use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::MissedTickBehavior;
use tracing::warn;

use crate::dates::Timestamp;
use crate::expiry::{self, ExpiryWatch, Urgency};
use crate::options::TlsOptions;
#[cfg(doc)]
use crate::pem::LoadError;
use crate::status::Status;
use crate::store::recipe::{ClientRecipe, Recipe, ServerRecipe, TokenRecipe};
use crate::store::{ClientFiles, Current, ServerFiles, StoreError, Token};

mod set;

use set::{Set, Watched};

/// How often files are read. A read of a handful of small files costs some ten microseconds of a thread that carries no
/// data; new material is in use after two polls.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// After so many polls of which no two read the same, what is there is tried as it is.
pub const MAX_RESTLESS_POLLS: u32 = 4;

/// All watched files of a process.
pub struct Watcher {
    sets: Vec<Box<dyn Set>>,
    expiry: HashMap<PathBuf, ExpiryWatch>,
    status: watch::Sender<Arc<Status>>,
}

impl Watcher {
    /// Watches nothing so far.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sets: Vec::new(),
            expiry: HashMap::new(),
            status: watch::channel(Arc::default()).0,
        }
    }

    /// Loads the files of a listener, and watches them from now on. Oddities that peers may mind are logged.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the files now: as [`Identity::load`](crate::Identity::load) and
    /// [`Roots::load`](crate::Roots::load); further [`LoadError::NoSan`], [`LoadError::ChainBroken`], and
    /// [`LoadError::Expired`] for a CA bundle with nothing valid in it. At a reload the same faults keep what is in use.
    pub fn server(
        &mut self,
        files: ServerFiles,
        alpn: &[&[u8]],
        options: &TlsOptions,
    ) -> Result<Current<Arc<ServerConfig>>, StoreError> {
        self.add(ServerRecipe::new(files, alpn, options.clone()))
    }

    /// Loads the files of a dialler, and watches them from now on. [`Current::changed`] tells when to connect anew.
    ///
    /// # Errors
    ///
    /// As [`server`](Self::server), less [`LoadError::NoSan`].
    pub fn client(
        &mut self,
        files: ClientFiles,
        alpn: &[&[u8]],
        options: &TlsOptions,
    ) -> Result<Current<Arc<ClientConfig>>, StoreError> {
        self.add(ClientRecipe::new(files, alpn, options.clone()))
    }

    /// Loads a token file, and watches it from now on.
    ///
    /// # Errors
    ///
    /// Those of reading, [`LoadError::Empty`], [`LoadError::BadToken`].
    pub fn token(&mut self, file: &Path) -> Result<Current<Token>, StoreError> {
        self.add(TokenRecipe {
            file: file.to_owned(),
        })
    }

    /// The state of every file: for readiness and metrics, from any thread. Changes with each poll that finds news.
    #[must_use]
    pub fn status(&self) -> Current<Arc<Status>> {
        Current::new(self.status.subscribe())
    }

    /// Reads every file once, publishes what changed and is proved, warns of what is refused or about to expire. Blocks
    /// on the file system.
    pub fn poll_once(&mut self, now: Timestamp) {
        for set in &mut self.sets {
            set.poll(now);
        }
        self.publish_status();
        self.warn_of_expiry(now);
    }

    /// Polls at every `interval`, on tokio's blocking threads, so that a slow file system holds up nobody. Runs until it
    /// is dropped, after which what is in use stays in use; a poll that is under way is finished.
    ///
    /// # Errors
    ///
    /// It only returns if a poll panicked or the runtime shuts down.
    pub async fn run(mut self, interval: Duration) -> JoinError {
        let mut ticks = tokio::time::interval(interval);
        // After a suspended machine wakes, one poll is as good as a hundred.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let polled = spawn_blocking(move || {
                self.poll_once(Timestamp::now());
                self
            });
            self = match polled.await {
                Ok(watcher) => watcher,
                Err(error) => return error,
            };
        }
    }

    fn add<R: Recipe + 'static>(&mut self, recipe: R) -> Result<Current<R::Product>, StoreError> {
        let now = Timestamp::now();
        let (set, current) = Watched::load(recipe, now)?;
        self.sets.push(Box::new(set));
        self.publish_status();
        self.warn_of_expiry(now);
        Ok(current)
    }

    fn publish_status(&self) {
        let mut status = Status::default();
        for set in &self.sets {
            set.report(&mut status);
        }
        self.status.send_if_modified(|published| {
            let news = **published != status;
            if news {
                *published = Arc::new(status);
            }
            news
        });
    }

    fn warn_of_expiry(&mut self, now: Timestamp) {
        let status = Arc::clone(&self.status.borrow());
        for file in status.files() {
            let Some(end) = file.not_after() else {
                continue;
            };
            let watch = self.expiry.entry(file.file().to_owned()).or_default();
            let left = expiry::in_words(end.seconds_after(now));
            match watch.due(end, now) {
                None => {}
                Some(Urgency::Over) => {
                    warn!(file = %file.file().display(), "certificate expired, its last moment was {end}");
                }
                Some(_) => {
                    warn!(file = %file.file().display(), "certificate expires in {left}, at {end}");
                }
            }
        }
    }
}

impl Default for Watcher {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watcher")
            .field("status", &self.status.borrow())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
