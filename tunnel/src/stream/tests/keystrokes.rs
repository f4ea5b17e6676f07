//! Messages of one byte, each of them a frame. `h2` ends a connection for too many small frames that nobody has taken out of it
//! (`SMALL_FRAME_BUDGET`), so a reader that stalls must never be why they stay there.

use std::{future::poll_fn, time::Duration};

use bytes::Bytes;
use tokio::{
    io::duplex,
    task::{JoinHandle, LocalSet, spawn_local},
    time::timeout,
};

use super::pair::{
    End, PATIENCE, Stalled, agent_end, connect, push, read, server_end, until_empty,
};
use crate::{
    ledger::DEFAULT_BUDGET,
    link::SMALL_FRAME_BUDGET,
    stream::{Connection, window},
};

const KEYSTROKES: usize = 100_000;

const SHELLS: usize = 10;

/// What `h2` charges for a frame of one byte.
const COST: usize = 255;

// Left in `h2`, they would cost three times what it lets pass.
const _: () = assert!(KEYSTROKES * COST > SMALL_FRAME_BUDGET * 2);

// And a stream has the window for them, so nothing but the budget is in the way.
const _: () = assert!(KEYSTROKES < window::BASE as usize);

/// A tunnel over a pipe of `pipe` bytes, which is how many small frames come at once.
async fn over_a_pipe(pipe: usize, test: impl AsyncFnOnce(&End, &End)) {
    LocalSet::new()
        .run_until(async {
            let (near, far) = duplex(pipe);
            let (server, agent) = tokio::join!(
                server_end(near, DEFAULT_BUDGET),
                agent_end(far, DEFAULT_BUDGET)
            );
            timeout(PATIENCE, test(&server, &agent))
                .await
                .expect("the test hangs");
            until_empty([&server, &agent]).await;
            for end in [server, agent] {
                assert!(!end.task.is_finished(), "{:?}", end.task.await);
            }
        })
        .await;
}

/// The end that writes and the one that reads.
async fn one_way(server: &End, agent: &End, up: bool) -> (Connection, Connection) {
    let (near, far) = connect(server, agent).await;
    if up { (near, far) } else { (far, near) }
}

/// Types `count` keys and ends. A task, as what rides on a tunnel is: they take turns with those that drive the tunnel.
fn type_keys(mut connection: Connection, count: usize) -> JoinHandle<Connection> {
    spawn_local(async move {
        for _ in 0..count {
            let room = poll_fn(|cx| connection.poll_send_ready(cx)).await;
            assert!(room.expect("the connection is closed") > 0);
            connection.send(Bytes::from_static(b"x"));
        }
        connection.finish();
        connection
    })
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_keystrokes_beside_a_stalled_reader_are_survived() {
    for up in [true, false] {
        over_a_pipe(64 * 1024, async |server, agent| {
            let (mut writer, reader) = one_way(server, agent, up).await;
            let reader = Stalled::new(reader);
            let sent = push(&mut writer, Duration::from_secs(1)).await;
            assert!(sent >= window::BASE as usize, "{sent}");
            let mut shells = Vec::new();
            for _ in 0..SHELLS {
                let (near, mut far) = one_way(server, agent, up).await;
                let writer = type_keys(near, KEYSTROKES / SHELLS);
                shells.push((writer, spawn_local(async move { read(&mut far).await })));
            }
            for (writer, reader) in shells {
                let (got, end) = reader.await.unwrap();
                assert_eq!((got.len(), end), (KEYSTROKES / SHELLS, None));
                writer.await.unwrap();
            }
            // It has lost nothing by it.
            writer.finish();
            let (got, end) = read(&mut reader.wake().await).await;
            assert_eq!((got.len(), end), (sent, None));
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_keystrokes_to_a_stalled_reader_are_survived() {
    for up in [true, false] {
        over_a_pipe(64 * 1024, async |server, agent| {
            let (writer, reader) = one_way(server, agent, up).await;
            let reader = Stalled::new(reader);
            let writer = type_keys(writer, KEYSTROKES);
            // Until nothing moves any more.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (got, end) = read(&mut reader.wake().await).await;
            assert_eq!((got.len(), end), (KEYSTROKES, None));
            writer.await.unwrap();
        })
        .await;
    }
}
