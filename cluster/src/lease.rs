//! A Lease as far as anybody looks at it here, and when it is valid.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use tokio::time::Instant;

/// How long a Lease is taken to last that does not say so, when its silence is measured. Our servers' own last as long.
pub const DURATION: Duration = Duration::from_secs(30);

/// Longest silence that is granted, whatever a Lease says: `spec.leaseDurationSeconds` is an int32, but JSON can hold more than an
/// [`Instant`] can.
const LONGEST: Duration = Duration::from_secs(i32::MAX as u64);

/// What a list or a watch says of a Lease. What cannot be understood is missing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Wire")]
pub struct Lease {
    /// Its name in its namespace.
    pub name: String,
    /// `metadata.resourceVersion`: differs after each change.
    pub version: String,
    /// `spec.renewTime`, else `spec.acquireTime`.
    pub renewed: Option<Timestamp>,
    /// `spec.leaseDurationSeconds`.
    pub duration: Option<SignedDuration>,
}

#[derive(Deserialize)]
struct Wire {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<Spec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Spec {
    renew_time: Option<String>,
    acquire_time: Option<String>,
    lease_duration_seconds: Option<i64>,
}

impl From<Wire> for Lease {
    fn from(wire: Wire) -> Self {
        let spec = wire.spec.unwrap_or_default();
        Self {
            name: wire.metadata.name,
            version: wire.metadata.resource_version,
            renewed: spec
                .renew_time
                .or(spec.acquire_time)
                .and_then(|time| time.parse().ok()),
            duration: spec.lease_duration_seconds.map(SignedDuration::from_secs),
        }
    }
}

impl Lease {
    /// When it ends unless it is renewed; nothing if it is not valid at any time: never renewed or acquired, or of no
    /// duration (which upstream's `util.IsLeaseValid` crashes at).
    #[must_use]
    pub fn ends(&self) -> Option<Timestamp> {
        self.renewed?.checked_add(self.duration?).ok()
    }

    /// Whether it is valid by a clock that shows `now`: its end is later. The holder is not looked at.
    #[must_use]
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.ends().is_some_and(|end| end > now)
    }

    /// How long it may be silent.
    fn patience(&self) -> Duration {
        self.duration
            .and_then(|duration| Duration::try_from(duration).ok())
            .filter(|duration| !duration.is_zero())
            .unwrap_or(DURATION)
            .min(LONGEST)
    }
}

/// Who renews, seen with our own eyes: independent of how far the clocks of holders, of whom the times in Leases are, are
/// from ours. Holds one entry for each Lease that was last seen.
#[derive(Debug, Default)]
pub struct Sightings(HashMap<String, Sighting>);

#[derive(Debug)]
struct Sighting {
    renewed: Option<Timestamp>,
    /// When it was first seen like this.
    since: Instant,
    /// Whether it was seen otherwise before, so that somebody has renewed it at about `since`.
    was_renewed: bool,
}

impl Sightings {
    /// Takes note of one.
    pub fn see(&mut self, lease: &Lease, now: Instant) {
        match self.0.get_mut(&lease.name) {
            Some(sighting) if sighting.renewed == lease.renewed => {}
            Some(sighting) => {
                *sighting = Sighting {
                    renewed: lease.renewed,
                    since: now,
                    was_renewed: true,
                };
            }
            None => {
                let sighting = Sighting {
                    renewed: lease.renewed,
                    since: now,
                    was_renewed: false,
                };
                self.0.insert(lease.name.clone(), sighting);
            }
        }
    }

    /// Takes note of all that there are, and forgets the others.
    pub fn see_all<'a>(
        &mut self,
        leases: impl IntoIterator<Item = &'a Lease> + Clone,
        now: Instant,
    ) {
        let names: std::collections::HashSet<_> = leases
            .clone()
            .into_iter()
            .map(|lease| lease.name.as_str())
            .collect();
        self.0.retain(|name, _| names.contains(name.as_str()));
        for lease in leases {
            self.see(lease, now);
        }
    }

    /// Forgets one that is gone.
    pub fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Until when we know by our own eyes that its holder lives.
    #[must_use]
    pub fn lives_until(&self, lease: &Lease) -> Option<Instant> {
        let sighting = self.0.get(&lease.name)?;
        (sighting.was_renewed && sighting.renewed == lease.renewed)
            .then(|| sighting.since + lease.patience())
    }

    /// Whether it has not been renewed for as long as it may last, before our own eyes.
    #[must_use]
    pub fn is_silent(&self, lease: &Lease, now: Instant) -> bool {
        self.0.get(&lease.name).is_some_and(|sighting| {
            sighting.renewed == lease.renewed
                && now.saturating_duration_since(sighting.since) >= lease.patience()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(spec: &str) -> Lease {
        serde_json::from_str(&format!(
            r#"{{"metadata": {{"name": "a", "resourceVersion": "7", "labels": {{"x": "y"}}}}, "spec": {spec}}}"#
        ))
        .unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_lease_is_valid_until_its_duration_after_its_renewal_is_over() {
        let lease = lease(
            r#"{"renewTime": "2026-12-01T10:00:00.500000Z", "leaseDurationSeconds": 30, "acquireTime": "2030-01-01T00:00:00.000000Z"}"#,
        );
        assert!(lease.is_valid(at("2026-12-01T10:00:30.499999Z")));
        assert!(
            !lease.is_valid(at("2026-12-01T10:00:30.5Z")),
            "strictly later"
        );
        assert!(!lease.is_valid(at("2026-12-01T10:00:31Z")));
        assert!(
            lease.is_valid(at("2020-01-01T00:00:00Z")),
            "a clock that is behind"
        );
    }

    #[test]
    fn acquire_time_stands_in_for_renew_time() {
        let lease =
            lease(r#"{"acquireTime": "2026-12-01T10:00:00.000000Z", "leaseDurationSeconds": 30}"#);
        assert!(lease.is_valid(at("2026-12-01T10:00:29Z")));
    }

    /// W24: upstream crashes at the first.
    #[test]
    fn what_is_missing_or_makes_no_sense_makes_a_lease_invalid() {
        for spec in [
            r#"{"renewTime": "2026-12-01T10:00:00.000000Z"}"#,
            r#"{"leaseDurationSeconds": 30}"#,
            r#"{"renewTime": "yesterday", "leaseDurationSeconds": 30}"#,
            r#"{"renewTime": "2026-12-01T10:00:00.000000Z", "leaseDurationSeconds": -30}"#,
            r#"{"renewTime": "2026-12-01T10:00:00.000000Z", "leaseDurationSeconds": 9223372036854775807}"#,
            "{}",
            "null",
        ] {
            assert!(!lease(spec).is_valid(at("2026-12-01T10:00:00Z")), "{spec}");
        }
    }

    #[test]
    fn a_duration_without_end_is_survived() {
        let mut sightings = Sightings::default();
        for (renewed, duration) in [(0, i64::MAX), (1, i64::MAX), (2, i64::MIN)] {
            let lease = lease(&format!(
                r#"{{"renewTime": "2026-12-01T00:00:0{renewed}Z", "leaseDurationSeconds": {duration}}}"#
            ));
            let now = Instant::now();
            sightings.see(&lease, now);
            let until = sightings.lives_until(&lease);
            assert_eq!(until.is_some(), renewed > 0);
            assert!(until.is_none_or(|until| until > now));
            assert!(!sightings.is_silent(&lease, now));
        }
    }

    fn renewed(second: i64) -> Lease {
        Lease {
            name: "a".to_owned(),
            version: second.to_string(),
            renewed: Some(Timestamp::from_second(second).unwrap()),
            duration: Some(SignedDuration::from_secs(30)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_whose_clock_is_wrong_lives_as_long_as_we_see_it_renew() {
        let mut sightings = Sightings::default();
        let start = Instant::now();
        let second = |n| start + Duration::from_secs(n);
        sightings.see(&renewed(0), start);
        assert_eq!(
            sightings.lives_until(&renewed(0)),
            None,
            "it may be long dead"
        );
        assert!(!sightings.is_silent(&renewed(0), second(29)));
        assert!(sightings.is_silent(&renewed(0), second(30)));
        sightings.see(&renewed(15), second(15));
        assert_eq!(sightings.lives_until(&renewed(15)), Some(second(45)));
        assert!(!sightings.is_silent(&renewed(15), second(44)));
        sightings.see(&renewed(15), second(40));
        assert!(
            sightings.is_silent(&renewed(15), second(45)),
            "seen again is not renewed"
        );
        sightings.see_all([&renewed(30)], second(46));
        assert!(sightings.lives_until(&renewed(30)).is_some());
        sightings.see_all([], second(47));
        assert_eq!(sightings.lives_until(&renewed(30)), None);
        assert!(
            !sightings.is_silent(&renewed(30), second(1000)),
            "what was never seen is not silent"
        );
    }
}
