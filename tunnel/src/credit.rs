//! Flow control for each connection of a packet tunnel, between our own two ends.
//!
//! Upstream's protocol can stop one connection only by stopping all. Its peers ignore metadata and packet types that they
//! do not know (wire-protocol, section 1.5), which leaves room: both ends announce in [`HEADER`] how many bytes of each
//! connection they take without having delivered any, and grant more by a packet of type [`PACKET_TYPE`] as they deliver. Only
//! if both announced is either bound by it. Towards upstream's ends nothing changes: what a slow reader leaves is bounded
//! by [`crate::mux`]'s policy D alone.
//!
//! ```text
//! message { 1: type = 100; 100: { 1: int64 connectID; 2: uint64 bytes } }
//! ```

use bytes::BytesMut;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    codec::varint::{Malformed, Reader, WireType, put_varint, varint_len},
    grpc,
    packet::ConnectId,
};

/// Metadata of `Connect` and of its answer: bytes that the sender of the header takes of each connection, as a decimal.
pub const HEADER: HeaderName = HeaderName::from_static("adit-credit");

/// `type` of the packet that grants more; far from upstream's numbers.
pub const PACKET_TYPE: u32 = 100;

/// The field that carries the grant.
const FIELD: u32 = 100;

/// What our ends take of a connection before its reader has taken any, in bytes: all that a stalled reader holds.
pub const WINDOW: u32 = 256 * 1024;

/// Smallest announcement that is believed: less would be a connection that crawls.
const MIN_WINDOW: u32 = 16 * 1024;

/// Most that a peer's grants may add up to.
pub(crate) const MAX_CREDIT: usize = 1 << 30;

/// A grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// For this connection.
    pub conn: ConnectId,
    /// So many bytes more.
    pub bytes: u64,
}

/// What an end of ours announces.
#[must_use]
pub fn announcement() -> HeaderValue {
    HeaderValue::from(WINDOW)
}

/// What the peer announced: `None` if nothing or nothing sensible, and credit is then not in use.
#[must_use]
pub fn announced(headers: &HeaderMap) -> Option<u32> {
    let mut values = headers.get_all(&HEADER).iter();
    let window = values.next()?.to_str().ok()?.parse().ok()?;
    (values.next().is_none() && window >= MIN_WINDOW).then_some(window)
}

/// Writes a grant, gRPC prefix included.
pub fn put(dst: &mut BytesMut, credit: Credit) {
    let conn = credit.conn.0.cast_unsigned();
    let inner = 2 + varint_len(conn) + varint_len(credit.bytes);
    grpc::put_prefix(dst, 2 + 2 + varint_len(inner as u64) + inner);
    put_varint(dst, 1 << 3);
    put_varint(dst, PACKET_TYPE.into());
    put_varint(dst, (FIELD << 3 | 2).into());
    put_varint(dst, inner as u64);
    put_varint(dst, 1 << 3);
    put_varint(dst, conn);
    put_varint(dst, 2 << 3);
    put_varint(dst, credit.bytes);
}

/// Reads the grant of a message whose type is [`PACKET_TYPE`]; `None` if it carries none.
///
/// # Errors
/// [`Malformed`]
pub fn decode(message: &[u8]) -> Result<Option<Credit>, Malformed> {
    let mut reader = Reader::new(message);
    let mut credit = None;
    while !reader.is_empty() {
        match reader.tag()? {
            (FIELD, WireType::Len) => {
                let mut inner = Reader::new(reader.len_delimited()?);
                let mut grant = Credit {
                    conn: ConnectId::NONE,
                    bytes: 0,
                };
                while !inner.is_empty() {
                    match inner.tag()? {
                        (1, WireType::Varint) => {
                            grant.conn = ConnectId(inner.varint()?.cast_signed())
                        }
                        (2, WireType::Varint) => grant.bytes = inner.varint()?,
                        (field, wire_type) => inner.skip(field, wire_type)?,
                    }
                }
                credit = Some(grant);
            }
            (field, wire_type) => reader.skip(field, wire_type)?,
        }
    }
    Ok(credit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::{self, Decoded};

    #[test]
    fn a_grant_is_a_packet_of_a_type_that_upstream_ignores() {
        let mut out = BytesMut::new();
        put(
            &mut out,
            Credit {
                conn: ConnectId(7),
                bytes: 300,
            },
        );
        // type 100; field 100 (tag 802), 5 bytes: connectID 7, bytes 300.
        assert_eq!(
            out[..],
            [0, 0, 0, 0, 10, 8, 100, 0xa2, 6, 5, 8, 7, 16, 0xac, 2]
        );
        let message = out.split_off(grpc::PREFIX_LEN).freeze();
        assert_eq!(codec::decode(&message), Ok(Decoded::Unknown(PACKET_TYPE)));
    }

    #[test]
    fn only_one_sensible_announcement_is_believed() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(HEADER, value.parse().unwrap());
            }
            announced(&headers)
        };
        assert_eq!(of(&["262144"]), Some(WINDOW));
        for values in [
            &[][..],
            &["0"],
            &["-1"],
            &["99999999999"],
            &["much"],
            &["262144", "262144"],
        ] {
            assert_eq!(of(values), None, "{values:?}");
        }
        assert_eq!(announcement().to_str().unwrap(), WINDOW.to_string());
    }

    proptest! {
        #[test]
        fn every_grant_comes_back(conn: i64, bytes: u64) {
            let credit = Credit { conn: ConnectId(conn), bytes };
            let mut out = BytesMut::new();
            put(&mut out, credit);
            prop_assert_eq!(decode(&out[grpc::PREFIX_LEN..]), Ok(Some(credit)));
        }

        #[test]
        fn nonsense_never_panics(bytes: Vec<u8>) {
            prop_assert!(decode(&bytes).is_ok_and(|credit| credit.is_none_or(|_| !bytes.is_empty())) || !bytes.is_empty());
        }
    }
}
