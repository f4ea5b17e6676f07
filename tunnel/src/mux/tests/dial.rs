//! Dials: asked for, answered, given up, lost.

use super::{super::*, *};

fn asked(end: &End) -> DialId {
    match end.sent()[..] {
        [Packet::DialRequest { dial, .. }] => dial,
        ref sent => panic!("{sent:?} instead of a dial"),
    }
}

#[test]
fn an_accepted_dial_gives_a_connection_at_both_ends() {
    let mut pair = Pair::new();
    let mut dial = pair.server.mux.dial("tcp", "[::1]:443");
    assert!(poll_dial(&mut dial).is_pending());
    let events = pair.pump();
    let [
        Event::Dial {
            dial: asked,
            protocol,
            address,
        },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((&protocol[..], &address[..]), ("tcp", "[::1]:443"));
    let at_agent = pair.agent.mux.accept(*asked).unwrap();
    pair.pump();
    let at_server = outcome(dial).unwrap();
    assert_eq!(at_server.id(), at_agent.id());
    assert_ne!(at_server.id(), ConnectId::NONE);
    assert_eq!(
        (pair.server.mux.connections(), pair.agent.mux.connections()),
        (1, 1)
    );
    assert_eq!(pair.server.mux.pending_dials(), 0);
}

#[test]
fn dial_ids_are_positive_and_never_repeat() {
    let server = End::new(Role::Server);
    let dials: Vec<_> = (0..100).map(|_| server.mux.dial("tcp", "a:1")).collect();
    let mut ids: Vec<_> = server
        .sent()
        .into_iter()
        .map(|packet| match packet {
            Packet::DialRequest { dial, .. } => dial.0,
            other => panic!("{other:?}"),
        })
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), dials.len());
    assert!(ids.iter().all(|&id| id > 0));
}

#[test]
fn a_refused_dial_gives_the_agents_words() {
    let mut pair = Pair::new();
    for (said, heard) in [
        ("dial tcp 10.0.0.1:443: connect: connection refused", None),
        ("", Some("dial failed")),
    ] {
        let dial = pair.server.mux.dial("tcp", "10.0.0.1:443");
        let events = pair.pump();
        let [Event::Dial { dial: asked, .. }] = events[..] else {
            panic!("{events:?}")
        };
        pair.agent.mux.refuse(asked, said.to_owned());
        pair.pump();
        assert_eq!(
            outcome(dial).unwrap_err(),
            DialError::Refused(Refusal::failed(heard.unwrap_or(said)))
        );
    }
    assert_eq!(
        (pair.server.mux.connections(), pair.agent.mux.connections()),
        (0, 0)
    );
}

#[test]
fn an_endless_error_is_cut_between_characters_in_both_directions() {
    let endless = "ü".repeat(1 << 20);
    let agent = End::new(Role::Agent);
    agent.mux.refuse(DialId(1), endless.clone());
    let sent = agent.sent();
    let [Packet::DialResponse { error, .. }] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert!(error.len() <= MAX_ERROR && error.starts_with('ü'));

    let mut server = End::new(Role::Server);
    let dial = server.mux.dial("tcp", "a:1");
    let asked = asked(&server);
    server.feed(&Packet::DialResponse {
        error: format!("x{endless}"),
        conn: ConnectId::NONE,
        dial: asked,
    });
    let Err(DialError::Refused(error)) = outcome(dial) else {
        panic!("not refused")
    };
    assert!(error.text.len() <= MAX_ERROR && error.text.starts_with('x'));
}

#[test]
fn a_dial_that_is_given_up_is_cancelled_at_the_agent_and_its_late_success_closed() {
    let mut pair = Pair::new();
    let dial = pair.server.mux.dial("tcp", "a:1");
    let events = pair.pump();
    let [Event::Dial { dial: asked, .. }] = events[..] else {
        panic!("{events:?}")
    };
    drop(dial);
    let at_agent = pair.agent.mux.accept(asked).unwrap();
    assert_eq!(pair.pump(), [Event::CancelDial(asked)]);
    assert_eq!(read_all(&at_agent), (vec![], Some(Ok(()))));
    assert_eq!(
        (pair.server.mux.connections(), pair.agent.mux.connections()),
        (0, 0)
    );
    assert_eq!(pair.server.seen.violations.get(), 0);
}

#[test]
fn an_answered_dial_that_nobody_looks_at_is_closed() {
    let mut pair = Pair::new();
    let dial = pair.server.mux.dial("tcp", "a:1");
    let events = pair.pump();
    let [Event::Dial { dial: asked, .. }] = events[..] else {
        panic!("{events:?}")
    };
    let at_agent = pair.agent.mux.accept(asked).unwrap();
    pair.pump();
    assert_eq!(pair.server.mux.connections(), 1);
    drop(dial);
    assert_eq!(pair.pump(), []);
    assert_eq!(read_all(&at_agent), (vec![], Some(Ok(()))));
    assert_eq!(
        (pair.server.mux.connections(), pair.agent.mux.connections()),
        (0, 0)
    );
}

#[test]
fn a_lost_tunnel_fails_its_dials_and_those_after_it() {
    let mut pair = Pair::new();
    let pending = pair.server.mux.dial("tcp", "a:1");
    pair.pump();
    pair.server.mux.on_lost();
    assert_eq!(outcome(pending).unwrap_err(), DialError::TunnelLost);
    assert_eq!(
        outcome(pair.server.mux.dial("tcp", "a:1")).unwrap_err(),
        DialError::TunnelLost
    );
    assert!(pair.server.mux.is_lost() && !pair.server.mux.has_outgoing());
    pair.agent.mux.on_lost();
    assert_eq!(
        pair.agent.mux.accept(DialId(1)).unwrap_err(),
        DialError::TunnelLost
    );
    pair.agent.mux.refuse(DialId(1), "refused".to_owned());
    assert!(!pair.agent.mux.has_outgoing());
}

#[test]
fn an_agent_may_give_a_dial_up() {
    let mut server = End::new(Role::Server);
    let dial = server.mux.dial("tcp", "a:1");
    let asked = asked(&server);
    server.feed(&Packet::CloseDial {
        dial: DialId(asked.0 + 1),
    });
    server.feed(&Packet::CloseDial { dial: asked });
    assert_eq!(outcome(dial).unwrap_err(), DialError::Abandoned);
    assert_eq!(server.sent(), []);
}

#[test]
fn success_with_connection_id_0_is_no_success() {
    let mut server = End::new(Role::Server);
    let dial = server.mux.dial("tcp", "a:1");
    let asked = asked(&server);
    server.feed(&success(0, asked));
    assert_eq!(
        outcome(dial).unwrap_err(),
        DialError::InvalidConnectId(ConnectId::NONE)
    );
    assert_eq!(
        (server.seen.violations.get(), server.mux.connections()),
        (1, 0)
    );
    assert_eq!(server.sent(), []);
}

#[test]
fn a_second_success_with_an_id_in_use_leaves_the_first_connection_alone() {
    let mut server = End::new(Role::Server);
    let first = server.open(7);
    let dial = server.mux.dial("tcp", "a:1");
    let asked = asked(&server);
    server.feed(&success(7, asked));
    assert_eq!(
        outcome(dial).unwrap_err(),
        DialError::InvalidConnectId(ConnectId(7))
    );
    // Nor does one for a dial that nobody made.
    server.feed(&success(7, DialId(asked.0 + 1)));
    assert_eq!(server.sent(), [], "a close would end the first connection");
    assert_eq!(server.seen.violations.get(), 1);
    server.feed(&data(7, "still here"));
    first.send(Bytes::from_static(b"and here"));
    assert_eq!(read_all(&first), (b"still here".to_vec(), None));
    assert_eq!(server.sent(), [data(7, "and here")]);
}

#[test]
fn a_success_that_nobody_waits_for_is_closed() {
    let mut server = End::new(Role::Server);
    server.feed(&success(9, DialId(1)));
    assert_eq!(server.sent(), [close_request(9)]);
    server.feed(&success(0, DialId(1)));
    server.feed(&Packet::DialResponse {
        error: "late".to_owned(),
        conn: ConnectId(9),
        dial: DialId(1),
    });
    assert_eq!(server.sent(), []);
    assert_eq!(server.mux.connections(), 0);
}

#[test]
fn dials_beyond_the_limit_fail_at_once_and_room_comes_back() {
    let server = End::new(Role::Server);
    let mut dials: Vec<_> = (0..MAX_PENDING_DIALS)
        .map(|_| server.mux.dial("tcp", "a:1"))
        .collect();
    assert_eq!(
        outcome(server.mux.dial("tcp", "a:1")).unwrap_err(),
        DialError::TooManyDials
    );
    assert_eq!(server.seen.limits.take(), [Limit::PendingDials]);
    drop(dials.pop());
    assert!(poll_dial(&mut server.mux.dial("tcp", "a:1")).is_pending());
}

#[test]
fn dials_that_come_and_go_while_nothing_is_sent_are_bounded() {
    let server = End::new(Role::Server);
    let mut refused = 0;
    for _ in 0..2 * MAX_CONTROL {
        let mut dial = server.mux.dial("tcp", "a:1");
        refused += usize::from(poll_dial(&mut dial).is_ready());
    }
    assert!(refused > MAX_CONTROL, "{refused}");
    assert!(server.sent().len() <= MAX_CONTROL + 1);
}

#[test]
fn an_address_of_megabytes_is_refused_by_both_ends() {
    let address = "a".repeat(MAX_ADDRESS);
    let mut pair = Pair::new();
    assert_eq!(
        outcome(pair.server.mux.dial("tcp", &address)).unwrap_err(),
        DialError::AddressTooLong
    );
    assert!(!pair.server.mux.has_outgoing());
    let request = Packet::DialRequest {
        protocol: "tcp".to_owned(),
        address,
        dial: DialId(5),
    };
    assert_eq!(pair.agent.feed(&request), []);
    let sent = pair.agent.sent();
    assert!(
        matches!(&sent[..], [Packet::DialResponse { error, dial: DialId(5), .. }] if !error.is_empty()),
        "{sent:?}"
    );
}

#[test]
fn connections_beyond_the_limit_are_refused_at_both_ends() {
    let mut server = End::new(Role::Server);
    let mut held = Vec::new();
    for id in 1..=i64::try_from(MAX_CONNECTIONS).unwrap() {
        held.push(server.open(id));
    }
    let dial = server.mux.dial("tcp", "a:1");
    let asked = asked(&server);
    server.feed(&success(i64::MAX, asked));
    assert_eq!(outcome(dial).unwrap_err(), DialError::TooManyConnections);
    assert_eq!(server.sent(), [close_request(i64::MAX)]);
    assert_eq!(server.seen.limits.take(), [Limit::Connections]);

    let agent = End::new(Role::Agent);
    let held: Vec<_> = (0..MAX_CONNECTIONS)
        .map(|_| agent.mux.accept(DialId(1)).unwrap())
        .collect();
    agent.wire();
    assert_eq!(
        agent.mux.accept(DialId(2)).unwrap_err(),
        DialError::TooManyConnections
    );
    let sent = agent.sent();
    assert!(
        matches!(&sent[..], [Packet::DialResponse { error, dial: DialId(2), .. }] if !error.is_empty()),
        "{sent:?}"
    );
    assert_eq!(agent.seen.limits.take(), [Limit::Connections]);
    assert_eq!(held.len(), agent.mux.connections());
}
