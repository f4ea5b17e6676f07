//! What a peer may send, and what it gets for it.

use super::{super::*, *};

fn drain_of(events: &[Event]) -> bool {
    matches!(events, [Event::Drain])
}

#[test]
fn packets_of_the_other_direction_are_counted_and_ignored() {
    let mut server = End::new(Role::Server);
    let at_server = server.open(7);
    let dial_request = Packet::DialRequest {
        protocol: "tcp".into(),
        address: "a:1".into(),
        dial: DialId(1),
    };
    for packet in [dial_request, close_request(7)] {
        assert_eq!(server.feed(&packet), []);
    }
    assert_eq!(server.seen.violations.get(), 2);
    assert_eq!(
        (read_all(&at_server), server.sent()),
        ((vec![], None), vec![])
    );

    let mut agent = End::new(Role::Agent);
    let at_agent = agent.open_as_agent();
    let id = at_agent.id().0;
    for packet in [success(id, DialId(1)), close_response(id, "")] {
        assert_eq!(agent.feed(&packet), []);
    }
    assert_eq!(agent.seen.violations.get(), 2);
    assert_eq!(
        (read_all(&at_agent), agent.sent()),
        ((vec![], None), vec![])
    );
}

#[test]
fn mismatches_and_unknown_types_are_survived_and_garbage_ends_the_stream() {
    for role in [Role::Server, Role::Agent] {
        let end = End::new(role);
        // An empty message is a DIAL_REQ without payload; then a DATA without; then type 99.
        for message in [&b""[..], &[8, 4], &[8, 99]] {
            assert_eq!(
                end.mux.on_message(&Bytes::copy_from_slice(message)),
                Ok(None)
            );
        }
        assert_eq!((end.seen.violations.get(), end.seen.unknown.get()), (2, 1));
        assert!(matches!(
            end.mux.on_message(&Bytes::from_static(&[8])),
            Err(DecodeError::Malformed(_))
        ));
        assert_eq!(end.sent(), []);
    }
}

#[test]
fn drain_is_an_event_of_the_peers_owner_in_both_directions() {
    let mut pair = Pair::new();
    pair.agent.mux.send_drain();
    assert!(drain_of(&carry(&pair.agent, &mut pair.server, 1)));
    pair.server.mux.send_drain();
    assert!(drain_of(&carry(&pair.server, &mut pair.agent, 1)));
}

#[test]
fn data_for_an_unknown_connection_is_answered_with_a_close() {
    let mut server = End::new(Role::Server);
    server.feed(&data(5, "x"));
    assert_eq!(server.sent(), [close_request(5)]);
    let mut agent = End::new(Role::Agent);
    agent.feed(&data(5, "x"));
    assert_eq!(agent.sent(), [close_response(5, "unrecognized connectID")]);
}

#[test]
fn a_close_of_an_unknown_connection_is_answered_by_an_agent_and_ignored_by_a_server() {
    let mut agent = End::new(Role::Agent);
    agent.feed(&close_request(5));
    assert_eq!(agent.sent(), [close_response(5, "Unknown connectID")]);
    let mut server = End::new(Role::Server);
    server.feed(&close_response(5, "Unknown connectID"));
    assert_eq!((server.sent(), server.seen.violations.get()), (vec![], 0));
}

#[test]
fn data_for_connection_0_is_counted_and_not_answered() {
    for role in [Role::Server, Role::Agent] {
        let mut end = End::new(role);
        end.feed(&data(0, "x"));
        assert_eq!((end.seen.violations.get(), end.sent()), (1, vec![]));
    }
}

#[test]
fn empty_data_is_neither_an_end_nor_bytes() {
    let mut server = End::new(Role::Server);
    let connection = server.open(7);
    // DATA with the id alone, and DATA with an explicitly empty payload.
    for message in [&[8, 4, 0x22, 2, 8, 7][..], &[8, 4, 0x22, 4, 8, 7, 0x1a, 0]] {
        assert_eq!(
            server.mux.on_message(&Bytes::copy_from_slice(message)),
            Ok(None)
        );
        assert_eq!(read_all(&connection), (vec![], None));
    }
    server.feed(&data(7, "x"));
    assert_eq!(read_all(&connection), (b"x".to_vec(), None));
}

#[test]
fn any_id_but_0_names_a_connection() {
    for id in [-1, i64::MIN, i64::MAX, 1 << 40] {
        let mut server = End::new(Role::Server);
        let connection = server.open(id);
        server.feed(&data(id, "in"));
        connection.send(Bytes::from_static(b"out"));
        connection.finish();
        assert_eq!(read_all(&connection), (b"in".to_vec(), None));
        assert_eq!(server.sent(), [data(id, "out"), close_request(id)]);
        server.feed(&close_response(id, ""));
        assert_eq!(read_all(&connection), (vec![], Some(Ok(()))));
        assert_eq!(server.mux.connections(), 0);
    }
}

#[test]
fn a_peer_that_provokes_answers_and_reads_none_gets_a_bounded_number() {
    for (role, packet) in [
        (Role::Agent, close_request(5)),
        (Role::Server, data(5, "x")),
    ] {
        let mut end = End::new(role);
        for _ in 0..MAX_CONTROL + 1000 {
            end.feed(&packet);
        }
        assert_eq!(end.seen.limits.borrow().len(), 1000);
        assert!(
            end.seen
                .limits
                .borrow()
                .iter()
                .all(|&limit| limit == Limit::ControlQueue)
        );
        assert_eq!(end.sent().len(), MAX_CONTROL);
        end.feed(&packet);
        assert_eq!(end.sent().len(), 1);
    }
}

#[test]
fn small_messages_share_a_batch_and_a_long_payload_is_not_copied() {
    let mut server = End::new(Role::Server);
    let connections: Vec<_> = (1..=50).map(|id| server.open(id)).collect();
    for connection in &connections {
        connection.send(Bytes::from_static(b"ls -l\n"));
    }
    let batch = server.mux.next_batch().unwrap();
    assert!(server.mux.next_batch().is_none());
    assert_eq!(packets_of(bytes_of(batch)).len(), connections.len());

    let payload = pattern(1, MAX_DATA);
    connections[0].send(payload.clone());
    let batch = server.mux.next_batch().unwrap();
    let mut slices = [std::io::IoSlice::new(&[]); 2];
    assert_eq!(batch.chunks_vectored(&mut slices), 2);
    assert_eq!(slices[1].as_ptr(), payload.as_ptr());
}

#[test]
fn bulk_goes_out_in_whole_messages() {
    let mut server = End::new(Role::Server);
    let connection = server.open(7);
    for seed in 0..8 {
        connection.send(pattern(seed, 4 * MAX_DATA));
    }
    let lengths: Vec<_> = server
        .sent()
        .into_iter()
        .map(|packet| match packet {
            Packet::Data { payload, .. } => payload.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lengths, [MAX_DATA; 32]);
}

#[test]
fn a_keystroke_overtakes_a_bulk_transfer() {
    let mut server = End::new(Role::Server);
    let (bulk, shell) = (server.open(1), server.open(2));
    for seed in 0..4 {
        bulk.send(pattern(seed, 64 * 1024));
    }
    for _ in 0..4 {
        server.mux.next_batch().unwrap();
    }
    shell.send(Bytes::from_static(b"q"));
    let next = packets_of(bytes_of(server.mux.next_batch().unwrap()));
    assert_eq!(next.first(), Some(&data(2, "q")));
}

#[test]
fn whoever_counts_hears_of_payload_of_waits_and_of_answers_that_nobody_asked_for() {
    let mut pair = Pair::new();
    let (at_server, at_agent) = pair.connect();
    at_server.send(pattern(1, 30_000));
    at_agent.send(pattern(2, 500));
    pair.pump();
    assert_eq!(read_all(&at_server).0.len(), 500);
    at_server.delivered(0, Duration::from_secs(3));
    let (server, agent) = (&pair.server.seen, &pair.agent.seen);
    assert_eq!(
        [server.data_sent.get(), server.data_received.get()],
        [30_000, 500]
    );
    assert_eq!(
        [agent.data_sent.get(), agent.data_received.get()],
        [500, 30_000]
    );
    assert_eq!(
        *server.waited.borrow(),
        [Duration::ZERO, Duration::from_secs(3)]
    );
    assert_eq!(server.unrecognized.get(), 0);
    pair.server.feed(&success(77, DialId(12345)));
    assert_eq!(pair.server.seen.unrecognized.get(), 1);
}

#[test]
fn connections_that_take_no_more_are_counted_until_there_is_room() {
    let mut pair = Pair::new();
    let (at_server, _at_agent) = pair.connect();
    assert_eq!(pair.server.mux.full_connections(), 0);
    while at_server.poll_send_ready(&cx()).is_ready() {
        at_server.send(pattern(1, 16_000));
    }
    assert_eq!(pair.server.mux.full_connections(), 1);
    pair.pump();
    assert_eq!(pair.server.mux.full_connections(), 0);
}
