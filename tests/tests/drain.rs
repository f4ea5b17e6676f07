//! Signals: what a first one begins and a second one ends (wire-protocol.md T14, 4.10, 5.9).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    client::Frontend,
    exchange::{dial_and_echo, echo},
    harness::{Cluster, PATIENCE, eventually, get, metric},
    targets::Target,
};
use tokio::{io::AsyncReadExt, time::timeout};

const OPEN_CONNECTIONS: &str = "konnectivity_network_proxy_agent_open_endpoint_connections";

/// Waits until the server has seen its first signal.
async fn no_longer_ready(cluster: &mut Cluster) -> Result<()> {
    let health = cluster.server().health();
    eventually("the server is no longer ready", PATIENCE, async || {
        let reply = get(health, "/readyz").await?;
        ensure!(reply.status == 500, "{reply:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_grace_cuts_and_ends_well() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let mut stream = cluster.client()?.dial(&target.name()).await?;
        echo(&mut stream, 1_000).await?;
        cluster.server().process().terminate()?;
        let status = cluster.server().process().exit(PATIENCE).await?;
        ensure!(status.code() == Some(0), "{status}");
        timeout(PATIENCE, stream.read_to_end(&mut Vec::new()))
            .await
            .context("a connection outlives its server")?
            .ok();
        if let Some(socket) = cluster.server().socket() {
            ensure!(!socket.exists(), "the socket's file is left behind");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_grace_lets_connections_end() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::builder()
            .frontend(frontend)
            .server_flag("--graceful-shutdown-timeout=10m")
            .start()
            .await?;
        let client = cluster.client()?;
        let mut stream = client.dial(&target.name()).await?;
        echo(&mut stream, 1_000).await?;
        cluster.server().process().terminate()?;
        no_longer_ready(&mut cluster).await?;
        eventually("no new dial is served", PATIENCE, async || {
            let dial = client.dial(&target.name()).await;
            ensure!(dial.is_err(), "one was");
            Ok(())
        })
        .await?;
        echo(&mut stream, 100_000)
            .await
            .context("the old connection")?;
        ensure!(cluster.server().process().ended()?.is_none());
        stream.close().await?;
        let status = cluster.server().process().exit(PATIENCE).await?;
        ensure!(status.code() == Some(0), "{status}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_grace_is_over_cuts_and_ends_well() -> Result<()> {
    let target = Target::echo().await?;
    let mut cluster = Cluster::builder()
        .server_flag("--graceful-shutdown-timeout=1s")
        .start()
        .await?;
    let mut stream = cluster.client()?.dial(&target.name()).await?;
    echo(&mut stream, 1_000).await?;
    cluster.server().process().terminate()?;
    let status = cluster.server().process().exit(PATIENCE).await?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}

/// field-tests.md R74.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_delay_serves_new_dials_while_it_is_no_longer_ready() -> Result<()> {
    let target = Target::echo().await?;
    let mut cluster = Cluster::builder()
        .server_flag("--shutdown-delay=10m")
        .start()
        .await?;
    cluster.server().process().terminate()?;
    no_longer_ready(&mut cluster).await?;
    dial_and_echo(&cluster.client()?, &target.name(), 100_000).await?;
    cluster.server().process().terminate()?;
    let status = cluster.server().process().exit(PATIENCE).await?;
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_a_server_at_once_and_badly() -> Result<()> {
    let target = Target::echo().await?;
    let mut cluster = Cluster::builder()
        .server_flag("--graceful-shutdown-timeout=10m")
        .start()
        .await?;
    let mut stream = cluster.client()?.dial(&target.name()).await?;
    echo(&mut stream, 1_000).await?;
    cluster.server().process().terminate()?;
    no_longer_ready(&mut cluster).await?;
    cluster.server().process().terminate()?;
    let status = cluster.server().process().exit(PATIENCE).await?;
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_agent_serves_on_until_a_second_signal() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let mut stream = client.dial(&target.name()).await?;
        echo(&mut stream, 1_000).await?;
        cluster.agent(0)?.process().terminate()?;
        let health = cluster.server().health();
        eventually("the server hears of it", PATIENCE, async || {
            let drains = metric(
                health,
                "konnectivity_network_proxy_server_stream_packets_total",
                "packet_type=\"DRAIN\"",
            )
            .await?;
            ensure!(drains == 1.0, "{drains} DRAINs");
            Ok(())
        })
        .await?;
        // It is the only one there is: better than none.
        dial_and_echo(&client, &target.name(), 1_000).await?;
        echo(&mut stream, 1_000).await?;
        let ready = get(cluster.agent(0)?.health(), "/readyz").await?;
        ensure!(ready.status == 200, "{ready:?}");

        // With another one, it gets no new dials.
        cluster.add_agent().await?;
        let (old, new) = (cluster.agent(0)?.health(), cluster.agent(1)?.health());
        let mut streams = Vec::new();
        for _ in 0..10 {
            let mut stream = client.dial(&target.name()).await?;
            echo(&mut stream, 1_000).await?;
            streams.push(stream);
        }
        let at_new = metric(new, OPEN_CONNECTIONS, "").await?;
        ensure!(at_new == 10.0, "{at_new} of 10 are at the new agent");
        echo(&mut stream, 1_000).await?;
        let at_old = metric(old, OPEN_CONNECTIONS, "").await?;
        ensure!(at_old == 1.0, "{at_old} at the old one");

        cluster.agent(0)?.process().terminate()?;
        let status = cluster.agent(0)?.process().exit(PATIENCE).await?;
        ensure!(status.code() == Some(0), "{status}");
        for stream in &mut streams {
            echo(stream, 1_000).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draining_agent_that_loses_its_server_looks_for_no_other() -> Result<()> {
    let mut cluster = Cluster::builder().start().await?;
    cluster.agent(0)?.process().terminate()?;
    let health = cluster.server().health();
    eventually("the server hears of it", PATIENCE, async || {
        let drains = metric(
            health,
            "konnectivity_network_proxy_server_stream_packets_total",
            "packet_type=\"DRAIN\"",
        )
        .await?;
        ensure!(drains == 1.0, "{drains} DRAINs");
        Ok(())
    })
    .await?;
    cluster.server().restart().await?;
    // Ten times as long as the harness' agents wait between attempts.
    let is_ready = eventually("it comes back", Duration::from_secs(1), async || {
        let reply = get(health, "/readyz").await?;
        ensure!(reply.status == 200);
        Ok(())
    })
    .await;
    ensure!(is_ready.is_err(), "a draining agent has come back");
    cluster.agent(0)?.process().terminate()?;
    let status = cluster.agent(0)?.process().exit(PATIENCE).await?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}
