//! What the benchmarks and the allocation test of the framing hot path have in common, and, in modules, what the programs have that measure
//! real processes.
//!
//! | module | job |
//! |---|---|
//! | [`pair`] | who is compared |
//! | [`rig`] | a pair of processes that runs, with the same flags whoever made it |
//! | [`relay`] | the yardstick: what carries bytes and nothing else |
//! | [`upstream`] | where upstream's binaries are |
//! | [`load`] | what plays kube-apiserver, targets and agents |
//! | [`figure`] | figures of several measurements |
//! | [`table`], [`chart`] | text in columns, and pictures |
//! | [`usage`] | memory and CPU of a process |
//! | [`probe`] | what the machine can do at the moment |

pub mod chart;
pub mod figure;
pub mod load;
pub mod pair;
pub mod probe;
pub mod relay;
pub mod rig;
pub mod table;
pub mod upstream;
pub mod usage;

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use tunnel::{
    codec,
    conn::Role,
    grpc::{MAX_MESSAGE, MessageReader},
    ledger::{DEFAULT_BUDGET, Ledger},
    mux::{Connection, Mux},
    observe::Unobserved,
    packet::{ConnectId, DialId, Packet},
};

/// Payload lengths of a DATA packet, in bytes. None is 0: an empty DATA is never sent (trap T4 of the wire format).
pub const PAYLOADS: [usize; 5] = [64, 1024, 4 * 1024, 16 * 1024, 64 * 1024];

/// A connection id of two bytes on the wire, as most are in a busy tunnel.
pub const CONN: ConnectId = ConnectId(1234);

/// Packets with their gRPC prefixes, one behind the other.
#[must_use]
pub fn wire(packets: &[Packet]) -> Bytes {
    let mut out = BytesMut::new();
    for packet in packets {
        codec::put_packet(&mut out, packet);
    }
    out.freeze()
}

/// A DATA packet of `len` bytes.
#[must_use]
pub fn data(len: usize) -> Packet {
    Packet::Data {
        conn: CONN,
        payload: Bytes::from(vec![0x5a; len]),
    }
}

/// One of each control packet that a connection's life has.
#[must_use]
pub fn controls() -> [(&'static str, Packet); 4] {
    let dial = DialId(0x1234_5678_9abc);
    [
        (
            "dial_req",
            Packet::DialRequest {
                protocol: "tcp".to_owned(),
                address: "10.244.13.7:10250".to_owned(),
                dial,
            },
        ),
        (
            "dial_rsp",
            Packet::DialResponse {
                error: String::new(),
                conn: CONN,
                dial,
            },
        ),
        ("close_req", Packet::CloseRequest { conn: CONN }),
        (
            "close_rsp",
            Packet::CloseResponse {
                error: String::new(),
                conn: CONN,
            },
        ),
    ]
}

/// `bytes` in `count` chunks of about the same length.
#[must_use]
pub fn chunks(bytes: &Bytes, count: usize) -> Vec<Bytes> {
    let step = bytes.len().div_ceil(count.max(1)).max(1);
    (0..bytes.len())
        .step_by(step)
        .map(|start| bytes.slice(start..bytes.len().min(start + step)))
        .collect()
}

/// Reads all packets in `chunks`; how many there were.
///
/// # Panics
/// If there is something else in them.
pub fn read(reader: &mut MessageReader, chunks: &[Bytes]) -> usize {
    let mut count = 0;
    for chunk in chunks {
        reader.push(chunk.clone());
        while let Ok(Some(message)) = reader.next_message() {
            let packet = codec::decode(&message);
            assert!(packet.is_ok(), "{packet:?}");
            std::hint::black_box(&packet);
            count += 1;
        }
    }
    count
}

/// A reader of messages as a link has it.
#[must_use]
pub fn reader() -> MessageReader {
    MessageReader::new(MAX_MESSAGE)
}

/// An agent's end of a tunnel with `count` connections and nothing to send.
///
/// # Panics
/// If `count` is more than a tunnel carries.
#[must_use]
pub fn agent(count: usize) -> (Rc<Mux>, Vec<Connection>) {
    let mux = Mux::new(
        Role::Agent,
        Rc::new(Ledger::new(DEFAULT_BUDGET)),
        Rc::new(Unobserved),
    );
    let connections: Vec<_> = (0..count)
        .filter_map(|_| mux.accept(DialId(1)).ok())
        .collect();
    assert_eq!(
        connections.len(),
        count,
        "more connections than a tunnel carries"
    );
    while mux.next_batch().is_some() {}
    (mux, connections)
}
