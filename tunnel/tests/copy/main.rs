//! Sockets copied to connections of a tunnel: two ends in memory, real sockets on both sides.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod giving_up;
mod half_close;
mod plain;
mod sockets;

use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
    net::{TcpListener, TcpStream, UnixStream},
    task::{JoinHandle, LocalSet, spawn_local},
    time::{Duration, Instant, sleep, timeout},
};
use tunnel::{
    conn::{Ended, Role},
    copy::{CLOSING_LIMIT, Copied, End, FLUSH_LIMIT, HANG_UP_CHECK, LINGER, Options, Socket, copy},
    credit,
    grpc::{MAX_MESSAGE, MessageReader},
    ledger::{DEFAULT_BUDGET, Ledger},
    mux::{Connection, Event, Mux},
    observe::Unobserved,
};

async fn on_a_worker<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

/// One end and what arrives at it.
struct Arrival {
    mux: Rc<Mux>,
    reader: MessageReader,
}

impl Arrival {
    fn new(role: Role) -> Self {
        let mux = Mux::new(
            role,
            Rc::new(Ledger::new(DEFAULT_BUDGET)),
            Rc::new(Unobserved),
        );
        Self {
            mux,
            reader: MessageReader::new(MAX_MESSAGE),
        }
    }

    /// Takes a batch of the other end; whether there was one.
    fn take_from(&mut self, other: &Mux) -> bool {
        let Some(mut batch) = other.next_batch() else {
            return false;
        };
        let chunk = batch.copy_to_bytes(batch.remaining());
        self.mux.on_chunk(chunk.len());
        self.reader.push(chunk);
        while let Some(message) = self.reader.next_message().unwrap() {
            if let Some(Event::Dial { dial, .. }) = self.mux.on_message(&message).unwrap() {
                // The test takes it from here.
                ACCEPTED.with_borrow_mut(|accepted| accepted.push(self.mux.accept(dial).unwrap()));
            }
        }
        true
    }
}

thread_local! {
    static ACCEPTED: std::cell::RefCell<Vec<Connection>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// A tunnel without HTTP/2: a task carries bytes both ways as they come.
struct Tunnel {
    server: Rc<Mux>,
    agent: Rc<Mux>,
    carrier: JoinHandle<()>,
}

impl Tunnel {
    fn new() -> Self {
        let (mut server, mut agent) = (Arrival::new(Role::Server), Arrival::new(Role::Agent));
        let muxes = (server.mux.clone(), agent.mux.clone());
        let carrier = spawn_local(poll_fn(move |cx| {
            server.mux.set_link(cx.waker());
            agent.mux.set_link(cx.waker());
            loop {
                let to_agent = server.mux.has_outgoing() && agent.take_from(&server.mux);
                let to_server = agent.mux.has_outgoing() && server.take_from(&agent.mux);
                if !to_agent
                    && !to_server
                    && !server.mux.has_outgoing()
                    && !agent.mux.has_outgoing()
                {
                    return Poll::Pending;
                }
            }
        }));
        Self {
            server: muxes.0,
            agent: muxes.1,
            carrier,
        }
    }

    async fn connect(&self) -> (Connection, Connection) {
        let at_server = self.server.dial("tcp", "a:1").await.unwrap();
        (at_server, ACCEPTED.take().pop().unwrap())
    }

    fn lose(&self) {
        self.carrier.abort();
        self.server.on_lost();
        self.agent.on_lost();
    }
}

/// A client's socket, the tunnel, a target's socket: what the two far ends see.
struct Path<S> {
    tunnel: Tunnel,
    client: S,
    target: S,
    at_server: JoinHandle<Copied>,
    at_agent: JoinHandle<Copied>,
}

async fn path<S: Socket + 'static>(client: (S, S), target: (S, S)) -> Path<S> {
    let tunnel = Tunnel::new();
    let (at_server, at_agent) = tunnel.connect().await;
    let at_server = spawn_local(copy(client.1, at_server, Options::default()));
    let at_agent = spawn_local(copy(target.1, at_agent, Options::default()));
    Path {
        tunnel,
        client: client.0,
        target: target.0,
        at_server,
        at_agent,
    }
}

async fn unix() -> Path<UnixStream> {
    path(UnixStream::pair().unwrap(), UnixStream::pair().unwrap()).await
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(
        TcpStream::connect(listener.local_addr().unwrap()),
        listener.accept()
    );
    (near.unwrap(), far.unwrap().0)
}

async fn tcp() -> Path<TcpStream> {
    path(tcp_pair().await, tcp_pair().await).await
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| u8::try_from((i * 31 + seed * 7 + i / 251) % 256).unwrap())
        .collect()
}

async fn read_to_end(mut socket: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut got = Vec::new();
    socket.read_to_end(&mut got).await.unwrap();
    got
}
