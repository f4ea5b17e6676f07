//! One address that servers are looked for at, and the attempts there.

use std::cell::{Cell, RefCell};

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::rhythm::Rhythm;
use crate::client::Via;

/// What is known of an address.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) via: Via,
    rhythm: RefCell<Rhythm>,
    /// Wakes the task of the attempts: what is due, or whether anything is, may have changed.
    changed: Notify,
    /// Cancelled when no attempt is wanted any more.
    pub(super) gone: CancellationToken,
    /// The server that answered last.
    pub(super) led_to: RefCell<Option<String>>,
    /// Why the last attempt failed, until one succeeds.
    pub(super) failure: RefCell<Option<String>>,
    /// Since when an attempt has been under way.
    attempt: Cell<Option<Instant>>,
}

impl Route {
    /// An address that nothing is known of.
    pub(super) fn new(via: Via, rhythm: Rhythm, gone: CancellationToken) -> Self {
        Self {
            via,
            rhythm: RefCell::new(rhythm),
            changed: Notify::new(),
            gone,
            led_to: RefCell::new(None),
            failure: RefCell::new(None),
            attempt: Cell::new(None),
        }
    }

    /// Changes what is due, and wakes who waits for it.
    pub(super) fn with_rhythm<T>(&self, change: impl FnOnce(&mut Rhythm) -> T) -> T {
        let outcome = change(&mut self.rhythm.borrow_mut());
        self.wake();
        outcome
    }

    /// When the next attempt is due, if one is wanted.
    pub(super) fn due(&self) -> Instant {
        self.rhythm.borrow().due()
    }

    /// Has the task look again.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Resolves when something has changed since it resolved last. Cancel safe.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// An attempt is under way until the guard is dropped.
    pub(super) fn attempt(&self) -> Attempting<'_> {
        self.attempt.set(Some(Instant::now()));
        Attempting(self)
    }

    /// Since when an attempt has been under way.
    pub(super) fn attempting_since(&self) -> Option<Instant> {
        self.attempt.get()
    }
}

/// An attempt under way.
#[derive(Debug)]
pub(super) struct Attempting<'a>(&'a Route);

impl Drop for Attempting<'_> {
    fn drop(&mut self) {
        self.0.attempt.set(None);
    }
}
