//! HTTP/2 frame heads (RFC 9113, section 4.1), as far as header blocks need them.

/// Length of a frame head in bytes.
pub(super) const HEAD_BYTES: usize = 9;

/// Largest payload of a frame in bytes, in both directions: the initial value of
/// `SETTINGS_MAX_FRAME_SIZE`, which the server doesn't raise for header blocks.
pub(super) const MAX_FRAME_BYTES: usize = 16_384;

/// Frame types that belong to header blocks (RFC 9113, section 6).
pub(super) mod kind {
    pub(in crate::authority) const HEADERS: u8 = 0x1;
    pub(in crate::authority) const PUSH_PROMISE: u8 = 0x5;
    pub(in crate::authority) const CONTINUATION: u8 = 0x9;
}

/// Flags of `HEADERS` and `CONTINUATION` (RFC 9113, sections 6.2 and 6.10).
pub(super) mod flag {
    pub(in crate::authority) const END_STREAM: u8 = 0x1;
    pub(in crate::authority) const END_HEADERS: u8 = 0x4;
    pub(in crate::authority) const PADDED: u8 = 0x8;
    pub(in crate::authority) const PRIORITY: u8 = 0x20;
}

/// A frame's head: everything but its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of payload that follow, up to 2^24 - 1.
    pub(super) len: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Stream id without the reserved bit.
    pub(super) stream: u32,
}

impl Head {
    /// Reads the head at the start of `bytes`; `None` while it isn't there whole.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let &[l2, l1, l0, kind, flags, s3, s2, s1, s0] = bytes.first_chunk::<HEAD_BYTES>()?;
        Some(Self {
            len: u32::from_be_bytes([0, l2, l1, l0]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s3, s2, s1, s0]) & 0x7fff_ffff,
        })
    }

    /// The head as it goes on the wire. The top byte of a length over 2^24 - 1 is cut off; nothing here makes such a
    /// head.
    pub(super) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let [.., l2, l1, l0] = self.len.to_be_bytes();
        let [s3, s2, s1, s0] = self.stream.to_be_bytes();
        [l2, l1, l0, self.kind, self.flags, s3, s2, s1, s0]
    }

    /// Whether the frame carries a piece of a header block and so can't pass as it is.
    pub(super) fn carries_header_block(self) -> bool {
        matches!(
            self.kind,
            kind::HEADERS | kind::PUSH_PROMISE | kind::CONTINUATION
        )
    }

    /// Whether all bits of `flag` are set.
    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag == flag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_survives_the_round_trip_and_loses_the_reserved_bit() {
        let bytes = [0x01, 0x02, 0x03, 0x01, 0x25, 0x80, 0x00, 0x00, 0x07];
        let head = Head::parse(&bytes).unwrap();
        assert_eq!(
            head,
            Head {
                len: 0x01_02_03,
                kind: 1,
                flags: 0x25,
                stream: 7
            }
        );
        assert_eq!(
            head.to_bytes(),
            [0x01, 0x02, 0x03, 0x01, 0x25, 0x00, 0x00, 0x00, 0x07]
        );
        assert_eq!(Head::parse(&bytes[..8]), None);
    }
}
