//! Two ends, and what a test does with them.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::poll_fn,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use hashbrown::HashMap;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::{JoinHandle, LocalSet, spawn_local},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    conn::Ended,
    connection::Closed,
    dial::IncomingDial,
    event::Event,
    ledger::{Ledger, MIN_BUDGET},
    link::LinkEnd,
    observe::{Limit, Observe},
    packet::ConnectId,
    probe::Probe,
    stream::{Connection, Ends, Session, StreamLink},
};

/// Far longer than anything takes; time is paused, so it costs nothing.
pub(super) const PATIENCE: Duration = Duration::from_secs(3_600);

/// Counts what tests ask for.
#[derive(Debug, Default)]
pub(super) struct Counter {
    pub(super) violations: Cell<u64>,
    pub(super) stalled: Cell<u64>,
    pub(super) limits: RefCell<Vec<Limit>>,
}

impl Observe for Counter {
    fn violation(&self) {
        self.violations.update(|count| count + 1);
    }

    fn stalled(&self) {
        self.stalled.update(|count| count + 1);
    }

    fn limited(&self, limit: Limit) {
        self.limits.borrow_mut().push(limit);
    }
}

/// One end and its task.
pub(super) struct End {
    pub(super) session: Rc<Session>,
    pub(super) ledger: Rc<Ledger>,
    pub(super) counter: Rc<Counter>,
    events: Rc<Events>,
    /// Connections that an agent has accepted and nobody has taken yet.
    pub(super) taken: RefCell<HashMap<ConnectId, Connection>>,
    /// Cuts the tunnel here.
    pub(super) cut: CancellationToken,
    /// Ends the tunnel in order.
    pub(super) leave: CancellationToken,
    pub(super) task: JoinHandle<Option<LinkEnd>>,
}

#[derive(Default)]
struct Events {
    queue: RefCell<VecDeque<Event>>,
    notify: tokio::sync::Notify,
}

impl End {
    /// Runs `link` on this thread.
    pub(super) fn run(mut link: StreamLink, ledger: Rc<Ledger>, counter: Rc<Counter>) -> Self {
        let events = Rc::new(Events::default());
        let cut = CancellationToken::new();
        let leave = CancellationToken::new();
        let session = link.session().clone();
        let (heard, cutting, leaving) = (events.clone(), cut.clone(), leave.clone());
        let task = spawn_local(async move {
            let on_event = |event| {
                heard.queue.borrow_mut().push_back(event);
                heard.notify.notify_one();
            };
            tokio::select! {
                biased;
                () = cutting.cancelled() => None,
                end = link.run(&on_event) => Some(end),
                () = leaving.cancelled() => {
                    link.finish();
                    Some(link.run(&on_event).await)
                }
            }
        });
        Self {
            session,
            ledger,
            counter,
            events,
            taken: RefCell::default(),
            cut,
            leave,
            task,
        }
    }

    /// The next event.
    pub(super) async fn event(&self) -> Event {
        let next = async {
            loop {
                if let Some(event) = self.events.queue.borrow_mut().pop_front() {
                    return event;
                }
                self.events.notify.notified().await;
            }
        };
        timeout(PATIENCE, next).await.expect("no event")
    }

    /// An event, if there is one.
    pub(super) fn try_event(&self) -> Option<Event> {
        self.events.queue.borrow_mut().pop_front()
    }

    /// The next event, which is a dial.
    pub(super) async fn dial(&self) -> IncomingDial {
        match self.event().await {
            Event::Dial(dial) => dial,
            other => panic!("{other:?}"),
        }
    }
}

/// The server's end over `io`.
pub(super) async fn server_end(
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
    budget: usize,
) -> End {
    let (ledger, counter) = (Rc::new(Ledger::new(budget)), Rc::new(Counter::default()));
    let link = ends(&ledger, &counter).server(io).await.unwrap();
    End::run(link, ledger, counter)
}

/// The agent's end over `io`.
pub(super) async fn agent_end(
    io: impl AsyncRead + AsyncWrite + Unpin + 'static,
    budget: usize,
) -> End {
    let (ledger, counter) = (Rc::new(Ledger::new(budget)), Rc::new(Counter::default()));
    let link = ends(&ledger, &counter).agent(io).await.unwrap();
    End::run(link, ledger, counter)
}

fn ends(ledger: &Rc<Ledger>, counter: &Rc<Counter>) -> Ends {
    Ends {
        ledger: ledger.clone(),
        observer: counter.clone(),
        probe: Probe::default(),
    }
}

/// Runs `test` with both ends of a tunnel over a pipe of 64 KiB.
pub(super) async fn with_pair(test: impl AsyncFnOnce(End, End)) {
    with_budget(MIN_BUDGET, test).await;
}

/// The same, each end with a budget of `budget` bytes.
pub(super) async fn with_budget(budget: usize, test: impl AsyncFnOnce(End, End)) {
    LocalSet::new()
        .run_until(async {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let (server, agent) = tokio::join!(server_end(near, budget), agent_end(far, budget));
            timeout(PATIENCE, test(server, agent))
                .await
                .expect("the test hangs");
        })
        .await;
}

/// A connection, both ends of it: the server's and the agent's.
pub(super) async fn connect(server: &End, agent: &End) -> (Connection, Connection) {
    let accepted = async { accept(agent.dial().await) };
    let (near, far) = tokio::join!(server.session.dial("tcp", "10.0.0.7:10250"), accepted);
    (near.unwrap(), far)
}

/// The agent's end of the connection that `dial` asks for.
pub(super) fn accept(dial: IncomingDial) -> Connection {
    match dial.accept().unwrap() {
        crate::connection::Connection::Stream(connection) => connection,
        other => panic!("{other:?}"),
    }
}

/// Sends all of `bytes`, as there is room.
pub(super) async fn send(connection: &mut Connection, mut bytes: Bytes) -> Result<(), Closed> {
    while !bytes.is_empty() {
        let room = poll_fn(|cx| connection.poll_send_ready(cx)).await?;
        connection.send(bytes.split_to(room.min(bytes.len())));
    }
    Ok(())
}

/// Sends zeros until nothing has been taken for `still`; how many it were.
pub(super) async fn push(connection: &mut Connection, still: Duration) -> usize {
    let mut sent = 0;
    while let Ok(Ok(room)) = timeout(still, poll_fn(|cx| connection.poll_send_ready(cx))).await {
        connection.send(Bytes::from(vec![0; room]));
        sent += room;
    }
    sent
}

/// Holds `reader` as a task does whose socket takes nothing, until it is called for.
pub(super) struct Stalled(CancellationToken, JoinHandle<Connection>);

impl Stalled {
    pub(super) fn new(mut reader: Connection) -> Self {
        let wanted = CancellationToken::new();
        let stop = wanted.clone();
        let task = spawn_local(async move {
            stop.run_until_cancelled(poll_fn(|cx| reader.poll_reset(cx)))
                .await;
            reader
        });
        Self(wanted, task)
    }

    pub(super) async fn wake(self) -> Connection {
        self.0.cancel();
        self.1.await.unwrap()
    }
}

/// Everything until the end, each piece delivered at once.
pub(super) async fn read(connection: &mut Connection) -> (Vec<u8>, Option<Ended>) {
    let mut got = Vec::new();
    loop {
        match poll_fn(|cx| connection.poll_recv(cx, usize::MAX)).await {
            Ok(Some(bytes)) => {
                connection.delivered(bytes.len(), Duration::ZERO);
                got.extend_from_slice(&bytes);
            }
            Ok(None) => return (got, None),
            Err(ended) => return (got, Some(ended)),
        }
    }
}

/// Waits until nothing is left on either end: no connection, no dial, no byte of a budget.
pub(super) async fn until_empty(ends: [&End; 2]) {
    let is_empty = |end: &&End| {
        end.session.connections() == 0
            && end.session.pending_dials() == 0
            && end.session.full_connections() == 0
            && end.ledger.used() == 0
    };
    let empty = async {
        while !ends.iter().all(is_empty) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let left = timeout(PATIENCE, empty).await;
    let left = left.map_err(|_| ends.map(|end| (format!("{:?}", end.session), end.ledger.used())));
    assert_eq!(left, Ok(()));
}
