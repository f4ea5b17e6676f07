//! Who may send next on a tunnel.
//!
//! Deficit round robin with priority for sparse flows (RFC 8290, sections 4.1 and 4.2, without its packet dropping): a
//! connection that becomes ready waits in the *new* list and is served before all that have been sending for a while, until it
//! has used one quantum. A keystroke so overtakes any number of bulk transfers, and bulk transfers share what is left by bytes.
//! Every operation is O(1).

use std::collections::VecDeque;

/// Bytes that a connection may send in one turn; the last message of it may pass them, and is made up for in the next.
pub const QUANTUM: usize = 16 * 1024;

/// The ready connections of one tunnel. `K` is a cheap handle of a connection.
///
/// A connection stands in at most one list; the caller keeps that bit (what [`Self::push`] and [`Self::done`] say).
#[derive(Debug)]
pub struct Scheduler<K> {
    new: VecDeque<Entry<K>>,
    old: VecDeque<Entry<K>>,
}

#[derive(Debug)]
struct Entry<K> {
    key: K,
    /// Bytes that it may still send; it may end a turn by up to one message below zero.
    deficit: isize,
}

/// A connection's turn, between [`Scheduler::pick`] and [`Scheduler::done`].
#[derive(Debug)]
#[must_use = "a turn that is not given back takes the connection off the scheduler"]
pub struct Turn<K> {
    /// Whose turn it is.
    pub key: K,
    deficit: isize,
    is_new: bool,
}

impl<K> Default for Scheduler<K> {
    fn default() -> Self {
        Self {
            new: VecDeque::new(),
            old: VecDeque::new(),
        }
    }
}

impl<K> Scheduler<K> {
    /// Adds a connection that stands in no list.
    pub fn push(&mut self, key: K) {
        self.new.push_back(Entry {
            key,
            deficit: QUANTUM.cast_signed(),
        });
    }

    /// Whether no connection is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.old.is_empty()
    }

    /// The next turn. The connection may turn out to have nothing to send; say so with [`Self::done`].
    pub fn pick(&mut self) -> Option<Turn<K>> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let mut entry = list.pop_front()?;
            if entry.deficit > 0 {
                return Some(Turn {
                    key: entry.key,
                    deficit: entry.deficit,
                    is_new,
                });
            }
            entry.deficit += QUANTUM.cast_signed();
            self.old.push_back(entry);
        }
    }

    /// Ends a turn in which `sent` bytes were sent, with `more` left to send or not. Returns whether the connection still
    /// stands in a list.
    pub fn done(&mut self, turn: Turn<K>, sent: usize, more: bool) -> bool {
        let entry = Entry {
            key: turn.key,
            deficit: turn.deficit.saturating_sub_unsigned(sent),
        };
        match (more, turn.is_new) {
            (true, true) => self.new.push_front(entry),
            (true, false) => self.old.push_front(entry),
            // Through the old list once before it may be new again, or a connection that sends a byte at a time would
            // starve the others (RFC 8290, section 4.2).
            (false, true) => self.old.push_back(entry),
            (false, false) => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs `turns` turns over connections with `left` bytes each, in messages of at most `message`.
    fn run(
        scheduler: &mut Scheduler<usize>,
        left: &mut [usize],
        message: usize,
        turns: usize,
    ) -> Vec<(usize, usize)> {
        let mut sent = Vec::new();
        for _ in 0..turns {
            let Some(turn) = scheduler.pick() else { break };
            let key = turn.key;
            let bytes = left[key].min(message);
            left[key] -= bytes;
            scheduler.done(turn, bytes, left[key] > 0);
            sent.push((key, bytes));
        }
        sent
    }

    #[test]
    fn a_keystroke_overtakes_bulk_transfers() {
        let mut scheduler = Scheduler::default();
        let mut left = [1 << 20, 1 << 20, 0];
        scheduler.push(0);
        scheduler.push(1);
        run(&mut scheduler, &mut left, 16_320, 10);
        left[2] = 1;
        scheduler.push(2);
        assert_eq!(run(&mut scheduler, &mut left, 16_320, 1), [(2, 1)]);
    }

    #[test]
    fn a_connection_that_sends_a_byte_at_a_time_starves_nobody() {
        let mut scheduler = Scheduler::default();
        let mut left = [1 << 20, 0];
        scheduler.push(0);
        run(&mut scheduler, &mut left, 16_320, 4);
        let mut bulk = 0;
        let mut is_scheduled = false;
        for _ in 0..100 {
            left[1] += 1;
            if !is_scheduled {
                scheduler.push(1);
            }
            is_scheduled = true;
            let turn = scheduler.pick().unwrap();
            let (key, bytes) = (turn.key, left[turn.key].min(16_320));
            left[key] -= bytes;
            let stays = scheduler.done(turn, bytes, left[key] > 0);
            if key == 1 {
                is_scheduled = stays;
            }
            bulk += usize::from(key == 0);
        }
        assert!(bulk >= 30, "the bulk transfer had {bulk} of 100 turns");
    }

    proptest! {
        #[test]
        fn ready_connections_share_by_bytes_and_nobody_is_lost(
            sizes in prop::collection::vec(1usize..400_000, 1..12),
            message in 1usize..20_000,
        ) {
            let mut scheduler = Scheduler::default();
            let mut left = sizes.clone();
            for key in 0..left.len() {
                scheduler.push(key);
            }
            let mut got = vec![0usize; left.len()];
            while !scheduler.is_empty() {
                for (key, bytes) in run(&mut scheduler, &mut left, message, 1) {
                    got[key] += bytes;
                }
                // Those that still have bytes are never further apart than a turn and a message.
                let busy: Vec<_> = (0..left.len()).filter(|&key| left[key] > 0).map(|key| got[key]).collect();
                if let (Some(most), Some(least)) = (busy.iter().max(), busy.iter().min()) {
                    prop_assert!(most - least <= QUANTUM + message, "{got:?}");
                }
            }
            prop_assert_eq!(got, sizes);
        }
    }
}
