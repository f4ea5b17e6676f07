//! How often the framing hot path asks the allocator for memory.

use allocation_counter::measure;
use benches::{CONN, agent, chunks, data, read, reader, wire};
use bytes::{Bytes, BytesMut};
use tunnel::{codec, mux::MAX_DATA, packet::Packet};

/// The first `clone` of a fresh `Bytes` may make its memory shareable, which is once a chunk and not once a message.
fn shared(bytes: Bytes) -> Bytes {
    drop(bytes.clone());
    bytes
}

#[test]
fn messages_within_one_chunk_are_decoded_without_an_allocation() {
    for packets in [
        vec![data(64); 64],
        vec![data(16_000)],
        vec![Packet::CloseRequest { conn: CONN }; 10],
    ] {
        let chunk = [shared(wire(&packets))];
        let mut reader = reader();
        let counted = measure(|| assert_eq!(read(&mut reader, &chunk), packets.len()));
        assert_eq!(counted.count_total, 0, "{} messages", packets.len());
    }
}

#[test]
fn a_message_across_chunks_is_assembled_in_one_buffer() {
    for count in [2, 4, 17] {
        let pieces = chunks(&shared(wire(&[data(16_000)])), count);
        let mut reader = reader();
        let counted = measure(|| assert_eq!(read(&mut reader, &pieces), 1));
        // The buffer grows once when the second chunk comes; freezing it makes it shareable.
        assert!(
            counted.count_total <= 3,
            "{} for {count} chunks",
            counted.count_total
        );
    }
}

#[test]
fn encoding_into_a_buffer_with_room_allocates_nothing() {
    let packet = data(1024);
    let mut out = BytesMut::with_capacity(1 << 16);
    let counted = measure(|| {
        codec::put_packet(&mut out, &packet);
        codec::put_data_head(&mut out, CONN, MAX_DATA);
    });
    assert_eq!(counted.count_total, 0);
}

#[test]
fn a_long_payload_costs_its_batch_the_head_alone() {
    let (mux, connections) = agent(1);
    let payload = shared(Bytes::from(vec![1; MAX_DATA]));
    // Queues and lists find their size in the first rounds.
    for _ in 0..4 {
        connections[0].send(payload.clone());
        assert!(mux.next_batch().is_some());
    }
    connections[0].send(payload.clone());
    let counted = measure(|| assert!(mux.next_batch().is_some()));
    assert!(counted.count_total <= 2, "{}", counted.count_total);
}

#[test]
fn a_batch_of_many_short_messages_costs_far_less_than_one_allocation_each() {
    let (mux, connections) = agent(64);
    let payload = shared(Bytes::from(vec![1; 64]));
    let mut counted = 0;
    for _ in 0..4 {
        for connection in &connections {
            connection.send(payload.clone());
        }
        counted = measure(|| while mux.next_batch().is_some() {}).count_total;
    }
    // A queue's copied bytes become shareable (one each), and the batch grows to its size.
    assert!(counted <= 64 + 16, "{counted}");
}
