//! Signs of life of one peer, and how to ask for one before the next ping is due.
//!
//! A dial that waits for its answer cannot tell a slow target from a frozen agent. Whoever waits looks at
//! [`Probe::pongs`] and [`crate::mux::Mux::chunks_received`]: if neither moves, it asks for a ping, and if neither moves then,
//! the peer gives no sign of life.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::Waker,
};

/// What the owner of an HTTP/2 connection's keepalive ([`crate::link::watch_probed`]) and those who ride on it share. Clones are
/// handles of the same connection.
#[derive(Clone, Debug, Default)]
pub struct Probe(Rc<State>);

#[derive(Debug, Default)]
struct State {
    pongs: Cell<u64>,
    is_wanted: Cell<bool>,
    watcher: RefCell<Option<Waker>>,
}

impl Probe {
    /// Answers to pings so far.
    #[must_use]
    pub fn pongs(&self) -> u64 {
        self.0.pongs.get()
    }

    /// Asks for a ping now. However many ask, one is out at a time; nothing happens if one is already.
    pub fn ask(&self) {
        self.0.is_wanted.set(true);
        if let Some(watcher) = self.0.watcher.take() {
            watcher.wake();
        }
    }

    /// Whether somebody has asked since the last call; `watcher` is woken when somebody does.
    pub(crate) fn take_wanted(&self, watcher: &Waker) -> bool {
        *self.0.watcher.borrow_mut() = Some(watcher.clone());
        self.0.is_wanted.take()
    }

    pub(crate) fn on_pong(&self) {
        self.0.pongs.update(|pongs| pongs.wrapping_add(1));
    }
}
