//! Capped exponential delay with jitter.

use std::time::Duration;

/// Factor from one failure to the next, as upstream's agent has it.
const FACTOR: f64 = 1.5;

/// Delays between attempts: `first`, times 1.5 for each failure up to `cap`, each with jitter, so that agents that lost
/// their server together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    /// Starts at `first`, never beyond `cap`.
    #[must_use]
    pub fn new(first: Duration, cap: Duration) -> Self {
        let first = first.min(cap);
        Self {
            first,
            cap,
            next: first,
        }
    }

    /// The delay after one more failure: between half and the whole of the nominal delay.
    pub fn next_delay(&mut self) -> Duration {
        let nominal = self.next;
        self.next = nominal.mul_f64(FACTOR).min(self.cap);
        nominal / 2 + nominal.mul_f64(fastrand::f64() / 2.0)
    }

    /// Forgets the failures.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_cap_and_start_over_after_a_reset() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(3));
        for nominal in [1.0, 1.5, 2.25, 3.0, 3.0] {
            let delay = backoff.next_delay().as_secs_f64();
            assert!(
                (nominal / 2.0..=nominal).contains(&delay),
                "{delay} for {nominal}"
            );
        }
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_secs(1));
    }

    #[test]
    fn a_first_delay_beyond_the_cap_is_the_cap() {
        assert!(
            Backoff::new(Duration::from_secs(9), Duration::from_secs(1)).next_delay()
                <= Duration::from_secs(1)
        );
    }
}
