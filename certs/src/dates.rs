//! Moments and validity as certificates know them: whole seconds, UTC.

use std::fmt;

use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;

/// A moment, to the second, in UTC. Prints as `2026-11-30 22:45:03 UTC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(OffsetDateTime);

impl Timestamp {
    /// The present, by the system's clock.
    #[must_use]
    pub fn now() -> Self {
        Self(OffsetDateTime::now_utc().truncate_to_second())
    }

    /// Seconds from the Unix epoch, negative before 1970. What metrics report.
    #[must_use]
    pub fn unix_seconds(self) -> i64 {
        self.0.unix_timestamp()
    }

    /// This moment moved by whole days, into the past if negative; stops at the ends of the calendar.
    #[must_use]
    pub fn plus_days(self, days: i64) -> Self {
        Self(self.0.saturating_add(Duration::days(days)))
    }

    /// This moment moved by whole minutes, into the past if negative; stops at the ends of the calendar.
    #[must_use]
    pub fn plus_minutes(self, minutes: i64) -> Self {
        Self(self.0.saturating_add(Duration::minutes(minutes)))
    }

    /// This moment moved by whole seconds, into the past if negative; stops at the ends of the calendar.
    #[must_use]
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(Duration::seconds(seconds)))
    }

    /// Seconds from `now` until this moment, negative once it is past.
    #[must_use]
    pub fn seconds_after(self, now: Self) -> i64 {
        // Both lie within the calendar of ten thousand years either way, so the difference does not overflow.
        self.unix_seconds() - now.unix_seconds()
    }

    /// `2026-11-30T22:45:03Z`, as JSON has it (RFC 3339).
    #[must_use]
    pub fn rfc3339(self) -> String {
        let text = self.to_string();
        let text = text.trim_end_matches(" UTC").replace(' ', "T");
        format!("{text}Z")
    }

    pub(crate) fn date_time(self) -> OffsetDateTime {
        self.0
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (date, time) = (self.0.date(), self.0.time());
        write!(
            f,
            "{:04}-{:02}-{:02} {:02}:{:02}:{:02} UTC",
            date.year(),
            u8::from(date.month()),
            date.day(),
            time.hour(),
            time.minute(),
            time.second()
        )
    }
}

/// From when to when a certificate may be used, both ends included (RFC 5280, section 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// First second at which the certificate is valid.
    pub not_before: Timestamp,
    /// Last second at which it is.
    pub not_after: Timestamp,
}

/// How far [`Validity::days`] reaches back, so that a peer whose clock is slow accepts a certificate made just now.
const CLOCK_SKEW_MINUTES: i64 = 60;

impl Validity {
    /// From now (an hour back, for slow clocks) for `days` days.
    #[must_use]
    pub fn days(days: u16) -> Self {
        let now = Timestamp::now();
        Self {
            not_before: now.plus_minutes(-CLOCK_SKEW_MINUTES),
            not_after: now.plus_days(i64::from(days)),
        }
    }

    /// Over since yesterday, for tests.
    #[must_use]
    pub fn over() -> Self {
        let now = Timestamp::now();
        Self {
            not_before: now.plus_days(-30),
            not_after: now.plus_days(-1),
        }
    }

    /// Not begun before tomorrow, for tests.
    #[must_use]
    pub fn to_come() -> Self {
        let now = Timestamp::now();
        Self {
            not_before: now.plus_days(1),
            not_after: now.plus_days(30),
        }
    }

    /// Whether `moment` lies within.
    #[must_use]
    pub fn contains(&self, moment: Timestamp) -> bool {
        self.not_before <= moment && moment <= self.not_after
    }
}

/// The validity that a parsed certificate states.
#[must_use]
pub fn validity(certificate: &X509Certificate<'_>) -> Validity {
    let stated = certificate.validity();
    Validity {
        not_before: Timestamp(stated.not_before.to_datetime()),
        not_after: Timestamp(stated.not_after.to_datetime()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_prints_with_leading_zeros_and_its_zone() {
        // 2001-09-09 01:46:40 UTC is second 1 000 000 000 of the Unix epoch.
        let moment = Timestamp(OffsetDateTime::from_unix_timestamp(1_000_000_000).unwrap());
        assert_eq!(moment.to_string(), "2001-09-09 01:46:40 UTC");
        assert_eq!(moment.unix_seconds(), 1_000_000_000);
        assert_eq!(moment.rfc3339(), "2001-09-09T01:46:40Z");
        assert_eq!(
            moment.plus_seconds(20).to_string(),
            "2001-09-09 01:47:00 UTC"
        );
        assert_eq!(moment.seconds_after(moment.plus_days(1)), -86_400);
    }

    #[test]
    fn moving_a_moment_past_the_calendar_stops_at_its_end() {
        let end = Timestamp::now().plus_days(i64::MAX / 100_000);
        assert!(end > Timestamp::now());
        assert_eq!(end.plus_days(1), end);
    }
}
