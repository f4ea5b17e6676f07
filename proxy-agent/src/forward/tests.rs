use std::cell::{Cell, RefCell};
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tunnel::event::Event;
use tunnel::mux::Mux;

use super::*;
use crate::client::Via;
use crate::client_set::Connect as _;
use crate::config::Forward;
use crate::dial::Resolver;
use crate::endpoint::{DIAL_LIMIT, Dialer, Endpoints};
use crate::fake_server::{FakeServers, Manner, PEER};

/// How the next connections are answered.
enum Answer {
    /// By a connection to the target.
    Connected,
    /// Likewise, when it is told to.
    After(Rc<Notify>),
    /// Not at all.
    Never,
    /// By an error.
    Failed(OpenError),
}

/// A tunnel whose far side dials `target` for every connection: real connections, answered as the test likes.
struct Fake {
    mux: Rc<Mux>,
    target: SocketAddr,
    answers: RefCell<Vec<Answer>>,
    /// The names that were asked for.
    asked: RefCell<Vec<String>>,
    has_asked: Notify,
    given_up: Cell<usize>,
}

impl Carry for Rc<Fake> {
    async fn open(&self, name: &str) -> Result<Connection, OpenError> {
        self.asked.borrow_mut().push(name.to_owned());
        self.has_asked.notify_one();
        let answer = self.answers.borrow_mut().pop();
        match answer.unwrap_or(Answer::Connected) {
            Answer::Connected => Ok(self.dial().await),
            Answer::After(told) => {
                told.notified().await;
                Ok(self.dial().await)
            }
            Answer::Never => {
                let _given_up = GivenUp(self);
                pending().await
            }
            Answer::Failed(error) => Err(error),
        }
    }
}

impl Fake {
    async fn dial(&self) -> Connection {
        let dial = self.mux.dial("tcp", &self.target.to_string());
        dial.await.unwrap().into()
    }
}

struct GivenUp<'a>(&'a Fake);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.given_up.update(|count| count + 1);
    }
}

/// A forwarder with one listener, and the target that its connections reach.
struct World {
    fake: Rc<Fake>,
    forwarder: Rc<Forwarder<Rc<Fake>>>,
    address: SocketAddr,
    target: TcpListener,
    /// The tunnel's own, which are never over.
    tunnel_tasks: Tasks,
}

impl World {
    /// With `answers`, the first first; then every connection is carried.
    async fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let servers = FakeServers::new([Manner::server("a", 1)]);
        let tunnel = servers.connect(Via::Address(PEER)).await.unwrap();
        let metrics = Arc::new(Metrics::new(certs::Current::fixed(Arc::default())).unwrap());
        let tunnel_tasks = Tasks::default();
        let dialer = Dialer {
            resolver: Resolver::default(),
            metrics: metrics.clone(),
            tasks: tunnel_tasks.clone(),
            activity: Activity::new(),
            policy: Rc::default(),
            limit: DIAL_LIMIT,
        };
        let endpoints = Endpoints::new(dialer, tunnel.handle().clone());
        tunnel_tasks.spawn(async move {
            let on_event = |event| {
                if let Event::Dial(dial) = event {
                    endpoints.on_dial(dial);
                }
            };
            let run = tunnel.run(on_event, pending());
            run.await;
        });
        let target = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        let fake = Rc::new(Fake {
            mux: servers.last().mux.clone(),
            target: target.local_addr().unwrap(),
            answers: RefCell::new(answers),
            asked: RefCell::default(),
            has_asked: Notify::new(),
            given_up: Cell::new(0),
        });
        let forwarder = Rc::new(Forwarder {
            carry: fake.clone(),
            metrics,
            tasks: Tasks::default(),
            activity: Activity::new(),
            most: 2,
        });
        let bound = bind("127.0.0.1:0=api").unwrap();
        let address = bound.local_addr().unwrap();
        forwarder.serve(bound.listen().unwrap(), "api".to_owned());
        Self {
            fake,
            forwarder,
            address,
            target,
            tunnel_tasks,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Until nothing of this node is under way.
    async fn idle(&self) {
        let now = Instant::now();
        let quiet = self.forwarder.activity.quiet_for(Duration::ZERO, now);
        within(quiet).await;
    }

    fn metric(&self, line: &str) -> bool {
        let families = self.forwarder.metrics.registry().gather();
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&families)
            .unwrap();
        let line = format!("konnectivity_network_proxy_agent_forward_{line}");
        text.lines().any(|found| found == line)
    }
}

fn bind(forward: &str) -> Result<Bound, BindError> {
    Bound::bind(&forward.parse::<Forward>().unwrap())
}

async fn run(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

async fn within<T>(wait: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), wait).await.unwrap()
}

async fn read_to_end(socket: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    within(socket.read_to_end(&mut bytes)).await?;
    Ok(bytes)
}

async fn assert_reset(socket: &mut TcpStream) {
    let error = read_to_end(socket).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_connection_of_the_node_reaches_the_target_and_counts_while_it_lives() {
    run(async {
        let world = World::new([]).await;
        let mut client = world.connect().await;
        client.write_all(b"question").await.unwrap();
        let (mut target, _) = within(world.target.accept()).await.unwrap();
        let mut question = [0; 8];
        within(target.read_exact(&mut question)).await.unwrap();
        assert_eq!(&question, b"question");
        assert_eq!(*world.fake.asked.borrow(), ["api"]);
        assert!(world.metric("connections 1"));
        assert_eq!(world.forwarder.activity.under_way(), 1);
        target.write_all(b"answer").await.unwrap();
        drop(target);
        assert_eq!(read_to_end(&mut client).await.unwrap(), b"answer");
        drop(client);
        world.idle().await;
        assert!(world.metric("connections 0"));
    })
    .await;
}

#[tokio::test]
async fn a_unix_socket_is_a_listener_as_well_for_its_user_and_group_and_goes_with_the_agent() {
    run(async {
        let world = World::new([]).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("api.sock");
        let bound = bind(&format!("unix:{}=other", path.display())).unwrap();
        assert_eq!(bound.local_addr(), None);
        let serving = bound.listen().unwrap();
        world.forwarder.serve(serving, "other".to_owned());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o770);
        let mut client = UnixStream::connect(&path).await.unwrap();
        client.write_all(b"question").await.unwrap();
        let (mut target, _) = within(world.target.accept()).await.unwrap();
        assert_eq!(*world.fake.asked.borrow(), ["other"]);
        let mut question = [0; 8];
        within(target.read_exact(&mut question)).await.unwrap();
        target.write_all(b"answer").await.unwrap();
        drop(target);
        assert_eq!(read_to_end(&mut client).await.unwrap(), b"answer");
        drop(client);
        world.forwarder.tasks.finish(Duration::from_secs(30)).await;
        assert!(!path.exists());
    })
    .await;
}

#[tokio::test]
async fn without_a_tunnel_or_with_a_refusal_the_client_is_reset_and_nobody_is_asked_again() {
    run(async {
        let refused = OpenError::Refused("no such target".to_owned());
        let answers = [OpenError::NoTunnel, refused].map(Answer::Failed);
        let world = World::new(answers).await;
        for reason in ["no_tunnel", "refused"] {
            assert_reset(&mut world.connect().await).await;
            let line = format!("failures_total{{reason=\"{reason}\"}} 1");
            assert!(world.metric(&line), "{line}");
        }
        assert_eq!(world.fake.asked.borrow().len(), 2);
    })
    .await;
}

#[tokio::test]
async fn after_a_lost_tunnel_another_one_is_tried_once() {
    run(async {
        let lost = || Answer::Failed(OpenError::TunnelLost);
        let world = World::new([lost(), Answer::Connected, lost(), lost()]).await;
        let carried = world.connect().await;
        let target = within(world.target.accept()).await.unwrap();
        assert!(world.metric("failures_total{reason=\"tunnel_lost\"} 0"));
        assert_reset(&mut world.connect().await).await;
        assert!(world.metric("failures_total{reason=\"tunnel_lost\"} 1"));
        assert_eq!(world.fake.asked.borrow().len(), 4);
        drop((carried, target));
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn no_more_connections_are_taken_than_are_allowed() {
    run(async {
        let world = World::new([]).await;
        let mut held = Vec::new();
        for _ in 0..world.forwarder.most {
            held.push(world.connect().await);
            held.push(within(world.target.accept()).await.unwrap().0);
        }
        assert_reset(&mut world.connect().await).await;
        assert!(world.metric("failures_total{reason=\"limit\"} 1"));
        assert_eq!(world.fake.asked.borrow().len(), 2);
        held.clear();
        world.idle().await;
        let _again = world.connect().await;
        within(world.target.accept()).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    run(async {
        let world = World::new([Answer::Never]).await;
        let mut client = world.connect().await;
        within(world.fake.has_asked.notified()).await;
        // From here on nothing but time is waited for.
        tokio::time::pause();
        tokio::time::advance(OPEN_LIMIT).await;
        tokio::time::resume();
        assert_reset(&mut client).await;
        assert_eq!(world.fake.given_up.get(), 1);
        assert!(world.metric("failures_total{reason=\"timeout\"} 1"));
    })
    .await;
}

#[tokio::test]
async fn a_client_that_goes_away_before_the_answer_is_given_up_and_no_failure() {
    run(async {
        let world = World::new([Answer::Never, Answer::Never]).await;
        let probe = world.connect().await;
        within(world.fake.has_asked.notified()).await;
        drop(probe);
        world.idle().await;
        assert_eq!(world.fake.given_up.get(), 1);
        // One that has sent something is gone when it says so by a reset.
        let mut client = world.connect().await;
        client.write_all(b"question").await.unwrap();
        within(world.fake.has_asked.notified()).await;
        client.set_zero_linger().unwrap();
        drop(client);
        world.idle().await;
        assert_eq!(world.fake.given_up.get(), 2);
        for failure in ForwardFailure::ALL {
            let line = format!("failures_total{{reason=\"{}\"}} 0", failure.name());
            assert!(world.metric(&line), "{line}");
        }
    })
    .await;
}

/// The end of what a client sends is not the client's end.
#[tokio::test]
async fn a_client_that_has_sent_all_it_has_to_send_is_still_there() {
    run(async {
        let answer = Rc::new(Notify::new());
        let world = World::new([Answer::After(answer.clone())]).await;
        let mut client = world.connect().await;
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        within(world.fake.has_asked.notified()).await;
        // Once a later client has been noticed, so has been the earlier one's end.
        let later = world.connect().await;
        within(world.fake.has_asked.notified()).await;
        drop(within(world.target.accept()).await.unwrap());
        drop(later);
        answer.notify_one();
        let (mut target, _) = within(world.target.accept()).await.unwrap();
        assert_eq!(read_to_end(&mut target).await.unwrap(), b"question");
        drop((client, target));
        world.idle().await;
    })
    .await;
}

#[tokio::test]
async fn a_drained_agent_takes_no_more_connections_and_keeps_those_it_has() {
    run(async {
        let world = World::new([]).await;
        let mut client = world.connect().await;
        let (mut target, _) = within(world.target.accept()).await.unwrap();
        world.forwarder.tasks.stop().cancel();
        within(async {
            while world.forwarder.tasks.len() > 1 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let refused = TcpStream::connect(world.address).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        client.write_all(b"question").await.unwrap();
        let mut question = [0; 8];
        within(target.read_exact(&mut question)).await.unwrap();
        drop((client, target));
        world.idle().await;
        assert_eq!(world.tunnel_tasks.len(), 1);
    })
    .await;
}

#[test]
fn a_place_that_is_taken_is_named_with_its_flag_and_a_file_that_is_no_socket_is_left_alone() {
    let held = bind("127.0.0.1:0=a").unwrap();
    let forward = format!("127.0.0.1:{}=api", held.local_addr().unwrap().port());
    let error = bind(&forward).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("--forward={forward}: ")) && error.contains("in use"),
        "{error}"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes");
    std::fs::write(&path, "kept").unwrap();
    let forward = format!("unix:{}=api", path.display());
    let error = bind(&forward).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("--forward={forward}: ")) && error.contains("in use"),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}

#[test]
fn the_socket_of_a_process_that_is_gone_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    bind(&format!("unix:{}=api", path.display())).unwrap();
}

#[test]
fn a_servers_words_are_shortened_and_cannot_break_a_line() {
    let error = OpenError::Refused(format!("no\n{}", "x".repeat(1000)));
    assert_eq!(
        error.to_string(),
        format!("the server refused: no\\n{}", "x".repeat(297))
    );
}
