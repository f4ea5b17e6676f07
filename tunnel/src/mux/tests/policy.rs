//! Slow readers: what they hold, what they cost the others, and when they are reset.

use tokio::time::{Duration, Instant};

use super::{super::*, *};
use crate::{
    ledger::{ALLOWANCE, MIN_BUDGET},
    link::TUNNEL_WINDOW,
};

const WINDOW: usize = TUNNEL_WINDOW as usize;

/// Feeds DATA to connection `id` as far as the tunnel's window goes; how many bytes came.
fn fill(end: &mut End, id: i64) -> usize {
    let packet = data(id, pattern(1, 16_000));
    let before = end.received;
    while end.received - end.released + 16_100 < WINDOW {
        end.feed(&packet);
    }
    end.received - before
}

#[test]
fn a_stalled_reader_takes_its_share_of_the_budget_before_its_window_is_withheld() {
    let mut server = End::new(Role::Server);
    let stalled = server.open(1);
    let taken = fill(&mut server, 1);
    let share = DEFAULT_BUDGET / 3;
    assert!(
        (share..share + WINDOW + 2 * ALLOWANCE).contains(&taken),
        "{taken}"
    );
    assert!(server.ledger.used() > share);
    assert!(server.mux.is_withholding());
    drop(stalled);
    server.release();
    assert!(!server.mux.is_withholding());
    assert_eq!(
        (server.released, server.ledger.used()),
        (server.received, 0)
    );
}

#[test]
fn window_of_other_connections_is_given_back_while_one_is_stalled() {
    let mut server = End::new(Role::Server);
    let (_stalled, prompt) = (server.open(1), server.open(2));
    let packet = data(1, pattern(1, 16_000));
    while server.received == server.released {
        server.feed(&packet);
    }
    let withheld = server.received - server.released;
    for seed in 0..1000 {
        let bytes = pattern(seed, 10_000);
        server.feed(&data(2, bytes.clone()));
        assert_eq!(read_all(&prompt), (bytes.to_vec(), None));
        server.release();
        assert_eq!(server.received - server.released, withheld);
    }
}

#[test]
fn a_tunnel_is_paced_once_most_of_its_window_is_withheld_and_until_it_is_read() {
    let mut server = End::new(Role::Server);
    let stalled = server.open(1);
    assert!(!server.mux.update_pace(WINDOW));
    fill(&mut server, 1);
    assert!(server.mux.update_pace(WINDOW) && server.mux.is_paced());
    assert_eq!(server.seen.limits.take(), [Limit::Paced]);
    assert_eq!(server.mux.take_window(), 0);

    server.mux.pace();
    let grant = server.mux.take_window();
    server.released += grant;
    // 64 KiB, less what is used of the budget: a little more than a third.
    assert!((36 * 1024..44 * 1024).contains(&grant), "{grant}");

    read_all(&stalled);
    server.release();
    assert!(!server.mux.update_pace(WINDOW) && !server.mux.is_paced());
    assert_eq!(server.released, server.received);
}

#[test]
fn grants_shrink_to_nothing_with_the_budget_and_by_what_readers_took() {
    let mut server = End::with_budget(Role::Server, 16 * 1024 * 1024);
    let stalled = server.open(1);
    fill(&mut server, 1);
    assert!(server.mux.update_pace(WINDOW));
    // A reader that takes more than the grant has given that much back already.
    let Poll::Ready(Ok(Some(bytes))) = stalled.poll_recv(&cx(), usize::MAX) else {
        panic!("nothing to read")
    };
    let Poll::Ready(Ok(Some(more))) = stalled.poll_recv(&cx(), usize::MAX) else {
        panic!("nothing to read")
    };
    let drained = bytes.len() + more.len();
    stalled.delivered(drained, Duration::ZERO);
    assert_eq!(server.mux.take_window(), drained);
    server.released += drained;
    server.mux.pace();
    let first = server.mux.take_window();
    server.released += first;
    let mut grants = vec![first + drained];
    while server.ledger.used() < server.ledger.budget() {
        fill(&mut server, 1);
        server.mux.pace();
        let grant = server.mux.take_window();
        assert!(grant <= *grants.last().unwrap(), "{grant} after {grants:?}");
        server.released += grant;
        grants.push(grant);
        if grant < 1024 {
            break;
        }
    }
    assert!(
        *grants.last().unwrap() < 1024 && server.ledger.used() <= server.ledger.budget() + WINDOW,
        "{grants:?}"
    );
}

#[test]
fn a_reader_beyond_its_share_is_reset_after_the_stall_limit_and_its_peer_told() {
    let mut server = End::new(Role::Server);
    let (stalled, idle) = (server.open(1), server.open(2));
    fill(&mut server, 1);
    server.feed(&data(2, pattern(1, ALLOWANCE / 2)));
    let start = Instant::now();
    server.mux.tick(start);
    server
        .mux
        .tick(start + STALL_LIMIT - Duration::from_millis(1));
    assert_eq!((server.seen.stalled.get(), server.sent()), (0, vec![]));
    server.mux.tick(start + STALL_LIMIT);
    assert_eq!(
        (server.seen.stalled.get(), server.sent()),
        (1, vec![close_request(1)])
    );
    assert!(stalled.is_reset() && !idle.is_reset());
    assert_eq!(read_all(&stalled), (vec![], Some(Err(Ended::Stalled))));
    assert_eq!(read_all(&idle).0.len(), ALLOWANCE / 2);
    server.release();
    assert_eq!(
        (server.released, server.ledger.used()),
        (server.received, 0)
    );
    // What is still on its way to it is for nobody, and costs nobody anything.
    server.feed(&data(1, pattern(1, 16_000)));
    assert_eq!(
        (server.released, server.ledger.used()),
        (server.received, 0)
    );
}

#[test]
fn a_reset_is_told_once_even_while_its_reader_still_holds_bytes() {
    let mut server = End::with_budget(Role::Server, MIN_BUDGET);
    let stalled = server.open(1);
    let hog = server.open(2);
    for _ in 0..40 {
        server.feed(&data(1, pattern(1, 64 * 1024)));
    }
    while let Poll::Ready(Ok(Some(_))) = stalled.poll_recv(&cx(), usize::MAX) {}
    server.feed(&data(2, pattern(1, 3 << 20)));
    let start = Instant::now();
    for seconds in 0..60 {
        server.mux.tick(start + Duration::from_secs(seconds));
    }
    assert_eq!(server.seen.stalled.get(), 2, "one for each");
    drop((stalled, hog));
    assert_eq!(server.ledger.used(), 0);
}

#[test]
fn a_reader_that_makes_any_progress_is_never_reset() {
    let mut server = End::with_budget(Role::Server, MIN_BUDGET);
    let slow = server.open(1);
    fill(&mut server, 1);
    assert!(server.ledger.is_tight());
    let start = Instant::now();
    for half_seconds in 0..200 {
        server.mux.tick(start + TICK * half_seconds);
        let Poll::Ready(Ok(Some(bytes))) = slow.poll_recv(&cx(), 1) else {
            panic!("reset")
        };
        slow.delivered(bytes.len(), Duration::ZERO);
        server.release();
        fill(&mut server, 1);
    }
    assert_eq!((server.seen.stalled.get(), slow.is_reset()), (0, false));
}

#[test]
fn a_tight_budget_resets_the_biggest_holder_after_a_second() {
    let mut server = End::with_budget(Role::Server, MIN_BUDGET);
    let (small, big) = (server.open(1), server.open(2));
    server.feed(&data(1, pattern(1, 1_500_000)));
    server.feed(&data(2, pattern(1, 2_800_000)));
    assert!(server.ledger.is_tight());
    let start = Instant::now();
    server.mux.tick(start);
    server.mux.tick(start + STALL_LIMIT_WHEN_TIGHT / 2);
    assert_eq!(server.seen.stalled.get(), 0);
    server.mux.tick(start + STALL_LIMIT_WHEN_TIGHT);
    assert_eq!((small.is_reset(), big.is_reset()), (false, true));
    assert!(!server.ledger.is_tight());
    server.mux.tick(start + 2 * STALL_LIMIT_WHEN_TIGHT);
    assert_eq!(server.seen.stalled.get(), 1);
}

#[test]
fn a_stalled_target_is_reset_at_the_agents_end_alike() {
    let mut agent = End::new(Role::Agent);
    let stalled = agent.open_as_agent();
    let id = stalled.id().0;
    fill(&mut agent, id);
    let start = Instant::now();
    agent.mux.tick(start);
    agent.mux.tick(start + STALL_LIMIT);
    let why = Ended::Stalled.to_string();
    assert_eq!(agent.sent(), [close_response(id, &why)]);
    assert_eq!((agent.mux.connections(), agent.ledger.used()), (0, 0));
    assert!(stalled.is_reset());
}

#[test]
fn a_reader_that_leaves_gives_back_what_it_had_taken_and_not_written() {
    let mut server = End::new(Role::Server);
    let connection = server.open(1);
    server.feed(&data(1, pattern(1, 4 * ALLOWANCE)));
    assert!(matches!(
        connection.poll_recv(&cx(), usize::MAX),
        Poll::Ready(Ok(Some(_)))
    ));
    assert!(server.ledger.used() > 0);
    drop(connection);
    assert_eq!(server.ledger.used(), 0);
}

#[test]
fn a_short_payload_in_a_long_message_does_not_keep_the_message() {
    let mut server = End::new(Role::Server);
    let connection = server.open(7);
    let payload = pattern(1, 8 * 1024);
    let mut wire = BytesMut::new();
    codec::put_packet(&mut wire, &data(7, payload.clone()));
    // An unknown field of 1 MiB behind the payload.
    let mut message = wire.split_off(grpc::PREFIX_LEN);
    message.extend_from_slice(&[0x7a, 0x80, 0x80, 0x40]);
    message.resize(message.len() + (1 << 20), 0);
    let message = message.freeze();
    assert_eq!(server.mux.on_message(&message), Ok(None));
    let Poll::Ready(Ok(Some(got))) = connection.poll_recv(&cx(), usize::MAX) else {
        panic!("nothing came")
    };
    assert_eq!(got, payload);
    assert!(!message.as_ptr_range().contains(&got.as_ptr()));
}

#[test]
fn keystrokes_on_a_thousand_connections_pass_a_stalled_one() {
    let mut pair = Pair::new();
    let (stalled, source) = pair.connect();
    let shells: Vec<_> = (0..1000).map(|_| pair.connect()).collect();
    while pair.server.received == pair.server.released {
        source.send(pattern(1, 60_000));
        pair.pump();
    }
    for round in 0..100u8 {
        for (_, at_agent) in &shells {
            at_agent.send(Bytes::copy_from_slice(&[round]));
        }
        pair.pump();
        for (at_server, _) in &shells {
            assert_eq!(read_all(at_server), (vec![round], None));
        }
    }
    assert_eq!(pair.server.seen.limits.take(), []);
    drop(stalled);
    pair.pump();
    pair.server.release();
    assert_eq!(
        (pair.server.released, pair.server.ledger.used()),
        (pair.server.received, 0)
    );
}
