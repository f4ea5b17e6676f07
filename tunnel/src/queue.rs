//! A queue of bytes that belongs to one connection and one direction.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Shorter pieces are copied together: a short slice would pin the whole frame that it was received in, and a thousand
/// keystrokes would be a thousand writes. At 16 KiB a frame this bounds what a queued byte can pin to four bytes.
const COALESCE_BELOW: usize = 4 * 1024;

/// Where the copied tail is closed and a new one begun.
const MAX_TAIL: usize = 16 * 1024;

/// What an entry costs beside its bytes, so that many short ones are not free.
const ENTRY_COST: usize = 64;

/// Bytes in order, in pieces.
///
/// Unbounded by itself: who fills it looks at [`Self::cost`] first.
#[derive(Debug, Default)]
pub struct ByteQueue {
    pieces: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl ByteQueue {
    /// Bytes queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes queued and what keeping them costs; what budgets count.
    #[must_use]
    pub fn cost(&self) -> usize {
        self.len + ENTRY_COST * (self.pieces.len() + usize::from(!self.tail.is_empty()))
    }

    /// Appends `bytes`, copying them if they are few.
    pub fn push(&mut self, bytes: Bytes) {
        self.len += bytes.len();
        if bytes.len() < COALESCE_BELOW {
            if self.tail.len() + bytes.len() > MAX_TAIL {
                self.close_tail();
            }
            self.tail.extend_from_slice(&bytes);
        } else {
            self.close_tail();
            self.pieces.push_back(bytes);
        }
    }

    /// Takes up to `max` bytes off the front: one piece or a part of it, so often less than is queued.
    /// Never an empty one: nothing comes of `max` 0.
    pub fn pop(&mut self, max: usize) -> Option<Bytes> {
        if max == 0 {
            return None;
        }
        if self.pieces.is_empty() {
            self.close_tail();
        }
        let front = self.pieces.front_mut()?;
        let bytes = if front.len() <= max {
            self.pieces.pop_front()?
        } else {
            front.split_to(max)
        };
        self.len -= bytes.len();
        Some(bytes)
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
            self.tail = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_piece_is_not_copied_and_a_short_one_does_not_pin_it() {
        let frame = Bytes::from(vec![1; 16_384]);
        let mut queue = ByteQueue::default();
        queue.push(frame.slice(..COALESCE_BELOW));
        queue.push(frame.slice(..10));
        assert_eq!(queue.pop(usize::MAX).unwrap().as_ptr(), frame.as_ptr());
        assert_ne!(queue.pop(usize::MAX).unwrap().as_ptr(), frame.as_ptr());
        assert!(queue.is_empty() && queue.pop(1).is_none());
    }

    #[test]
    fn ten_thousand_keystrokes_cost_little_more_than_their_bytes() {
        let mut queue = ByteQueue::default();
        for _ in 0..10_000 {
            queue.push(Bytes::from_static(b"x"));
        }
        assert_eq!(queue.len(), 10_000);
        assert!(queue.cost() < 11_000, "{}", queue.cost());
        assert_eq!(queue.pop(usize::MAX).unwrap().len(), 10_000);
    }

    proptest! {
        #[test]
        fn bytes_come_out_in_order_whatever_the_pieces(
            pieces in prop::collection::vec(0usize..20_000, 0..12),
            takes in prop::collection::vec(1usize..30_000, 1..12),
        ) {
            let mut queue = ByteQueue::default();
            let mut expected = Vec::new();
            for (i, len) in pieces.into_iter().enumerate() {
                let piece = vec![u8::try_from(i).unwrap(); len];
                expected.extend_from_slice(&piece);
                queue.push(piece.into());
                prop_assert_eq!(queue.len(), expected.len());
            }
            let mut got = Vec::new();
            for take in takes.into_iter().cycle() {
                let Some(bytes) = queue.pop(take) else { break };
                prop_assert!(!bytes.is_empty() && bytes.len() <= take);
                got.extend_from_slice(&bytes);
                prop_assert_eq!(queue.len(), expected.len() - got.len());
            }
            prop_assert_eq!(got, expected);
            prop_assert_eq!(queue.cost(), 0);
        }
    }
}
