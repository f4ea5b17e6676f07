//! Dials, control messages, and the end of the tunnel.

use std::time::Duration;

use tokio::time::timeout;

use super::pair::{PATIENCE, connect, read, send, until_empty, with_pair};
use crate::{
    dial::{DialError, Refusal},
    event::Event,
    link::LinkEnd,
    mux::MAX_ADDRESS,
};

#[tokio::test(start_paused = true)]
async fn a_dial_reaches_the_agent_as_it_was_written_and_its_refusal_the_server() {
    with_pair(async |server, agent| {
        for (network, address) in [
            ("tcp", "10.0.0.7:10250"),
            ("tcp", ":0"),
            ("udp", "[fe80::1%eth0]:53"),
            ("tcp", ""),
        ] {
            let refuse = async {
                let dial = agent.dial().await;
                assert_eq!((dial.network(), dial.address()), (network, address));
                let text = format!("dial {network} {address}: connect: connection refused");
                dial.refuse(Refusal::failed(text));
            };
            let (outcome, ()) = tokio::join!(server.session.dial(network, address), refuse);
            let words = format!("dial {network} {address}: connect: connection refused");
            assert_eq!(
                outcome.unwrap_err(),
                DialError::Refused(Refusal::failed(words))
            );
        }
        let long = server.session.dial("tcp", &"x".repeat(64 * 1024)).await;
        assert_eq!(long.unwrap_err(), DialError::AddressTooLong);
        assert!(
            server
                .session
                .dial("tcp", &"x".repeat(MAX_ADDRESS))
                .await
                .is_err()
        );
        until_empty([&server, &agent]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn bytes_go_both_ways_and_everything_is_given_back() {
    with_pair(async |server, agent| {
        let (mut near, mut far) = connect(&server, &agent).await;
        assert_eq!(
            (server.session.connections(), agent.session.connections()),
            (1, 1)
        );
        for _ in 0..2 {
            let (one, other) = (&mut near, &mut far);
            // Far more than a window, so that windows come back.
            let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
            let sent = async {
                send(one, bytes.clone().into()).await.unwrap();
                one.finish();
            };
            let ((), (got, end)) = tokio::join!(sent, read(other));
            assert_eq!(end, None);
            assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
            std::mem::swap(&mut near, &mut far);
        }
        drop((near, far));
        until_empty([&server, &agent]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_is_dropped_is_cancelled_at_the_agent() {
    with_pair(async |server, agent| {
        let dial = server.session.dial("tcp", "10.0.0.7:10250");
        let mut incoming = agent.dial().await;
        assert_eq!(server.session.pending_dials(), 1);
        drop(dial);
        incoming.cancelled().await;
        assert_eq!(incoming.accept().unwrap_err(), DialError::Abandoned);
        until_empty([&server, &agent]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_the_agent_drops_is_refused() {
    with_pair(async |server, agent| {
        let abandon = async { drop(agent.dial().await) };
        let (outcome, ()) = tokio::join!(server.session.dial("tcp", "h:1"), abandon);
        assert_eq!(
            outcome.unwrap_err(),
            DialError::Refused(Refusal::failed("agent gave the dial up"))
        );
        until_empty([&server, &agent]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_tunnel_fails_dials_and_connections_at_once() {
    for at_server in [true, false] {
        with_pair(async |server, agent| {
            let (mut near, mut far) = connect(&server, &agent).await;
            let dial = server.session.dial("tcp", "h:1");
            let mut incoming = agent.dial().await;
            if at_server { &server } else { &agent }.cut.cancel();
            let failed = async { tokio::join!(dial, incoming.cancelled()).0.unwrap_err() };
            assert_eq!(timeout(PATIENCE, failed).await, Ok(DialError::TunnelLost));
            for connection in [&mut near, &mut far] {
                let (got, end) = read(connection).await;
                assert_eq!((got.len(), end), (0, Some(crate::conn::Ended::TunnelLost)));
            }
            drop((near, far, incoming));
            until_empty([&server, &agent]).await;
            if !at_server {
                assert_eq!(
                    server.session.dial("tcp", "h:1").await.unwrap_err(),
                    DialError::TunnelLost
                );
            }
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn control_messages_reach_the_other_end() {
    with_pair(async |server, agent| {
        server.session.send_drain();
        assert!(matches!(agent.event().await, Event::Drain));
        server.session.send_server_count(3);
        assert!(matches!(agent.event().await, Event::ServerCount(3)));
        assert_eq!(server.session.reported_load(), None);
        agent.session.send_load(12, 3);
        agent.session.send_drain();
        assert!(matches!(server.event().await, Event::Drain));
        assert_eq!(server.session.reported_load(), Some(15));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_leaves_ends_the_tunnel_behind_its_last_connection() {
    with_pair(async |server, agent| {
        let (mut near, mut far) = connect(&server, &agent).await;
        agent.leave.cancel();
        // GOAWAY: no more streams, and those that there are go on.
        send(&mut near, "last words".into()).await.unwrap();
        near.finish();
        assert_eq!(read(&mut far).await, (b"last words".to_vec(), None));
        far.finish();
        assert_eq!(read(&mut near).await, (Vec::new(), None));
        drop((near, far));
        let ends = async { tokio::join!(server.task, agent.task) };
        let (server, agent) = timeout(PATIENCE, ends).await.unwrap();
        for end in [server, agent] {
            let end = end.unwrap();
            assert!(matches!(end, Some(LinkEnd::Peer(None))), "{end:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_move_with_every_word_of_the_peer() {
    with_pair(async |server, agent| {
        let (mut near, mut far) = connect(&server, &agent).await;
        let before = (server.session.signs(), agent.session.signs());
        send(&mut near, "a".into()).await.unwrap();
        send(&mut far, "b".into()).await.unwrap();
        near.finish();
        far.finish();
        tokio::join!(read(&mut near), read(&mut far));
        assert!(server.session.signs() > before.0 && agent.session.signs() > before.1);
        let silent = server.session.signs();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(server.session.signs(), silent);
    })
    .await;
}
