//! Somebody who does not read for a while, and everybody else.

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Frontend, Stream},
    exchange::{dial_and_echo, echo},
    harness::{PATIENCE, TunnelKind},
    payload::{Payload, Received},
    say,
    targets::{BlackHole, Target},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Duration, sleep, timeout},
};

use super::{ask, cluster, on_both_tunnels, push};

/// What is pushed at a target that never reads.
const PUSH: u64 = 64 * 1024 * 1024;

/// What one connection that nobody reads may cost a process, an allocator's hunger included.
const MAX_GROWTH_KIB: u64 = 4 * 1024;

/// R01.
async fn a_target_that_never_reads_costs_little_and_nobody_else(kind: TunnelKind) -> Result<()> {
    let (never, target) = (Target::never_reading().await?, Target::echo().await?);
    for frontend in [Frontend::HttpUds, Frontend::GrpcUds] {
        let mut cluster = cluster(kind, frontend).await?;
        let client = cluster.client()?;
        let mut other = client.dial(&target.name()).await?;
        echo(&mut other, 4_000_000).await?;
        let server_kib = cluster.server().process().resident_kib()?;
        let agent_kib = cluster.agent(0)?.process().resident_kib()?;
        let mut stalled = client.dial(&never.name()).await?;
        let exchanges = async {
            for _ in 0..100 {
                let exchanged = timeout(PATIENCE, echo(&mut other, 1_024)).await;
                exchanged.context("the other stands still")??;
            }
            anyhow::Ok(())
        };
        let (pushed, exchanged) = tokio::join!(push(&mut stalled, PUSH), exchanges);
        exchanged?;
        let pushed = pushed?;
        ensure!(pushed < PUSH, "the client was not held back");
        // Once more, now that everything is as full as it gets.
        echo(&mut other, 100_000).await?;
        let server_kib = (cluster.server().process().resident_kib()?).saturating_sub(server_kib);
        let agent_kib = (cluster.agent(0)?.process().resident_kib()?).saturating_sub(agent_kib);
        say!(
            "{kind:?}, {frontend}: {pushed} bytes were taken, the server grew by {server_kib} KiB, the agent by {agent_kib}"
        );
        ensure!(server_kib < MAX_GROWTH_KIB && agent_kib < MAX_GROWTH_KIB);
    }
    Ok(())
}

/// R02.
async fn an_answer_that_nobody_reads_delays_no_dial_and_is_whole_in_the_end(
    kind: TunnelKind,
) -> Result<()> {
    let answer = Payload::random(100 * 1024 * 1024);
    let (source, target) = (Target::source(answer).await?, Target::echo().await?);
    let mut cluster = cluster(kind, Frontend::HttpUds).await?;
    let before = cluster.footprint()?;
    let client = cluster.client()?;
    let mut unread = client.dial(&source.name()).await?;
    unread.write_all(b"?").await?;
    unread.flush().await?;
    let mut dials = JoinSet::new();
    for _ in 0..50 {
        let (client, name) = (client.clone(), target.name());
        dials.spawn(async move { dial_and_echo(&client, &name, 1_024).await });
    }
    while let Some(dialled) = timeout(PATIENCE, dials.join_next())
        .await
        .context("a dial stands still")?
    {
        dialled??;
    }
    let received = timeout(PATIENCE, Received::read(&mut unread)).await?;
    answer.check(&received)?;
    drop(unread);
    cluster.settle(before).await
}

/// R04.
async fn a_dial_that_nobody_answers_delays_no_other(kind: TunnelKind) -> Result<()> {
    let (hole, target) = (BlackHole::open()?, Target::echo().await?);
    let mut cluster = cluster(kind, Frontend::HttpUds).await?;
    let before = cluster.footprint()?;
    let client = cluster.client()?;
    let (lost, address) = (client.clone(), hole.address().to_string());
    let mut waiting =
        JoinSet::from_iter([async move { lost.dial(&address).await.err().context("connected") }]);
    for _ in 0..20 {
        dial_and_echo(&client, &target.name(), 1_024).await?;
        ensure!(waiting.try_join_next().is_none(), "a black hole answered");
    }
    waiting.shutdown().await;
    cluster.settle(before).await
}

/// R05, for 15 s instead of 60: longer than any limit on readers that stand still.
async fn a_reader_may_pause_and_loses_nothing(kind: TunnelKind) -> Result<()> {
    let log = Payload::random(48 * 1024 * 1024);
    let (source, target) = (Target::source(log).await?, Target::echo().await?);
    for frontend in [Frontend::GrpcUds, Frontend::HttpUds] {
        let mut cluster = cluster(kind, frontend).await?;
        let before = cluster.footprint()?;
        let client = cluster.client()?;
        let mut reader = client.dial(&source.name()).await?;
        let first = ask(&mut reader).await?;
        let mut start = vec![0; 1_000_000];
        reader.read_exact(&mut start).await?;
        let pause = sleep(Duration::from_secs(15));
        tokio::pin!(pause);
        let mut other = client.dial(&target.name()).await?;
        loop {
            tokio::select! {
                () = &mut pause => break,
                exchanged = timeout(PATIENCE, echo(&mut other, 10_000)) => {
                    exchanged.context("the other stands still")??;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
        let start = [&[first], &start[..]].concat();
        let received = timeout(PATIENCE, Received::read((&start[..]).chain(&mut reader)))
            .await
            .context("it does not go on")?;
        log.check(&received)
            .with_context(|| format!("{kind:?}, {frontend}"))?;
        other.close().await?;
        drop(reader);
        cluster.settle(before).await?;
    }
    Ok(())
}

/// R10: 8 MB ten times through a reader that pauses at random.
async fn a_slow_reader_gets_ten_whole_copies(kind: TunnelKind) -> Result<()> {
    let image = Payload::random(8_000_000);
    let source = Target::source(image).await?;
    for frontend in [Frontend::GrpcUds, Frontend::HttpUds] {
        let mut cluster = cluster(kind, frontend).await?;
        let before = cluster.footprint()?;
        let client = cluster.client()?;
        for copy in 0..10 {
            let mut stream = client.dial(&source.name()).await?;
            stream.write_all(b"?").await?;
            stream.flush().await?;
            let received = timeout(PATIENCE, read_with_pauses(stream)).await;
            let received = received.with_context(|| format!("copy {copy} stands still"))??;
            image.check(&received)?;
        }
        cluster.settle(before).await?;
    }
    Ok(())
}

/// Reads pieces of up to 256 KiB with pauses of up to 20 ms.
async fn read_with_pauses(mut stream: Stream) -> Result<Received> {
    let mut bytes = Vec::new();
    loop {
        sleep(Duration::from_micros(fastrand::u64(0..20_000))).await;
        let mut piece = (&mut stream).take(fastrand::u64(1..256 * 1024));
        if piece.read_to_end(&mut bytes).await? == 0 {
            return Ok(Received::read(&bytes[..]).await);
        }
    }
}

on_both_tunnels![
    a_target_that_never_reads_costs_little_and_nobody_else,
    an_answer_that_nobody_reads_delays_no_dial_and_is_whole_in_the_end,
    a_dial_that_nobody_answers_delays_no_other,
    a_reader_may_pause_and_loses_nothing,
    a_slow_reader_gets_ten_whole_copies,
];
