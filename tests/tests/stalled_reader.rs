//! Somebody who does not read costs nobody else.
//!
//! What is asserted is that all others complete. Times are printed: `cargo test -p e2e --test stalled_reader -- --nocapture`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, Frontend},
    exchange::{dial_and_echo, echo},
    harness::{Cluster, PATIENCE},
    say,
    targets::Target,
};
use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy, sink},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

/// Connections that go on as if nothing were.
const OTHERS: usize = 50;

/// How often each of them asks.
const PERIOD: Duration = Duration::from_millis(100);

/// What is pushed into a target that never reads.
const PUSH: u64 = 64 * 1024 * 1024;

const BASELINE: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(30);

/// Readers that stall, one after the other has joined them.
const STALLED: usize = 3;

/// What a process may keep for all who do not read.
const BUDGET: u64 = 16 * 1024 * 1024;

/// The budget, the tunnel's window, the allowances, and what an allocator makes of it.
const MAX_GROWTH_KIB: u64 = 2 * BUDGET / 1024;

/// A client reads the first byte of an endless source and then nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_client_costs_the_others_nothing_over_http() -> Result<()> {
    a_stalled_client_costs_the_others_nothing(Frontend::HttpTls).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_client_costs_the_others_nothing_over_grpc() -> Result<()> {
    a_stalled_client_costs_the_others_nothing(Frontend::GrpcUds).await
}

async fn a_stalled_client_costs_the_others_nothing(frontend: Frontend) -> Result<()> {
    let endless = Target::endless().await?;
    let target = Target::echo().await?;
    let mut cluster = cluster(frontend).await?;
    let client = cluster.client()?;
    let before = cluster.footprint()?;

    let without = exchanges(&client, &target, BASELINE).await?;
    print(&format!("{frontend}, nobody stalls"), &without);
    let server_kib = cluster.server().process().resident_kib()?;
    let agent_kib = cluster.agent(0)?.process().resident_kib()?;

    let mut stalled = JoinSet::new();
    for number in 0..STALLED {
        let (client, name) = (client.clone(), endless.name());
        let start = STALL / u32::try_from(STALLED)? * u32::try_from(number)?;
        stalled.spawn(async move {
            sleep(start).await;
            let mut stream = client.dial(&name).await?;
            stream.write_all(b"?").await?;
            stream.flush().await?;
            stream.read_exact(&mut [0]).await?;
            sleep(STALL - start).await;
            anyhow::Ok(stream)
        });
    }
    let with = exchanges(&client, &target, STALL).await?;
    print(&format!("{frontend}, one stalls"), &with);
    let server_kib = cluster
        .server()
        .process()
        .resident_kib()?
        .saturating_sub(server_kib);
    let agent_kib = cluster
        .agent(0)?
        .process()
        .resident_kib()?
        .saturating_sub(agent_kib);
    say!("{frontend}: memory grew by {server_kib} KiB (server), {agent_kib} KiB (agent)");
    ensure!(server_kib < MAX_GROWTH_KIB && agent_kib < MAX_GROWTH_KIB);

    // All that has been kept for them, and then an end or more: none of it may hang.
    while let Some(stream) = stalled.join_next().await {
        let mut stream = stream??;
        let rest = (&mut stream).take(8 * 1024 * 1024);
        let mut rest = rest;
        let read = timeout(PATIENCE, copy(&mut rest, &mut sink()))
            .await
            .context("a reader that stalled and reads again gets nothing")?;
        say!("{frontend}: a stalled reader then got {read:?}");
    }
    cluster.settle(before).await
}

async fn cluster(frontend: Frontend) -> Result<Cluster> {
    Cluster::builder()
        .frontend(frontend)
        .server_flag(format!("--memory-budget={BUDGET}"))
        .agent_flag(format!("--memory-budget={BUDGET}"))
        .start()
        .await
}

/// [`OTHERS`] connections exchange 1 KiB with an echo every [`PERIOD`]; the times of all exchanges, in microseconds.
async fn exchanges(client: &Client, target: &Target, time: Duration) -> Result<Histogram<u64>> {
    let deadline = Instant::now() + time;
    let mut tasks = JoinSet::new();
    for number in 0..OTHERS {
        let (client, name) = (client.clone(), target.name());
        tasks.spawn(async move {
            let mut stream = client.dial(&name).await?;
            let mut times = Vec::new();
            sleep(PERIOD / u32::try_from(OTHERS)? * u32::try_from(number)?).await;
            let mut tick = interval(PERIOD);
            tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
            while Instant::now() < deadline {
                tick.tick().await;
                let start = Instant::now();
                timeout(PATIENCE, echo(&mut stream, 1_024))
                    .await
                    .context("an echo stands still")??;
                times.push(start.elapsed());
            }
            stream.close().await?;
            anyhow::Ok(times)
        });
    }
    let mut histogram = Histogram::new(3)?;
    while let Some(times) = tasks.join_next().await {
        for time in times?? {
            histogram.record(u64::try_from(time.as_micros())?)?;
        }
    }
    Ok(histogram)
}

fn print(what: &str, times: &Histogram<u64>) {
    say!(
        "{what}: {} echoes on {OTHERS} connections, p50 {} us, p99 {} us, slowest {} us",
        times.len(),
        times.value_at_quantile(0.5),
        times.value_at_quantile(0.99),
        times.max()
    );
}

/// R01, the other direction: a target that never reads holds its own client back, and nobody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_never_reads_holds_back_its_own_client_only() -> Result<()> {
    let never = Target::never_reading().await?;
    let target = Target::echo().await?;
    let mut left = Vec::new();
    for frontend in Frontend::ALL {
        let mut cluster = cluster(frontend).await?;
        let client = cluster.client()?;
        dial_and_echo(&client, &target.name(), 1_000_000).await?;
        let before = cluster.footprint()?;
        let server_kib = cluster.server().process().resident_kib()?;
        let agent_kib = cluster.agent(0)?.process().resident_kib()?;

        let mut stalled = client.dial(&never.name()).await?;
        let push = JoinSet::from_iter([async move {
            let bytes = vec![b'n'; 64 * 1024];
            let mut pushed: u64 = 0;
            let all = async {
                while pushed < PUSH {
                    stalled.write_all(&bytes).await?;
                    pushed += bytes.len() as u64;
                }
                std::io::Result::Ok(())
            };
            let end = timeout(Duration::from_secs(6), all).await;
            (pushed, format!("{end:?}"), stalled)
        }]);
        for _ in 0..100 {
            timeout(PATIENCE, dial_and_echo(&client, &target.name(), 1_024))
                .await
                .context("others stand still")??;
        }
        let (pushed, end, stalled) = push.join_all().await.pop().context("one task")?;
        let server_kib = cluster
            .server()
            .process()
            .resident_kib()?
            .saturating_sub(server_kib);
        let agent_kib = cluster
            .agent(0)?
            .process()
            .resident_kib()?
            .saturating_sub(agent_kib);
        say!(
            "{frontend}: {pushed} bytes were taken for a target that never reads ({end}); memory grew by {server_kib} KiB (server), {agent_kib} KiB (agent)"
        );
        ensure!(server_kib < MAX_GROWTH_KIB && agent_kib < MAX_GROWTH_KIB);
        // The sockets on the way hold some of it, both processes little.
        ensure!(pushed < PUSH, "the client was not held back");
        drop(stalled);
        left.push((frontend, cluster, before));
    }
    // Closed by its client, it is still owed its bytes for as long as the tunnel waits for a target. Over TCP the client's FIN
    // stands behind bytes that nobody reads, so there the server cannot know of it before the target has gone.
    let (over_tcp, others): (Vec<_>, Vec<_>) = left
        .into_iter()
        .partition(|(frontend, ..)| *frontend == Frontend::HttpTls);
    for (_, mut cluster, before) in others {
        cluster.settle(before).await?;
    }
    drop(never);
    for (_, mut cluster, before) in over_tcp {
        cluster.settle(before).await?;
    }
    Ok(())
}
