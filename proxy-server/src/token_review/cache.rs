//! What is remembered, for a time, up to a number.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::Key;

/// Values by key. The oldest goes when there is no place.
#[derive(Debug)]
pub(super) struct Cache<V> {
    entries: HashMap<Key, Entry<V>>,
    /// In the order of insertion, which is that of their ends by `time`; with keys that were inserted again more than once.
    order: VecDeque<(Key, Instant)>,
    time: Duration,
    max: usize,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    inserted: Instant,
    /// By the wall clock.
    expires: Option<SystemTime>,
}

impl<V> Cache<V> {
    /// At most `max` values, each for `time`.
    pub(super) fn new(time: Duration, max: usize) -> Self {
        Self {
            entries: HashMap::new(),
            order: VecDeque::new(),
            time,
            max,
        }
    }

    /// The value of `key`, unless its time or its own end is over.
    pub(super) fn get(&self, key: &Key, now: Instant, wall: SystemTime) -> Option<&V> {
        let entry = self.entries.get(key)?;
        let is_young = now.saturating_duration_since(entry.inserted) < self.time;
        let is_good = entry.expires.is_none_or(|expires| wall < expires);
        (is_young && is_good).then_some(&entry.value)
    }

    /// Remembers a value, which ends by itself at `expires`.
    pub(super) fn insert(&mut self, key: Key, value: V, now: Instant, expires: Option<SystemTime>) {
        while let Some((oldest, inserted)) = self.order.front() {
            let is_old = now.saturating_duration_since(*inserted) >= self.time;
            if !is_old && self.order.len() < self.max {
                break;
            }
            // Not one that was inserted again since.
            if self
                .entries
                .get(oldest)
                .is_some_and(|entry| entry.inserted == *inserted)
            {
                self.entries.remove(oldest);
            }
            self.order.pop_front();
        }
        self.order.push_back((key, now));
        let entry = Entry {
            value,
            inserted: now,
            expires,
        };
        self.entries.insert(key, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn key(n: u8) -> Key {
        [n; 32]
    }

    #[tokio::test(start_paused = true)]
    async fn a_value_lasts_for_the_time_and_never_past_its_own_end() {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let mut cache = Cache::new(MINUTE, 10);
        cache.insert(key(1), 'a', now, None);
        cache.insert(key(2), 'b', now, Some(wall + MINUTE / 2));
        let later = MINUTE - Duration::from_nanos(1);
        assert_eq!(cache.get(&key(1), now + later, wall + later), Some(&'a'));
        assert_eq!(cache.get(&key(1), now + MINUTE, wall), None);
        assert_eq!(cache.get(&key(2), now, wall), Some(&'b'));
        assert_eq!(cache.get(&key(2), now, wall + MINUTE / 2), None);
        assert_eq!(cache.get(&key(3), now, wall), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_goes_when_there_is_no_place() {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let mut cache = Cache::new(MINUTE, 3);
        for n in 1..=5 {
            cache.insert(key(n), n, now + Duration::from_secs(n.into()), None);
        }
        let at = now + Duration::from_secs(6);
        let left: Vec<_> = (1..=5)
            .filter(|n| cache.get(&key(*n), at, wall).is_some())
            .collect();
        assert_eq!(left, [3, 4, 5]);
        assert!(cache.entries.len() <= 3 && cache.order.len() <= 3);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_was_inserted_again_is_as_young_as_that() {
        let (now, wall) = (Instant::now(), SystemTime::now());
        let mut cache = Cache::new(MINUTE, 10);
        cache.insert(key(1), 'a', now, None);
        cache.insert(key(1), 'b', now + MINUTE / 2, None);
        cache.insert(key(2), 'c', now + MINUTE, None);
        assert_eq!(cache.get(&key(1), now + MINUTE, wall), Some(&'b'));
    }
}
