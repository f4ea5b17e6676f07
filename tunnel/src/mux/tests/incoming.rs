//! Dials at the agent's end: their bound, their ids, and what gives them up.

use super::{super::*, *};
use crate::{dial::IncomingDial, event};

fn request(dial: i64) -> Event {
    Event::Dial {
        dial: DialId(dial),
        protocol: "tcp".to_owned(),
        address: "localhost:80".to_owned(),
    }
}

fn dial(event: Option<event::Event>) -> IncomingDial {
    match event {
        Some(event::Event::Dial(dial)) => dial,
        other => panic!("{other:?}"),
    }
}

fn is_cancelled(dial: &mut IncomingDial) -> bool {
    let waiting = std::pin::pin!(dial.cancelled());
    waiting.poll(&mut cx()).is_ready()
}

#[test]
fn dials_beyond_the_bound_are_refused_and_counted() {
    let end = End::new(Role::Agent);
    let dials = IncomingDials::new(end.mux.clone());
    let held: Vec<_> = (0..MAX_PENDING_DIALS)
        .map(|id| dial(dials.on_event(request(i64::try_from(id).unwrap()))))
        .collect();
    assert!(dials.on_event(request(-1)).is_none());
    assert_eq!(end.seen.limits.borrow().as_slice(), [Limit::PendingDials]);
    drop(held);
    dial(dials.on_event(request(-1)));
}

#[test]
fn a_second_dial_under_an_id_that_is_being_dialled_is_ignored() {
    let end = End::new(Role::Agent);
    let dials = IncomingDials::new(end.mux.clone());
    let first = dial(dials.on_event(request(7)));
    assert!(dials.on_event(request(7)).is_none());
    assert_eq!(first.id(), DialId(7));
    drop(first);
    dial(dials.on_event(request(7)));
}

#[test]
fn a_dial_is_given_up_by_the_server_or_with_the_tunnel_and_has_no_answer_then() {
    let end = End::new(Role::Agent);
    let dials = IncomingDials::new(end.mux.clone());
    let mut one = dial(dials.on_event(request(1)));
    let mut other = dial(dials.on_event(request(2)));
    assert!(!is_cancelled(&mut one));
    dials.on_event(Event::CancelDial(DialId(1)));
    assert!(is_cancelled(&mut one) && !is_cancelled(&mut other));
    drop(one);
    assert_eq!(end.sent(), []);
    drop(dials);
    assert!(is_cancelled(&mut other));
}

#[test]
fn a_dial_that_is_dropped_without_an_answer_is_refused() {
    let end = End::new(Role::Agent);
    let dials = IncomingDials::new(end.mux.clone());
    drop(dial(dials.on_event(request(1))));
    let error = "agent gave the dial up".to_owned();
    let conn = ConnectId::NONE;
    let dial = DialId(1);
    assert_eq!(end.sent(), [Packet::DialResponse { error, conn, dial }]);
}
