//! Between our own ends the end of one side is passed on and the other goes on; a side that is cut never looks like one that has
//! ended.

use std::{future::pending, io};

use anyhow::{Context, Result, ensure};
use e2e::{
    client::Frontend,
    harness::{Cluster, PATIENCE},
    payload::{Payload, Received},
    targets::Target,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};

/// Frontends whose protocol has half-close.
const FRONTENDS: [Frontend; 2] = [Frontend::HttpUds, Frontend::HttpTls];

const ANSWER: u64 = 3_000_000;

/// A target, and what became of its connections.
async fn target<F, H>(handle: H) -> Result<(Target, mpsc::Receiver<io::Result<u64>>)>
where
    F: Future<Output = io::Result<u64>> + Send + 'static,
    H: Fn(TcpStream) -> F + Clone + Send + 'static,
{
    let (ends, ended) = mpsc::channel(16);
    let target = Target::serve("127.0.0.1", move |stream| {
        let (handle, ends) = (handle.clone(), ends.clone());
        async move {
            let end = handle(stream).await;
            ends.send(end).await.map_err(io::Error::other)
        }
    });
    Ok((target.await?, ended))
}

async fn end(ended: &mut mpsc::Receiver<io::Result<u64>>) -> Result<io::Result<u64>> {
    timeout(PATIENCE, ended.recv())
        .await
        .context("the target's connection has no end")?
        .context("the target is gone")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_answers_a_client_that_has_ended_its_side() -> Result<()> {
    let answer = Payload::random(ANSWER);
    let (target, mut ended) = target(move |mut stream| async move {
        let asked = stream.read_to_end(&mut Vec::new()).await?;
        answer.write_to(&mut stream).await?;
        Ok(asked as u64)
    })
    .await?;
    for frontend in FRONTENDS {
        let mut cluster = Cluster::with(frontend).await?;
        let before = cluster.footprint()?;
        let mut stream = cluster.client()?.dial(&target.name()).await?;
        stream.write_all(b"question").await?;
        stream.shutdown().await?;
        let received = timeout(PATIENCE, Received::read(&mut stream)).await?;
        answer.check(&received)?;
        ensure!(end(&mut ended).await?? == 8, "{frontend}");
        drop(stream);
        cluster.settle(before).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_sending_to_a_target_that_has_ended_its_side() -> Result<()> {
    let (target, mut ended) = target(async |mut stream| {
        stream.write_all(b"welcome").await?;
        stream.shutdown().await?;
        Ok(stream.read_to_end(&mut Vec::new()).await? as u64)
    })
    .await?;
    for frontend in FRONTENDS {
        let mut cluster = Cluster::with(frontend).await?;
        let before = cluster.footprint()?;
        let mut stream = cluster.client()?.dial(&target.name()).await?;
        let mut welcome = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut welcome)).await??;
        ensure!(welcome == b"welcome", "{frontend}: {welcome:?}");
        Payload::random(ANSWER).write_to(&mut stream).await?;
        stream.shutdown().await?;
        ensure!(end(&mut ended).await?? == ANSWER, "{frontend}");
        drop(stream);
        cluster.settle(before).await?;
    }
    Ok(())
}

/// Over TLS a client that dies says no goodbye, which is no end of file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_dies_over_tls_is_a_reset_to_its_target() -> Result<()> {
    let (target, mut ended) = target(async |mut stream| {
        stream.write_all(b"welcome").await?;
        Ok(stream.read_to_end(&mut Vec::new()).await? as u64)
    })
    .await?;
    let mut cluster = Cluster::with(Frontend::HttpTls).await?;
    let before = cluster.footprint()?;
    let mut stream = cluster.client()?.dial(&target.name()).await?;
    stream.write_all(b"half a sent").await?;
    stream.read_exact(&mut [0; 7]).await?;
    drop(stream);
    let error = end(&mut ended).await?.err().context("an orderly end")?;
    ensure!(error.kind() == io::ErrorKind::ConnectionReset, "{error}");
    cluster.settle(before).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_resets_is_no_end_of_file_to_its_client() -> Result<()> {
    let (target, mut ended) = target(async |mut stream| {
        stream.write_all(b"half a sent").await?;
        stream.read_exact(&mut [0]).await?;
        stream.set_zero_linger()?;
        Ok(0)
    })
    .await?;
    let mut cluster = Cluster::with(Frontend::HttpTls).await?;
    let before = cluster.footprint()?;
    let mut stream = cluster.client()?.dial(&target.name()).await?;
    stream.write_all(b"x").await?;
    let mut got = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut got)).await?;
    end(&mut ended).await??;
    ensure!(got == b"half a sent", "{got:?}");
    ensure!(read.is_err(), "the cut looks like an end");
    drop(stream);
    cluster.settle(before).await
}

/// A client of a Unix socket that closes it has closed both sides, and that is known at once: a target that never ends its own
/// keeps nothing alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_for_good_is_not_waited_for() -> Result<()> {
    let (target, mut ended) = target(async |mut stream| {
        // Whatever comes, and then as long as it is let.
        stream.read_to_end(&mut Vec::new()).await?;
        loop {
            stream.write_all(b"still here?").await?;
            tokio::task::yield_now().await;
        }
    })
    .await?;
    let mut cluster = Cluster::with(Frontend::HttpUds).await?;
    let before = cluster.footprint()?;
    let mut stream = cluster.client()?.dial(&target.name()).await?;
    stream.write_all(b"goodbye").await?;
    drop(stream);
    let error = end(&mut ended).await?.err().context("an orderly end")?;
    ensure!(
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        ),
        "{error}"
    );
    cluster.settle(before).await
}

/// Nor for the sake of a target that says nothing: no write fails then, and only the socket tells that its client has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_a_silent_target_for_good_is_not_waited_for() -> Result<()> {
    let (ends, mut asked) = mpsc::channel(1);
    let target = Target::serve("127.0.0.1", move |mut stream| {
        let ends = ends.clone();
        async move {
            let asked = stream.read_to_end(&mut Vec::new()).await?;
            ends.send(asked).await.map_err(io::Error::other)?;
            pending().await
        }
    })
    .await?;
    let mut cluster = Cluster::with(Frontend::HttpUds).await?;
    let before = cluster.footprint()?;
    let mut stream = cluster.client()?.dial(&target.name()).await?;
    stream.write_all(b"goodbye").await?;
    drop(stream);
    ensure!(timeout(PATIENCE, asked.recv()).await? == Some(7));
    cluster.settle(before).await
}
