//! How fast to look for servers that luck has not led to yet.

use std::time::Duration;

use tokio::time::Instant;

/// A search that has lasted this many times the delay goes on with the delay.
const PATIENCE: u32 = 16;

/// The longest nominal delay; with jitter never below half a minute (field-tests.md R55).
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// The shortest delay as a part of `--sync-interval`.
const SHORTEST_PART: u32 = 10;

/// Delays that grow with the time for which nothing new has been found.
///
/// Growth by time and not by attempts: a server that comes back ten seconds into the search is looked for every second, one
/// that stays away for an hour costs a handshake or two a minute. Behind a load balancer that picks one of five servers at
/// random, the last missing one is found within ten seconds in 9 999 of 10 000 cases.
#[derive(Debug)]
pub(super) struct Pace {
    shortest: Duration,
    since: Option<Instant>,
}

impl Pace {
    /// The shortest delay is a tenth of `interval`.
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            shortest: (interval / SHORTEST_PART).min(LONGEST),
            since: None,
        }
    }

    /// Something has changed: a server was found, or lost.
    pub(super) fn restart(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// The delay after one more attempt that found nothing new, between half and the whole of the nominal one. `share` searches
    /// go on side by side, none faster than leaves room for the others.
    pub(super) fn next_delay(&mut self, now: Instant, share: u32) -> Duration {
        let since = *self.since.get_or_insert(now);
        let searching = now.saturating_duration_since(since);
        let shortest = self.shortest.saturating_mul(share).min(LONGEST);
        let nominal = (searching / PATIENCE).clamp(shortest, LONGEST);
        nominal / 2 + nominal.mul_f64(fastrand::f64() / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attempts in `search`, each taking no time itself.
    fn attempts(search: Duration) -> usize {
        let start = Instant::now();
        let mut pace = Pace::new(Duration::from_secs(1));
        pace.restart(start);
        let mut now = start;
        let mut attempts = 0;
        while now - start < search {
            let delay = pace.next_delay(now, 1);
            assert!(
                delay >= Duration::from_millis(50) && delay <= LONGEST,
                "{delay:?}"
            );
            now += delay;
            attempts += 1;
        }
        attempts
    }

    #[test]
    fn a_short_search_is_fast_and_a_long_one_cheap() {
        let in_ten_seconds = attempts(Duration::from_secs(10));
        assert!((40..200).contains(&in_ten_seconds), "{in_ten_seconds}");
        let in_an_hour = attempts(Duration::from_secs(3600));
        assert!(in_an_hour < 500, "{in_an_hour}");
    }

    #[test]
    fn a_change_makes_it_fast_again() {
        let start = Instant::now();
        let later = start + Duration::from_secs(3600);
        let mut pace = Pace::new(Duration::from_secs(1));
        pace.restart(start);
        assert!(pace.next_delay(later, 1) >= LONGEST / 2);
        pace.restart(later);
        assert!(pace.next_delay(later, 1) <= Duration::from_millis(100));
    }

    #[test]
    fn searches_side_by_side_are_as_fast_together_as_one_alone() {
        let now = Instant::now();
        let mut pace = Pace::new(Duration::from_secs(1));
        pace.restart(now);
        assert!(pace.next_delay(now, 16) >= Duration::from_millis(800));
        assert!(pace.next_delay(now, u32::MAX) <= LONGEST);
    }
}
