//! Connections that the agent asks for.

use super::pair::{connect, read, send, until_empty, with_pair};
use crate::{
    event::Event,
    observe::Limit,
    stream::{ForwardError, IncomingForward, MAX_PENDING_FORWARDS},
};

fn forward(event: Event) -> IncomingForward {
    match event {
        Event::Forward(forward) => forward,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_forward_is_a_connection_like_any_other() {
    with_pair(async |server, agent| {
        let answer = async {
            let incoming = forward(server.event().await);
            assert_eq!(incoming.name(), "api");
            incoming.connect().await.unwrap()
        };
        let asked = agent.session.forward("api").unwrap();
        let (near, far) = tokio::join!(asked, answer);
        let (mut near, mut far) = (near.unwrap(), far);
        send(&mut near, "GET".into()).await.unwrap();
        near.finish();
        assert_eq!(read(&mut far).await, (b"GET".to_vec(), None));
        send(&mut far, "200".into()).await.unwrap();
        far.finish();
        assert_eq!(read(&mut near).await, (b"200".to_vec(), None));
        drop((near, far));
        until_empty([&server, &agent]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_forward_says_why_and_a_dropped_one_is_refused() {
    with_pair(async |server, agent| {
        let asked = agent.session.forward("db").unwrap();
        let refuse = async { forward(server.event().await).refuse("no such target".to_owned()) };
        let (outcome, ()) = tokio::join!(asked, refuse);
        assert_eq!(
            outcome.unwrap_err(),
            ForwardError::Refused("no such target".to_owned())
        );
        let asked = agent.session.forward("db").unwrap();
        let drop_it = async { drop(forward(server.event().await)) };
        let (outcome, ()) = tokio::join!(asked, drop_it);
        assert!(matches!(outcome, Err(ForwardError::Refused(_))));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_forward_that_is_given_up_is_known_to_the_server_and_its_connection_refused() {
    with_pair(async |server, agent| {
        let asked = agent.session.forward("api").unwrap();
        let mut incoming = forward(server.event().await);
        drop(asked);
        incoming.cancelled().await;
        // Too late for the server to know.
        assert!(incoming.connect().await.is_err());
        until_empty([&server, &agent]).await;
        connect(&server, &agent).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn forwards_that_wait_are_bounded_and_fail_with_the_tunnel() {
    with_pair(async |server, agent| {
        let mut asked: Vec<_> = (0..MAX_PENDING_FORWARDS)
            .map(|_| agent.session.forward("api").unwrap())
            .collect();
        assert_eq!(
            agent.session.forward("api").unwrap_err(),
            ForwardError::TooMany
        );
        assert_eq!(
            agent.counter.limits.borrow().as_slice(),
            [Limit::PendingDials]
        );
        let incoming = forward(server.event().await);
        server.cut.cancel();
        drop(server.task.await);
        assert_eq!(
            asked.pop().unwrap().await.unwrap_err(),
            ForwardError::TunnelLost
        );
        drop(agent.task.await);
        assert_eq!(
            agent.session.forward("api").unwrap_err(),
            ForwardError::TunnelLost
        );
        drop(incoming);
    })
    .await;
}
