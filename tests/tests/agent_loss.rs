//! Agents and servers that vanish, and what their end ends.

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Frontend, Stream},
    exchange::{dial_and_echo, echo},
    harness::{Cluster, PATIENCE, eventually, metric},
    targets::Target,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, sink},
    time::timeout,
};

const DIALLED: &str = "konnectivity_network_proxy_agent_dial_duration_seconds_count";
const OPEN_CONNECTIONS: &str = "konnectivity_network_proxy_agent_open_endpoint_connections";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_through_an_agent_that_dies_ends_and_the_next_agent_serves() -> Result<()> {
    let endless = Target::endless().await?;
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let mut streams = Vec::new();
        for _ in 0..5 {
            let mut stream = client.dial(&endless.name()).await?;
            stream.write_all(b"?").await?;
            stream.flush().await?;
            stream.read_exact(&mut [0; 100_000]).await?;
            streams.push(stream);
        }
        cluster.kill_agent(0)?;
        for mut stream in streams {
            // With an error or without: a connection that is cut has no better way to end.
            timeout(PATIENCE, copy(&mut stream, &mut sink()))
                .await
                .with_context(|| format!("{frontend}: the connection goes on"))?
                .ok();
        }
        cluster.add_agent().await?;
        dial_and_echo(&client, &target.name(), 10_000).await?;
    }
    Ok(())
}

/// R26: agents are told apart by their streams, not by what they call themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_one_of_two_agents_of_one_name_leaves_the_other_alone() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::builder()
            .frontend(frontend)
            .agents(1)
            .agent_flag("--agent-id=twin")
            .start()
            .await?;
        let client = cluster.client()?;
        let mut streams = Vec::new();
        // The second agent of the name gets all dials once it has been there for a moment.
        for number in 0..2 {
            let health = cluster.agent(number)?.health();
            eventually("the newest agent is preferred", PATIENCE, async || {
                client.dial(&target.name()).await?.close().await?;
                let dialled = metric(health, DIALLED, "").await?;
                ensure!(dialled > 0.0, "none went to agent {number}");
                Ok(())
            })
            .await?;
            eventually("what that took is over", PATIENCE, async || {
                let open = target.open();
                ensure!(open == streams.len(), "{open} are open");
                Ok(())
            })
            .await?;
            for _ in 0..20 {
                let mut stream = client.dial(&target.name()).await?;
                echo(&mut stream, 100).await?;
                streams.push(stream);
            }
            let open = metric(health, OPEN_CONNECTIONS, "").await?;
            ensure!(open == 20.0, "{open} of agent {number}'s 20 connections");
            if number == 0 {
                cluster.add_agent().await?;
            }
        }
        let others = 20.0;
        cluster.kill_agent(0)?;
        eventually("the dead agent's connections end", PATIENCE, async || {
            let open = target.open() as f64;
            ensure!(open == others, "{open} are open, {others} are to stay");
            Ok(())
        })
        .await?;
        let mut alive = 0.0;
        for mut stream in streams {
            alive += if still_echoes(&mut stream).await? {
                1.0
            } else {
                0.0
            };
        }
        ensure!(alive == others, "{alive} work, {others} should");
        dial_and_echo(&client, &target.name(), 1_000).await?;
    }
    Ok(())
}

/// Whether the connection works; an error if it is neither usable nor closed.
async fn still_echoes(stream: &mut Stream) -> Result<bool> {
    Ok(timeout(PATIENCE, echo(stream, 1_000))
        .await
        .context("neither works nor ends")?
        .is_ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_come_back_to_a_server_that_was_restarted() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::builder()
            .frontend(frontend)
            .agents(2)
            .start()
            .await?;
        let client = cluster.client()?;
        let mut stream = client.dial(&target.name()).await?;
        echo(&mut stream, 1_000).await?;
        // SIGKILL: the socket's file stays behind, and must not be in the way (R70).
        cluster.server().restart().await?;
        let mut rest = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut rest))
            .await
            .context("a connection outlives its server")?
            .ok();
        ensure!(rest.is_empty(), "{} bytes from nowhere", rest.len());
        eventually("the agents let go of the target", PATIENCE, async || {
            ensure!(target.open() == 0, "{} are open", target.open());
            Ok(())
        })
        .await?;
        let health = cluster.server().health();
        eventually("both agents are back", PATIENCE, async || {
            let agents = metric(
                health,
                "konnectivity_network_proxy_server_ready_backends",
                "proxy_strategy=\"default\"",
            )
            .await?;
            ensure!(agents == 2.0, "{agents} are");
            Ok(())
        })
        .await?;
        dial_and_echo(&client, &target.name(), 1_000).await?;
    }
    Ok(())
}

/// R145: kube-apiserver may be there first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_there_first_waits_for_its_server() -> Result<()> {
    let target = Target::echo().await?;
    let mut cluster = Cluster::builder().agents(0).start().await?;
    cluster.server().process().kill()?;
    let mut agent = cluster.agent_spec().start_unconnected().await?;
    let reply = e2e::harness::get(agent.health(), "/readyz").await?;
    ensure!(reply.status == 503, "ready without a server: {reply:?}");
    let client = cluster.client()?;
    ensure!(client.dial(&target.name()).await.is_err());
    cluster.server().restart().await?;
    agent.ready().await?;
    cluster.server().ready().await?;
    dial_and_echo(&client, &target.name(), 1_000).await
}
