//! No byte is lost at a close, whoever closes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, Frontend},
    exchange::dial_and_echo,
    harness::{Cluster, PATIENCE},
    payload::{Payload, Received},
    say,
    targets::Target,
};
use tokio::{io::AsyncWriteExt, sync::mpsc, task::JoinSet, time::timeout};

/// Of each frontend, half of them in each direction: 1,000 in all.
const TRANSFERS: usize = 250;

/// At the same time.
const WORKERS: usize = 10;

const MAX_LEN: u64 = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_transfers_that_end_with_a_close_are_whole() -> Result<()> {
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let before = cluster.footprint()?;
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            let client = cluster.client()?;
            workers.spawn(async move {
                let (sink, mut results) = Target::sink(None).await?;
                let mut bytes = 0;
                for number in 0..TRANSFERS / WORKERS {
                    let payload = Payload::random(some_len());
                    if number % 2 == 0 {
                        download(&client, payload).await.context("target closes")?;
                    } else {
                        upload(&client, &sink, &mut results, payload)
                            .await
                            .context("client closes")?;
                    }
                    bytes += payload.len();
                }
                anyhow::Ok(bytes)
            });
        }
        let mut bytes = 0;
        while let Some(worker) = workers.join_next().await {
            bytes += worker?.with_context(|| frontend.to_string())?;
        }
        say!("{frontend}: {TRANSFERS} of {TRANSFERS} transfers whole, {bytes} bytes");
        cluster.settle(before).await?;
    }
    Ok(())
}

/// As many small ones as large ones, and some that are empty.
fn some_len() -> u64 {
    let bits = fastrand::u32(0..=20);
    fastrand::u64(0..=(1 << bits).min(MAX_LEN))
}

/// The target sends and closes at once.
async fn download(client: &Client, payload: Payload) -> Result<()> {
    let source = Target::source(payload).await?;
    let mut stream = client.dial(&source.name()).await?;
    stream.write_all(b"?").await?;
    stream.flush().await?;
    let received = timeout(PATIENCE, Received::read(&mut stream)).await?;
    payload.check(&received)?;
    ensure!(received.error.is_none(), "{received:?}");
    stream.close().await.context("close")
}

/// The client sends and closes at once.
async fn upload(
    client: &Client,
    sink: &Target,
    results: &mut mpsc::Receiver<Received>,
    payload: Payload,
) -> Result<()> {
    let mut stream = client.dial(&sink.name()).await?;
    payload.write_to(&mut stream).await.context("write")?;
    stream.close().await.context("close")?;
    let received = timeout(PATIENCE, results.recv())
        .await?
        .context("no result")?;
    payload.check(&received)?;
    ensure!(received.error.is_none(), "{received:?}");
    Ok(())
}

/// W4: far more than sockets hold is still on its way when the client has closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_target_gets_everything_after_its_client_has_left() -> Result<()> {
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let before = cluster.footprint()?;
        // 16 KiB every 5 ms.
        let (sink, mut results) = Target::sink(Some(Duration::from_millis(5))).await?;
        let payload = Payload::random(4 * 1024 * 1024 + 17);
        upload(&cluster.client()?, &sink, &mut results, payload)
            .await
            .with_context(|| frontend.to_string())?;
        cluster.settle(before).await?;
    }
    Ok(())
}

/// The same, with a client that reads slowly what a target has left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_client_gets_everything_after_its_target_has_left() -> Result<()> {
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let before = cluster.footprint()?;
        let payload = Payload::random(4 * 1024 * 1024 + 17);
        let source = Target::source(payload).await?;
        let mut stream = cluster.client()?.dial(&source.name()).await?;
        stream.write_all(b"?").await?;
        stream.flush().await?;
        let slow = e2e::targets::Slow::new(stream, Duration::from_millis(5));
        let received = timeout(PATIENCE, Received::read(slow)).await?;
        payload
            .check(&received)
            .with_context(|| frontend.to_string())?;
        cluster.settle(before).await?;
    }
    Ok(())
}

/// R28: closes that cross leave nothing behind and harm nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_may_close_at_the_same_moment() -> Result<()> {
    let source = Target::source(Payload::random(10)).await?;
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let before = cluster.footprint()?;
        let mut clients = JoinSet::new();
        for _ in 0..WORKERS {
            let (client, name) = (cluster.client()?, source.name());
            clients.spawn(async move {
                for _ in 0..20 {
                    let mut stream = client.dial(&name).await?;
                    // The target may have gone already, which is no failure.
                    stream.write_all(b"bye").await.ok();
                    stream.close().await.ok();
                }
                anyhow::Ok(())
            });
        }
        while let Some(client) = clients.join_next().await {
            client?.with_context(|| frontend.to_string())?;
        }
        dial_and_echo(&cluster.client()?, &target.name(), 10_000).await?;
        cluster.settle(before).await?;
    }
    Ok(())
}
