//! When to ping, and when to call a silent peer dead. No socket, no clock: the caller says what time it is.
//!
//! grpc-go's server answers more than two pings within its minimum interval with GOAWAY `too_many_pings` (trap T9): 30 s on
//! an upstream agent port. Pings towards a grpc-go *client* are not limited.

use tokio::time::{Duration, Instant};

/// Default towards a peer that does not limit pings, which is an agent or a server of ours: a ping after 10 s, so that a dead peer is
/// noticed within 20 s.
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

/// Default of an agent towards an upstream server: just above the least that it tolerates.
pub const UPSTREAM_INTERVAL: Duration = Duration::from_secs(31);

/// How long a ping may stay unanswered.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest interval that is honoured, as grpc-go's servers do.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until then, unless a pong comes.
    WaitUntil(Instant),
    /// Send a ping, and report its answer.
    Ping,
    /// A ping was not answered in time.
    Dead,
}

/// Keepalive of one HTTP/2 connection.
///
/// Data from the peer is no sign that our own packets arrive, so only the answer to a ping counts.
#[derive(Debug)]
pub struct Keepalive {
    interval: Duration,
    timeout: Duration,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Idle { next: Instant },
    Waiting { until: Instant },
}

impl Keepalive {
    /// Pings `interval` after the last answer, and gives up `timeout` after a ping.
    #[must_use]
    pub fn new(interval: Duration, timeout: Duration, now: Instant) -> Self {
        let interval = interval.max(MIN_INTERVAL);
        Self {
            interval,
            timeout,
            state: State::Idle {
                next: later(now, interval),
            },
        }
    }

    /// What to do at `now`. Returns [`Action::Ping`] once for each ping to send.
    pub fn poll(&mut self, now: Instant) -> Action {
        match self.state {
            State::Idle { next } if now < next => Action::WaitUntil(next),
            State::Idle { .. } => {
                self.state = State::Waiting {
                    until: later(now, self.timeout),
                };
                Action::Ping
            }
            State::Waiting { until } if now < until => Action::WaitUntil(until),
            State::Waiting { .. } => Action::Dead,
        }
    }

    /// Makes the next ping due at `now`, unless one is out already.
    pub fn hurry(&mut self, now: Instant) {
        if let State::Idle { next } = &mut self.state {
            *next = now.min(*next);
        }
    }

    /// The answer to the ping has come.
    pub fn on_pong(&mut self, now: Instant) {
        self.state = State::Idle {
            next: later(now, self.interval),
        };
    }
}

/// `now + by`, or a year on when an operator's duration is too long for the clock.
fn later(now: Instant, by: Duration) -> Instant {
    now.checked_add(by)
        .unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 3600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ping_goes_out_after_the_interval_and_its_answer_starts_the_next() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut keepalive = Keepalive::new(Duration::from_secs(10), Duration::from_secs(5), start);
        assert_eq!(keepalive.poll(at(9)), Action::WaitUntil(at(10)));
        assert_eq!(keepalive.poll(at(10)), Action::Ping);
        assert_eq!(keepalive.poll(at(10)), Action::WaitUntil(at(15)));
        keepalive.on_pong(at(12));
        assert_eq!(keepalive.poll(at(21)), Action::WaitUntil(at(22)));
    }

    #[test]
    fn a_hurried_ping_goes_out_at_once_and_never_beside_another() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut keepalive = Keepalive::new(Duration::from_secs(10), Duration::from_secs(5), start);
        keepalive.hurry(at(1));
        assert_eq!(keepalive.poll(at(1)), Action::Ping);
        keepalive.hurry(at(2));
        assert_eq!(keepalive.poll(at(2)), Action::WaitUntil(at(6)));
        keepalive.on_pong(at(3));
        assert_eq!(keepalive.poll(at(3)), Action::WaitUntil(at(13)));
    }

    #[test]
    fn an_unanswered_ping_is_the_end() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(Duration::ZERO, Duration::from_secs(5), start);
        assert_eq!(keepalive.poll(start + MIN_INTERVAL), Action::Ping);
        assert_eq!(
            keepalive.poll(start + MIN_INTERVAL + Duration::from_secs(5)),
            Action::Dead
        );
    }

    #[test]
    fn an_absurd_interval_does_not_overflow_the_clock() {
        let start = Instant::now();
        let mut keepalive = Keepalive::new(Duration::MAX, Duration::MAX, start);
        assert!(matches!(keepalive.poll(start), Action::WaitUntil(_)));
    }

    #[test]
    fn our_agent_stays_above_what_an_upstream_server_tolerates() {
        assert!(UPSTREAM_INTERVAL > Duration::from_secs(30));
        assert!(DEFAULT_INTERVAL + TIMEOUT <= Duration::from_secs(20));
    }
}
