//! What `h2` leaves out when the windows of all streams shrink.
//!
//! A receiver that lowers SETTINGS_INITIAL_WINDOW_SIZE may leave streams with a window of zero or below (RFC 9113, section 6.9.2),
//! which only its own WINDOW_UPDATE opens again. `h2` 0.4 sends one when a reader gives bytes back, and a stream all of whose bytes
//! were given back before has no more to give: its peer would wait for ever. So every stream gives back nothing once the peer has
//! acknowledged the change, which has `h2` look at it.

use std::{cell::RefCell, rc::Rc};

use h2::FlowControl;
use hashbrown::HashMap;

use crate::packet::ConnectId;

/// The receive windows of a tunnel's streams.
#[derive(Debug, Default)]
pub(super) struct Windows(Rc<RefCell<HashMap<ConnectId, FlowControl>>>);

impl Windows {
    /// Until what is returned is dropped.
    pub(super) fn add(&self, id: ConnectId, window: FlowControl) -> Registered {
        self.0.borrow_mut().insert(id, window);
        Registered {
            windows: self.0.clone(),
            id,
        }
    }

    /// The peer has acknowledged smaller windows.
    pub(super) fn on_shrunk(&self) {
        for window in self.0.borrow_mut().values_mut() {
            // Fails only on a stream that is gone.
            drop(window.release_capacity(0));
        }
    }
}

/// A stream's window among all, as long as it lives.
#[derive(Debug)]
pub(super) struct Registered {
    windows: Rc<RefCell<HashMap<ConnectId, FlowControl>>>,
    id: ConnectId,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.windows.borrow_mut().remove(&self.id);
    }
}
