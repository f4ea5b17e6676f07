//! How many servers there are: what they say, what Leases say, or the larger (wire-protocol.md 4.3, improved).
//!
//! Upstream believes the server that came last, so that one with an old number ends the search for the others (field-tests.md
//! R57). Here each server's own number is kept, and the largest counts. The number of a server that is gone counts for
//! [`MEMORY`] more: it may be the only one that knows of itself.

use std::time::Duration;

use hashbrown::HashMap;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::lease_count::LeaseCount;

/// How long the number of a server counts that has no tunnel any more.
pub(crate) const MEMORY: Duration = Duration::from_secs(300);

/// Servers whose number is kept, at most; more are not heard.
const MAX_SERVERS: usize = 512;

/// `--server-count-source`, with what it needs.
#[derive(Clone, Debug)]
pub(crate) enum CountSource {
    /// What servers say.
    Servers,
    /// The number of Leases. Until the Kubernetes API has answered once, what servers say.
    Leases(watch::Receiver<LeaseCount>),
    /// The larger of both.
    Max(watch::Receiver<LeaseCount>),
}

/// What is known of the number of servers.
#[derive(Debug)]
pub(crate) struct ServerCount {
    source: CountSource,
    said: HashMap<String, Said>,
    /// What servers said when one was last known.
    last: usize,
}

#[derive(Clone, Copy, Debug)]
struct Said {
    count: usize,
    lost: Option<Instant>,
}

impl ServerCount {
    /// Before any server has spoken there is one.
    pub(crate) fn new(source: CountSource) -> Self {
        Self {
            source,
            said: HashMap::new(),
            last: 1,
        }
    }

    /// A server that has a tunnel said `count`, with that tunnel or with a later one that was not needed.
    pub(crate) fn heard(&mut self, server_id: &str, count: usize) {
        if self.said.len() < MAX_SERVERS || self.said.contains_key(server_id) {
            let said = Said { count, lost: None };
            self.said.insert(server_id.to_owned(), said);
        }
    }

    /// A server has no tunnel any more, or is about to leave.
    pub(crate) fn lost(&mut self, server_id: &str, now: Instant) {
        if let Some(said) = self.said.get_mut(server_id) {
            said.lost.get_or_insert(now);
        }
    }

    /// How many servers there should be, at least one.
    pub(crate) fn wanted(&mut self, now: Instant) -> usize {
        self.said.retain(|_, said| {
            said.lost
                .is_none_or(|lost| now.saturating_duration_since(lost) < MEMORY)
        });
        let said = self.said.values().map(|said| said.count).max();
        self.last = said.unwrap_or(self.last).max(1);
        let leases = |leases: &watch::Receiver<LeaseCount>| {
            let counted = *leases.borrow();
            counted.known.then_some(counted.count.max(1))
        };
        match &self.source {
            CountSource::Servers => self.last,
            CountSource::Leases(counted) => leases(counted).unwrap_or(self.last),
            CountSource::Max(counted) => leases(counted).unwrap_or(1).max(self.last),
        }
    }

    /// What tells of changes of the number of Leases.
    pub(crate) fn leases(&self) -> Option<watch::Receiver<LeaseCount>> {
        match &self.source {
            CountSource::Servers => None,
            CountSource::Leases(counted) | CountSource::Max(counted) => Some(counted.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leases(count: usize, known: bool) -> watch::Receiver<LeaseCount> {
        watch::channel(LeaseCount { count, known }).1
    }

    /// field-tests.md R57.
    #[test]
    fn an_old_number_never_shrinks_the_set_and_the_servers_own_newer_one_does() {
        let start = Instant::now();
        let mut count = ServerCount::new(CountSource::Servers);
        assert_eq!(count.wanted(start), 1);
        count.heard("a", 3);
        count.heard("b", 1);
        assert_eq!(count.wanted(start), 3);
        count.heard("a", 2);
        assert_eq!(count.wanted(start), 2);
    }

    #[test]
    fn the_number_of_a_server_that_is_gone_counts_a_while() {
        let start = Instant::now();
        let mut count = ServerCount::new(CountSource::Servers);
        count.heard("a", 3);
        count.heard("b", 1);
        count.lost("a", start);
        assert_eq!(count.wanted(start + MEMORY / 2), 3);
        assert_eq!(count.wanted(start + MEMORY), 1);
        count.heard("b", 4);
        count.lost("b", start);
        // With nobody left the last number stands.
        assert_eq!(count.wanted(start + MEMORY / 2), 4);
        assert_eq!(count.wanted(start + 9 * MEMORY), 4);
    }

    #[test]
    fn leases_count_as_the_flag_says_once_the_api_has_answered() {
        let now = Instant::now();
        for (source, wanted) in [
            (CountSource::Leases(leases(2, true)), 2),
            (CountSource::Leases(leases(1, false)), 3),
            (CountSource::Leases(leases(0, true)), 1),
            (CountSource::Max(leases(2, true)), 3),
            (CountSource::Max(leases(5, true)), 5),
            (CountSource::Max(leases(9, false)), 3),
        ] {
            let mut count = ServerCount::new(source.clone());
            count.heard("a", 3);
            assert_eq!(count.wanted(now), wanted, "{source:?}");
        }
    }

    #[test]
    fn a_flood_of_ids_is_not_kept() {
        let mut count = ServerCount::new(CountSource::Servers);
        for id in 0..10 * MAX_SERVERS {
            count.heard(&id.to_string(), 1);
        }
        assert_eq!(count.said.len(), MAX_SERVERS);
    }
}
