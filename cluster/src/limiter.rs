//! A token bucket in front of the API: client-go's `flowcontrol.NewTokenBucketRateLimiter`.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use crate::options::{ClientOptions, DEFAULT_BURST, DEFAULT_QPS};

/// Lets `burst` requests through at once and `qps` a second on average; those that come too early wait in the order of
/// their coming.
#[derive(Debug)]
pub(crate) struct Limiter {
    /// None: no limit.
    rate: Option<Rate>,
}

#[derive(Debug)]
struct Rate {
    per_second: f64,
    burst: f64,
    bucket: Mutex<Bucket>,
}

/// How many requests may go at `at`; less than 0: so many have been promised to those that wait.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

/// The turn of a request would come too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLate {
    /// It would have to wait this long.
    pub(crate) wait: Duration,
}

impl Limiter {
    /// One with the limits of `options`.
    pub(crate) fn new(options: &ClientOptions) -> Self {
        let qps = if options.qps == 0.0 || options.qps.is_nan() {
            DEFAULT_QPS
        } else {
            options.qps
        };
        let burst = match u32::try_from(options.burst) {
            Ok(burst @ 1..) => burst,
            _ => DEFAULT_BURST,
        };
        Self {
            rate: (qps > 0.0).then(|| Rate {
                per_second: f64::from(qps),
                burst: f64::from(burst),
                bucket: Mutex::new(Bucket {
                    tokens: f64::from(burst),
                    at: Instant::now(),
                }),
            }),
        }
    }

    /// Waits for a turn, if it comes within `limit`; otherwise fails at once, which costs the others nothing. Cancel safe: a
    /// turn that nobody waits for any more is given back.
    pub(crate) async fn turn(&self, limit: Duration) -> Result<(), TooLate> {
        let Some(rate) = &self.rate else {
            return Ok(());
        };
        let wait = rate.reserve(Instant::now(), limit)?;
        if !wait.is_zero() {
            let turn = Turn { rate, taken: false };
            sleep(wait).await;
            turn.take();
        }
        Ok(())
    }
}

impl Rate {
    fn reserve(&self, now: Instant, limit: Duration) -> Result<Duration, TooLate> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        let tokens = (bucket.tokens + passed * self.per_second).min(self.burst);
        let left = tokens - 1.0;
        // Beyond what a Duration holds, nobody waits.
        let wait =
            Duration::try_from_secs_f64(-left.min(0.0) / self.per_second).unwrap_or(Duration::MAX);
        bucket.at = now;
        bucket.tokens = tokens;
        if wait > limit {
            return Err(TooLate { wait });
        }
        bucket.tokens = left;
        Ok(wait)
    }
}

/// A turn that was promised.
struct Turn<'a> {
    rate: &'a Rate,
    taken: bool,
}

impl Turn<'_> {
    fn take(mut self) {
        self.taken = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.taken {
            let mut bucket = self
                .rate
                .bucket
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            bucket.tokens += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn limiter(qps: f32, burst: i32) -> Limiter {
        Limiter::new(&ClientOptions {
            qps,
            burst,
            ..ClientOptions::new("test")
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let limiter = limiter(2.0, 3);
        let start = Instant::now();
        for _ in 0..3 {
            limiter.turn(LONG).await.unwrap();
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for turn in 1..=4 {
            limiter.turn(LONG).await.unwrap();
            let due = Duration::from_millis(500) * turn;
            assert!(start.elapsed() >= due, "{turn}: {:?}", start.elapsed());
            assert!(start.elapsed() < due + Duration::from_millis(10));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn zero_means_five_a_second_and_ten_at_once() {
        let limiter = limiter(0.0, 0);
        let start = Instant::now();
        for _ in 0..15 {
            limiter.turn(LONG).await.unwrap();
        }
        assert_eq!(start.elapsed().as_millis() / 10, 100);
    }

    #[tokio::test(start_paused = true)]
    async fn less_than_zero_means_no_limit() {
        let limiter = limiter(-1.0, 1);
        for _ in 0..1000 {
            limiter.turn(Duration::ZERO).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_would_come_too_late_fails_at_once_and_takes_none() {
        let limiter = limiter(1.0, 1);
        limiter.turn(LONG).await.unwrap();
        for _ in 0..10 {
            let late = limiter.turn(Duration::from_millis(10)).await.unwrap_err();
            assert_eq!(late.wait, Duration::from_secs(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_nobody_waits_for_any_more_is_given_back() {
        let limiter = limiter(1.0, 1);
        limiter.turn(LONG).await.unwrap();
        for _ in 0..5 {
            timeout(Duration::from_millis(1), limiter.turn(LONG))
                .await
                .unwrap_err();
        }
        let start = Instant::now();
        limiter.turn(LONG).await.unwrap();
        assert!(start.elapsed() <= Duration::from_secs(1));
    }
}
