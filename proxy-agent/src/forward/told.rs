//! What operators have been told of lately.

use std::cell::RefCell;
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::ForwardFailure;

/// How often a failure is told of that repeats.
pub(super) const INTERVAL: Duration = Duration::from_secs(60);

/// When each failure was told last.
#[derive(Debug, Default)]
pub(super) struct Told(RefCell<[Option<Instant>; ForwardFailure::ALL.len()]>);

impl Told {
    /// Whether a failure is to be told of, which it then has been.
    pub(super) fn is_news(&self, failure: ForwardFailure, now: Instant) -> bool {
        let mut told = self.0.borrow_mut();
        let mut pairs = ForwardFailure::ALL.iter().zip(told.iter_mut());
        let Some((_, last)) = pairs.find(|(known, _)| **known == failure) else {
            return true;
        };
        let is_news = last.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL);
        if is_news {
            *last = Some(now);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_is_told_of_once_a_minute() {
        let (told, start) = (Told::default(), Instant::now());
        let almost = start + INTERVAL - Duration::from_millis(1);
        assert!(told.is_news(ForwardFailure::Refused, start));
        assert!(!told.is_news(ForwardFailure::Refused, almost));
        assert!(told.is_news(ForwardFailure::NoTunnel, almost));
        assert!(told.is_news(ForwardFailure::Refused, start + INTERVAL));
        assert!(!told.is_news(ForwardFailure::Refused, start + INTERVAL));
    }
}
