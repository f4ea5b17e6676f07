//! Dials: what works, and what each failure looks like to kube-apiserver.

use std::{net::TcpListener, time::Duration};

use anyhow::{Context, Result, ensure};
use e2e::{
    client::{Client, DialFailure, Frontend, Stream},
    exchange::{dial_and_echo, echo},
    harness::{Cluster, PATIENCE, eventually, metric},
    say,
    targets::{BlackHole, Target, refusing},
};
use rustix::process::Signal;
use tokio::{task::JoinSet, time::timeout};

const PENDING_DIALS: &str = "konnectivity_network_proxy_server_pending_backend_dials";
const DIAL_FAILURES: &str = "konnectivity_network_proxy_server_dial_failure_count";

/// The smallest, the borders of buffers, frames and windows, and one that fills them all.
const LENGTHS: [u64; 9] = [
    1,
    2,
    1_023,
    4_097,
    16_384,
    65_535,
    65_537,
    1_000_003,
    16 * 1024 * 1024 + 1,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_odd_lengths_come_back_whole() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let before = cluster.footprint()?;
        for len in LENGTHS {
            dial_and_echo(&client, &target.name(), len).await?;
        }
        cluster.settle(before).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_are_dialled_by_address_and_by_name() -> Result<()> {
    let v4 = Target::echo_on("127.0.0.1").await?;
    let mut names = vec![v4.name(), v4.local_name()];
    let v6 = match TcpListener::bind("[::1]:0") {
        Ok(_) => Some(Target::echo_on("::1").await?),
        Err(error) => {
            say!("skipped: targets over IPv6, this host has none: {error}");
            None
        }
    };
    names.extend(v6.iter().map(Target::name));
    for frontend in Frontend::ALL {
        let cluster = Cluster::with(frontend).await?;
        for name in &names {
            dial_and_echo(&cluster.client()?, name, 1_000).await?;
        }
    }
    Ok(())
}

/// A dial's target, the status of its CONNECT, and what the cause must say.
type Case = (String, u16, &'static str);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_dial_says_why() -> Result<()> {
    // Longer than DNS allows, so that the resolver says no without asking anybody.
    let unknown_host = format!("{}.invalid:80", "x".repeat(64));
    let cases: [Case; 4] = [
        (refusing()?.to_string(), 502, "connection refused"),
        (unknown_host, 502, "no such host"),
        ("127.0.0.1".into(), 502, "missing port in address"),
        ("127.0.0.1:notaport".into(), 502, "port"),
    ];
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let before = cluster.footprint()?;
        for (name, status, cause) in &cases {
            assert_failure(&client, name, *status, cause).await?;
        }
        let health = cluster.server().health();
        let counted = metric(health, DIAL_FAILURES, "reason=\"error_response\"").await?;
        let all = metric(health, DIAL_FAILURES, "").await?;
        ensure!(
            counted == 4.0 && all == 4.0,
            "{counted} of {all} failures are counted as the agent's"
        );
        dial_and_echo(&client, &target.name(), 1_000).await?;
        cluster.settle(before).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_agent_a_dial_fails_at_once() -> Result<()> {
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::builder()
            .frontend(frontend)
            .agents(0)
            .start()
            .await?;
        assert_failure(&cluster.client()?, "127.0.0.1:1", 503, "No agent available").await?;
        let health = cluster.server().health();
        let counted = metric(health, DIAL_FAILURES, "reason=\"no_agent\"").await?;
        ensure!(counted == 1.0, "{counted} failures counted");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_does_not_answer_is_given_up_by_the_agent() -> Result<()> {
    let black_hole = BlackHole::open()?;
    let name = black_hole.address().to_string();
    let mut clusters = Vec::new();
    let mut dials = JoinSet::new();
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let (client, name) = (cluster.client()?, name.clone());
        clusters.push((cluster.footprint()?, cluster));
        // All at once: each takes the agent's five seconds.
        dials.spawn(async move { (frontend, client.dial(&name).await) });
    }
    while let Some(dial) = dials.join_next().await {
        let (frontend, outcome) = dial?;
        let failure = outcome.err().context("dialled a black hole")?;
        check_failure(frontend, &failure, 504, "i/o timeout")?;
    }
    for (before, cluster) in &mut clusters {
        cluster.settle(*before).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_connections_at_once_work() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let before = cluster.footprint()?;
        let mut dials = JoinSet::new();
        for number in 0..200 {
            let (client, name) = (cluster.client()?, target.name());
            dials.spawn(async move { dial_and_echo(&client, &name, 20_000 + number).await });
        }
        while let Some(dial) = dials.join_next().await {
            dial??;
        }
        cluster.settle(before).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_http2_connection_carries_many_dials() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in [Frontend::GrpcUds, Frontend::GrpcTls] {
        let mut cluster = Cluster::with(frontend).await?;
        let before = cluster.footprint()?;
        let connection = cluster.client()?.open().await?;
        // The client library's reusable tunnel resets a stream once its connection is closed; 300 at a time, 600 in all.
        for _ in 0..2 {
            let mut dials = JoinSet::new();
            for number in 0..300 {
                let (connection, name) = (connection.clone(), target.name());
                dials.spawn(async move {
                    let stream = connection.dial(&name, PATIENCE).await?;
                    let mut stream = Stream::from_grpc(stream);
                    echo(&mut stream, 5_000 + number).await?;
                    anyhow::Ok(stream)
                });
            }
            let mut streams = Vec::new();
            while let Some(dial) = dials.join_next().await {
                streams.push(dial??);
            }
            ensure!(target.open() == 300, "{} are open", target.open());
            drop(streams);
            eventually("all are closed", PATIENCE, async || {
                ensure!(target.open() == 0, "{} are open", target.open());
                Ok(())
            })
            .await?;
        }
        drop(connection);
        cluster.settle(before).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_listener_serves_both_protocols() -> Result<()> {
    let target = Target::echo().await?;
    for (frontend, other) in [
        (Frontend::GrpcUds, Frontend::HttpUds),
        (Frontend::HttpTls, Frontend::GrpcTls),
    ] {
        let mut cluster = Cluster::with(frontend).await?;
        dial_and_echo(&cluster.client()?, &target.name(), 10_000).await?;
        let client = cluster.server().client_as(other)?;
        dial_and_echo(&client, &target.name(), 10_000).await?;
    }
    Ok(())
}

/// R25: the agent stands still while the client comes and goes, so that it finds the dial and its end at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dial_that_its_client_has_left_ends_at_the_agent() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let before = cluster.footprint()?;
        cluster.agent(0)?.process().signal(Signal::STOP)?;
        let name = target.name();
        for _ in 0..10 {
            let dial = client.dial(&name);
            let gone = timeout(Duration::from_millis(50), dial).await;
            ensure!(gone.is_err(), "dialled through a stopped agent: {gone:?}");
        }
        let health = cluster.server().health();
        eventually("the server has given up the dials", PATIENCE, async || {
            let pending = metric(health, PENDING_DIALS, "").await?;
            ensure!(pending == 0.0, "{pending} are pending");
            Ok(())
        })
        .await?;
        cluster.agent(0)?.process().signal(Signal::CONT)?;
        dial_and_echo(&client, &name, 1_000).await?;
        eventually(
            "no connection is left at the target",
            PATIENCE,
            async || {
                ensure!(target.open() == 0, "{} are open", target.open());
                Ok(())
            },
        )
        .await?;
        cluster.settle(before).await?;
    }
    Ok(())
}

/// The client library's way: it waits, sends DIAL_CLS and leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dial_that_is_taken_back_counts_as_the_frontends_doing() -> Result<()> {
    let black_hole = BlackHole::open()?;
    for frontend in [Frontend::GrpcUds, Frontend::GrpcTls] {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?.with_patience(Duration::from_millis(100));
        let failure = client.dial(&black_hole.address().to_string()).await;
        ensure!(
            matches!(failure, Err(DialFailure::NoAnswer(_))),
            "{failure:?}"
        );
        let health = cluster.server().health();
        eventually("the failure is counted", PATIENCE, async || {
            let counted = metric(health, DIAL_FAILURES, "reason=\"frontend_close\"").await?;
            ensure!(counted == 1.0, "{counted} are counted");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dial_to_an_agent_that_dies_fails_for_that_reason() -> Result<()> {
    let black_hole = BlackHole::open()?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::with(frontend).await?;
        let client = cluster.client()?;
        let name = black_hole.address().to_string();
        let dial = JoinSet::from_iter([async move { client.dial(&name).await }]);
        let health = cluster.server().health();
        eventually("the dial is on its way", PATIENCE, async || {
            let pending = metric(health, PENDING_DIALS, "").await?;
            ensure!(pending == 1.0, "{pending} are pending");
            Ok(())
        })
        .await?;
        cluster.kill_agent(0)?;
        // Not 504: nobody has waited for a time-out.
        let outcome = dial.join_all().await.pop().context("one dial")?;
        let failure = outcome.err().context("dialled through a dead agent")?;
        check_failure(frontend, &failure, 502, "")?;
        ensure!(
            !failure.cause().is_empty() && !failure.cause().contains("timed out"),
            "{failure}"
        );
        let counted = metric(health, DIAL_FAILURES, "reason=\"backend_close\"").await?;
        ensure!(counted == 1.0, "{counted} are counted");
    }
    Ok(())
}

async fn assert_failure(client: &Client, target: &str, status: u16, cause: &str) -> Result<()> {
    let failure = client.dial(target).await.err().context("dialled")?;
    check_failure(client.frontend(), &failure, status, cause)
        .with_context(|| format!("dial {target}, {}", client.frontend()))
}

fn check_failure(
    frontend: Frontend,
    failure: &DialFailure,
    status: u16,
    cause: &str,
) -> Result<()> {
    ensure!(failure.cause().contains(cause), "{failure}");
    if frontend.is_grpc() {
        ensure!(matches!(failure, DialFailure::Response { .. }), "{failure}");
    } else {
        ensure!(failure.status() == Some(status), "{failure}");
        // What the user of kubectl sees is the reason phrase alone.
        let DialFailure::Status { reason, .. } = failure else {
            anyhow::bail!("{failure}");
        };
        ensure!(reason.contains(cause), "reason phrase {reason:?}");
    }
    Ok(())
}
