//! Peers that nothing but a time limit ends: half a minute for a hello, ten seconds for an answer, twenty until a ping is missed.
//!
//! All of one side wait at the same time. That they end is asserted, and not when.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    client::Socket,
    harness::{PATIENCE, eventually},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    agent,
    frames::{PREFACE, data, goaway, ping, settings},
    raw::Raw,
    server::{self, CONTROL, hello},
};

/// Longer than the longest limit, on a loaded machine.
const LONG: Duration = Duration::from_secs(90);

/// Writes `bytes` one by one, and waits for the end of the connection: a byte now and then must not help.
async fn drip(mut socket: Socket, bytes: Vec<u8>) -> Result<()> {
    let start = Instant::now();
    let mut bytes = bytes.into_iter();
    loop {
        let mut byte = [0];
        match timeout(Duration::from_millis(200), socket.read(&mut byte)).await {
            Ok(Ok(0) | Err(_)) => return Ok(()),
            // An agent begins with HTTP/2 when it is welcome.
            Ok(Ok(_)) => {}
            Err(_) if start.elapsed() > LONG => bail!("it is still waited for"),
            Err(_) => {
                if let Some(byte) = bytes.next() {
                    socket.write_all(&[byte]).await.ok();
                    socket.flush().await.ok();
                }
            }
        }
    }
}

/// Sends `flood` and reads nothing, until the connection breaks.
async fn flood_unread(raw: Raw, flood: Vec<u8>) -> Result<()> {
    raw.stop_reading();
    let flooding = async { while raw.send(flood.repeat(1_000)).await {} };
    timeout(LONG, flooding)
        .await
        .context("it is still waited for")
}

/// Sends `last`, and neither reads nor writes any more.
async fn silence(raw: &Raw, last: Vec<u8>) -> Result<()> {
    ensure!(raw.send(last).await);
    raw.stop_reading();
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_make_a_server_wait_are_left() -> Result<()> {
    let mut site = server::Site::start().await?;
    let bill = site.bill().await?;
    let mut waiting: JoinSet<Result<()>> = JoinSet::new();
    // So many bytes, so slow, that the limit comes first.
    let long = hello(&[("later", "x".repeat(10_000).into())]);
    for bytes in [vec![], vec![0, 0], long] {
        let (socket, _) = site.connect().await?;
        waiting.spawn(drip(socket, bytes));
    }
    for flood in [ping(), settings(4, 65_535), data(CONTROL, b"")] {
        let raw = site.agent().await?;
        waiting.spawn(flood_unread(raw, flood));
    }
    // Welcome, and silent at once.
    let (mut mute, _) = site.connect().await?;
    mute.write_all(&hello(&[])).await?;
    mute.flush().await?;
    let last = 0x7fff_ffff;
    let silent = [
        site.agent().await?,
        site.agent().await?,
        site.agent().await?,
    ];
    let [plain, leaves, fails] = &silent;
    silence(plain, ping()).await?;
    silence(leaves, goaway(last, 0, b"")).await?;
    silence(fails, goaway(last, 2, b"")).await?;

    while let Some(outcome) = waiting.join_next().await {
        outcome??;
        site.serve(1).await?;
    }
    ensure!(
        site.refusals(&bill).await? == 3.0,
        "not every hello is counted"
    );
    // Tunnels that end by a missed ping have a test of their own.
    site.costs(&bill, 10).await?;
    drop((mute, silent));
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_misses_a_ping_is_counted() -> Result<()> {
    let mut site = server::Site::start().await?;
    let bill = site.bill().await?;
    let raw = site.agent().await?;
    silence(&raw, ping()).await?;
    site.settle(&bill, 1, 0.0, 1.0).await?;
    drop(raw);
    site.end().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_make_an_agent_wait_are_left() -> Result<()> {
    let mut site = agent::Site::start(&[]).await?;
    // The first long one is too slow, and nothing comes behind the second.
    let slow = agent::welcome(&[("later", "x".repeat(10_000).into())]);
    for bytes in [vec![], vec![0, 0], slow, agent::welcome(&[])] {
        let mut socket = site.greeted().await?;
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        socket.write_all(first).await?;
        socket.flush().await?;
        drip(socket, rest.to_vec()).await?;
        site.serve(1).await?;
    }
    // HTTP/2 that stops in its preface.
    let mut socket = site.greeted().await?;
    socket.write_all(&agent::welcome(&[])).await?;
    drip(socket, PREFACE.get(..20).unwrap_or_default().to_vec()).await?;
    for flood in [ping(), settings(4, 65_535)] {
        let broken = site.broken().await?;
        let raw = site.tunnel().await?;
        flood_unread(raw, flood).await?;
        site.counts(broken + 1.0).await?;
        site.serve(1).await?;
    }
    let broken = site.broken().await?;
    let raw = site.tunnel().await?;
    silence(&raw, goaway(0x7fff_ffff, 0, b"")).await?;
    eventually("it is noticed", PATIENCE, async || {
        ensure!(site.broken().await? == broken + 1.0);
        Ok(())
    })
    .await?;
    drop(raw);
    site.settle().await?;
    site.check_log(4)?;
    site.end().await
}
