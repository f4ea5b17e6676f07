//! What this crate's tests share.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    path::PathBuf,
    rc::Rc,
    task::{Poll, Waker},
};

use bytes::Buf;
use certs::issue::{Authority, Replace};
use egress_policy::Policy;
use tempfile::TempDir;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tunnel::{
    conn::Role,
    grpc::{MAX_MESSAGE, MessageReader},
    ledger::{DEFAULT_BUDGET, Ledger},
    mux::{Event, Mux},
    observe::Unobserved,
    packet::DialId,
    probe::Probe,
};

use crate::{
    config::DIAL_TIMEOUT,
    dial::Core,
    metrics::{Metrics, Segment},
    registry::{AgentId, Backend, Registry, identifiers::Identifiers, strategy::Strategies},
};

/// A CA, a server's certificate and a place for a socket; gone when dropped.
pub(crate) struct Files {
    dir: TempDir,
}

pub(crate) fn files() -> Files {
    let dir = tempfile::tempdir().expect("temporary folder");
    let ca = Authority::generate("test CA").expect("CA");
    ca.write(dir.path(), "ca", Replace::No).expect("write CA");
    ca.issue_server(&["localhost", "127.0.0.1"])
        .expect("leaf")
        .write(dir.path(), "server", Replace::No)
        .expect("write leaf");
    Files { dir }
}

impl Files {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.path(name).display())
    }

    /// A whole command line with a Unix socket.
    pub(crate) fn flags(&self) -> Vec<String> {
        vec![
            "proxy-server".to_owned(),
            self.flag("uds-name", "frontend.sock"),
            "--server-port=0".to_owned(),
            self.flag("cluster-cert", "server.crt"),
            self.flag("cluster-key", "server.key"),
            self.flag("cluster-ca-cert", "ca.crt"),
        ]
    }

    /// What turns [`Self::flags`] into a TCP frontend.
    pub(crate) fn tcp_flags(&self) -> Vec<String> {
        vec![
            "--uds-name=".to_owned(),
            "--server-port=8090".to_owned(),
            self.flag("server-cert", "server.crt"),
            self.flag("server-key", "server.key"),
            self.flag("server-ca-cert", "ca.crt"),
        ]
    }
}

/// What the agent's end of a fake tunnel does with a dial.
pub(crate) type OnDial = Box<dyn FnMut(&Rc<Mux>, DialId, String)>;

/// An agent of a core whose tunnel runs in memory.
pub(crate) struct FakeAgent {
    /// Its end of the tunnel.
    pub(crate) mux: Rc<Mux>,
    /// The server's end.
    pub(crate) backend: Rc<Backend>,
    server: Rc<Mux>,
    state: Rc<FakeState>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct FakeState {
    is_frozen: Cell<bool>,
    pump: RefCell<Option<Waker>>,
}

impl FakeAgent {
    /// Connects to `core`; events end up in the channel.
    pub(crate) fn new(
        core: &Rc<Core>,
        id: &str,
        identifiers: &str,
        mut on_dial: OnDial,
    ) -> (Self, mpsc::Receiver<Event>) {
        let ledger = Rc::new(Ledger::new(DEFAULT_BUDGET));
        let server = Mux::new(Role::Server, core.ledger.clone(), Rc::new(Unobserved));
        let agent = Mux::new(Role::Agent, ledger, Rc::new(Unobserved));
        let identifiers = Identifiers::parse(identifiers).expect("identifiers");
        let (id, probe) = (AgentId::new(id), Probe::default());
        let backend = Backend::new(id, identifiers, None, server.clone(), probe);
        let registered = core.registry.add(backend.clone());
        let (events, received) = mpsc::channel(64);
        let state = Rc::new(FakeState::default());
        let (mux, frozen) = (agent.clone(), state.clone());
        let server_end = server.clone();
        let task = tokio::task::spawn_local(async move {
            let _registered = registered;
            poll_fn(|cx| {
                *frozen.pump.borrow_mut() = Some(cx.waker().clone());
                server.set_link(cx.waker());
                agent.set_link(cx.waker());
                while !frozen.is_frozen.get()
                    && (pump(&server, &agent, |event| {
                        if let Event::Dial { dial, address, .. } = &event {
                            on_dial(&agent, *dial, address.clone());
                        }
                        events.try_send(event).expect("tests have few events");
                    }) | pump(&agent, &server, |_| {}))
                {}
                Poll::<()>::Pending
            })
            .await;
        });
        let this = Self {
            mux,
            backend,
            server: server_end,
            state,
            task,
        };
        (this, received)
    }

    /// From now on nothing passes its tunnel, or all that has waited.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.state.is_frozen.set(is_frozen);
        if let Some(pump) = self.state.pump.take() {
            pump.wake();
        }
    }

    /// Its connection breaks.
    pub(crate) async fn lose(self) {
        self.task.abort();
        // The server takes it out of the registry before anybody can be chosen anew.
        drop(self.task.await);
        self.server.on_lost();
    }
}

/// A core with one agent whose tunnel runs in memory. The agent's events end up in the channel.
pub(crate) fn core_with_agent(on_dial: OnDial) -> (Rc<Core>, mpsc::Receiver<Event>) {
    let core = core();
    let (_agent, received) = FakeAgent::new(&core, "agent-1", "", on_dial);
    (core, received)
}

/// A core without agents.
pub(crate) fn core() -> Rc<Core> {
    let metrics = Metrics::new(certs::Current::fixed(std::sync::Arc::default())).expect("metrics");
    Rc::new(Core {
        registry: Registry::new(metrics.clone(), &Strategies::default()),
        from_client: metrics.packets(Segment::FromClient),
        to_client: metrics.packets(Segment::ToClient),
        metrics,
        ledger: Rc::new(Ledger::new(DEFAULT_BUDGET)),
        stop: CancellationToken::new(),
        dial_timeout: DIAL_TIMEOUT,
        egress: Policy::default(),
    })
}

/// Moves what one end has to send to the other; whether there was anything.
fn pump(from: &Rc<Mux>, to: &Rc<Mux>, mut on_event: impl FnMut(Event)) -> bool {
    let mut reader = MessageReader::new(MAX_MESSAGE);
    let mut moved = false;
    while let Some(mut batch) = from.next_batch() {
        moved = true;
        let chunk = batch.copy_to_bytes(batch.remaining());
        to.on_chunk(chunk.len());
        reader.push(chunk);
        while let Some(message) = reader.next_message().expect("framing") {
            if let Some(event) = to.on_message(&message).expect("packet") {
                on_event(event);
            }
        }
    }
    moved
}
