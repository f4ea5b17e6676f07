//! Flow control for each connection, between our own two ends.

use tokio::time::{Duration, Instant};

use super::{super::*, *};
use crate::{
    conn::MAX_OUTBOUND,
    credit::{self, WINDOW},
};

const PIECE: usize = 16 * 1024;

fn pair() -> Pair {
    let pair = Pair::new();
    pair.server.mux.use_credit(WINDOW);
    pair.agent.mux.use_credit(WINDOW);
    pair
}

/// Sends until the connection takes no more although everything that may go has gone; how many bytes.
fn send_all_it_takes(pair: &mut Pair, from: &Connection) -> usize {
    let mut sent = 0;
    while from.poll_send_ready(&cx()).is_ready() {
        assert!(sent < 100 << 20, "nothing ever holds the sender");
        from.send(pattern(sent, PIECE));
        sent += PIECE;
        pair.pump();
    }
    sent
}

#[test]
fn a_stalled_reader_holds_its_window_and_its_writer_and_nobody_else() {
    let mut pair = pair();
    let (stalled, source) = pair.connect();
    let (prompt, other) = pair.connect();
    let sent = send_all_it_takes(&mut pair, &source);
    let bound = WINDOW as usize + MAX_OUTBOUND + PIECE;
    assert!((WINDOW as usize..=bound).contains(&sent), "{sent}");
    assert_eq!(pair.server.received, pair.server.released);
    let start = Instant::now();
    for seconds in [0, 60, 3600] {
        pair.server.mux.tick(start + Duration::from_secs(seconds));
    }
    assert_eq!(pair.server.seen.stalled.get(), 0);
    for seed in 0..100 {
        let bytes = pattern(seed, 10_000);
        other.send(bytes.clone());
        pair.pump();
        assert_eq!(read_all(&prompt), (bytes.to_vec(), None));
    }
    // Read again, it goes on where it was.
    let mut got = 0;
    while got < sent {
        let (bytes, end) = read_all(&stalled);
        assert!(end.is_none() && !bytes.is_empty());
        got += bytes.len();
        pair.pump();
    }
    assert!(source.poll_send_ready(&cx()).is_ready());
}

#[test]
fn a_transfer_many_windows_long_arrives_whole_and_its_close_behind_it() {
    let mut pair = pair();
    let (sink, source) = pair.connect();
    let expected = pattern(1, 10 * WINDOW as usize + 7);
    let mut rest = expected.clone();
    let mut got = Vec::new();
    let end = loop {
        while !rest.is_empty() && source.poll_send_ready(&cx()).is_ready() {
            source.send(rest.split_to(PIECE.min(rest.len())));
        }
        if rest.is_empty() {
            source.finish();
        }
        pair.pump();
        let (bytes, end) = read_all(&sink);
        got.extend_from_slice(&bytes);
        if let Some(end) = end {
            break end;
        }
    };
    assert_eq!((got.len(), end), (expected.len(), Ok(())));
    assert!(got == expected);
}

#[test]
fn what_nobody_wants_any_more_is_granted_so_that_the_other_end_can_close() {
    let mut pair = pair();
    let (frontend, target) = pair.connect();
    send_all_it_takes(&mut pair, &target);
    drop(frontend);
    target.finish();
    pair.pump();
    assert_eq!(pair.agent.mux.connections(), 0);
    assert_eq!(pair.server.mux.connections(), 0);
    assert_eq!(pair.server.ledger.used(), 0);
}

#[test]
fn what_was_accepted_waits_for_a_slow_target_but_not_for_ever() {
    let mut pair = pair();
    let (frontend, target) = pair.connect();
    let sent = send_all_it_takes(&mut pair, &frontend);
    // The client has gone; what it sent is still delivered as the target reads.
    drop(frontend);
    let start = Instant::now();
    pair.server.mux.tick(start);
    pair.server.mux.tick(start + UNSENT_LIMIT_TO_TARGET / 2);
    let (first, _) = read_all(&target);
    pair.pump();
    let (second, end) = read_all(&target);
    assert_eq!((first.len() + second.len(), end), (sent, Some(Ok(()))));

    let (frontend, target) = pair.connect();
    send_all_it_takes(&mut pair, &frontend);
    drop(frontend);
    pair.server.mux.tick(start);
    pair.server.mux.tick(start + UNSENT_LIMIT_TO_TARGET);
    pair.pump();
    assert_eq!(read_all(&target).1, Some(Ok(())));
    assert_eq!(pair.server.mux.connections(), 0);
}

#[test]
fn a_truncated_stream_does_not_look_whole() {
    let mut pair = pair();
    let (frontend, target) = pair.connect();
    send_all_it_takes(&mut pair, &target);
    drop(target);
    let start = Instant::now();
    pair.agent.mux.tick(start);
    pair.agent.mux.tick(start + UNSENT_LIMIT);
    pair.pump();
    assert_eq!(read_all(&frontend).1, Some(Err(Ended::ByAgent)));
}

/// An empty DATA reads as the end of the stream, and the scheduler lets a connection that has just sent come once more.
#[test]
fn a_window_that_ends_within_a_piece_sends_nothing_empty() {
    let mut pair = pair();
    let (frontend, target) = pair.connect();
    target.send(pattern(0, 7));
    let sent = 7 + send_all_it_takes(&mut pair, &target);
    let mut got = 0;
    while got < sent {
        let (bytes, end) = read_all(&frontend);
        assert!(end.is_none() && !bytes.is_empty());
        got += bytes.len();
        pair.pump();
    }
}

#[test]
fn grants_to_nobody_or_beyond_all_measure_are_survived() {
    let mut pair = pair();
    let (_frontend, target) = pair.connect();
    for (conn, bytes) in [
        (0, 1),
        (-1, 1),
        (99, u64::MAX),
        (1, u64::MAX),
        (1, u64::MAX),
    ] {
        let mut wire = BytesMut::new();
        credit::put(
            &mut wire,
            Credit {
                conn: ConnectId(conn),
                bytes,
            },
        );
        pair.agent.feed_chunk(wire.freeze());
    }
    target.send(pattern(1, PIECE));
    pair.pump();
}
