use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;
use tunnel::copy::copy as copy_to_pipe;
use tunnel::dial::DialError;
use tunnel::event::Event;
use tunnel::mux::Mux;

use super::*;
use crate::client::Via;
use crate::client_set::Connect as _;
use crate::dial::tests::refusing;
use crate::fake_server::{FakeServers, Manner, PEER};

/// A tunnel with the agent's side under way; `mux` is the server's.
struct World {
    servers: Rc<FakeServers>,
    metrics: Arc<Metrics>,
    mux: Rc<Mux>,
    tasks: Tasks,
    /// Every turn of the resolver, so that names are looked up for as long as the dial may last.
    _turns: Option<OwnedSemaphorePermit>,
}

impl World {
    async fn new() -> Self {
        Self::with(Resolver::default(), None).await
    }

    /// A world where every dial to a name lasts as long as it may.
    async fn stuck() -> Self {
        let resolver = Resolver::default();
        let all = u32::try_from(resolver.turns().available_permits()).unwrap();
        let turns = resolver.turns().acquire_many_owned(all).await.unwrap();
        Self::with(resolver, Some(turns)).await
    }

    async fn with(resolver: Resolver, turns: Option<OwnedSemaphorePermit>) -> Self {
        let servers = FakeServers::new([Manner::server("a", 1)]);
        let tunnel = servers.connect(Via::Address(PEER)).await.unwrap();
        let metrics = Arc::new(Metrics::new(certs::Current::fixed(Arc::default())).unwrap());
        let tasks = Tasks::default();
        let dialer = Dialer {
            resolver,
            metrics: metrics.clone(),
            tasks: tasks.clone(),
            activity: Activity::new(),
            policy: Rc::default(),
            limit: DIAL_LIMIT,
        };
        let endpoints = Endpoints::new(dialer, tunnel.handle().clone());
        tasks.spawn(async move {
            tunnel
                .run(|event| serve(&endpoints, event), std::future::pending())
                .await;
        });
        let mux = servers.last().mux.clone();
        Self {
            servers,
            metrics,
            mux,
            tasks,
            _turns: turns,
        }
    }

    /// Until only so many tasks run.
    async fn tasks(&self, count: usize) {
        let reached = timeout(Duration::from_secs(30), async {
            while self.tasks.len() != count {
                tokio::task::yield_now().await;
            }
        });
        reached.await.expect("the tasks end");
    }

    fn metrics(&self) -> String {
        let families = self.metrics.registry().gather();
        prometheus::TextEncoder::new()
            .encode_to_string(&families)
            .unwrap()
    }

    fn metric(&self, line: &str) -> bool {
        let line = format!("konnectivity_network_proxy_agent_{line}");
        self.metrics().lines().any(|found| found == line)
    }
}

fn serve(endpoints: &Endpoints, event: Event) {
    if let Event::Dial(dial) = event {
        endpoints.on_dial(dial);
    }
}

async fn run(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

/// A connection of the tunnel as a socket.
async fn socket(connection: impl Into<Connection>) -> TcpStream {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    let (server, _) = listener.accept().await.unwrap();
    spawn_local(copy_to_pipe(server, connection.into(), Options::default()));
    client
}

#[tokio::test]
async fn a_target_is_dialled_and_bytes_go_both_ways_to_the_end() {
    run(async {
        let world = World::new().await;
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = target.local_addr().unwrap().to_string();
        let connection = world.mux.dial("tcp", &address).await.unwrap();
        let (mut endpoint, _) = target.accept().await.unwrap();
        assert!(world.metric("open_endpoint_connections 1"));
        let mut client = socket(connection).await;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = String::new();
        endpoint.read_to_string(&mut question).await.unwrap();
        assert_eq!(question, "question");
        drop(endpoint);
        world.tasks(1).await;
        assert!(world.metric("open_endpoint_connections 0"));
        assert!(world.metric("dial_duration_seconds_count 1"));
    })
    .await;
}

#[tokio::test]
async fn a_target_that_closes_first_delivers_all_it_sent() {
    run(async {
        let world = World::new().await;
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = target.local_addr().unwrap().to_string();
        let connection = world.mux.dial("tcp", &address).await.unwrap();
        let (mut endpoint, _) = target.accept().await.unwrap();
        let sent: Vec<u8> = (0..1_000_003_u32).map(|i| i.to_le_bytes()[0]).collect();
        let sending = sent.clone();
        spawn_local(async move {
            endpoint.write_all(&sending).await.unwrap();
        });
        let mut received = Vec::new();
        socket(connection)
            .await
            .read_to_end(&mut received)
            .await
            .unwrap();
        assert!(
            received == sent,
            "{} of {} bytes",
            received.len(),
            sent.len()
        );
    })
    .await;
}

#[tokio::test]
async fn a_failed_dial_is_answered_in_gos_words_and_counted() {
    run(async {
        let world = World::new().await;
        let (_held, refused) = refusing();
        for (network, address, text) in [
            (
                "tcp",
                refused.to_string(),
                format!("dial tcp {refused}: connect: connection refused"),
            ),
            (
                "udp",
                refused.to_string(),
                "dial: unknown network udp".to_owned(),
            ),
            (
                "tcp",
                "127.0.0.1".to_owned(),
                "dial tcp: address 127.0.0.1: missing port in address".to_owned(),
            ),
        ] {
            let outcome = world.mux.dial(network, &address).await;
            assert_eq!(
                outcome.unwrap_err(),
                DialError::Refused(Refusal::failed(text))
            );
        }
        assert!(world.metric("endpoint_dial_failure_total{reason=\"unknown\"} 3"));
        let metrics = world.metrics();
        assert!(!metrics.contains("endpoint_dial_failure_total{reason=\"timeout\"}"));
        world.tasks(1).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_dial_that_takes_too_long_is_answered_and_counted_as_a_timeout() {
    run(async {
        let world = World::stuck().await;
        let outcome = world.mux.dial("tcp", "localhost:80").await;
        let text = "dial tcp: lookup localhost: i/o timeout".to_owned();
        assert_eq!(
            outcome.unwrap_err(),
            DialError::Refused(Refusal::failed(text))
        );
        assert!(world.metric("endpoint_dial_failure_total{reason=\"timeout\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn a_dial_that_the_server_gives_up_is_aborted() {
    run(async {
        let world = World::stuck().await;
        let dial = world.mux.dial("tcp", "localhost:80");
        world.tasks(2).await;
        drop(dial);
        world.tasks(1).await;
        assert!(!world.metrics().contains("endpoint_dial_failure_total{"));
    })
    .await;
}

#[tokio::test]
async fn dials_and_connections_of_a_lost_tunnel_end() {
    run(async {
        let world = World::stuck().await;
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = target.local_addr().unwrap().to_string();
        let _connection = world.mux.dial("tcp", &address).await.unwrap();
        let (mut endpoint, _) = target.accept().await.unwrap();
        let dial = world.mux.dial("tcp", "localhost:80");
        world.tasks(3).await;
        world.servers.last().cut.cancel();
        world.tasks(0).await;
        // A reset and not an end of file, or a truncated stream could be taken for a whole one.
        let ended = endpoint.read(&mut [0; 1]).await;
        assert_eq!(
            ended.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionReset
        );
        drop(dial);
    })
    .await;
}
