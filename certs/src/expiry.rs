//! When to warn that a certificate runs out: 30, 7 and 1 days ahead and when it is over, once each. No clock in here.

use crate::dates::Timestamp;

const DAY_SECONDS: i64 = 86_400;

/// How urgent it is. Later variants are more so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// At most 30 days are left.
    Month,
    /// At most 7 days.
    Week,
    /// At most one day.
    Day,
    /// None: the last second is past.
    Over,
}

impl Urgency {
    /// How urgent it is at `now`; `None` with more than 30 days left.
    #[must_use]
    pub fn of(not_after: Timestamp, now: Timestamp) -> Option<Self> {
        let left = not_after.seconds_after(now);
        if left < 0 {
            Some(Self::Over)
        } else if left <= DAY_SECONDS {
            Some(Self::Day)
        } else if left <= 7 * DAY_SECONDS {
            Some(Self::Week)
        } else if left <= 30 * DAY_SECONDS {
            Some(Self::Month)
        } else {
            None
        }
    }
}

/// Remembers for one file which warnings were given.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpiryWatch {
    told: Option<(Timestamp, Urgency)>,
}

impl ExpiryWatch {
    /// The warning that is due at `now`, if it was not given before. A replaced certificate, seen by its date, starts
    /// anew. Levels that were slept through are not made up for: only the most urgent is given.
    pub fn due(&mut self, not_after: Timestamp, now: Timestamp) -> Option<Urgency> {
        let urgency = Urgency::of(not_after, now)?;
        let new = match self.told {
            Some((told_of, told)) => told_of != not_after || told < urgency,
            None => true,
        };
        if new {
            self.told = Some((not_after, urgency));
        }
        new.then_some(urgency)
    }
}

/// Time left in words: `29 days`, `23 hours`, `59 minutes`, `12 seconds`, rounded down; `nothing` once it is over.
pub(crate) fn in_words(seconds: i64) -> String {
    let (count, unit) = match seconds {
        ..0 => return "nothing".to_owned(),
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..DAY_SECONDS => (seconds / 3600, "hour"),
        _ => (seconds / DAY_SECONDS, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks at so many seconds before the end.
    fn ask(watch: &mut ExpiryWatch, end: Timestamp, left: i64) -> Option<Urgency> {
        watch.due(end, end.plus_seconds(-left))
    }

    #[test]
    fn each_level_is_told_once_as_time_goes_by() {
        let end = Timestamp::now();
        let mut watch = ExpiryWatch::default();
        let told: Vec<_> = [
            31 * DAY_SECONDS,
            30 * DAY_SECONDS + 1,
            30 * DAY_SECONDS,
            29 * DAY_SECONDS,
            7 * DAY_SECONDS + 1,
            7 * DAY_SECONDS,
            2 * DAY_SECONDS,
            DAY_SECONDS,
            0,
            -1,
            -DAY_SECONDS,
        ]
        .into_iter()
        .map(|left| ask(&mut watch, end, left))
        .collect();
        assert_eq!(
            told,
            [
                None,
                None,
                Some(Urgency::Month),
                None,
                None,
                Some(Urgency::Week),
                None,
                Some(Urgency::Day),
                None,
                Some(Urgency::Over),
                None
            ]
        );
    }

    #[test]
    fn a_start_close_to_the_end_tells_the_most_urgent_alone() {
        let end = Timestamp::now();
        let mut watch = ExpiryWatch::default();
        assert_eq!(ask(&mut watch, end, 3600), Some(Urgency::Day));
        assert_eq!(ask(&mut watch, end, 3599), None);
    }

    #[test]
    fn a_clock_set_back_does_not_repeat_a_warning() {
        let end = Timestamp::now();
        let mut watch = ExpiryWatch::default();
        assert_eq!(ask(&mut watch, end, 3600), Some(Urgency::Day));
        assert_eq!(ask(&mut watch, end, 6 * DAY_SECONDS), None);
    }

    #[test]
    fn a_replaced_certificate_is_watched_anew() {
        let end = Timestamp::now();
        let mut watch = ExpiryWatch::default();
        assert_eq!(ask(&mut watch, end, 3600), Some(Urgency::Day));
        let renewed = end.plus_days(90);
        let now = end.plus_seconds(-3600);
        assert_eq!(watch.due(renewed, now), None);
        assert_eq!(ask(&mut watch, renewed, 3600), Some(Urgency::Day));
    }

    #[test]
    fn time_left_is_told_in_its_largest_whole_unit() {
        let words = [-1, 0, 1, 59, 60, 7_199, 7_200, 86_400, 172_799].map(in_words);
        assert_eq!(
            words,
            [
                "nothing",
                "0 seconds",
                "1 second",
                "59 seconds",
                "1 minute",
                "1 hour",
                "2 hours",
                "1 day",
                "1 day"
            ]
        );
    }
}
