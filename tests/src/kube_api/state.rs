//! What the API server knows, and how tests wait for it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tokio::sync::watch;

use super::{Fault, Resource, ServiceAccount, lease::Leases};

/// Everything.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) credentials: String,
    pub(super) accounts: HashMap<String, ServiceAccount>,
    pub(super) faults: HashMap<Resource, Fault>,
    pub(super) leases: Leases,
    pub(super) watches: usize,
    requests: HashMap<(&'static str, Resource), usize>,
}

impl State {
    pub(super) fn count(&self, verb: &str, resource: Resource) -> usize {
        self.requests
            .iter()
            .filter(|((v, r), _)| *v == verb && *r == resource)
            .map(|(_, count)| count)
            .sum()
    }

    pub(super) fn requested(&mut self, verb: &'static str, resource: Resource) {
        *self.requests.entry((verb, resource)).or_default() += 1;
    }
}

/// The state, and a signal at each change.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

impl Shared {
    pub(super) fn new(state: State) -> Self {
        Self {
            state: Mutex::new(state),
            changed: watch::Sender::new(()),
        }
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let value = change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_replace(());
        value
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }
}
