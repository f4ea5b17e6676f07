//! Bytes both ways, and how connections end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Wake,
};

use super::{super::*, *};
use crate::{conn::MAX_OUTBOUND, connection::Closed};

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counter {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn assert_empty(pair: &Pair) {
    assert_eq!(
        (pair.server.mux.connections(), pair.agent.mux.connections()),
        (0, 0)
    );
    assert_eq!(
        (pair.server.ledger.used(), pair.agent.ledger.used()),
        (0, 0)
    );
    assert!(!pair.server.mux.has_outgoing() && !pair.agent.mux.has_outgoing());
    assert_eq!(
        (pair.server.released, pair.agent.released),
        (pair.server.received, pair.agent.received)
    );
}

#[test]
fn bytes_go_both_ways_in_order_whatever_the_chunks() {
    for chunk in [1, 7, 5_000, 16 * 1024, 1 << 20] {
        let mut pair = Pair {
            chunk,
            ..Pair::new()
        };
        let (at_server, at_agent) = pair.connect();
        let mut sent = Vec::new();
        for (seed, len) in [1, 63, 4_095, 4_096, 16_320, 16_321, 64 * 1024, 3]
            .into_iter()
            .enumerate()
        {
            let piece = pattern(seed, len);
            sent.extend_from_slice(&piece);
            at_server.send(piece.clone());
            at_agent.send(piece);
        }
        assert_eq!(pair.pump(), []);
        assert_eq!(read_all(&at_agent), (sent.clone(), None));
        assert_eq!(read_all(&at_server), (sent, None));
    }
}

#[test]
fn a_server_that_finishes_loses_nothing_in_either_direction() {
    let mut pair = Pair::new();
    let (at_server, at_agent) = pair.connect();
    let (up, down) = (pattern(1, 200_000), pattern(2, 150_000));
    at_server.send(up.clone());
    at_server.finish();
    at_agent.send(down.clone());
    pair.pump();
    assert_eq!(read_all(&at_agent), (up.to_vec(), Some(Ok(()))));
    assert_eq!(read_all(&at_server), (down.to_vec(), Some(Ok(()))));
    pair.server.release();
    pair.agent.release();
    assert_empty(&pair);
}

#[test]
fn an_agent_that_finishes_loses_nothing_in_either_direction() {
    let mut pair = Pair::new();
    let (at_server, at_agent) = pair.connect();
    let (up, down) = (pattern(1, 200_000), pattern(2, 150_000));
    at_server.send(up.clone());
    carry(&pair.server, &mut pair.agent, 999);
    at_agent.send(down.clone());
    at_agent.finish();
    pair.pump();
    assert_eq!(at_server.poll_send_ready(&cx()), Poll::Ready(Err(Closed)));
    assert_eq!(read_all(&at_server), (down.to_vec(), Some(Ok(()))));
    assert_eq!(read_all(&at_agent), (up.to_vec(), Some(Ok(()))));
    pair.server.release();
    pair.agent.release();
    assert_empty(&pair);
}

#[test]
fn close_packets_go_behind_all_data_and_closes_may_cross() {
    let mut pair = Pair::new();
    let (at_server, at_agent) = pair.connect();
    let id = at_server.id().0;
    at_server.send(pattern(1, 16_000));
    at_server.finish();
    at_agent.send(pattern(2, 40_000));
    at_agent.finish();
    let (from_server, from_agent) = (pair.server.wire(), pair.agent.wire());
    assert_eq!(
        packets_of(from_server.clone()).last(),
        Some(&close_request(id))
    );
    assert_eq!(
        packets_of(from_agent.clone()).last(),
        Some(&close_response(id, ""))
    );
    pair.agent.feed_chunk(from_server);
    pair.server.feed_chunk(from_agent);
    // The agent had no connection left to confirm the end of.
    let answers =
        ["unrecognized connectID", "Unknown connectID"].map(|error| close_response(id, error));
    assert_eq!(pair.agent.sent(), answers);
    assert_eq!(
        read_all(&at_server),
        (pattern(2, 40_000).to_vec(), Some(Ok(())))
    );
    assert_eq!(read_all(&at_agent), (vec![], Some(Ok(()))));
}

#[test]
fn a_dropped_connection_is_closed_behind_what_it_sent_at_both_ends() {
    let mut pair = Pair::new();
    let (at_server, at_agent) = pair.connect();
    at_agent.send(pattern(3, 100_000));
    at_server.send(pattern(4, 100_000));
    drop(at_server);
    pair.pump();
    assert_eq!(
        read_all(&at_agent),
        (pattern(4, 100_000).to_vec(), Some(Ok(())))
    );
    drop(at_agent);

    let (at_server, at_agent) = pair.connect();
    at_server.send(pattern(3, 100_000));
    carry(&pair.server, &mut pair.agent, 1000);
    at_agent.send(pattern(4, 100_000));
    drop(at_agent);
    pair.pump();
    assert_eq!(
        read_all(&at_server),
        (pattern(4, 100_000).to_vec(), Some(Ok(())))
    );
    drop(at_server);
    pair.server.release();
    pair.agent.release();
    assert_empty(&pair);
}

#[test]
fn a_lost_tunnel_ends_connections_behind_what_they_received() {
    let mut pair = Pair::new();
    let (at_server, at_agent) = pair.connect();
    at_server.send(Bytes::from_static(b"up"));
    at_agent.send(Bytes::from_static(b"down"));
    pair.pump();
    at_server.send(Bytes::from_static(b"too late"));
    pair.server.mux.on_lost();
    pair.agent.mux.on_lost();
    assert!(!pair.server.mux.has_outgoing());
    assert_eq!(at_server.poll_send_ready(&cx()), Poll::Ready(Err(Closed)));
    at_server.send(Bytes::from_static(b"later still"));
    at_server.finish();
    assert_eq!(
        read_all(&at_server),
        (b"down".to_vec(), Some(Err(Ended::TunnelLost)))
    );
    assert_eq!(
        read_all(&at_agent),
        (b"up".to_vec(), Some(Err(Ended::TunnelLost)))
    );
    drop((at_server, at_agent));
    assert_eq!(
        (pair.server.ledger.used(), pair.server.mux.connections()),
        (0, 0)
    );
    assert!(!pair.server.mux.has_outgoing());
}

#[test]
fn a_tunnel_that_takes_nothing_stops_its_senders_and_wakes_them_when_it_does() {
    let mut server = End::new(Role::Server);
    let connection = server.open(7);
    let wakes = Arc::new(Counter::default());
    let waker = Waker::from(wakes.clone());
    let cx = Context::from_waker(&waker);
    let mut accepted = 0;
    while connection.poll_send_ready(&cx) == Poll::Ready(Ok(())) {
        connection.send(pattern(accepted, 1000));
        accepted += 1000;
    }
    assert!(
        (MAX_OUTBOUND..MAX_OUTBOUND + 2000).contains(&accepted),
        "{accepted}"
    );
    assert_eq!(wakes.count(), 0);
    server.mux.next_batch().unwrap();
    assert_eq!(wakes.count(), 1);
    assert_eq!(connection.poll_send_ready(&cx), Poll::Ready(Ok(())));
}

#[test]
fn a_reader_is_woken_by_data_and_by_the_end() {
    let mut server = End::new(Role::Server);
    let connection = server.open(7);
    let wakes = Arc::new(Counter::default());
    let waker = Waker::from(wakes.clone());
    let cx = Context::from_waker(&waker);
    assert!(connection.poll_recv(&cx, 1).is_pending());
    server.feed(&data(7, "ab"));
    assert_eq!(wakes.count(), 1);
    assert_eq!(
        connection.poll_recv(&cx, 1),
        Poll::Ready(Ok(Some(Bytes::from_static(b"a"))))
    );
    assert_eq!(
        connection.poll_recv(&cx, 1),
        Poll::Ready(Ok(Some(Bytes::from_static(b"b"))))
    );
    assert!(connection.poll_recv(&cx, 1).is_pending());
    server.feed(&close_response(7, ""));
    assert_eq!(wakes.count(), 2);
    assert_eq!(connection.poll_recv(&cx, 1), Poll::Ready(Ok(None)));
}

#[test]
fn the_link_is_woken_by_a_dial_by_data_and_by_freed_window() {
    let mut server = End::new(Role::Server);
    let connection = server.open(7);
    let wakes = Arc::new(Counter::default());
    let waker = Waker::from(wakes.clone());
    let mut expected = 0;
    let mut woken_by = |mux: &Rc<Mux>, act: &mut dyn FnMut()| {
        mux.set_link(&waker);
        act();
        expected += 1;
        assert_eq!(wakes.count(), expected);
    };
    let mux = server.mux.clone();
    let mut dial = None;
    woken_by(&mux, &mut || dial = Some(mux.dial("tcp", "a:1")));
    woken_by(&mux, &mut || connection.send(Bytes::from_static(b"x")));
    woken_by(&mux, &mut || drop(dial.take()));
    for _ in 0..40 {
        server.feed(&data(7, pattern(1, 1 << 20)));
    }
    woken_by(&mux, &mut || {
        assert_eq!(read_all(&connection).0.len(), 40 << 20)
    });
    server.release();
    assert_eq!(server.released, server.received);
}

#[test]
fn a_server_forgets_a_connection_whose_close_is_never_confirmed() {
    let mut server = End::new(Role::Server);
    let (kept, dropped) = (server.open(1), server.open(2));
    let start = tokio::time::Instant::now();
    drop(dropped);
    assert_eq!(server.sent(), [close_request(2)]);
    server.mux.tick(start);
    server.mux.tick(start + CLOSE_LIMIT / 2);
    assert_eq!(server.mux.connections(), 2);
    server.mux.tick(start + CLOSE_LIMIT);
    assert_eq!(server.mux.connections(), 1);
    // Data that still comes for it is for nobody.
    server.feed(&data(2, "x"));
    assert_eq!(server.sent(), [close_request(2)]);
    assert_eq!(read_all(&kept), (vec![], None));
}
