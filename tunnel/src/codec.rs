//! Packets to bytes and back, by hand over [`Bytes`]: a payload is never copied.
//!
//! `type` decides what a message means; the oneof member may be absent or of another kind (wire-protocol, section 1.4),
//! which is [`DecodeError::Mismatch`] and never a panic. Unknown fields are skipped, unknown types are reported as
//! [`Decoded::Unknown`]. Within one message the rules of proto3 hold: fields in any order, the last scalar wins, the
//! last member of the oneof wins, a member that comes twice is merged. As in Go, a known field of another wire type than its
//! own is an unknown field, and a type of more than 32 bits is cut to them.

pub mod varint;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    grpc,
    packet::{ConnectId, DialId, Packet, PacketKind},
};
use varint::{MAX_VARINT_LEN, Malformed, Reader, WireType, put_varint, varint_len};

/// What a message turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A packet of this protocol.
    Packet(Packet),
    /// A packet type that this protocol does not have, as the 32 bits on the wire: to be counted and ignored.
    Unknown(u32),
}

/// Why a message is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes are no protobuf message of this schema.
    #[error("malformed packet")]
    Malformed(#[from] Malformed),
    /// A well-formed message whose payload does not go with its type. An empty message is a `DIAL_REQ` without one.
    #[error("{0} packet without its payload")]
    Mismatch(PacketKind),
}

/// The member of the oneof that a message carries; `DRAIN` has no field of its own to keep.
#[derive(Default)]
enum Payload {
    #[default]
    None,
    DialRequest {
        protocol: String,
        address: String,
        dial: i64,
    },
    DialResponse {
        error: String,
        conn: i64,
        dial: i64,
    },
    Data {
        conn: i64,
        payload: Bytes,
    },
    CloseRequest {
        conn: i64,
    },
    CloseResponse {
        error: String,
        conn: i64,
    },
    CloseDial {
        dial: i64,
    },
    Drain,
}

/// Reads one message (without its gRPC prefix). A DATA payload shares `message`'s memory.
///
/// # Errors
/// [`DecodeError`]; the message is then to be ignored or its stream ended, nothing has been consumed elsewhere.
pub fn decode(message: &Bytes) -> Result<Decoded, DecodeError> {
    let mut reader = Reader::new(message);
    let mut number = 0u32;
    let mut payload = Payload::None;
    while !reader.is_empty() {
        match reader.tag()? {
            (1, WireType::Varint) => number = low_32_bits(reader.varint()?),
            (field @ 2..=8, WireType::Len) => {
                let body = reader.len_delimited()?;
                // Where the member's bytes start within `message`, so that its payload can be a slice of it.
                let offset = reader.position() - body.len();
                payload = merge(payload, field, body, message, offset)?;
            }
            (field, wire_type) => reader.skip(field, wire_type)?,
        }
    }
    let Some(kind) = PacketKind::from_number(number) else {
        return Ok(Decoded::Unknown(number));
    };
    let packet = match (kind, payload) {
        (PacketKind::Data, Payload::Data { conn, payload }) => Packet::Data {
            conn: ConnectId(conn),
            payload,
        },
        (
            PacketKind::DialRequest,
            Payload::DialRequest {
                protocol,
                address,
                dial,
            },
        ) => Packet::DialRequest {
            protocol,
            address,
            dial: DialId(dial),
        },
        (PacketKind::DialResponse, Payload::DialResponse { error, conn, dial }) => {
            Packet::DialResponse {
                error,
                conn: ConnectId(conn),
                dial: DialId(dial),
            }
        }
        (PacketKind::CloseRequest, Payload::CloseRequest { conn }) => Packet::CloseRequest {
            conn: ConnectId(conn),
        },
        (PacketKind::CloseResponse, Payload::CloseResponse { error, conn }) => {
            Packet::CloseResponse {
                error,
                conn: ConnectId(conn),
            }
        }
        (PacketKind::CloseDial, Payload::CloseDial { dial }) => {
            Packet::CloseDial { dial: DialId(dial) }
        }
        // The one payload without content: upstream never reads it, so its absence changes nothing.
        (PacketKind::Drain, Payload::Drain | Payload::None) => Packet::Drain,
        (kind, _) => return Err(DecodeError::Mismatch(kind)),
    };
    Ok(Decoded::Packet(packet))
}

/// Reads the member `field` on top of what `payload` holds.
fn merge(
    payload: Payload,
    field: u32,
    body: &[u8],
    message: &Bytes,
    offset: usize,
) -> Result<Payload, Malformed> {
    let mut reader = Reader::new(body);
    Ok(match field {
        2 => {
            let (mut protocol, mut address, mut dial) = match payload {
                Payload::DialRequest {
                    protocol,
                    address,
                    dial,
                } => (protocol, address, dial),
                _ => Default::default(),
            };
            while !reader.is_empty() {
                match reader.tag()? {
                    (field @ 1, WireType::Len) => protocol = string(&mut reader, field)?,
                    (field @ 2, WireType::Len) => address = string(&mut reader, field)?,
                    (3, WireType::Varint) => dial = int64(&mut reader)?,
                    (field, wire_type) => reader.skip(field, wire_type)?,
                }
            }
            Payload::DialRequest {
                protocol,
                address,
                dial,
            }
        }
        3 => {
            let (mut error, mut conn, mut dial) = match payload {
                Payload::DialResponse { error, conn, dial } => (error, conn, dial),
                _ => Default::default(),
            };
            while !reader.is_empty() {
                match reader.tag()? {
                    (field @ 1, WireType::Len) => error = string(&mut reader, field)?,
                    (2, WireType::Varint) => conn = int64(&mut reader)?,
                    (3, WireType::Varint) => dial = int64(&mut reader)?,
                    (field, wire_type) => reader.skip(field, wire_type)?,
                }
            }
            Payload::DialResponse { error, conn, dial }
        }
        4 => {
            let (mut conn, mut payload) = match payload {
                Payload::Data { conn, payload } => (conn, payload),
                _ => Default::default(),
            };
            while !reader.is_empty() {
                match reader.tag()? {
                    (1, WireType::Varint) => conn = int64(&mut reader)?,
                    (3, WireType::Len) => {
                        let len = reader.len_delimited()?.len();
                        let end = offset + reader.position();
                        payload = message.slice(end - len..end);
                    }
                    (field, wire_type) => reader.skip(field, wire_type)?,
                }
            }
            Payload::Data { conn, payload }
        }
        5 => {
            let mut conn = if let Payload::CloseRequest { conn } = payload {
                conn
            } else {
                0
            };
            only_id(&mut reader, &mut conn)?;
            Payload::CloseRequest { conn }
        }
        6 => {
            let (mut error, mut conn) = match payload {
                Payload::CloseResponse { error, conn } => (error, conn),
                _ => Default::default(),
            };
            while !reader.is_empty() {
                match reader.tag()? {
                    (field @ 1, WireType::Len) => error = string(&mut reader, field)?,
                    (2, WireType::Varint) => conn = int64(&mut reader)?,
                    (field, wire_type) => reader.skip(field, wire_type)?,
                }
            }
            Payload::CloseResponse { error, conn }
        }
        7 => {
            let mut dial = if let Payload::CloseDial { dial } = payload {
                dial
            } else {
                0
            };
            only_id(&mut reader, &mut dial)?;
            Payload::CloseDial { dial }
        }
        _ => {
            while !reader.is_empty() {
                let (field, wire_type) = reader.tag()?;
                reader.skip(field, wire_type)?;
            }
            Payload::Drain
        }
    })
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "an enum is an int32, of which Go keeps the low bits"
)]
const fn low_32_bits(value: u64) -> u32 {
    value as u32
}

/// Reads a member whose one field is an id.
fn only_id(reader: &mut Reader<'_>, id: &mut i64) -> Result<(), Malformed> {
    while !reader.is_empty() {
        match reader.tag()? {
            (1, WireType::Varint) => *id = int64(reader)?,
            (field, wire_type) => reader.skip(field, wire_type)?,
        }
    }
    Ok(())
}

#[inline]
fn int64(reader: &mut Reader<'_>) -> Result<i64, Malformed> {
    reader.varint().map(u64::cast_signed)
}

fn string(reader: &mut Reader<'_>, field: u32) -> Result<String, Malformed> {
    let bytes = reader.len_delimited()?;
    std::str::from_utf8(bytes)
        .map(str::to_owned)
        .map_err(|_| Malformed::NotUtf8(field))
}

/// Most bytes that [`put_data_head`] writes: gRPC prefix, type, member tag and length, id, payload tag and length.
pub const MAX_DATA_HEAD: usize = grpc::PREFIX_LEN + 2 + (1 + 5) + (1 + MAX_VARINT_LEN) + (1 + 5);

/// Writes everything of a DATA message but its payload, gRPC prefix included; the payload must follow at once.
///
/// `payload_len` is in bytes and at least 1: an empty DATA is the end of the stream to upstream's client library.
///
/// # Panics
/// In debug builds, if `payload_len` is 0 or the message would pass [`grpc::MAX_MESSAGE`].
pub fn put_data_head(dst: &mut BytesMut, conn: ConnectId, payload_len: usize) {
    debug_assert!(
        payload_len > 0,
        "an empty DATA reads as the end of the stream"
    );
    let id = conn.0.cast_unsigned();
    let id_len = if id == 0 { 0 } else { 1 + varint_len(id) };
    let inner = id_len + 1 + varint_len(payload_len as u64) + payload_len;
    let message = 2 + 1 + varint_len(inner as u64) + inner;
    grpc::put_prefix(dst, message);
    put_kind(dst, PacketKind::Data);
    put_len(dst, 4, inner);
    put_int64(dst, 1, conn.0);
    put_len(dst, 3, payload_len);
}

/// Writes one message, gRPC prefix included.
pub fn put_packet(dst: &mut BytesMut, packet: &Packet) {
    match packet {
        Packet::Data { conn, payload } => {
            put_data_head(dst, *conn, payload.len());
            dst.put_slice(payload);
        }
        Packet::DialRequest {
            protocol,
            address,
            dial,
        } => {
            let inner = string_len(protocol) + string_len(address) + int64_len(dial.0);
            put_head(dst, packet.kind(), 2, inner);
            put_string(dst, 1, protocol);
            put_string(dst, 2, address);
            put_int64(dst, 3, dial.0);
        }
        Packet::DialResponse { error, conn, dial } => {
            let inner = string_len(error) + int64_len(conn.0) + int64_len(dial.0);
            put_head(dst, packet.kind(), 3, inner);
            put_string(dst, 1, error);
            put_int64(dst, 2, conn.0);
            put_int64(dst, 3, dial.0);
        }
        Packet::CloseRequest { conn } => {
            put_head(dst, packet.kind(), 5, int64_len(conn.0));
            put_int64(dst, 1, conn.0);
        }
        Packet::CloseResponse { error, conn } => {
            put_head(dst, packet.kind(), 6, string_len(error) + int64_len(conn.0));
            put_string(dst, 1, error);
            put_int64(dst, 2, conn.0);
        }
        Packet::CloseDial { dial } => {
            put_head(dst, packet.kind(), 7, int64_len(dial.0));
            put_int64(dst, 1, dial.0);
        }
        Packet::Drain => put_head(dst, packet.kind(), 8, 0),
    }
}

/// gRPC prefix, type and the member's tag and length: all that stands in front of a control packet's own fields.
fn put_head(dst: &mut BytesMut, kind: PacketKind, field: u32, inner: usize) {
    let kind_len = if kind as u8 == 0 { 0 } else { 2 };
    grpc::put_prefix(dst, kind_len + 1 + varint_len(inner as u64) + inner);
    put_kind(dst, kind);
    put_len(dst, field, inner);
}

fn put_kind(dst: &mut BytesMut, kind: PacketKind) {
    // proto3 leaves zero values out: DIAL_REQ has no type on the wire.
    if kind as u8 != 0 {
        dst.put_u8(1 << 3);
        dst.put_u8(kind as u8);
    }
}

fn put_len(dst: &mut BytesMut, field: u32, len: usize) {
    put_varint(dst, u64::from(field << 3 | 2));
    put_varint(dst, len as u64);
}

fn put_int64(dst: &mut BytesMut, field: u32, value: i64) {
    if value != 0 {
        put_varint(dst, u64::from(field << 3));
        put_varint(dst, value.cast_unsigned());
    }
}

fn put_string(dst: &mut BytesMut, field: u32, value: &str) {
    if !value.is_empty() {
        put_len(dst, field, value.len());
        dst.put_slice(value.as_bytes());
    }
}

fn int64_len(value: i64) -> usize {
    if value == 0 {
        0
    } else {
        1 + varint_len(value.cast_unsigned())
    }
}

fn string_len(value: &str) -> usize {
    if value.is_empty() {
        0
    } else {
        1 + varint_len(value.len() as u64) + value.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Bytes {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    }

    fn tcp(address: &str, dial: i64) -> Packet {
        Packet::DialRequest {
            protocol: "tcp".into(),
            address: address.into(),
            dial: DialId(dial),
        }
    }

    /// The table of wire-protocol, section 1.3, made by upstream's generated code.
    fn reference() -> Vec<(&'static str, Packet)> {
        let conn = ConnectId(7);
        let dial = DialId(1);
        vec![
            (
                "12150a03746370120c31302e302e302e313a3434331801",
                tcp("10.0.0.1:443", 1),
            ),
            (
                "12140a037463701203613a3118ffffffffffffffff7f",
                tcp("a:1", i64::MAX),
            ),
            (
                "08011a0410071801",
                Packet::DialResponse {
                    error: String::new(),
                    conn,
                    dial,
                },
            ),
            (
                "08011a050a01651801",
                Packet::DialResponse {
                    error: "e".into(),
                    conn: ConnectId::NONE,
                    dial,
                },
            ),
            ("08022a020807", Packet::CloseRequest { conn }),
            (
                "08022a0b08ffffffffffffffffff01",
                Packet::CloseRequest {
                    conn: ConnectId(-1),
                },
            ),
            (
                "080332021007",
                Packet::CloseResponse {
                    error: String::new(),
                    conn,
                },
            ),
            (
                "080332050a01651007",
                Packet::CloseResponse {
                    error: "e".into(),
                    conn,
                },
            ),
            (
                "0804220608071a026869",
                Packet::Data {
                    conn,
                    payload: Bytes::from_static(b"hi"),
                },
            ),
            ("08053a020801", Packet::CloseDial { dial }),
            ("08064200", Packet::Drain),
        ]
    }

    #[test]
    fn packets_have_the_bytes_of_upstreams_generated_code() {
        for (bytes, packet) in reference() {
            let bytes = hex(bytes);
            assert_eq!(decode(&bytes), Ok(Decoded::Packet(packet.clone())));
            let mut out = BytesMut::new();
            put_packet(&mut out, &packet);
            assert_eq!(
                out.split_to(grpc::PREFIX_LEN)[..],
                [
                    &[0u8; 1][..],
                    &u32::try_from(bytes.len()).unwrap().to_be_bytes()
                ]
                .concat()
            );
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn a_payload_shares_the_memory_of_its_message() {
        let message = hex("0804220608071a026869");
        let Ok(Decoded::Packet(Packet::Data { payload, .. })) = decode(&message) else {
            panic!("no DATA")
        };
        assert_eq!(payload.as_ptr(), message[8..].as_ptr());
    }

    #[test]
    fn a_type_without_its_payload_is_a_mismatch_and_not_a_crash() {
        assert_eq!(
            decode(&Bytes::new()),
            Err(DecodeError::Mismatch(PacketKind::DialRequest))
        );
        for kind in PacketKind::ALL {
            let bare = Bytes::from(vec![8, kind as u8]);
            let expected = match kind {
                PacketKind::Drain => Ok(Decoded::Packet(Packet::Drain)),
                kind => Err(DecodeError::Mismatch(kind)),
            };
            assert_eq!(decode(&bare), expected);
            // A CLOSE_DIAL payload under any other type.
            let crossed = [&[8, kind as u8][..], &hex("3a020801")].concat();
            let expected = match kind {
                PacketKind::CloseDial => Ok(Decoded::Packet(Packet::CloseDial { dial: DialId(1) })),
                kind => Err(DecodeError::Mismatch(kind)),
            };
            assert_eq!(decode(&crossed.into()), expected);
        }
    }

    #[test]
    fn unknown_types_and_fields_are_no_errors() {
        assert_eq!(decode(&hex("0863")), Ok(Decoded::Unknown(99)));
        // Field 15 in front of, within and behind a CLOSE_REQ; field order reversed.
        let odd = hex("7a01ff2a06080778ffff0308027a00");
        assert_eq!(
            decode(&odd),
            Ok(Decoded::Packet(Packet::CloseRequest { conn: ConnectId(7) }))
        );
    }

    #[test]
    fn the_last_value_wins_and_a_repeated_member_is_merged() {
        // CLOSE_RSP{error e}, CLOSE_RSP{connectID 7}: one packet with both.
        let twice = hex("080332030a01653202100732021008");
        let merged = Packet::CloseResponse {
            error: "e".into(),
            conn: ConnectId(8),
        };
        assert_eq!(decode(&twice), Ok(Decoded::Packet(merged)));
        // DATA behind a CLOSE_REQ member replaces it.
        let replaced = hex("08042a020807220608071a026869");
        assert!(matches!(
            decode(&replaced),
            Ok(Decoded::Packet(Packet::Data { .. }))
        ));
    }

    #[test]
    fn a_data_head_is_what_stands_in_front_of_the_payload() {
        for conn in [1, 127, 128, -1, i64::MAX] {
            for len in [1usize, 127, 128, 16_320, 65_536] {
                let payload = Bytes::from(vec![7; len]);
                let mut whole = BytesMut::new();
                put_packet(
                    &mut whole,
                    &Packet::Data {
                        conn: ConnectId(conn),
                        payload: payload.clone(),
                    },
                );
                let mut head = BytesMut::new();
                put_data_head(&mut head, ConnectId(conn), len);
                assert!(head.len() <= MAX_DATA_HEAD);
                assert_eq!(whole, [&head[..], &payload[..]].concat());
                let message = whole.freeze().slice(grpc::PREFIX_LEN..);
                assert_eq!(
                    decode(&message),
                    Ok(Decoded::Packet(Packet::Data {
                        conn: ConnectId(conn),
                        payload
                    }))
                );
            }
        }
    }
}
