use std::{cell::RefCell, future::poll_fn, net::SocketAddr};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::{LocalSet, yield_now},
};
use tunnel::dial::DialError;

use super::*;
use crate::{
    dial::Core,
    testing::{self, FakeAgent},
};

/// A request whose connection is one that the agent is dialled for: what it is made of does not matter here.
struct FakeRequest {
    name: String,
    agent: Rc<FakeAgent>,
    cancel: CancellationToken,
    refused: oneshot::Sender<String>,
}

impl ForwardRequest for FakeRequest {
    type Error = DialError;

    fn name(&self) -> &str {
        &self.name
    }

    async fn cancelled(&mut self) {
        self.cancel.cancelled().await;
    }

    fn refuse(self, reason: String) {
        self.refused.send(reason).unwrap();
    }

    async fn connect(self) -> Result<Connection, DialError> {
        self.agent.backend.tunnel.dial("tcp", "forward").await
    }
}

/// Every wait here is for a state, and this is its deadline.
async fn run(test: impl Future<Output = ()>) {
    let local = LocalSet::new();
    let in_time = timeout(Duration::from_secs(60), local.run_until(test)).await;
    in_time.expect("the state is reached within a minute");
}

struct World {
    core: Rc<Core>,
    tasks: Tasks,
    forwarder: Rc<Forwarder>,
    tunnel: Rc<FakeAgent>,
    /// Of the tunnel, which ends without somebody to tell them.
    _events: Option<mpsc::Receiver<tunnel::mux::Event>>,
    forwards: Rc<AgentForwards>,
    /// The agent's ends of connections.
    taken: Rc<RefCell<Vec<Connection>>>,
}

/// One agent, verified as `node-1`, that takes every connection.
fn world(target: &str, max_connections: usize) -> World {
    let taken = Rc::new(RefCell::new(Vec::new()));
    let connections = taken.clone();
    world_with(target, max_connections, taken, move |mux, dial, _| {
        connections
            .borrow_mut()
            .push(mux.accept(dial).unwrap().into());
    })
}

fn world_with(
    target: &str,
    max_connections: usize,
    taken: Rc<RefCell<Vec<Connection>>>,
    on_dial: impl FnMut(&Rc<tunnel::mux::Mux>, tunnel::packet::DialId, String) + 'static,
) -> World {
    let core = testing::core();
    let tasks = Tasks::default();
    let targets = [format!("api={target}"), "web=127.0.0.1:9".to_owned()];
    let targets = ForwardTargets::parse(&targets, &["api=node-*".to_owned()]).unwrap();
    let forwarder = Forwarder::new(
        targets,
        max_connections,
        core.metrics.clone(),
        tasks.clone(),
        core.stop.clone(),
    );
    let (tunnel, events) = FakeAgent::new(&core, "agent-1", "", Box::new(on_dial));
    let names = VerifiedNames::new(&[], None, Some("node-1"));
    World {
        forwards: AgentForwards::new(AgentId::new("agent-1"), names),
        core,
        tasks,
        forwarder,
        tunnel: Rc::new(tunnel),
        _events: Some(events),
        taken,
    }
}

impl World {
    /// The agent asks; what gives the request up, and the refusal if there is one.
    fn ask(&self, name: &str) -> (CancellationToken, oneshot::Receiver<String>) {
        let cancel = CancellationToken::new();
        let (refused, refusal) = oneshot::channel();
        let request = FakeRequest {
            name: name.to_owned(),
            agent: self.tunnel.clone(),
            cancel: cancel.clone(),
            refused,
        };
        self.forwarder.accept(request, &self.forwards);
        (cancel, refusal)
    }

    async fn refusal(&self, name: &str) -> String {
        self.ask(name).1.await.unwrap()
    }

    async fn taken(&self) -> Connection {
        loop {
            if let Some(connection) = self.taken.borrow_mut().pop() {
                return connection;
            }
            yield_now().await;
        }
    }

    /// Until nothing is under way.
    async fn idle(&self) {
        while !self.tasks.is_empty() {
            yield_now().await;
        }
        assert_eq!(self.forwards.open(), 0);
        assert_eq!(self.core.metrics.forward_connections.get(), 0);
    }

    fn failures(&self) -> Vec<(&'static str, u64)> {
        let failures = ForwardFailure::ALL.into_iter();
        failures
            .map(|failure| (failure.name(), self.core.metrics.forwards_failed(failure)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn accept(listener: &TcpListener) -> TcpStream {
    listener.accept().await.unwrap().0
}

async fn receive(connection: &mut Connection, len: usize) -> Vec<u8> {
    let mut received = Vec::new();
    while received.len() < len {
        let bytes = poll_fn(|cx| connection.poll_recv(cx, len)).await;
        received.extend_from_slice(&bytes.unwrap().expect("the end came early"));
    }
    received
}

#[tokio::test]
async fn a_forward_carries_bytes_both_ways_until_both_sides_are_done() {
    run(async {
        let (listener, address) = listener().await;
        let world = world(&address.to_string(), 1);
        let (_cancel, _refusal) = world.ask("api");
        let mut target = accept(&listener).await;
        let mut agent = world.taken().await;
        assert_eq!(world.core.metrics.forward_connections.get(), 1);
        assert_eq!(world.forwards.open(), 1);
        agent.send(Bytes::from_static(b"hello"));
        let mut heard = [0; 5];
        target.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hello");
        target.write_all(b"welcome").await.unwrap();
        assert_eq!(receive(&mut agent, 7).await, b"welcome");
        drop(target);
        let end = poll_fn(|cx| agent.poll_recv(cx, 1)).await;
        assert!(matches!(end, Ok(None)), "{end:?}");
        drop(agent);
        world.idle().await;
        assert_eq!(world.failures(), []);
    })
    .await;
}

#[tokio::test]
async fn what_is_unknown_or_not_allowed_is_refused_before_anything_is_dialled() {
    run(async {
        let world = world("127.0.0.1:9", 1);
        let unknown = world.refusal("ap").await;
        let forbidden = world.refusal("web").await;
        assert!(unknown.starts_with("no forward target \"ap\" is open to this agent"));
        assert_eq!(forbidden, unknown.replace("\"ap\"", "\"web\""));
        assert!(world.tasks.is_empty());
        assert_eq!(world.failures(), [("unknown", 1), ("not_allowed", 1)]);
    })
    .await;
}

#[tokio::test]
async fn an_agent_has_so_many_at_once_and_one_more_when_one_ends() {
    run(async {
        let (listener, address) = listener().await;
        let world = world(&address.to_string(), 1);
        let (_first, _) = world.ask("api");
        let target = accept(&listener).await;
        let refusal = world.refusal("api").await;
        assert!(
            refusal.starts_with("this agent has 1 forwarded connections")
                && refusal.contains("--forward-max-connections"),
            "{refusal}"
        );
        // Another agent has its own.
        let names = VerifiedNames::new(&[], None, Some("node-2"));
        let other = World {
            forwards: AgentForwards::new(AgentId::new("agent-2"), names),
            core: world.core.clone(),
            tasks: world.tasks.clone(),
            forwarder: world.forwarder.clone(),
            tunnel: world.tunnel.clone(),
            _events: None,
            taken: world.taken.clone(),
        };
        let (_second, _) = other.ask("api");
        drop((target, accept(&listener).await));
        drop((world.taken().await, world.taken().await));
        world.idle().await;
        let (_third, _) = world.ask("api");
        accept(&listener).await;
        assert_eq!(world.failures(), [("limit", 1)]);
    })
    .await;
}

#[tokio::test]
async fn a_target_that_cannot_be_reached_is_told_to_the_agent_and_leaves_nothing_behind() {
    run(async {
        let reserved = tokio::net::TcpSocket::new_v4().unwrap();
        reserved.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = reserved.local_addr().unwrap();
        let world = world(&address.to_string(), 1);
        assert_eq!(
            world.refusal("api").await,
            format!("forward target \"api\" ({address}): connection refused")
        );
        world.idle().await;
        assert!(world.taken.borrow().is_empty());
        assert_eq!(world.failures(), [("dial", 1)]);
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_gives_up_while_its_target_is_dialled_frees_its_place() {
    run(async {
        let mut world = world("localhost:9", 1);
        let forwarder = Rc::get_mut(&mut world.forwarder).unwrap();
        forwarder.connector = Connector::without_lookups(Duration::from_secs(3600));
        let (cancel, refusal) = world.ask("api");
        yield_now().await;
        assert_eq!(world.forwards.open(), 1);
        cancel.cancel();
        world.idle().await;
        assert!(refusal.await.is_err(), "nobody waits for a refusal");
        assert_eq!(world.failures(), [("abandoned", 1)]);
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_does_not_take_its_connection_frees_its_place() {
    run(async {
        let (listener, address) = listener().await;
        let address = address.to_string();
        let mut silent = world_with(&address, 1, Rc::default(), |_, _, _| {});
        let forwarder = Rc::get_mut(&mut silent.forwarder).unwrap();
        forwarder.answer_limit = Duration::from_millis(1);
        let (_cancel, _refusal) = silent.ask("api");
        let mut target = accept(&listener).await;
        silent.idle().await;
        // The target sees that nobody comes.
        assert_eq!(target.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(silent.failures(), [("abandoned", 1)]);

        let refusing = world_with(&address, 1, Rc::default(), |mux, dial, _| {
            mux.refuse(dial, "nobody waits for this forward".to_owned());
        });
        let (_cancel, _refusal) = refusing.ask("api");
        accept(&listener).await;
        refusing.idle().await;
        assert_eq!(refusing.failures(), [("abandoned", 1)]);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_stops_refuses_new_forwards_and_keeps_those_that_are_there() {
    run(async {
        let (listener, address) = listener().await;
        let world = world(&address.to_string(), 2);
        let (_cancel, _refusal) = world.ask("api");
        let mut target = accept(&listener).await;
        let mut agent = world.taken().await;
        world.core.stop.cancel();
        assert_eq!(world.refusal("api").await, "proxy server is shutting down");
        target.write_all(b"still here").await.unwrap();
        assert_eq!(receive(&mut agent, 10).await, b"still here");
        assert_eq!(world.failures(), [("shutting_down", 1)]);
    })
    .await;
}
