//! Packets of upstream's generated Go code (`golden/packets.txt`, whose head describes the format).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use bytes::{Bytes, BytesMut};
use tunnel::{
    codec::{self, DecodeError, Decoded},
    grpc,
    packet::{ConnectId, DialId, Packet, PacketKind},
};

const GOLDEN: &str = include_str!("golden/packets.txt");

/// What Go makes of the bytes.
#[derive(Debug)]
enum Expected {
    Packet { packet: Packet, is_canonical: bool },
    Mismatch(PacketKind),
    Unknown(u32),
    Invalid,
}

fn hex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "{text}");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// The fields of a description, as (name, value) with quotes and escapes still on.
fn fields(text: &str) -> Vec<(&str, &str)> {
    let mut fields = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (name, value) = rest.split_once('=').unwrap();
        let mut is_quoted = false;
        let mut is_escaped = false;
        let end = value.find(|c| {
            match c {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => is_quoted = !is_quoted,
                ' ' if !is_quoted => return true,
                _ => {}
            }
            false
        });
        let (value, tail) = value.split_at(end.unwrap_or(value.len()));
        fields.push((name, value));
        rest = tail.trim_start();
    }
    fields
}

fn unquoted(text: &str) -> String {
    let inner = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap();
    let mut out = Vec::new();
    let mut bytes = inner.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => match bytes.next().unwrap() {
                b'x' => {
                    let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                    out.extend(hex(std::str::from_utf8(&digits).unwrap()));
                }
                escaped => out.push(escaped),
            },
            byte => out.push(byte),
        }
    }
    String::from_utf8(out).unwrap()
}

fn expected(description: &str) -> Expected {
    let (kind, rest) = description.split_once(' ').unwrap_or((description, ""));
    let fields = fields(rest);
    let field = |name: &str| {
        fields
            .iter()
            .find(|field| field.0 == name)
            .unwrap_or_else(|| panic!("{name}"))
            .1
    };
    let number = |name: &str| field(name).parse::<i64>().unwrap();
    let conn = || ConnectId(number("connect_id"));
    let dial = || DialId(number("random"));
    let packet = match kind {
        "DIAL_REQ" => Packet::DialRequest {
            protocol: unquoted(field("protocol")),
            address: unquoted(field("address")),
            dial: dial(),
        },
        "DIAL_RSP" => Packet::DialResponse {
            error: unquoted(field("error")),
            conn: conn(),
            dial: dial(),
        },
        "CLOSE_REQ" => Packet::CloseRequest { conn: conn() },
        "CLOSE_RSP" => Packet::CloseResponse {
            error: unquoted(field("error")),
            conn: conn(),
        },
        "DATA" => {
            let payload = match fields.iter().find(|field| field.0 == "data_fill") {
                Some((_, fill)) => {
                    let (byte, times) = fill.split_once('*').unwrap();
                    hex(byte).repeat(times.parse().unwrap())
                }
                None => hex(field("data_hex")),
            };
            Packet::Data {
                conn: conn(),
                payload: payload.into(),
            }
        }
        "DIAL_CLS" => Packet::CloseDial { dial: dial() },
        "DRAIN" => Packet::Drain,
        "MISMATCH" => {
            return Expected::Mismatch(
                PacketKind::from_number(field("type").parse().unwrap()).unwrap(),
            );
        }
        "UNKNOWN" => {
            return Expected::Unknown(field("type").parse::<i32>().unwrap().cast_unsigned());
        }
        "INVALID" => return Expected::Invalid,
        other => panic!("unknown kind {other}"),
    };
    // What ours never sends: DATA without bytes, and a field that nobody reads.
    let is_sendable = match &packet {
        Packet::Data { payload, .. } => !payload.is_empty() && field("error") == "\"\"",
        _ => true,
    };
    Expected::Packet {
        packet,
        is_canonical: field("encoding") == "canonical" && is_sendable,
    }
}

#[test]
fn every_golden_packet_is_read_as_go_reads_it_and_written_as_go_writes_it() {
    let mut counts = [0; 4];
    for line in GOLDEN.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<_> = line.split('\t').collect();
        let [name, bytes, description] = columns[..] else {
            panic!("not three columns: {line}")
        };
        let bytes = Bytes::from(hex(bytes));
        let decoded = codec::decode(&bytes);
        match expected(description) {
            Expected::Packet {
                packet,
                is_canonical,
            } => {
                assert_eq!(decoded, Ok(Decoded::Packet(packet.clone())), "{name}");
                if is_canonical {
                    let mut out = BytesMut::new();
                    codec::put_packet(&mut out, &packet);
                    assert_eq!(out[grpc::PREFIX_LEN..], bytes, "{name}");
                }
                counts[0] += 1;
            }
            // The one payload that has nothing to say may be missing.
            Expected::Mismatch(PacketKind::Drain) if bytes == [8, 6][..] => {
                assert_eq!(decoded, Ok(Decoded::Packet(Packet::Drain)), "{name}");
                counts[1] += 1;
            }
            Expected::Mismatch(kind) => {
                assert_eq!(decoded, Err(DecodeError::Mismatch(kind)), "{name}");
                counts[1] += 1;
            }
            Expected::Unknown(number) => {
                assert_eq!(decoded, Ok(Decoded::Unknown(number)), "{name}");
                counts[2] += 1;
            }
            Expected::Invalid => {
                assert!(
                    matches!(decoded, Err(DecodeError::Malformed(_))),
                    "{name}: {decoded:?}"
                );
                counts[3] += 1;
            }
        }
    }
    assert!(
        counts.iter().all(|&count| count > 5),
        "the file has shrunk: {counts:?}"
    );
}
