//! HPACK (RFC 7541): a decoder with a bound on what a block may decode to, and the one representation that needs no
//! table for the way out.

pub(super) mod huffman;
mod table;

pub(super) use table::MAX_TABLE_BYTES;
use table::{ENTRY_OVERHEAD, Table};

/// A header field, borrowed from the block or the table.
#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) name: &'a [u8],
    pub(super) value: &'a [u8],
    /// Whether intermediaries must keep it out of tables too (RFC 7541, section 6.2.3).
    pub(super) never_indexed: bool,
}

/// Why a header block can't be decoded. The table is no longer in step with the client's, so the connection can't go
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(super) enum HpackError {
    #[error("header block ends within a field")]
    Truncated,
    #[error("integer has more than four octets behind its prefix")]
    Integer,
    #[error("string is not valid Huffman code")]
    Huffman,
    #[error("no table entry has index {index}")]
    Index { index: usize },
    #[error("table size update to {size} bytes, more than {MAX_TABLE_BYTES}")]
    TableSize { size: usize },
    #[error("table size update behind a field")]
    LateTableSize,
    #[error("header list of more than {max_bytes} bytes")]
    ListTooLarge { max_bytes: usize },
}

/// Decodes a connection's header blocks in order.
#[derive(Debug)]
pub(super) struct Decoder {
    table: Table,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            table: Table::new(),
        }
    }

    /// Decodes a whole header block and hands each field to `each`, in order.
    ///
    /// Stops before the field that takes the list past `max_list_bytes`, counted as RFC 9113, section 6.5.2 does:
    /// name, value and 32 for each field. So a block of references to one large entry costs no more than that.
    ///
    /// # Errors
    ///
    /// What RFC 7541 calls a decoding error, and a list that is too large. Fields before the error have been handed
    /// out.
    pub(super) fn decode(
        &mut self,
        block: &[u8],
        max_list_bytes: usize,
        mut each: impl FnMut(Field<'_>),
    ) -> Result<(), HpackError> {
        let mut input = Input(block);
        let mut budget = max_list_bytes;
        let mut spend = |name: &[u8], value: &[u8]| -> Result<(), HpackError> {
            let left = budget.checked_sub(name.len() + value.len() + ENTRY_OVERHEAD);
            budget = left.ok_or(HpackError::ListTooLarge {
                max_bytes: max_list_bytes,
            })?;
            Ok(())
        };
        let (mut name, mut value) = (Vec::new(), Vec::new());
        let mut saw_field = false;
        while let Ok(first) = input.peek() {
            let (prefix_bits, index_it) = match first {
                0x80.. => {
                    let (name, value) = self.table.get(input.integer(7)?)?;
                    spend(name, value)?;
                    each(Field {
                        name,
                        value,
                        never_indexed: false,
                    });
                    saw_field = true;
                    continue;
                }
                0x20..0x40 => {
                    // Only in front of the first field (RFC 7541, section 4.2).
                    if saw_field {
                        return Err(HpackError::LateTableSize);
                    }
                    self.table.resize(input.integer(5)?)?;
                    continue;
                }
                0x40..0x80 => (6, true),
                0x00..0x20 => (4, false),
            };
            name.clear();
            match input.integer(prefix_bits)? {
                0 => input.string(&mut name)?,
                index => name.extend_from_slice(self.table.get(index)?.0),
            }
            value.clear();
            input.string(&mut value)?;
            spend(&name, &value)?;
            each(Field {
                name: &name,
                value: &value,
                never_indexed: matches!(first, 0x10..0x20),
            });
            if index_it {
                self.table.insert(&name, &value);
            }
            saw_field = true;
        }
        Ok(())
    }

    /// The entry at an index of the joint tables.
    #[cfg(test)]
    pub(super) fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        self.table.get(index).ok()
    }

    #[cfg(test)]
    pub(super) fn table(&self) -> (usize, Vec<(String, String)>) {
        self.table.dynamic()
    }
}

/// Appends `field` as a literal with a literal name that enters no table (RFC 7541, sections 6.2.2 and 6.2.3),
/// without Huffman code. Longer than the field's name and value by at most 9 bytes as long as they fit into a header
/// list.
pub(super) fn encode_literal(field: Field<'_>, out: &mut Vec<u8>) {
    out.push(if field.never_indexed { 0x10 } else { 0x00 });
    for octets in [field.name, field.value] {
        encode_integer(octets.len(), 7, 0x00, out);
        out.extend_from_slice(octets);
    }
}

/// Appends `value` with a prefix of `prefix_bits` below the bits of `pattern` (RFC 7541, section 5.1).
pub(super) fn encode_integer(value: usize, prefix_bits: u32, pattern: u8, out: &mut Vec<u8>) {
    let mask = 0xff_u8 >> (8 - prefix_bits);
    match u8::try_from(value) {
        Ok(small) if small < mask => out.push(pattern | small),
        _ => {
            out.push(pattern | mask);
            let mut rest = value - usize::from(mask);
            loop {
                let [low, ..] = rest.to_le_bytes();
                rest >>= 7;
                if rest == 0 {
                    break out.push(low);
                }
                out.push(0x80 | low);
            }
        }
    }
}

/// What is left of a header block.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn peek(&self) -> Result<u8, HpackError> {
        self.0.first().copied().ok_or(HpackError::Truncated)
    }

    fn octet(&mut self) -> Result<u8, HpackError> {
        let (&octet, rest) = self.0.split_first().ok_or(HpackError::Truncated)?;
        self.0 = rest;
        Ok(octet)
    }

    /// An integer with a prefix of `prefix_bits` (RFC 7541, section 5.1), less than 2^28 + 256.
    fn integer(&mut self, prefix_bits: u32) -> Result<usize, HpackError> {
        let mask = 0xff_u8 >> (8 - prefix_bits);
        let prefix = self.octet()? & mask;
        let mut value = usize::from(prefix);
        if prefix < mask {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21] {
            let octet = self.octet()?;
            value += usize::from(octet & 0x7f) << shift;
            if octet < 0x80 {
                return Ok(value);
            }
        }
        Err(HpackError::Integer)
    }

    /// Appends a string (RFC 7541, section 5.2) to `out`: at most 8/5 of what it has in the block.
    fn string(&mut self, out: &mut Vec<u8>) -> Result<(), HpackError> {
        let is_huffman = self.peek()? >= 0x80;
        let len = self.integer(7)?;
        let (octets, rest) = self.0.split_at_checked(len).ok_or(HpackError::Truncated)?;
        self.0 = rest;
        if is_huffman {
            huffman::decode(octets, out)
        } else {
            out.extend_from_slice(octets);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
