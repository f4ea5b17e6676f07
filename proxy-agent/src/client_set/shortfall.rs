//! Says once that servers are missing, and once that none is any more (field-tests.md R53, R55).

use std::time::Duration;

use tokio::time::Instant;

/// How long a search may take before it is worth a warning: behind a load balancer a few seconds are normal.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What the operator is to hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Servers are missing.
    Missing,
    /// They are there again.
    Complete,
}

/// What was seen, and what was said of it.
#[derive(Debug)]
pub(super) struct Shortfall {
    seen: (usize, usize),
    since: Instant,
    said: Option<(usize, usize)>,
}

impl Shortfall {
    /// Nothing has been said.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            seen: (0, 0),
            since: now,
            said: None,
        }
    }

    /// So many servers are reached of so many. Something is said when it has been so for [`PATIENCE`], and once.
    pub(super) fn observe(&mut self, reached: usize, wanted: usize, now: Instant) -> Option<News> {
        if self.seen != (reached, wanted) {
            self.seen = (reached, wanted);
            self.since = now;
        }
        if now.saturating_duration_since(self.since) < PATIENCE || self.said == Some(self.seen) {
            return None;
        }
        if reached < wanted {
            self.said = Some(self.seen);
            return Some(News::Missing);
        }
        self.said.take().map(|_| News::Complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortfall_that_lasts_is_told_once_and_so_is_its_end() {
        let start = Instant::now();
        let mut shortfall = Shortfall::new(start);
        let mut at =
            |seconds, reached| shortfall.observe(reached, 3, start + Duration::from_secs(seconds));
        assert_eq!(at(0, 1), None);
        assert_eq!(at(9, 1), None);
        assert_eq!(at(10, 1), Some(News::Missing));
        assert_eq!(at(4000, 1), None);
        // Less than the patience in another state is no change.
        assert_eq!((at(4001, 2), at(4003, 1), at(4020, 1)), (None, None, None));
        assert_eq!((at(5000, 2), at(5010, 2)), (None, Some(News::Missing)));
        assert_eq!((at(6000, 3), at(6010, 3)), (None, Some(News::Complete)));
        assert_eq!(at(9000, 3), None);
    }
}
