//! Sides that end at different times, over the stream tunnel; time is simulated.

use tokio::task::JoinSet;
use tunnel::{
    connection,
    copy::HALF_CLOSED_LIMIT,
    event,
    probe::Probe,
    stream::{Ends, StreamLink},
};

use super::*;

/// Unix sockets on both ends of one connection of a stream tunnel: a frontend's, and an agent's that plays the target.
struct HalfClosing {
    client: UnixStream,
    target: UnixStream,
    at_server: JoinHandle<Copied>,
    at_agent: JoinHandle<Copied>,
    _carriers: JoinSet<()>,
}

fn ends() -> Ends {
    Ends {
        ledger: Rc::new(Ledger::new(DEFAULT_BUDGET)),
        observer: Rc::new(Unobserved),
        probe: Probe::default(),
    }
}

async fn connections(
    carriers: &mut JoinSet<()>,
) -> (connection::Connection, connection::Connection) {
    let (near, far) = duplex(64 * 1024);
    let (server, agent) = tokio::join!(ends().server(near), ends().agent(far));
    let (mut server, mut agent): (StreamLink, StreamLink) = (server.unwrap(), agent.unwrap());
    let session = server.session().clone();
    carriers.spawn_local(async move {
        server.run(|_| {}).await;
    });
    let (accepted, accepting) = tokio::sync::oneshot::channel();
    let mut accepted = Some(accepted);
    carriers.spawn_local(async move {
        let on_event = |event| {
            if let event::Event::Dial(dial) = event {
                let sender = accepted.take().unwrap();
                sender.send(dial.accept().unwrap()).unwrap();
            }
        };
        agent.run(on_event).await;
    });
    let (near, far) = tokio::join!(session.dial("tcp", "a:1"), accepting);
    (near.unwrap().into(), far.unwrap())
}

async fn half_closing() -> HalfClosing {
    let mut carriers = JoinSet::new();
    let (near, far) = connections(&mut carriers).await;
    let (client, frontend) = UnixStream::pair().unwrap();
    let (target, endpoint) = UnixStream::pair().unwrap();
    let watching = Options {
        watch_for_hang_up: true,
        ..Options::default()
    };
    HalfClosing {
        client,
        target,
        at_server: spawn_local(copy(frontend, near, watching)),
        at_agent: spawn_local(copy(endpoint, far, Options::default())),
        _carriers: carriers,
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_may_come_long_after_the_end_of_the_request() {
    on_a_worker(async {
        for by_client in [true, false] {
            let mut path = half_closing().await;
            let (first, second) = if by_client {
                (&mut path.client, &mut path.target)
            } else {
                (&mut path.target, &mut path.client)
            };
            first.write_all(b"request").await.unwrap();
            first.shutdown().await.unwrap();
            assert_eq!(read_to_end(&mut *second).await, b"request");
            // What moves starts the limit anew.
            for _ in 0..3 {
                sleep(HALF_CLOSED_LIMIT - Duration::from_secs(60)).await;
                second.write_all(b"x").await.unwrap();
                assert_eq!(first.read_u8().await.unwrap(), b'x');
            }
            second.shutdown().await.unwrap();
            assert!(read_to_end(&mut *first).await.is_empty());
            let (server, agent) = (path.at_server.await.unwrap(), path.at_agent.await.unwrap());
            assert!(
                matches!((&server.end, &agent.end), (End::Closed, End::Closed)),
                "{server:?} {agent:?}"
            );
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_side_that_says_nothing_after_the_others_end_is_given_up() {
    on_a_worker(async {
        let mut path = half_closing().await;
        path.client.shutdown().await.unwrap();
        let since = Instant::now();
        assert!(read_to_end(&mut path.target).await.is_empty());
        let (server, agent) = (path.at_server.await.unwrap(), path.at_agent.await.unwrap());
        let ends = (&server.end, &agent.end);
        // Who looks first resets the other.
        assert!(
            matches!(
                ends,
                (End::HalfClosed, End::HalfClosed | End::Ended(Ended::Reset))
                    | (End::Ended(Ended::Reset), End::HalfClosed)
            ),
            "{ends:?}"
        );
        let bound = HALF_CLOSED_LIMIT..=HALF_CLOSED_LIMIT + HANG_UP_CHECK;
        assert!(bound.contains(&since.elapsed()), "{:?}", since.elapsed());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_ended_and_then_leaves_ends_its_targets_connection() {
    on_a_worker(async {
        let mut path = half_closing().await;
        path.client.shutdown().await.unwrap();
        assert!(read_to_end(&mut path.target).await.is_empty());
        sleep(Duration::from_secs(600)).await;
        let since = Instant::now();
        drop(path.client);
        let server = path.at_server.await.unwrap();
        assert!(matches!(server.end, End::Closed), "{server:?}");
        assert!(since.elapsed() <= HANG_UP_CHECK, "{:?}", since.elapsed());
    })
    .await;
}

/// A client that sends all that it can to a target that has ended its side and reads nothing.
async fn pushing_to_one_that_has_ended(path: &mut HalfClosing) -> u8 {
    path.target.shutdown().await.unwrap();
    assert!(read_to_end(&mut path.client).await.is_empty());
    let mut turn = 0;
    loop {
        let piece = [turn; 16 * 1024];
        match timeout(Duration::from_secs(60), path.client.write_all(&piece)).await {
            Ok(written) => written.unwrap(),
            // The write that is given up may have sent a part.
            Err(_) => return turn,
        }
        turn += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_behind_a_target_that_has_ended_and_reads_nothing_is_noticed() {
    on_a_worker(Box::pin(async {
        let mut path = half_closing().await;
        Box::pin(pushing_to_one_that_has_ended(&mut path)).await;
        let since = Instant::now();
        drop(path.client);
        let server = path.at_server.await.unwrap();
        assert!(matches!(server.end, End::NotFlushed), "{server:?}");
        let bound = FLUSH_LIMIT + 2 * HANG_UP_CHECK;
        assert!(
            (FLUSH_LIMIT..=bound).contains(&since.elapsed()),
            "{:?}",
            since.elapsed()
        );
    }))
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_client_left_reaches_a_target_that_has_ended_and_reads_late() {
    on_a_worker(Box::pin(async {
        let mut path = half_closing().await;
        let turns = usize::from(Box::pin(pushing_to_one_that_has_ended(&mut path)).await);
        drop(path.client);
        sleep(FLUSH_LIMIT / 2).await;
        let got = read_to_end(&mut path.target).await;
        assert!(
            (turns * 16 * 1024..(turns + 1) * 16 * 1024).contains(&got.len()),
            "{} bytes of {turns} writes",
            got.len()
        );
        let in_order = |(at, &byte): (usize, &u8)| usize::from(byte) == at / (16 * 1024);
        assert!(got.iter().enumerate().all(in_order));
        let server = path.at_server.await.unwrap();
        assert!(matches!(server.end, End::Closed), "{server:?}");
    }))
    .await;
}
