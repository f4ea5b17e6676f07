//! The index space of RFC 7541, section 2.3: the static table and a client's dynamic table behind it.

use std::{collections::VecDeque, fmt};

use super::HpackError;

/// Largest size of the dynamic table in bytes as RFC 7541, section 4.1 counts them: the initial value of
/// `SETTINGS_HEADER_TABLE_SIZE`, which is what a server advertises that says nothing about it.
pub(in crate::authority) const MAX_TABLE_BYTES: usize = 4_096;

/// What RFC 7541, section 4.1 counts for an entry besides its octets.
pub(super) const ENTRY_OVERHEAD: usize = 32;

/// The header table of one direction of a connection.
///
/// Holds at most [`MAX_TABLE_BYTES`] and 128 entries.
pub(super) struct Table {
    /// Newest first.
    entries: VecDeque<Entry>,
    /// Size of all entries.
    bytes: usize,
    /// The size that the client chose, up to [`MAX_TABLE_BYTES`].
    max_bytes: usize,
}

struct Entry {
    name: Box<[u8]>,
    value: Box<[u8]>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            max_bytes: MAX_TABLE_BYTES,
        }
    }

    /// Name and value at `index`, which counts from 1.
    pub(super) fn get(&self, index: usize) -> Result<(&[u8], &[u8]), HpackError> {
        let place = index.checked_sub(1).ok_or(HpackError::Index { index })?;
        if let Some(&(name, value)) = STATIC.get(place) {
            return Ok((name.as_bytes(), value.as_bytes()));
        }
        match self.entries.get(place - STATIC.len()) {
            Some(entry) => Ok((&entry.name, &entry.value)),
            None => Err(HpackError::Index { index }),
        }
    }

    /// Adds an entry and evicts the oldest ones to make room. One that is larger than the table empties it, which is
    /// no error (RFC 7541, section 4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let bytes = name.len() + value.len() + ENTRY_OVERHEAD;
        self.evict_to(self.max_bytes.saturating_sub(bytes));
        if bytes <= self.max_bytes {
            self.bytes += bytes;
            self.entries.push_front(Entry {
                name: name.into(),
                value: value.into(),
            });
        }
    }

    /// Follows a dynamic table size update (RFC 7541, section 6.3).
    pub(super) fn resize(&mut self, max_bytes: usize) -> Result<(), HpackError> {
        if max_bytes > MAX_TABLE_BYTES {
            return Err(HpackError::TableSize { size: max_bytes });
        }
        self.max_bytes = max_bytes;
        self.evict_to(max_bytes);
        Ok(())
    }

    fn evict_to(&mut self, max_bytes: usize) {
        while self.bytes > max_bytes {
            let Some(Entry { name, value }) = self.entries.pop_back() else {
                return;
            };
            self.bytes -= name.len() + value.len() + ENTRY_OVERHEAD;
        }
    }

    /// Size of the dynamic table in bytes and its entries, newest first.
    #[cfg(test)]
    pub(in crate::authority) fn dynamic(&self) -> (usize, Vec<(String, String)>) {
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        (
            self.bytes,
            self.entries
                .iter()
                .map(|entry| (text(&entry.name), text(&entry.value)))
                .collect(),
        )
    }
}

/// Shows sizes only: header values may be secret.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("entries", &self.entries.len())
            .field("bytes", &self.bytes)
            .field("max_bytes", &self.max_bytes)
            .finish()
    }
}

/// RFC 7541, Appendix A.
#[rustfmt::skip]
static STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""), ("cache-control", ""),
    ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""), ("date", ""), ("etag", ""),
    ("expect", ""), ("expires", ""), ("from", ""), ("host", ""), ("if-match", ""), ("if-modified-since", ""),
    ("if-none-match", ""), ("if-range", ""), ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""),
    ("location", ""), ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_static_table_has_its_anchors_where_the_rfc_has_them() {
        let table = Table::new();
        for (index, name, value) in [
            (1, ":authority", ""),
            (2, ":method", "GET"),
            (8, ":status", "200"),
            (16, "accept-encoding", "gzip, deflate"),
            (28, "content-length", ""),
            (38, "host", ""),
            (50, "range", ""),
            (58, "user-agent", ""),
            (61, "www-authenticate", ""),
        ] {
            assert_eq!(
                table.get(index).unwrap(),
                (name.as_bytes(), value.as_bytes())
            );
        }
        assert_eq!(table.get(0), Err(HpackError::Index { index: 0 }));
        assert_eq!(table.get(62), Err(HpackError::Index { index: 62 }));
    }

    #[test]
    fn the_oldest_entries_make_room_and_an_oversized_one_empties_the_table() {
        let mut table = Table::new();
        table.resize(100).unwrap();
        table.insert(b"a", b"1");
        table.insert(b"b", b"2");
        assert_eq!(table.dynamic().0, 68);
        table.insert(b"c", b"3");
        assert_eq!(
            table.dynamic(),
            (68, vec![("c".into(), "3".into()), ("b".into(), "2".into())])
        );
        table.insert(b"d", &[b'x'; 67]);
        assert_eq!(
            table.dynamic().0,
            100,
            "an entry of exactly the table's size stays"
        );
        table.insert(b"e", &[b'x'; 68]);
        assert_eq!(table.dynamic(), (0, vec![]));
    }

    #[test]
    fn a_smaller_size_evicts_at_once() {
        let mut table = Table::new();
        table.insert(b"a", b"1");
        table.insert(b"b", b"2");
        table.resize(67).unwrap();
        assert_eq!(table.dynamic(), (34, vec![("b".into(), "2".into())]));
        table.resize(0).unwrap();
        assert_eq!(table.dynamic().0, 0);
        assert_eq!(
            table.resize(4_097),
            Err(HpackError::TableSize { size: 4_097 })
        );
        table.resize(4_096).unwrap();
    }
}
