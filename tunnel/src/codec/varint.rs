//! The few protobuf primitives that seven packets need.
//!
//! <https://protobuf.dev/programming-guides/encoding/>: base-128 varints, tags, and skipping what is unknown.

use bytes::BufMut;

/// Longest varint of a 64-bit number.
pub const MAX_VARINT_LEN: usize = 10;

/// How a field's value is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireType {
    /// A base-128 number.
    Varint,
    /// Eight bytes.
    Fixed64,
    /// A length, then that many bytes.
    Len,
    /// A deprecated group's start; its fields follow up to the matching end.
    GroupStart,
    /// A deprecated group's end.
    GroupEnd,
    /// Four bytes.
    Fixed32,
}

/// Why bytes are no protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end inside a value.
    #[error("message ends inside a value")]
    Truncated,
    /// A varint of more than 64 bits.
    #[error("number of more than 64 bits")]
    VarintTooLong,
    /// A tag with field number 0, one past the 29 bits of a field number, or a wire type that does not exist.
    #[error("tag that protobuf does not have")]
    BadTag,
    /// A group that never ends, ends another group, or nests too deep.
    #[error("broken group")]
    BadGroup,
    /// A string field that is not UTF-8.
    #[error("field {0} is not UTF-8")]
    NotUtf8(u32),
}

/// How deep unknown groups may nest before the message is refused; what bounds the recursion.
const MAX_GROUP_DEPTH: u8 = 16;

/// Reads protobuf primitives off a slice.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes have been read.
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Reads a base-128 number.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] or [`Malformed::VarintTooLong`].
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        // Nearly every number here (types, small ids, short lengths) is one byte.
        if let Some(&first) = rest.first()
            && first < 0x80
        {
            self.at += 1;
            return Ok(u64::from(first));
        }
        let mut value = 0u64;
        for (i, &byte) in rest.iter().take(MAX_VARINT_LEN).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if i == MAX_VARINT_LEN - 1 && byte > 1 {
                return Err(Malformed::VarintTooLong);
            }
            value |= bits << (7 * i);
            if byte < 0x80 {
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(if rest.len() < MAX_VARINT_LEN {
            Malformed::Truncated
        } else {
            Malformed::VarintTooLong
        })
    }

    /// Reads a field's number and wire type.
    ///
    /// # Errors
    /// As [`Self::varint`], and [`Malformed::BadTag`].
    #[inline]
    pub fn tag(&mut self) -> Result<(u32, WireType), Malformed> {
        let tag = self.varint()?;
        let field = u32::try_from(tag >> 3).map_err(|_| Malformed::BadTag)?;
        if field == 0 || field >= 1 << 29 {
            return Err(Malformed::BadTag);
        }
        let wire_type = match tag & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Len,
            3 => WireType::GroupStart,
            4 => WireType::GroupEnd,
            5 => WireType::Fixed32,
            _ => return Err(Malformed::BadTag),
        };
        Ok((field, wire_type))
    }

    /// Reads a length-delimited value.
    ///
    /// # Errors
    /// [`Malformed::Truncated`] if the length points past the end.
    #[inline]
    pub fn len_delimited(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.varint()?).map_err(|_| Malformed::Truncated)?;
        self.take(len)
    }

    /// Steps over a value of a field that is not known.
    ///
    /// # Errors
    /// Whatever makes the value unreadable; a stray group end is [`Malformed::BadGroup`].
    pub fn skip(&mut self, field: u32, wire_type: WireType) -> Result<(), Malformed> {
        self.skip_nested(field, wire_type, 0)
    }

    fn skip_nested(&mut self, field: u32, wire_type: WireType, depth: u8) -> Result<(), Malformed> {
        match wire_type {
            WireType::Varint => self.varint().map(drop),
            WireType::Fixed64 => self.take(8).map(drop),
            WireType::Fixed32 => self.take(4).map(drop),
            WireType::Len => self.len_delimited().map(drop),
            WireType::GroupStart if depth < MAX_GROUP_DEPTH => loop {
                match self.tag()? {
                    (end, WireType::GroupEnd) if end == field => return Ok(()),
                    (inner, inner_type) => self.skip_nested(inner, inner_type, depth + 1)?,
                }
            },
            WireType::GroupStart | WireType::GroupEnd => Err(Malformed::BadGroup),
        }
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(len).ok_or(Malformed::Truncated)?;
        let value = self.bytes.get(self.at..end).ok_or(Malformed::Truncated)?;
        self.at = end;
        Ok(value)
    }
}

/// Bytes that `value` takes as a varint.
#[inline]
#[must_use]
pub const fn varint_len(value: u64) -> usize {
    // One byte for each started group of seven bits; zero takes one too.
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

/// Writes `value` as a varint.
#[inline]
pub fn put_varint(dst: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        dst.put_u8(low_seven_bits(value) | 0x80);
        value >>= 7;
    }
    dst.put_u8(low_seven_bits(value));
}

#[inline]
const fn low_seven_bits(value: u64) -> u8 {
    (value & 0x7f) as u8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_have_the_bytes_of_the_encoding_guide() {
        for (value, bytes) in [
            (0u64, &[0u8][..]),
            (1, &[1]),
            (127, &[0x7f]),
            (128, &[0x80, 1]),
            (150, &[0x96, 1]),
            (
                u64::MAX,
                &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            ),
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(out, bytes);
            assert_eq!(varint_len(value), bytes.len());
            assert_eq!(Reader::new(bytes).varint(), Ok(value));
        }
    }

    #[test]
    fn a_number_that_stops_or_never_stops_is_refused() {
        assert_eq!(Reader::new(&[]).varint(), Err(Malformed::Truncated));
        assert_eq!(Reader::new(&[0x80; 9]).varint(), Err(Malformed::Truncated));
        assert_eq!(
            Reader::new(&[0x80; 10]).varint(),
            Err(Malformed::VarintTooLong)
        );
        assert_eq!(
            Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).varint(),
            Err(Malformed::VarintTooLong)
        );
    }

    #[test]
    fn unknown_groups_are_skipped_whole_and_only_to_a_depth() {
        // Group 3 { field 1: 5; group 4 {} }, then a varint.
        let bytes = [0x1b, 0x08, 5, 0x23, 0x24, 0x1c, 0x2a];
        let mut reader = Reader::new(&bytes);
        let (field, wire_type) = reader.tag().unwrap();
        reader.skip(field, wire_type).unwrap();
        assert_eq!(reader.varint(), Ok(0x2a));

        let deep = [0x1b; 64];
        let mut reader = Reader::new(&deep);
        let (field, wire_type) = reader.tag().unwrap();
        assert_eq!(reader.skip(field, wire_type), Err(Malformed::BadGroup));
    }

    proptest! {
        #[test]
        fn every_number_comes_back(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_len(value));
            prop_assert_eq!(Reader::new(&out).varint(), Ok(value));
        }

        #[test]
        fn skipping_never_panics_and_never_passes_the_end(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes);
            while let Ok((field, wire_type)) = reader.tag() {
                if reader.skip(field, wire_type).is_err() {
                    break;
                }
                prop_assert!(reader.position() <= bytes.len());
            }
        }
    }
}
