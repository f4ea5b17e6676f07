//! How large the receive windows of one tunnel's streams are: what a path needs, within what the process can hold.
//!
//! HTTP/2 lets a receiver change the initial window of all streams at any time, also below what is outstanding (RFC 9113, section
//! 6.9.2); `h2` offers no window for a single stream. So a tunnel has one size for all its streams, from two bounds:
//!
//! * *Need*: [`BASE`] at first. When the reader of one stream takes most of a window within one round trip, the window is
//!   what limits it, and the bound doubles, up to [`LARGEST`]. What counts is what readers *took*: one that stalls makes no
//!   window larger. The round trip is that of a ping: no time is measured.
//! * *Room*: a sixteenth of what is left of the byte budget, in powers of two, down to [`SMALLEST`]. As the unread bytes
//!   of stalled streams are charged to the budget, all windows shrink while it fills (dynamic threshold, as [`crate::ledger`]), so
//!   2 000 stalled streams hold the budget together and no more, and one holds a window and no more.

use tokio::time::{Duration, Instant};

use crate::ledger::Ledger;

/// Window of a stream when nothing asks for another, in bytes.
pub const BASE: u32 = 256 * 1024;

/// Largest window: 52 MB/s at a round trip of 80 ms.
pub const LARGEST: u32 = 4 * 1024 * 1024;

/// Smallest window, when the budget is gone: what each further stream may add to it.
pub const SMALLEST: u32 = 4 * 1024;

/// The share of the free budget that one window may be.
const SHARE: usize = 16;

/// Shortest time between two samples: each costs a ping.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);

/// So many samples in a row that needed less than an eighth of the window halve it.
const LOW_SAMPLES: u8 = 32;

/// What the byte budget leaves for a window, in bytes: a power of two. `current` is what is in use, which a little more room does not
/// change: every change costs a look at each stream.
pub(super) fn room(ledger: &Ledger, current: u32) -> u32 {
    let share = ledger.free() / SHARE;
    // An eighth more than there is: a budget that is a power of two has a border where nothing is charged.
    let room = power_of_two(share + share / 8);
    // A budget that is hardly touched has no border nearby.
    if room > current && ledger.used() > ledger.budget() / SHARE {
        // Half as much again as the next step needs, or it would be taken back at once.
        room.min(power_of_two(share / 3 * 2).max(current))
    } else {
        room
    }
}

fn power_of_two(bytes: usize) -> u32 {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(LARGEST);
    let floor = bytes.checked_ilog2().map_or(0, |log| 1 << log);
    floor.max(SMALLEST)
}

/// What one stream's reader took within the running sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    sample: u64,
    bytes: usize,
}

/// What the path of a tunnel needs.
#[derive(Debug)]
pub(super) struct Need {
    window: u32,
    /// Counts samples, so that no stream must be told of a new one.
    sample: u64,
    /// Most that one stream's reader took in this sample.
    most: usize,
    /// The answers to pings at its start.
    running: Option<u64>,
    not_before: Option<Instant>,
    low: u8,
}

impl Default for Need {
    fn default() -> Self {
        Self {
            window: BASE,
            sample: 1,
            most: 0,
            running: None,
            not_before: None,
            low: 0,
        }
    }
}

impl Need {
    /// The window that the path needs, in bytes.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// The reader of a stream took `bytes`.
    pub(super) fn on_taken(&mut self, taken: &mut Taken, bytes: usize) {
        if taken.sample != self.sample {
            *taken = Taken {
                sample: self.sample,
                bytes: 0,
            };
        }
        taken.bytes = taken.bytes.saturating_add(bytes);
        self.most = self.most.max(taken.bytes);
    }

    /// Looks at the sample; `pongs` is the number of answers to pings so far. Whether a ping is wanted now, for a new sample.
    pub(super) fn poll(&mut self, now: Instant, pongs: u64) -> bool {
        if let Some(since) = self.running {
            if since == pongs {
                return false;
            }
            self.finish(now);
        }
        // Nobody takes anything: no ping for it.
        if self.most == 0 || self.not_before.is_some_and(|at| now < at) {
            return false;
        }
        self.sample += 1;
        self.most = 0;
        self.running = Some(pongs);
        true
    }

    fn finish(&mut self, now: Instant) {
        let window = self.window as usize;
        if self.most >= window / 3 * 2 {
            self.window = (self.window * 2).min(LARGEST);
            self.low = 0;
        } else if self.most < window / 8 {
            self.low = self.low.saturating_add(1);
            if self.low >= LOW_SAMPLES {
                self.low = 0;
                self.window = (self.window / 2).max(BASE);
            }
        } else {
            self.low = 0;
        }
        self.running = None;
        self.not_before = Some(now + SAMPLE_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::ledger::{Account, MIN_BUDGET};

    const BUDGET: usize = 64 * 1024 * 1024;

    /// Streams that all fill whatever window there is, one by one.
    fn fill(budget: usize, streams: usize) -> (usize, u32) {
        let ledger = Rc::new(Ledger::new(budget));
        let mut window = LARGEST;
        let mut accounts = Vec::new();
        for _ in 0..streams {
            window = room(&ledger, window);
            let mut account = Account::whole(ledger.clone());
            account.set(window as usize);
            accounts.push(account);
        }
        (ledger.used(), room(&ledger, window))
    }

    #[test]
    fn one_stalled_stream_holds_a_window_and_2_000_hold_the_budget() {
        assert_eq!(fill(BUDGET, 0), (0, LARGEST));
        let (used, window) = fill(BUDGET, 1);
        assert_eq!(used, LARGEST as usize);
        assert!(window >= LARGEST / 2);
        for streams in [100, 500, 2_000] {
            let (used, window) = fill(BUDGET, streams);
            assert!(
                used <= BUDGET + streams * SMALLEST as usize,
                "{streams}: {used}"
            );
            assert!(window >= SMALLEST);
        }
        // An agent of 30 MiB.
        let (used, window) = fill(MIN_BUDGET, 2_000);
        assert!(used <= MIN_BUDGET + 2_000 * SMALLEST as usize, "{used}");
        assert_eq!(window, SMALLEST);
    }

    #[test]
    fn a_window_does_not_go_to_and_fro_at_a_border() {
        let ledger = Rc::new(Ledger::new(BUDGET));
        let mut account = Account::whole(ledger.clone());
        let border = BUDGET - SHARE * 1024 * 1024 / 9 * 8;
        account.set(border - SHARE);
        assert_eq!(room(&ledger, LARGEST), 1024 * 1024);
        account.set(border + 2 * SHARE);
        let window = room(&ledger, LARGEST);
        assert_eq!(window, 512 * 1024);
        account.set(border - SHARE);
        assert_eq!(room(&ledger, window), window);
        account.set(border - BUDGET / 4);
        assert_eq!(room(&ledger, window), 1024 * 1024);
    }

    #[test]
    fn a_few_bytes_of_an_empty_budget_change_no_window() {
        for budget in [MIN_BUDGET, 2 * MIN_BUDGET, 5_000_000, BUDGET] {
            let ledger = Rc::new(Ledger::new(budget));
            let window = room(&ledger, LARGEST);
            let mut account = Account::whole(ledger.clone());
            for bytes in [1, 100, 10_000, 0] {
                account.set(bytes);
                assert_eq!(room(&ledger, window), window, "{bytes} of {budget}");
            }
        }
    }

    #[test]
    fn a_reader_that_takes_a_window_in_a_round_trip_doubles_it_and_one_that_stalls_does_not() {
        let mut now = Instant::now();
        let mut need = Need::default();
        let mut taken = Taken::default();
        let mut pongs = 0;
        let mut round = |need: &mut Need, bytes: usize| {
            need.on_taken(&mut taken, 1);
            assert!(need.poll(now, pongs));
            need.on_taken(&mut taken, bytes);
            pongs += 1;
            assert!(!need.poll(now, pongs), "samples follow too closely");
            now += SAMPLE_INTERVAL;
        };
        round(&mut need, BASE as usize / 2);
        assert_eq!(need.window(), BASE);
        let mut windows = Vec::new();
        for _ in 0..5 {
            let bytes = need.window() as usize;
            round(&mut need, bytes);
            windows.push(need.window());
        }
        assert_eq!(windows, [2, 4, 8, 16, 16].map(|n| n * BASE));
        for _ in 0..u32::from(LOW_SAMPLES) * 10 {
            round(&mut need, 100);
        }
        assert_eq!(need.window(), BASE);
        // Nobody takes anything.
        let mut idle = Need::default();
        assert!(!idle.poll(now, 0) && !idle.poll(now + SAMPLE_INTERVAL, 1));
    }

    #[test]
    fn many_streams_that_take_a_little_each_need_no_larger_window() {
        let now = Instant::now();
        let mut need = Need::default();
        let mut streams = vec![Taken::default(); 1_000];
        need.on_taken(&mut streams[0], 1);
        assert!(need.poll(now, 0));
        for taken in &mut streams {
            need.on_taken(taken, BASE as usize / 10);
        }
        assert!(!need.poll(now, 1));
        assert_eq!(need.window(), BASE);
    }
}
