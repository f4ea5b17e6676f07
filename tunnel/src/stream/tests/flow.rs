//! Back-pressure of each connection, the budget, and what stalled connections do to others.

use std::{future::poll_fn, time::Duration};

use super::pair::{
    End, PATIENCE, Stalled, connect, push, read, send, until_empty, with_budget, with_pair,
};
use crate::{
    ledger::{DEFAULT_BUDGET, MIN_BUDGET},
    stream::{Connection, SEND_BUFFER, window},
};

const STILL: Duration = Duration::from_secs(1);

/// Pushes into `count` connections whose far ends read nothing.
async fn stall(
    server: &End,
    agent: &End,
    up: bool,
    count: usize,
) -> Vec<(Connection, Stalled, usize)> {
    let mut stalled = Vec::new();
    for _ in 0..count {
        let (near, far) = connect(server, agent).await;
        let (mut writer, reader) = if up { (near, far) } else { (far, near) };
        let reader = Stalled::new(reader);
        let sent = push(&mut writer, STILL).await;
        stalled.push((writer, reader, sent));
    }
    stalled
}

async fn echo(server: &End, agent: &End) {
    let (mut near, mut far) = connect(server, agent).await;
    for _ in 0..10 {
        send(&mut near, vec![7; 1_024].into()).await.unwrap();
        for _ in 0..2 {
            let mut got = 0;
            while got < 1_024 {
                let bytes = poll_fn(|cx| far.poll_recv(cx, usize::MAX))
                    .await
                    .unwrap()
                    .unwrap();
                far.delivered(bytes.len(), Duration::ZERO);
                got += bytes.len();
            }
            send(&mut far, vec![7; 1_024].into()).await.unwrap();
            std::mem::swap(&mut near, &mut far);
        }
        // The answer to the answer.
        let bytes = poll_fn(|cx| far.poll_recv(cx, usize::MAX)).await;
        far.delivered(bytes.unwrap().unwrap().len(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_not_read_holds_a_window_and_its_writer() {
    for up in [true, false] {
        with_budget(DEFAULT_BUDGET, async |server, agent| {
            let stalled = stall(&server, &agent, up, 1).await;
            let (_, _, sent) = &stalled[0];
            let window = window::BASE as usize;
            assert!((window..=window + SEND_BUFFER).contains(sent), "{sent}");
            let (writer, reader) = if up {
                (&server, &agent)
            } else {
                (&agent, &server)
            };
            assert_eq!(writer.session.full_connections(), 1);
            let held = reader.ledger.used();
            assert!((window..window * 2).contains(&held), "{held}");
            for (writer, reader, _) in stalled {
                drop((writer, reader.wake().await));
            }
            until_empty([&server, &agent]).await;
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_pauses_goes_on_where_it_was() {
    with_pair(async |server, agent| {
        let (mut near, mut far) = connect(&server, &agent).await;
        let sent = push(&mut far, STILL).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        far.finish();
        let (got, end) = read(&mut near).await;
        assert_eq!((got.len(), end), (sent, None));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn hundreds_of_stalled_connections_stop_nobody_and_stay_within_the_budget() {
    for up in [true, false] {
        with_budget(MIN_BUDGET, async |server, agent| {
            let count = 300;
            let stalled = stall(&server, &agent, up, count).await;
            for end in [&server, &agent] {
                let most = MIN_BUDGET + count * window::SMALLEST as usize;
                assert!(end.ledger.used() <= most, "{} of {most}", end.ledger.used());
            }
            let end = if up { &agent } else { &server };
            assert!(
                end.session.window() < window::BASE / 8,
                "{}",
                end.session.window()
            );
            echo(&server, &agent).await;
            // Each has what was sent to it, and goes on.
            for (mut writer, reader, sent) in stalled {
                writer.finish();
                let (got, end) = read(&mut reader.wake().await).await;
                assert_eq!((got.len(), end), (sent, None));
            }
            until_empty([&server, &agent]).await;
            assert_eq!(end.session.window(), window::BASE);
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_waits_for_a_window_hears_of_a_lost_tunnel() {
    with_pair(async |server, agent| {
        let (mut near, far) = connect(&server, &agent).await;
        push(&mut near, STILL).await;
        agent.cut.cancel();
        let waited = tokio::time::timeout(PATIENCE, poll_fn(|cx| near.poll_send_ready(cx))).await;
        assert!(waited.unwrap().is_err());
        drop((near, far));
        until_empty([&server, &agent]).await;
    })
    .await;
}

/// `h2` lowers the windows of streams without looking which of them must be told of more: a stream that had used a part of the old
/// window, less than it tells its peer of, would have a window below zero for ever.
#[tokio::test(start_paused = true)]
async fn a_connection_that_has_used_a_part_of_its_window_goes_on_when_all_windows_shrink() {
    for up in [true, false] {
        with_budget(DEFAULT_BUDGET, async |server, agent| {
            let mut used = Vec::new();
            for part in 1..8 {
                let (near, far) = connect(&server, &agent).await;
                let (mut writer, mut reader) = if up { (near, far) } else { (far, near) };
                let len = part * 32 * 1024;
                send(&mut writer, vec![7; len].into()).await.unwrap();
                take(&mut reader, len).await;
                used.push((writer, reader));
            }
            let others = stall(&server, &agent, up, 500).await;
            let end = if up { &agent } else { &server };
            assert!(end.session.window() < window::BASE / 8);
            for (mut writer, mut reader) in used {
                let sent = send(&mut writer, vec![7; 100_000].into());
                let (sent, ()) = tokio::join!(sent, take(&mut reader, 100_000));
                sent.unwrap();
            }
            for (writer, reader, _) in others {
                drop((writer, reader.wake().await));
            }
            until_empty([&server, &agent]).await;
        })
        .await;
    }
}

/// Reads `len` bytes, each delivered at once.
async fn take(reader: &mut Connection, len: usize) {
    let mut got = 0;
    while got < len {
        let bytes = poll_fn(|cx| reader.poll_recv(cx, usize::MAX)).await;
        let bytes = bytes.unwrap().unwrap();
        reader.delivered(bytes.len(), Duration::ZERO);
        got += bytes.len();
    }
}
