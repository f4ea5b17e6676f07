//! The codec against a second opinion: prost over `proto/packet.proto`.
//!
//! Known differences, all where ours goes with Go instead: a known field of another wire type is skipped (prost refuses the
//! message), `Data.error` is not looked at (prost wants UTF-8), and groups nest 16 deep at most (prost: 100).

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

use std::path::Path;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};
use tunnel::{
    codec::{self, DecodeError, Decoded, varint},
    grpc,
    packet::{ConnectId, DialId, Packet, PacketKind},
};

thread_local! {
    static PACKET: MessageDescriptor = {
        let proto = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
        let files = protox::compile(["packet.proto"], [proto]).unwrap();
        let pool = DescriptorPool::from_file_descriptor_set(files).unwrap();
        pool.get_message_by_name("Packet").unwrap()
    };
}

fn descriptor() -> MessageDescriptor {
    PACKET.with(Clone::clone)
}

const MEMBERS: [&str; 7] = [
    "dialRequest",
    "dialResponse",
    "closeRequest",
    "closeResponse",
    "data",
    "closeDial",
    "drain",
];

/// The member that goes with a kind.
fn member_of(kind: PacketKind) -> &'static str {
    MEMBERS[kind as usize]
}

/// What the oracle makes of `bytes`: nothing, or what our codec should make of them.
fn oracle(bytes: &[u8]) -> Option<Result<Decoded, DecodeError>> {
    let message = DynamicMessage::decode(descriptor(), bytes).ok()?;
    let number = message
        .get_field_by_name("type")
        .unwrap()
        .as_enum_number()
        .unwrap()
        .cast_unsigned();
    let Some(kind) = PacketKind::from_number(number) else {
        return Some(Ok(Decoded::Unknown(number)));
    };
    let has_any = MEMBERS.iter().any(|name| message.has_field_by_name(name));
    let has_its_own = message.has_field_by_name(member_of(kind));
    if !has_its_own && (kind != PacketKind::Drain || has_any) {
        return Some(Err(DecodeError::Mismatch(kind)));
    }
    let payload = message.get_field_by_name(member_of(kind)).unwrap();
    let payload = payload.as_message().unwrap();
    let number = |name: &str| payload.get_field_by_name(name).unwrap().as_i64().unwrap();
    let text = |name: &str| {
        payload
            .get_field_by_name(name)
            .unwrap()
            .as_str()
            .unwrap()
            .to_owned()
    };
    let (conn, dial) = (
        || ConnectId(number("connectID")),
        || DialId(number("random")),
    );
    Some(Ok(Decoded::Packet(match kind {
        PacketKind::DialRequest => Packet::DialRequest {
            protocol: text("protocol"),
            address: text("address"),
            dial: dial(),
        },
        PacketKind::DialResponse => Packet::DialResponse {
            error: text("error"),
            conn: conn(),
            dial: dial(),
        },
        PacketKind::CloseRequest => Packet::CloseRequest { conn: conn() },
        PacketKind::CloseResponse => Packet::CloseResponse {
            error: text("error"),
            conn: conn(),
        },
        PacketKind::Data => {
            let payload = payload
                .get_field_by_name("data")
                .unwrap()
                .as_bytes()
                .unwrap()
                .clone();
            Packet::Data {
                conn: conn(),
                payload,
            }
        }
        PacketKind::CloseDial => Packet::CloseDial { dial: dial() },
        PacketKind::Drain => Packet::Drain,
    })))
}

/// `packet` as the oracle encodes it.
fn oracle_bytes(packet: &Packet) -> Bytes {
    let mut message = DynamicMessage::new(descriptor());
    let number = i32::from(packet.kind() as u8);
    message.set_field_by_name("type", Value::EnumNumber(number));
    let field = descriptor()
        .get_field_by_name(member_of(packet.kind()))
        .unwrap();
    let mut payload = DynamicMessage::new(field.kind().as_message().unwrap().clone());
    let mut set = |name: &str, value: Value| payload.set_field_by_name(name, value);
    match packet.clone() {
        Packet::DialRequest {
            protocol,
            address,
            dial,
        } => {
            set("protocol", Value::String(protocol));
            set("address", Value::String(address));
            set("random", Value::I64(dial.0));
        }
        Packet::DialResponse { error, conn, dial } => {
            set("error", Value::String(error));
            set("connectID", Value::I64(conn.0));
            set("random", Value::I64(dial.0));
        }
        Packet::CloseRequest { conn } => set("connectID", Value::I64(conn.0)),
        Packet::CloseResponse { error, conn } => {
            set("error", Value::String(error));
            set("connectID", Value::I64(conn.0));
        }
        Packet::Data { conn, payload } => {
            set("connectID", Value::I64(conn.0));
            set("data", Value::Bytes(payload));
        }
        Packet::CloseDial { dial } => set("random", Value::I64(dial.0)),
        Packet::Drain => {}
    }
    message.set_field(&field, Value::Message(payload));
    message.encode_to_vec().into()
}

/// `packet` as our codec encodes it, without the gRPC prefix.
fn our_bytes(packet: &Packet) -> Bytes {
    let mut out = BytesMut::new();
    codec::put_packet(&mut out, packet);
    out.freeze().slice(grpc::PREFIX_LEN..)
}

fn id() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -2i64..300, Just(i64::MAX), Just(i64::MIN)]
}

fn packet() -> impl Strategy<Value = Packet> {
    let conn = || id().prop_map(ConnectId);
    let dial = || id().prop_map(DialId);
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..300),
        prop::sample::select(vec![127usize, 128, 16_320, 70_000]).prop_map(|len| vec![7; len]),
    ];
    prop_oneof![
        (any::<String>(), any::<String>(), dial()).prop_map(|(protocol, address, dial)| {
            Packet::DialRequest {
                protocol,
                address,
                dial,
            }
        }),
        (any::<String>(), conn(), dial()).prop_map(|(error, conn, dial)| Packet::DialResponse {
            error,
            conn,
            dial
        }),
        conn().prop_map(|conn| Packet::CloseRequest { conn }),
        (any::<String>(), conn()).prop_map(|(error, conn)| Packet::CloseResponse { error, conn }),
        (conn(), payload).prop_map(|(conn, payload)| Packet::Data {
            conn,
            payload: payload.into()
        }),
        dial().prop_map(|dial| Packet::CloseDial { dial }),
        Just(Packet::Drain),
    ]
}

fn put_tag(out: &mut Vec<u8>, field: u32, wire_type: u64) {
    varint::put_varint(out, u64::from(field) << 3 | wire_type);
}

fn varint_field(field: u32, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_tag(&mut out, field, 0);
    varint::put_varint(&mut out, value);
    out
}

fn len_field(field: u32, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_tag(&mut out, field, 2);
    varint::put_varint(&mut out, value.len() as u64);
    out.extend_from_slice(value);
    out
}

/// A field that no message of the schema has, of any wire type.
fn unknown_field() -> impl Strategy<Value = Vec<u8>> {
    (
        9u32..1 << 29,
        any::<u64>(),
        prop::collection::vec(any::<u8>(), 0..20),
        0u8..5,
    )
        .prop_map(|(field, number, bytes, kind)| match kind {
            0 => varint_field(field, number),
            1 => len_field(field, &bytes),
            2 => {
                let mut out = Vec::new();
                put_tag(&mut out, field, 1);
                out.extend_from_slice(&number.to_le_bytes());
                out
            }
            3 => {
                let mut out = Vec::new();
                put_tag(&mut out, field, 5);
                out.extend_from_slice(&number.to_le_bytes()[..4]);
                out
            }
            _ => {
                let mut out = Vec::new();
                put_tag(&mut out, field, 3);
                out.extend(varint_field(1, number));
                out.extend(len_field(2, &bytes));
                put_tag(&mut out, field, 4);
                out
            }
        })
}

/// Fields in any order and number: `known` ones and unknown ones.
fn fields(known: impl Strategy<Value = Vec<u8>> + 'static) -> impl Strategy<Value = Vec<u8>> {
    let known = known.boxed();
    prop::collection::vec(prop_oneof![3 => known, 1 => unknown_field()], 0..6)
        .prop_map(|fields| fields.concat())
}

fn id_field(field: u32) -> impl Strategy<Value = Vec<u8>> {
    id().prop_map(move |value| varint_field(field, value.cast_unsigned()))
}

fn text_field(field: u32) -> impl Strategy<Value = Vec<u8>> {
    any::<String>().prop_map(move |value| len_field(field, value.as_bytes()))
}

/// One member of the oneof, with its fields in any order and number.
fn member() -> impl Strategy<Value = Vec<u8>> {
    let bytes_field =
        prop::collection::vec(any::<u8>(), 0..60).prop_map(|bytes| len_field(3, &bytes));
    let of = |field: u32, body: BoxedStrategy<Vec<u8>>| {
        body.prop_map(move |body| len_field(field, &body))
    };
    prop_oneof![
        of(
            2,
            fields(prop_oneof![text_field(1), text_field(2), id_field(3)]).boxed()
        ),
        of(
            3,
            fields(prop_oneof![text_field(1), id_field(2), id_field(3)]).boxed()
        ),
        of(
            4,
            fields(prop_oneof![id_field(1), text_field(2), bytes_field]).boxed()
        ),
        of(5, fields(id_field(1)).boxed()),
        of(6, fields(prop_oneof![text_field(1), id_field(2)]).boxed()),
        of(7, fields(id_field(1)).boxed()),
        of(8, fields(unknown_field()).boxed()),
    ]
}

/// A well-formed message that no encoder would write.
fn odd_message() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![8 => 0u64..7, 1 => any::<u64>(), 1 => 0u64..200];
    let type_field = number.prop_map(|number| varint_field(1, number));
    prop::collection::vec(
        prop_oneof![2 => type_field, 3 => member(), 1 => unknown_field()],
        0..7,
    )
    .prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_we_encode_is_what_the_oracle_encodes_and_reads(packet in packet()) {
        let bytes = our_bytes(&packet);
        prop_assert_eq!(oracle(&bytes), Some(Ok(Decoded::Packet(packet.clone()))));
        prop_assert_eq!(codec::decode(&bytes), Ok(Decoded::Packet(packet.clone())));
        prop_assert_eq!(bytes, oracle_bytes(&packet));
    }

    #[test]
    fn odd_but_well_formed_messages_mean_to_us_what_they_mean_to_the_oracle(message in odd_message()) {
        let expected = oracle(&message);
        prop_assert!(expected.is_some(), "the oracle refuses {message:02x?}");
        prop_assert_eq!(Some(codec::decode(&message.into())), expected);
    }

    #[test]
    fn whatever_the_oracle_reads_we_read_alike(
        mut message in odd_message(),
        edits in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4),
        keep in any::<usize>(),
    ) {
        for (at, byte) in edits {
            if let Some(at) = at.checked_rem(message.len()) {
                message[at] = byte;
            }
        }
        message.truncate(keep % (2 * message.len() + 1));
        let ours = codec::decode(&Bytes::copy_from_slice(&message));
        if let Some(expected) = oracle(&message) {
            prop_assert_eq!(ours, expected);
        }
    }

    #[test]
    fn random_bytes_never_panic_and_mean_what_the_oracle_says(message in prop::collection::vec(any::<u8>(), 0..80)) {
        let ours = codec::decode(&Bytes::copy_from_slice(&message));
        if let Some(expected) = oracle(&message) {
            prop_assert_eq!(ours, expected);
        }
    }
}
