//! What many connections that nobody reads cost, and what is left of a burst.

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Frontend, Stream},
    exchange::{dial_and_echo, echo},
    harness::{Cluster, PATIENCE, TunnelKind, eventually, metric},
    payload::{Payload, Received},
    say,
    targets::Target,
};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::timeout,
};
use tunnel::stream::window;

use super::{cluster, on_both_tunnels};

const STALLED: usize = 500;

/// `--memory-budget`: far less than all of them could fill windows with.
const BUDGET: u64 = 16 * 1024 * 1024;

/// The budget, what is charged to nobody for so many connections, and what an allocator makes of it, in debug builds.
const MAX_GROWTH_KIB: u64 = 3 * BUDGET / 1024;

/// On a packet tunnel windows do not follow the budget: 64 KiB are free for each connection, in either process, before it is cut.
const MAX_PACKET_GROWTH_KIB: u64 = MAX_GROWTH_KIB + 64 * STALLED as u64 * 2;

/// What is to be sent to each of them: more than all buffers on the way hold.
const UNREAD: u64 = 3_000_000;

/// What the kernel holds for a target that sends, in bytes.
const SEND_BUFFER: usize = 64 * 1024;

/// R13: 500 readers that stand still hold no more than the budget, whoever sends is held back, and nothing is lost.
async fn readers_that_stand_still_hold_the_budget_at_most(kind: TunnelKind) -> Result<()> {
    let answer = Payload::random(UNREAD);
    let source = Target::serve("127.0.0.1", move |mut stream| async move {
        SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER)?;
        stream.read_u8().await?;
        answer.write_to(stream).await
    });
    let (source, target) = (source.await?, Target::echo().await?);
    let mut cluster = Cluster::builder()
        .frontend(Frontend::HttpUds)
        .tunnel(kind)
        .server_flag(format!("--memory-budget={BUDGET}"))
        .agent_flag(format!("--memory-budget={BUDGET}"))
        .start()
        .await?;
    let before = cluster.footprint()?;
    let client = cluster.client()?;
    dial_and_echo(&client, &target.name(), 4_000_000).await?;
    let server_kib = cluster.server().process().resident_kib()?;
    let agent_kib = cluster.agent(0)?.process().resident_kib()?;
    let mut stalled: Vec<Stream> = Vec::new();
    for _ in 0..STALLED {
        let mut stream = client.dial(&source.name()).await?;
        stream.write_all(b"?").await?;
        stream.flush().await?;
        stalled.push(stream);
    }
    let mut other = client.dial(&target.name()).await?;
    // Until nothing moves any more: the sum of what was carried stands still over many exchanges of another.
    let health = cluster.server().health();
    let buffered = async || {
        metric(
            health,
            "konnectivity_network_proxy_server_buffered_bytes",
            "",
        )
        .await
    };
    // With the budget gone, each stream may still add the smallest window; and a tenth is under way before windows shrink.
    let most = BUDGET + BUDGET / 10 + STALLED as u64 * u64::from(window::SMALLEST);
    #[expect(clippy::cast_precision_loss, reason = "a budget is far below 2^53")]
    let most = most as f64;
    let mut last = -1.0;
    eventually("all is as full as it gets", PATIENCE, async || {
        for _ in 0..50 {
            echo(&mut other, 1_024).await?;
        }
        let now = buffered().await?;
        let grown = now - std::mem::replace(&mut last, now);
        ensure!(now <= most, "{now} bytes, at most {most} are expected");
        ensure!(grown.abs() < 64.0 * 1024.0, "it grew by {grown} to {now}");
        Ok(())
    })
    .await?;
    let server_kib = (cluster.server().process().resident_kib()?).saturating_sub(server_kib);
    let agent_kib = (cluster.agent(0)?.process().resident_kib()?).saturating_sub(agent_kib);
    say!(
        "{kind:?}: {last} bytes are buffered, the server grew by {server_kib} KiB, the agent by {agent_kib}"
    );
    let most = match kind {
        TunnelKind::Packet => MAX_PACKET_GROWTH_KIB,
        TunnelKind::Stream => MAX_GROWTH_KIB,
    };
    ensure!(server_kib < most && agent_kib < most);
    if kind == TunnelKind::Packet {
        // Its windows do not follow the budget, and whoever stands still beyond its share is cut.
        return Ok(());
    }
    ensure!(
        source.open() == STALLED,
        "writers are held back, {} are open",
        source.open()
    );
    let mut readers = JoinSet::new();
    for mut stream in stalled {
        readers.spawn(async move {
            let received = timeout(PATIENCE, Received::read(&mut stream)).await;
            answer.check(&received.context("it does not go on")?)
        });
    }
    while let Some(read) = readers.join_next().await {
        read??;
    }
    other.close().await?;
    cluster.settle(before).await
}

const AGENTS: usize = 12;

const BURSTS: usize = 30;

/// What all of them may keep: a fifth of what the burst takes. An allocator that gives nothing back keeps nearly all of it.
const MAX_KEPT_KIB: u64 = 512 * AGENTS as u64;

/// R16: a burst over many tunnels leaves no high-water mark. Twelve agents instead of 300, as each is a process here.
async fn tunnels_give_back_what_a_burst_took(kind: TunnelKind) -> Result<()> {
    let answer = Payload::random(1_000_000);
    let (source, target) = (Target::source(answer).await?, Target::echo().await?);
    let mut cluster = cluster(kind, Frontend::HttpUds).await?;
    while cluster.agent(AGENTS - 1).is_err() {
        cluster.add_agent().await?;
    }
    let before = cluster.footprint()?;
    let client = cluster.client()?;
    for _ in 0..4 * AGENTS {
        dial_and_echo(&client, &target.name(), 100_000).await?;
    }
    let server_kib = cluster.server().process().resident_kib()?;
    let mut burst = JoinSet::new();
    for _ in 0..8 * AGENTS {
        let (client, name) = (client.clone(), source.name());
        burst.spawn(async move {
            for _ in 0..BURSTS / 8 {
                let mut stream = client.dial(&name).await?;
                stream.write_all(b"?").await?;
                stream.flush().await?;
                answer.check(&timeout(PATIENCE, Received::read(&mut stream)).await?)?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = burst.join_next().await {
        done??;
    }
    cluster.settle(before).await?;
    let health = cluster.server().health();
    eventually("nothing is held back", PATIENCE, async || {
        let held = metric(
            health,
            "konnectivity_network_proxy_server_buffered_bytes",
            "",
        )
        .await?;
        ensure!(held == 0.0, "{held} bytes");
        Ok(())
    })
    .await?;
    let peak_kib = cluster
        .server()
        .process()
        .peak_kib()?
        .saturating_sub(server_kib);
    let mut kept_kib = 0;
    let given_back = eventually("memory is given back", PATIENCE, async || {
        let now = cluster.server().process().resident_kib()?;
        kept_kib = now.saturating_sub(server_kib);
        ensure!(kept_kib < MAX_KEPT_KIB, "{kept_kib} KiB are kept");
        Ok(())
    });
    given_back.await?;
    say!("{kind:?}: {AGENTS} tunnels kept {kept_kib} KiB of a burst that took {peak_kib}");
    dial_and_echo(&client, &target.name(), 1_024).await
}

on_both_tunnels![
    readers_that_stand_still_hold_the_budget_at_most,
    tunnels_give_back_what_a_burst_took,
];
