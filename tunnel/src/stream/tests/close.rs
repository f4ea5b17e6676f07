//! Half-close, reset, and what is left of a connection whose local side has gone.

use std::{future::poll_fn, time::Duration};

use tokio::time::{Instant, timeout};

use super::pair::{PATIENCE, connect, push, read, send, until_empty, with_pair};
use crate::{
    conn::Ended,
    connection::Closed,
    mux::{UNSENT_LIMIT, UNSENT_LIMIT_TO_TARGET},
};

#[tokio::test(start_paused = true)]
async fn one_side_may_end_and_the_other_go_on() {
    with_pair(async |server, agent| {
        let (mut near, mut far) = connect(&server, &agent).await;
        send(&mut near, "request".into()).await.unwrap();
        near.finish();
        assert_eq!(read(&mut far).await, (b"request".to_vec(), None));
        // Long after.
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        send(&mut far, "answer".into()).await.unwrap();
        far.finish();
        assert_eq!(read(&mut near).await, (b"answer".to_vec(), None));
        drop((near, far));
        until_empty([&server, &agent]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_a_reset_at_the_other_end_behind_what_was_read() {
    for by_server in [true, false] {
        with_pair(async |server, agent| {
            let (near, far) = connect(&server, &agent).await;
            let (mut one, mut other) = if by_server { (near, far) } else { (far, near) };
            send(&mut one, "half a wo".into()).await.unwrap();
            let first = poll_fn(|cx| other.poll_recv(cx, 4)).await;
            assert_eq!(first.unwrap().as_deref(), Some(&b"half"[..]));
            other.delivered(4, Duration::ZERO);
            one.reset();
            assert_eq!(
                read(&mut other).await,
                (b" a wo".to_vec(), Some(Ended::Reset))
            );
            assert_eq!(send(&mut other, "x".into()).await, Err(Closed));
            drop((one, other));
            until_empty([&server, &agent]).await;
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_by_a_side_that_has_ended_still_ends_the_other() {
    with_pair(async |server, agent| {
        let (mut near, mut far) = connect(&server, &agent).await;
        near.finish();
        assert_eq!(read(&mut far).await, (Vec::new(), None));
        near.reset();
        assert_eq!(send(&mut far, vec![0; 1_000_000].into()).await, Err(Closed));
        drop((near, far));
        until_empty([&server, &agent]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_accepted_is_delivered_whole_though_its_local_side_has_gone() {
    for by_server in [true, false] {
        with_pair(async |server, agent| {
            let (near, far) = connect(&server, &agent).await;
            let (mut one, mut other) = if by_server { (near, far) } else { (far, near) };
            let sent = push(&mut one, Duration::from_secs(1)).await;
            assert!(sent >= 256 * 1024, "{sent}");
            drop(one);
            // A reader that takes its time, but takes.
            tokio::time::sleep(Duration::from_secs(20)).await;
            let (got, end) = read(&mut other).await;
            assert_eq!((got.len(), end), (sent, None));
            // And nobody reads what is sent now.
            assert_eq!(
                send(&mut other, vec![0; 1_000_000].into()).await,
                Err(Closed)
            );
            drop(other);
            until_empty([&server, &agent]).await;
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_takes_is_dropped_after_a_time_and_the_reader_learns_of_it() {
    for (by_server, limit) in [(true, UNSENT_LIMIT_TO_TARGET), (false, UNSENT_LIMIT)] {
        with_pair(async |server, agent| {
            let (near, far) = connect(&server, &agent).await;
            let (mut one, other) = if by_server { (near, far) } else { (far, near) };
            let (end, reader) = if by_server {
                (&server, &agent)
            } else {
                (&agent, &server)
            };
            let mut other = other;
            // So much that it cannot all be in the window, nor in the pipe.
            let mut sent = 0;
            while let Ok(Ok(room)) = timeout(
                Duration::from_secs(1),
                poll_fn(|cx| one.poll_send_ready(cx)),
            )
            .await
            {
                let long = room + 300_000;
                one.send(vec![0; long].into());
                sent += long;
            }
            let since = Instant::now();
            drop(one);
            while end.counter.stalled.get() == 0 {
                assert!(since.elapsed() < PATIENCE / 2);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            assert!(since.elapsed() >= limit, "{:?}", since.elapsed());
            let (got, ended) = read(&mut other).await;
            assert!(got.len() < sent);
            assert_eq!(ended, Some(Ended::Stalled));
            drop(other);
            until_empty([end, reader]).await;
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_sides_that_close_at_once_leave_nothing() {
    with_pair(async |server, agent| {
        for _ in 0..100 {
            let (mut near, mut far) = connect(&server, &agent).await;
            send(&mut near, "x".into()).await.unwrap();
            send(&mut far, "y".into()).await.unwrap();
            drop((near, far));
        }
        until_empty([&server, &agent]).await;
    })
    .await;
}
