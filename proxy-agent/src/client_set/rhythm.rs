//! When the next attempt at one address is due.

use std::time::Duration;

use tokio::time::Instant;
use tunnel::backoff::Backoff;

use super::pace::{LONGEST, Pace};
use crate::config::SyncConfig;

/// With `--sync-forever` and enough tunnels: the shortest delay until it is looked for more (field-tests.md R58). Upstream does it
/// once a second.
pub(super) const STEADY: Duration = Duration::from_secs(60);

/// Longest delay after a failure while there is no tunnel at all, whatever `--sync-interval-cap` allows: a cap of minutes is meant
/// for the last of several servers, and must not leave a node unreachable for as long.
pub(super) const ALONE: Duration = Duration::from_secs(10);

/// How much an address is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// There are enough tunnels.
    None,
    /// A tunnel is missing.
    Missing,
    /// There is no tunnel at all.
    Alone,
}

/// Delays of one address. What happened is told, [`due`](Self::due) is what comes of it.
///
/// `share` is the number of addresses, which share the attempts that an agent may make.
#[derive(Debug)]
pub(super) struct Rhythm {
    due: Instant,
    /// Attempts that brought no server's answer, in a row.
    failures: Backoff,
    /// The same while there were enough tunnels: nobody waits for this address.
    needless: Backoff,
    /// Tunnels that were lost as soon as they had come, in a row.
    flaps: Backoff,
    /// Answers of servers that have a tunnel already.
    pace: Pace,
    is_failing: bool,
}

impl Rhythm {
    /// The first attempt is due now.
    pub(super) fn new(config: &SyncConfig, now: Instant) -> Self {
        let backoff = Backoff::new(config.interval, config.cap);
        let mut pace = Pace::new(config.interval);
        pace.restart(now);
        Self {
            due: now,
            failures: backoff.clone(),
            needless: Backoff::new(config.interval, LONGEST.max(config.cap)),
            flaps: backoff,
            pace,
            is_failing: false,
        }
    }

    /// When to try.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Nobody answered, or something that is no server. Returns the delay.
    pub(super) fn on_failure(&mut self, now: Instant, need: Need) -> Duration {
        let delay = match need {
            Need::None => self.needless.next_delay(),
            Need::Missing => self.failures.next_delay(),
            Need::Alone => self.failures.next_delay().min(alone()),
        };
        self.is_failing = true;
        self.due = now + delay;
        delay
    }

    /// A server answered: a new one, or one that has a tunnel.
    pub(super) fn on_answer(&mut self, now: Instant, share: u32) {
        self.is_failing = false;
        self.failures.reset();
        self.needless.reset();
        self.due = now + self.pace.next_delay(now, share);
    }

    /// A server was found, here or elsewhere: others may be near.
    pub(super) fn on_progress(&mut self, now: Instant) {
        self.pace.restart(now);
    }

    /// There are enough tunnels: the next attempt, if there is to be one, has time.
    pub(super) fn rest(&mut self, now: Instant, share: u32) {
        let jitter = STEADY.mul_f64(fastrand::f64() / 5.0);
        let steady = (STEADY + jitter).saturating_mul(share);
        if !self.is_failing {
            self.due = self.due.max(now + steady);
        }
    }

    /// The tunnel that this address led to is gone.
    pub(super) fn on_loss(&mut self, now: Instant, was_short_lived: bool, is_alone: bool) {
        self.pace.restart(now);
        if was_short_lived {
            let delay = self.flaps.next_delay();
            self.due = now + if is_alone { delay.min(alone()) } else { delay };
        } else {
            self.flaps.reset();
            self.failures.reset();
            self.due = now;
        }
    }

    /// One tunnel more is wanted, and it is not known where to find it. An address that does not answer keeps its back-off, at
    /// most as if it were needed.
    pub(super) fn hurry(&mut self, now: Instant, share: u32, is_alone: bool) {
        self.pace.restart(now);
        self.needless.reset();
        let delay = match (self.is_failing, is_alone) {
            (true, true) => self.failures.next_delay().min(alone()),
            (true, false) => self.failures.next_delay(),
            (false, _) => self.pace.next_delay(now, share),
        };
        self.due = self.due.min(now + delay);
    }

    /// What failed before may succeed from `at` on.
    pub(super) fn start_over(&mut self, at: Instant) {
        self.pace.restart(at);
        self.failures.reset();
        self.needless.reset();
        self.due = self.due.min(at);
    }
}

/// [`ALONE`], with a back-off's jitter.
fn alone() -> Duration {
    ALONE / 2 + ALONE.mul_f64(fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rhythm(cap: u64) -> (Instant, Rhythm) {
        let now = Instant::now();
        let config = SyncConfig {
            interval: Duration::from_secs(1),
            cap: Duration::from_secs(cap),
            forever: false,
        };
        (now, Rhythm::new(&config, now))
    }

    #[test]
    fn an_address_that_nobody_waits_for_is_tried_ever_more_rarely() {
        let (now, mut rhythm) = rhythm(10);
        for _ in 0..30 {
            rhythm.on_failure(now, Need::Missing);
        }
        assert!(rhythm.due() <= now + Duration::from_secs(10));
        for _ in 0..30 {
            rhythm.on_failure(now, Need::None);
        }
        assert!(rhythm.due() >= now + LONGEST / 2);
        rhythm.hurry(now, 1, false);
        assert!(rhythm.due() <= now + Duration::from_secs(10));
    }

    /// field-tests.md R41.
    #[test]
    fn a_long_back_off_ends_when_something_has_changed() {
        let (now, mut rhythm) = rhythm(300);
        for _ in 0..30 {
            rhythm.on_failure(now, Need::Missing);
        }
        assert!(rhythm.due() > now + Duration::from_secs(100));
        rhythm.start_over(now);
        assert_eq!(rhythm.due(), now);
        assert!(rhythm.on_failure(now, Need::Missing) <= Duration::from_secs(1));
    }

    #[test]
    fn without_any_tunnel_a_long_cap_is_not_waited_for() {
        let (now, mut rhythm) = rhythm(300);
        for _ in 0..30 {
            rhythm.on_failure(now, Need::Missing);
        }
        assert!(rhythm.due() > now + Duration::from_secs(100));
        rhythm.hurry(now, 1, true);
        assert!(rhythm.due() <= now + ALONE);
        let delays: Vec<_> = (0..30)
            .map(|_| rhythm.on_failure(now, Need::Alone))
            .collect();
        assert!(delays.iter().all(|delay| *delay <= ALONE), "{delays:?}");
        let first = delays.first().unwrap();
        assert!(delays.iter().any(|delay| delay != first), "no jitter");
    }

    #[test]
    fn a_rest_is_a_minute_and_longer_the_more_addresses_share_it() {
        let (now, mut rhythm) = rhythm(10);
        rhythm.on_answer(now, 1);
        rhythm.rest(now, 1);
        assert!(rhythm.due() >= now + STEADY);
        rhythm.rest(now, 3);
        assert!(rhythm.due() >= now + 3 * STEADY);
        rhythm.on_loss(now, false, true);
        assert_eq!(rhythm.due(), now);
    }
}
