//! Ten thousand connections at the limit of open files that a process gets by default, and fewer than anybody wants.
//!
//! The targets' ends are left in the kernel's queues and accepted one by one, so that this process needs one descriptor a
//! connection and not two.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use e2e::{
    client::{Client, DialFailure, Frontend, Stream},
    exchange::dial_and_echo,
    harness::{Cluster, FileLimits, PATIENCE, eventually},
    say,
    targets::Target,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
    time::timeout,
};

const CONNECTIONS: usize = 10_000;

/// What each queue holds; the kernel's own limit is 4,096 as a rule.
const QUEUE: usize = 1_250;

/// Dials under way at the same time.
const AT_ONCE: usize = 250;

/// What everything else in a process needs.
const SPARE: u64 = 300;

/// The default of almost everywhere.
const SOFT: u64 = 1_024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections_are_all_usable() -> Result<()> {
    let connections = allowed_connections()?;
    let frontend = Frontend::HttpUds;
    let mut cluster = Cluster::builder()
        .frontend(frontend)
        .file_limits(FileLimits {
            soft: SOFT,
            hard: None,
        })
        .start()
        .await?;
    let client = cluster.client()?;
    let target = Target::echo().await?;
    dial_and_echo(&client, &target.name(), 1_000).await?;
    let before = cluster.footprint()?;
    let server_kib = cluster.server().process().resident_kib()?;
    let agent_kib = cluster.agent(0)?.process().resident_kib()?;

    let mut queues = Vec::new();
    for start in (0..connections).step_by(QUEUE) {
        queues.push((Queue::open()?, QUEUE.min(connections - start)));
    }
    let mut held = Vec::new();
    for (queue, count) in &queues {
        held.push(fill(&client, queue, *count).await?);
    }
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
    let each = |kib: u64| kib * 1024 / connections as u64;
    say!(
        "{connections} idle connections, {frontend}: {} bytes each at the server, {} at the agent",
        each(server_kib),
        each(agent_kib)
    );

    // A newcomer is served as ever, and so is everybody else.
    dial_and_echo(&client, &target.name(), 100_000).await?;
    for ((queue, _), streams) in queues.iter().zip(&mut held) {
        for _ in 0..streams.len() {
            queue.answer_one().await?;
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let number = number as u64;
            let answer = timeout(PATIENCE, stream.read_u64())
                .await
                .context("no answer")??;
            ensure!(answer == !number, "{answer:x} for {number:x}");
        }
    }
    drop(held);
    drop(queues);
    cluster.settle(before).await
}

/// As many as the limit of this process and its children allows.
fn allowed_connections() -> Result<usize> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    let allowed = limit.maximum.unwrap_or(u64::MAX).saturating_sub(SPARE);
    let allowed = usize::try_from(allowed)?;
    if allowed < CONNECTIONS {
        say!(
            "skipped: all but {allowed} of {CONNECTIONS} connections, the hard limit of open files is too low"
        );
    }
    Ok(allowed.min(CONNECTIONS))
}

/// Dials `count` times and sends each connection's number down it.
async fn fill(client: &Client, queue: &Queue, count: usize) -> Result<Vec<Stream>> {
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut dials = JoinSet::new();
    for number in 0..count {
        let (client, name, permits) = (client.clone(), queue.name.clone(), Arc::clone(&permits));
        dials.spawn(async move {
            let _permit = permits.acquire().await?;
            let mut stream = client.dial(&name).await?;
            stream.write_u64(number as u64).await?;
            stream.flush().await?;
            anyhow::Ok((number, stream))
        });
    }
    let mut streams = Vec::new();
    while let Some(dial) = dials.join_next().await {
        streams.push(dial?.context("dial")?);
    }
    streams.sort_by_key(|(number, _)| *number);
    Ok(streams.into_iter().map(|(_, stream)| stream).collect())
}

/// A target whose connections wait in the kernel.
struct Queue {
    listener: TcpListener,
    name: String,
}

impl Queue {
    fn open() -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.bind(&std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        socket.listen(i32::try_from(QUEUE)?)?;
        let listener = TcpListener::from_std(socket.into())?;
        let name = listener.local_addr()?.to_string();
        Ok(Self { listener, name })
    }

    /// Takes one connection, answers its number, and closes.
    async fn answer_one(&self) -> Result<()> {
        let one = async {
            let (mut stream, _) = self.listener.accept().await?;
            let number = stream.read_u64().await?;
            stream.write_u64(!number).await?;
            stream.shutdown().await?;
            anyhow::Ok(())
        };
        timeout(PATIENCE, one).await.context("no connection")?
    }
}

/// Both processes may have so few that they run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_descriptors_says_so_and_recovers() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let mut cluster = Cluster::builder()
            .frontend(frontend)
            .agents(0)
            .start()
            .await?;
        let spec = cluster.agent_spec().file_limits(FileLimits {
            soft: 64,
            hard: Some(64),
        });
        cluster.add_agent_like(spec).await?;
        let client = cluster.client()?;
        let before = cluster.footprint()?;
        let mut streams = Vec::new();
        let failure = loop {
            match client.dial(&target.name()).await {
                Ok(stream) => streams.push(stream),
                Err(failure) => break failure,
            }
            ensure!(streams.len() < 64, "more connections than descriptors");
        };
        ensure!(
            failure.cause().contains("too many open files"),
            "{frontend}: {failure}"
        );
        if !frontend.is_grpc() {
            ensure!(failure.status() == Some(503), "{failure}");
        }
        for stream in &mut streams {
            e2e::exchange::echo(stream, 1_000).await?;
        }
        drop(streams);
        eventually("the agent recovers", PATIENCE, async || {
            dial_and_echo(&client, &target.name(), 1_000).await
        })
        .await?;
        cluster.settle(before).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_descriptors_serves_whom_it_has_and_recovers() -> Result<()> {
    let target = Target::echo().await?;
    for frontend in Frontend::ALL {
        let cluster = Cluster::builder()
            .frontend(frontend)
            .file_limits(FileLimits {
                soft: 64,
                hard: Some(64),
            })
            .start()
            .await?;
        let client = cluster.client()?.with_patience(Duration::from_secs(3));
        let mut streams = Vec::new();
        let mut waiting = JoinSet::new();
        for _ in 0..100 {
            let (client, name) = (client.clone(), target.name());
            waiting.spawn(async move { client.dial(&name).await });
        }
        while let Some(outcome) = waiting.join_next().await {
            match outcome? {
                Ok(stream) => streams.push(stream),
                Err(
                    DialFailure::NoAnswer(_)
                    | DialFailure::Connect(_)
                    | DialFailure::Closed { .. }
                    | DialFailure::Status { status: 503, .. }
                    | DialFailure::Response { .. },
                ) => {}
                Err(other) => bail!("{other}"),
            }
        }
        ensure!(
            (10..64).contains(&streams.len()),
            "{frontend}: {} connections with 64 descriptors",
            streams.len()
        );
        for stream in &mut streams {
            e2e::exchange::echo(stream, 1_000).await?;
        }
        drop(streams);
        eventually("the server recovers", PATIENCE, async || {
            dial_and_echo(&client, &target.name(), 1_000).await
        })
        .await?;
    }
    Ok(())
}
