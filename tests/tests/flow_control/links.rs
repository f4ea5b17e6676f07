//! Many connections on a slow link, and one that carries much.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    client::Frontend,
    harness::{AgentBuilder, PATIENCE, Pki, ServerBuilder, SlowLink, TunnelKind},
    payload::{Payload, Received},
    say,
    targets::Target,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Duration, sleep, timeout},
};

use super::{cluster, on_both_tunnels};

/// Targets that answer at once.
const TARGETS: usize = 20;

/// What each answers.
const ANSWER: u64 = 1_000_000;

/// Of the link, in each direction.
const BYTES_PER_SECOND: u32 = 4_000_000;

/// R07: 1 MB instead of 10 from each, over a link that is as much faster.
async fn targets_share_a_slow_link_fairly_and_are_whole(kind: TunnelKind) -> Result<()> {
    let answer = Payload::random(ANSWER);
    let source = Target::source(answer).await?;
    let pki = Pki::shared()?;
    let server = ServerBuilder::new(Frontend::HttpUds, pki.clone()).flag(kind.flag());
    let mut server = server.start().await?;
    let link = SlowLink::to(server.agents(), BYTES_PER_SECOND).await?;
    let _agent = AgentBuilder::new(link.address(), pki)
        .flag(kind.flag())
        .start()
        .await?;
    server.ready().await?;
    let client = server.client()?;
    let mut streams = Vec::new();
    for _ in 0..TARGETS {
        streams.push(client.dial(&source.name()).await?);
    }
    let came: Arc<[AtomicU64]> = (0..TARGETS).map(|_| AtomicU64::new(0)).collect();
    let mut readers = JoinSet::new();
    for (number, mut stream) in streams.into_iter().enumerate() {
        let came = came.clone();
        readers.spawn(async move {
            stream.write_all(b"?").await?;
            stream.flush().await?;
            let mut bytes = Vec::new();
            while stream.read_buf(&mut bytes).await? > 0 {
                if let Some(came) = came.get(number) {
                    came.store(bytes.len() as u64, Ordering::Relaxed);
                }
            }
            // Read to the end, whole, in order.
            answer.check(&Received::read(&bytes[..]).await)
        });
    }
    let first = timeout(PATIENCE, readers.join_next()).await;
    first.context("nobody is done")?.context("no reader")???;
    let shares: Vec<u64> = came
        .iter()
        .map(|came| came.load(Ordering::Relaxed))
        .collect();
    say!("{kind:?}: when the first had {ANSWER} bytes, all had {shares:?}");
    let least = shares.iter().copied().min().unwrap_or_default();
    ensure!(least >= ANSWER / 2, "an unfair share: {shares:?}");
    while let Some(read) = timeout(PATIENCE, readers.join_next())
        .await
        .context("a reader stands still")?
    {
        read??;
    }
    Ok(())
}

/// More than the window of a whole HTTP/2 connection, 2^31 - 1, so that each byte of it must be given back.
const LONG: u64 = 2_400_000_000;

/// Between two pauses.
const STRETCH: u64 = 40_000_000;

/// R14: 2.4 GB instead of 50.
async fn a_long_stream_never_stops(kind: TunnelKind) -> Result<()> {
    let endless = Target::endless().await?;
    let mut cluster = cluster(kind, Frontend::HttpUds).await?;
    let before = cluster.footprint()?;
    let mut stream = cluster.client()?.dial(&endless.name()).await?;
    stream.write_all(b"?").await?;
    stream.flush().await?;
    let mut buffer = vec![0; 256 * 1024];
    let (mut came, mut until_pause) = (0, STRETCH);
    while came < LONG {
        let read = timeout(PATIENCE, stream.read(&mut buffer)).await;
        let len = read.with_context(|| format!("it stands still after {came} bytes"))??;
        ensure!(len > 0, "it ends after {came} bytes");
        came += len as u64;
        if came >= until_pause {
            until_pause = came + STRETCH;
            sleep(Duration::from_millis(50)).await;
        }
    }
    drop(stream);
    cluster.settle(before).await
}

on_both_tunnels![
    targets_share_a_slow_link_fairly_and_are_whole,
    a_long_stream_never_stops,
];
