//! The Huffman code of RFC 7541, Appendix B.
//!
//! The code is canonical: symbols sorted by the length of their code, then by value, have ascending codes. So the
//! lengths say everything, and a symbol is found by comparing the next 32 bits with the end of each length's range.

use super::HpackError;

/// Bits in the code of every octet, and of EOS as the last.
#[rustfmt::skip]
const CODE_BITS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
     6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
     5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
    13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
     7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
    15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
     6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SYMBOLS: usize = 257;
const LONGEST_CODE: usize = 30;

/// All codes of one length, aligned to the top of 32 bits.
#[derive(Clone, Copy)]
struct Range {
    /// Length of the codes in bits.
    bits: u32,
    /// The first code.
    start: u64,
    /// One past the last code with ones behind it, up to 2^32.
    end: u64,
    /// Where the symbol of the first code stands in [`SORTED`].
    first: u64,
}

/// Code ranges by length, shortest first; lengths without codes are empty ranges.
static RANGES: [Range; LONGEST_CODE] = ranges();

/// Symbols by length of code, then by value. EOS, which has no octet, is the last and left out.
static SORTED: [u8; SYMBOLS - 1] = sorted();

/// Appends the octets that `src` codes to `out`, at most 8/5 of its length.
///
/// # Errors
///
/// As RFC 7541, section 5.2 demands: EOS in the string, more than 7 bits of padding, padding that isn't all ones.
pub(super) fn decode(src: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let mut src = src.iter();
    // The next `have` bits of the string from the top down, then ones.
    let mut window = u64::MAX;
    let mut have = 0;
    loop {
        while have <= 56 {
            let Some(&octet) = src.next() else { break };
            window ^= u64::from(!octet) << (56 - have);
            have += 8;
        }
        if have == 0 {
            return Ok(());
        }
        let next = window >> 32;
        let range = RANGES
            .iter()
            .find(|range| next < range.end)
            .ok_or(HpackError::Huffman)?;
        if range.bits > have {
            // No code fits into what is left, so it must be padding.
            return if have < 8 && window == u64::MAX {
                Ok(())
            } else {
                Err(HpackError::Huffman)
            };
        }
        let place = range.first + ((next - range.start) >> (32 - range.bits));
        let symbol = usize::try_from(place)
            .ok()
            .and_then(|place| SORTED.get(place));
        out.push(*symbol.ok_or(HpackError::Huffman)?);
        window = !(!window << range.bits);
        have -= range.bits;
    }
}

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time, where both would fail the build"
)]
const fn ranges() -> [Range; LONGEST_CODE] {
    let mut ranges = [Range {
        bits: 0,
        start: 0,
        end: 0,
        first: 0,
    }; LONGEST_CODE];
    let (mut start, mut first, mut bits) = (0, 0, 1);
    while bits <= LONGEST_CODE {
        let (mut symbol, mut count) = (0, 0);
        while symbol < SYMBOLS {
            if CODE_BITS[symbol] as usize == bits {
                count += 1;
            }
            symbol += 1;
        }
        let end = start + (count << (32 - bits));
        ranges[bits - 1] = Range {
            bits: bits as u32,
            start,
            end,
            first,
        };
        start = end;
        first += count;
        bits += 1;
    }
    ranges
}

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time, where both would fail the build"
)]
const fn sorted() -> [u8; SYMBOLS - 1] {
    let mut sorted = [0; SYMBOLS - 1];
    let (mut place, mut bits) = (0, 1);
    while bits <= LONGEST_CODE {
        let mut octet = 0;
        while octet < SYMBOLS - 1 {
            if CODE_BITS[octet] as usize == bits {
                sorted[place] = octet as u8;
                place += 1;
            }
            octet += 1;
        }
        bits += 1;
    }
    sorted
}

/// The other direction, for tests that play a client.
#[cfg(test)]
pub(in crate::authority) fn encode(src: &[u8]) -> Vec<u8> {
    let (mut out, mut window, mut have) = (Vec::new(), 0_u64, 0);
    for octet in src {
        let bits = u32::from(CODE_BITS[usize::from(*octet)]);
        let place = SORTED.iter().position(|symbol| symbol == octet).unwrap() as u64;
        let range = RANGES.iter().find(|range| range.bits == bits).unwrap();
        window = window << bits | ((range.start >> (32 - bits)) + (place - range.first));
        have += bits;
        while have >= 8 {
            have -= 8;
            out.push(u8::try_from(window >> have & 0xff).unwrap());
        }
    }
    if have > 0 {
        out.push(u8::try_from(window << (8 - have) & 0xff).unwrap() | 0xff >> have);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(src: &[u8]) -> Result<Vec<u8>, HpackError> {
        let mut out = Vec::new();
        decode(src, &mut out).map(|()| out)
    }

    #[test]
    fn the_code_is_complete_and_ends_with_eos() {
        assert_eq!(RANGES.last().unwrap().end, 1 << 32);
        // Codes as RFC 7541, Appendix B prints them.
        for (octet, code, bits) in [
            (b'0', 0x0, 5),
            (b' ', 0x14, 6),
            (b'&', 0xf8, 8),
            (b'\\', 0x7fff0, 19),
            (0, 0x1ff8, 13),
            (249, 0xffffffe, 28),
            (255, 0x3ffffee, 26),
            (22, 0x3ffffffe, 30),
        ] {
            let padded = (code << (32 - bits) | 0xffff_ffff_u32.checked_shr(bits).unwrap_or(0))
                .to_be_bytes();
            assert_eq!(
                encode(&[octet]),
                padded[..(bits as usize).div_ceil(8)],
                "octet {octet}"
            );
        }
    }

    #[test]
    fn every_octet_alone_and_all_together_survive_the_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encode(&all)).unwrap(), all);
        for octet in all {
            assert_eq!(decoded(&encode(&[octet; 3])).unwrap(), [octet; 3]);
        }
    }

    #[test]
    fn nothing_codes_nothing() {
        assert_eq!(decoded(&[]), Ok(vec![]));
    }

    #[test]
    fn padding_of_eight_bits_and_more_is_refused() {
        // "0" is 00000, then three ones.
        assert_eq!(decoded(&[0x07]).unwrap(), b"0");
        assert_eq!(decoded(&[0x07, 0xff]), Err(HpackError::Huffman));
        assert_eq!(decoded(&[0xff]), Err(HpackError::Huffman));
        assert_eq!(decoded(&[0x07, 0xff, 0xff]), Err(HpackError::Huffman));
    }

    #[test]
    fn padding_that_is_not_all_ones_is_refused() {
        for padding in 0..7 {
            assert_eq!(
                decoded(&[padding]),
                Err(HpackError::Huffman),
                "padding {padding:03b}"
            );
        }
    }

    #[test]
    fn eos_in_the_string_is_refused() {
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(HpackError::Huffman));
        assert_eq!(decoded(&[0xff; 9]), Err(HpackError::Huffman));
        assert_eq!(
            decoded(&[0x07, 0xff, 0xff, 0xff, 0xff, 0x07]),
            Err(HpackError::Huffman)
        );
    }
}
