//! Payload on its way into HTTP/2, and what of it has not been written yet.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    task::{Context, Waker},
};

use bytes::{Buf, Bytes};

use crate::ledger::{Account, Ledger};

/// What one stream has handed to HTTP/2 and HTTP/2 has not written. Charged to the byte budget.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Frames, the empty one that ends a stream included.
    frames: Cell<usize>,
    bytes: Cell<usize>,
    account: RefCell<Account>,
    waker: RefCell<Option<Waker>>,
}

impl Backlog {
    pub(super) fn new(ledger: Rc<Ledger>) -> Rc<Self> {
        Rc::new(Self {
            frames: Cell::new(0),
            bytes: Cell::new(0),
            account: RefCell::new(Account::whole(ledger)),
            waker: RefCell::default(),
        })
    }

    /// Whether everything has been written.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.get() == 0
    }

    /// Bytes that have not been written.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Has the task of `cx` woken when something has been written.
    pub(super) fn register(&self, cx: &Context<'_>) {
        let mut slot = self.waker.borrow_mut();
        if !slot
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()))
        {
            *slot = Some(cx.waker().clone());
        }
    }

    fn change(&self, frames: usize, bytes: usize) {
        self.frames.set(frames);
        self.bytes.set(bytes);
        self.account.borrow_mut().set(bytes);
    }
}

/// One `send_data`. When HTTP/2 has written it, or drops it, it leaves the backlog.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    /// What it was at first; none for what nobody waits for.
    backlog: Option<(Rc<Backlog>, usize)>,
}

impl Piece {
    /// Payload of a stream, or with no bytes its end.
    pub(super) fn new(bytes: Bytes, backlog: &Rc<Backlog>) -> Self {
        let len = bytes.len();
        backlog.change(backlog.frames.get() + 1, backlog.bytes.get() + len);
        Self {
            bytes,
            backlog: Some((backlog.clone(), len)),
        }
    }

    /// A control message.
    pub(super) fn control(bytes: Bytes) -> Self {
        Self {
            bytes,
            backlog: None,
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let Some((backlog, len)) = self.backlog.take() else {
            return;
        };
        backlog.change(
            backlog.frames.get().saturating_sub(1),
            backlog.bytes.get().saturating_sub(len),
        );
        let waker = backlog.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.bytes.copy_to_bytes(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::MIN_BUDGET;

    #[test]
    fn what_is_handed_over_is_charged_until_it_is_written_or_dropped() {
        let ledger = Rc::new(Ledger::new(MIN_BUDGET));
        let backlog = Backlog::new(ledger.clone());
        let mut piece = Piece::new(Bytes::from_static(b"payload"), &backlog);
        let end = Piece::new(Bytes::new(), &backlog);
        assert_eq!((backlog.bytes(), ledger.used()), (7, 7));
        // Written half: the rest keeps all of it.
        piece.advance(3);
        assert_eq!(
            (piece.remaining(), piece.chunk(), ledger.used()),
            (4, &b"load"[..], 7)
        );
        drop(piece);
        assert_eq!(
            (backlog.bytes(), ledger.used(), backlog.is_empty()),
            (0, 0, false)
        );
        drop(end);
        assert!(backlog.is_empty());
        drop(Piece::control(Bytes::from_static(b"{}")));
        assert!(backlog.is_empty());
    }
}
