//! What this crate's tests share.

use std::{future::poll_fn, path::PathBuf, rc::Rc, task::Poll};

use bytes::Buf;
use certs::issue::{Authority, Replace};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tunnel::{
    conn::Role,
    grpc::{MAX_MESSAGE, MessageReader},
    ledger::{DEFAULT_BUDGET, Ledger},
    mux::{Event, Mux},
    observe::Unobserved,
    packet::DialId,
};

use crate::{
    config::DIAL_TIMEOUT,
    dial::Core,
    metrics::{Metrics, Segment},
    registry::{AgentId, Backend, Registry},
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

/// A core with one agent whose tunnel runs in memory. The agent's events end up in the channel.
pub(crate) fn core_with_agent(mut on_dial: OnDial) -> (Rc<Core>, mpsc::Receiver<Event>) {
    let core = core();
    let ledger = Rc::new(Ledger::new(DEFAULT_BUDGET));
    let server = Mux::new(Role::Server, core.ledger.clone(), Rc::new(Unobserved));
    let agent = Mux::new(Role::Agent, ledger, Rc::new(Unobserved));
    let registered = core
        .registry
        .add(Backend::new(AgentId::new("agent-1"), server.clone()));
    let (events, received) = mpsc::channel(64);
    tokio::task::spawn_local(async move {
        let _registered = registered;
        poll_fn(|cx| {
            server.set_link(cx.waker());
            agent.set_link(cx.waker());
            while pump(&server, &agent, |event| {
                if let Event::Dial { dial, address, .. } = &event {
                    on_dial(&agent, *dial, address.clone());
                }
                events.try_send(event).expect("tests have few events");
            }) | pump(&agent, &server, |_| {})
            {}
            Poll::<()>::Pending
        })
        .await;
    });
    (core, received)
}

/// A core without agents.
pub(crate) fn core() -> Rc<Core> {
    let metrics = Metrics::new(certs::Current::fixed(std::sync::Arc::default())).expect("metrics");
    Rc::new(Core {
        registry: Registry::new(metrics.clone()),
        from_client: metrics.packets(Segment::FromClient),
        to_client: metrics.packets(Segment::ToClient),
        metrics,
        ledger: Rc::new(Ledger::new(DEFAULT_BUDGET)),
        stop: CancellationToken::new(),
        dial_timeout: DIAL_TIMEOUT,
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
