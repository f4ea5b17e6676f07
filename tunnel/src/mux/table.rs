//! Connections by their id.

use hashbrown::HashMap;

use crate::packet::ConnectId;

/// The live connections of one tunnel.
///
/// Ids are the agent's to choose: dense from upstream's and ours, anything from a hostile one. So a hash map with a seeded
/// hash, whose cost no choice of ids can raise; a tunnel belongs to one thread, so it needs no lock.
#[derive(Debug)]
pub struct ConnectionTable<V>(HashMap<ConnectId, V>);

impl<V> Default for ConnectionTable<V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<V> ConnectionTable<V> {
    /// The connection `conn`.
    #[inline]
    #[must_use]
    pub fn get(&self, conn: ConnectId) -> Option<&V> {
        self.0.get(&conn)
    }

    /// Whether `conn` is live.
    #[must_use]
    pub fn contains(&self, conn: ConnectId) -> bool {
        self.0.contains_key(&conn)
    }

    /// Adds a connection. Check [`Self::contains`] first: an id that is in use must stay with its connection.
    ///
    /// # Panics
    /// In debug builds, if `conn` is in use.
    pub fn insert(&mut self, conn: ConnectId, value: V) {
        let before = self.0.insert(conn, value);
        debug_assert!(before.is_none(), "{conn:?} is in use");
    }

    /// Removes a connection.
    pub fn remove(&mut self, conn: ConnectId) -> Option<V> {
        let removed = self.0.remove(&conn);
        // A burst must not cost memory for ever.
        if self.0.len() * 8 < self.0.capacity() && self.0.capacity() > 64 {
            self.0.shrink_to(self.0.len() * 2);
        }
        removed
    }

    /// Number of live connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All live connections, in no order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_gives_its_memory_back() {
        let mut table = ConnectionTable::default();
        for id in 1..=10_000 {
            table.insert(ConnectId(id), ());
        }
        for id in 1..=9_990 {
            assert!(table.remove(ConnectId(id)).is_some());
        }
        assert_eq!(table.len(), 10);
        assert!(table.0.capacity() <= 128, "{}", table.0.capacity());
        assert!(table.contains(ConnectId(9_999)) && !table.contains(ConnectId(1)));
    }
}
