//! Tunnels over real HTTP/2: two of our ends, and one of ours with a peer that does as it likes.
//!
//! Time is paused where a test waits: a sleep ends when nothing else is left to do.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod nonsense;
mod pings;

use std::{
    future::poll_fn,
    hash::{DefaultHasher, Hasher},
    pin::pin,
    rc::Rc,
};

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream, client, server};
use tokio::{
    io::{DuplexStream, duplex},
    task::{JoinHandle, LocalSet, spawn_local},
    time::{Duration, Instant, sleep, timeout},
};
use tunnel::{
    batch::Batch,
    codec::{self, Decoded},
    conn::{MAX_OUTBOUND, Role},
    dial::DialError,
    grpc::{self, Code, MessageReader, Status},
    keepalive::Keepalive,
    ledger::{DEFAULT_BUDGET, Ledger},
    link::{self, Link, LinkEnd, SEND_BUFFER, SMALL_FRAME_BUDGET},
    mux::{Connection, Event, Mux},
    observe::Unobserved,
    packet::{ConnectId, Packet},
    probe::Probe,
};

const PATH: &str = "/AgentService/Connect";

fn mux(role: Role) -> Rc<Mux> {
    Mux::new(
        role,
        Rc::new(Ledger::new(DEFAULT_BUDGET)),
        Rc::new(Unobserved),
    )
}

/// Runs `test` as a worker does: one thread, nothing on it is `Send`.
async fn on_a_worker<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

/// Accepts one call and carries `mux` over it; closes it with the status that its end calls for.
async fn serve(io: DuplexStream, mux: Rc<Mux>) -> LinkEnd {
    let mut connection = link::server_builder()
        .handshake::<_, Batch>(io)
        .await
        .unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    let send = respond.send_response(grpc::response(), false).unwrap();
    let mut link = Link::new(mux, send, request.into_body());
    let driver = spawn_local(async move { while connection.accept().await.is_some() {} });
    let end = link.run(|event| panic!("{event:?}")).await;
    if let LinkEnd::Protocol(status) = &end {
        link.close(status);
    }
    // Lets the status out.
    drop(timeout(Duration::from_secs(1), driver).await);
    end
}

async fn call<B: bytes::Buf + 'static>(
    io: DuplexStream,
) -> (SendStream<B>, RecvStream, JoinHandle<()>) {
    let (send_request, connection) = link::client_builder().handshake::<_, B>(io).await.unwrap();
    let driver = spawn_local(async move { drop(connection.await) });
    let mut send_request = send_request.ready().await.unwrap();
    let request = grpc::request("localhost", PATH, "test").unwrap();
    let (response, send) = send_request.send_request(request, false).unwrap();
    let response = response.await.unwrap();
    (send, response.into_body(), driver)
}

/// Our server's end and our agent's end; the agent answers each dial with `local`.
struct Pair {
    server: Rc<Mux>,
    server_end: JoinHandle<LinkEnd>,
    agent_end: JoinHandle<LinkEnd>,
}

async fn pair<F: Future<Output = ()> + 'static>(local: impl Fn(Connection) -> F + 'static) -> Pair {
    let (near, far) = duplex(64 * 1024);
    let (server, agent) = (mux(Role::Server), mux(Role::Agent));
    let server_end = spawn_local(serve(near, server.clone()));
    let (send, recv, _driver) = call(far).await;
    let agent_end = spawn_local(async move {
        Link::new(agent.clone(), send, recv)
            .run(|event| match event {
                Event::Dial { dial, .. } => drop(spawn_local(local(agent.accept(dial).unwrap()))),
                other => panic!("{other:?}"),
            })
            .await
    });
    Pair {
        server,
        server_end,
        agent_end,
    }
}

/// A peer without a mux.
struct Raw {
    send: SendStream<Bytes>,
    recv: RecvStream,
    reader: MessageReader,
}

impl Raw {
    async fn call(io: DuplexStream) -> Self {
        let (send, recv, _driver) = call(io).await;
        Self {
            send,
            recv,
            reader: MessageReader::new(grpc::MAX_MESSAGE),
        }
    }

    /// Sends one DATA frame.
    async fn send(&mut self, bytes: Bytes) {
        self.send.reserve_capacity(bytes.len());
        while self.send.capacity() < bytes.len() {
            poll_fn(|cx| self.send.poll_capacity(cx))
                .await
                .unwrap()
                .unwrap();
        }
        self.send.send_data(bytes, false).unwrap();
    }

    async fn receive(&mut self) -> Packet {
        loop {
            if let Some(message) = self.reader.next_message().unwrap() {
                match codec::decode(&message).unwrap() {
                    Decoded::Packet(packet) => return packet,
                    Decoded::Unknown(number) => panic!("type {number}"),
                }
            }
            let chunk = self.recv.data().await.unwrap().unwrap();
            self.recv
                .flow_control()
                .release_capacity(chunk.len())
                .unwrap();
            self.reader.push(chunk);
        }
    }

    /// Answers the next dial.
    async fn accept(&mut self, conn: ConnectId) {
        let Packet::DialRequest { dial, .. } = self.receive().await else {
            panic!("no dial")
        };
        self.send(message(&Packet::DialResponse {
            error: String::new(),
            conn,
            dial,
        }))
        .await;
    }

    /// What the other end says last.
    async fn status(&mut self) -> Option<Status> {
        while let Some(chunk) = self.recv.data().await {
            self.recv
                .flow_control()
                .release_capacity(chunk.unwrap().len())
                .unwrap();
        }
        Status::from_headers(&self.recv.trailers().await.unwrap()?)
    }
}

fn message(packet: &Packet) -> Bytes {
    let mut out = BytesMut::new();
    codec::put_packet(&mut out, packet);
    out.freeze()
}

async fn write(connection: &Connection, bytes: Bytes) {
    poll_fn(|cx| connection.poll_send_ready(cx)).await.unwrap();
    connection.send(bytes);
}

async fn read(connection: &Connection) -> Option<Bytes> {
    let bytes = poll_fn(|cx| connection.poll_recv(cx, usize::MAX))
        .await
        .unwrap()?;
    connection.delivered(bytes.len(), Duration::ZERO);
    Some(bytes)
}

/// Sends everything back until the other side finishes.
async fn echo(connection: Connection) {
    while let Some(bytes) = read(&connection).await {
        write(&connection, bytes).await;
    }
}

fn pattern(seed: usize, len: usize) -> Bytes {
    (0..len)
        .map(|i| u8::try_from((i * 31 + seed * 7 + i / 251) % 256).unwrap())
        .collect()
}

#[tokio::test]
async fn bytes_come_back_on_many_connections_at_once() {
    on_a_worker(async {
        let pair = pair(echo).await;
        let clients: Vec<_> = (0..100)
            .map(|seed| {
                let dial = pair.server.dial("tcp", "echo:7");
                spawn_local(async move {
                    let connection = dial.await.unwrap();
                    for round in 0..5 {
                        let sent = pattern(seed, 1 + (seed * 7919 + round * 104_729) % 40_000);
                        write(&connection, sent.clone()).await;
                        let mut got = BytesMut::new();
                        while got.len() < sent.len() {
                            got.extend_from_slice(&read(&connection).await.unwrap());
                        }
                        assert_eq!(got, sent);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        assert_eq!(pair.server.pending_dials(), 0);
        assert!(!pair.server_end.is_finished() && !pair.agent_end.is_finished());
    })
    .await;
}

#[tokio::test]
async fn sixty_four_mebibytes_arrive_whole_and_in_order() {
    const TOTAL: usize = 64 << 20;
    on_a_worker(async {
        let (done, sum) = tokio::sync::oneshot::channel();
        let done = std::cell::RefCell::new(Some(done));
        let pair = pair(move |connection| {
            let done = done.take().unwrap();
            async move {
                let (mut hasher, mut len) = (DefaultHasher::new(), 0);
                while let Some(bytes) = read(&connection).await {
                    hasher.write(&bytes);
                    len += bytes.len();
                }
                done.send((len, hasher.finish())).unwrap();
            }
        })
        .await;
        let connection = pair.server.dial("tcp", "sink:9").await.unwrap();
        let block = pattern(1, 1 << 20);
        let (mut hasher, mut sent) = (DefaultHasher::new(), 0);
        while sent < TOTAL {
            // Every piece begins somewhere else, so that a lost or doubled one shows.
            let piece = block
                .slice(sent % 9973..)
                .split_to(60_000.min(TOTAL - sent));
            hasher.write(&piece);
            sent += piece.len();
            write(&connection, piece).await;
        }
        connection.finish();
        assert_eq!(sum.await.unwrap(), (TOTAL, hasher.finish()));
        assert_eq!(read(&connection).await, None);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_gives_no_window_is_sent_no_more_than_it_offered() {
    on_a_worker(async {
        let (near, far) = duplex(64 * 1024);
        let server = mux(Role::Server);
        let server_end = spawn_local(serve(near, server.clone()));
        let (send_request, connection) = client::Builder::new()
            .handshake::<_, Bytes>(far)
            .await
            .unwrap();
        spawn_local(async move { drop(connection.await) });
        let mut send_request = send_request.ready().await.unwrap();
        let request = grpc::request("localhost", PATH, "test").unwrap();
        let (response, send) = send_request.send_request(request, false).unwrap();
        let recv = response.await.unwrap().into_body();
        let mut raw = Raw {
            send,
            recv,
            reader: MessageReader::new(grpc::MAX_MESSAGE),
        };
        let dial = spawn_local(server.dial("tcp", "a:1"));
        raw.accept(ConnectId(1)).await;
        let connection = dial.await.unwrap().unwrap();
        let mut accepted = 0;
        let piece = pattern(1, 16 * 1024);
        while timeout(Duration::from_secs(1), write(&connection, piece.clone()))
            .await
            .is_ok()
        {
            accepted += piece.len();
        }
        // HTTP/2's default window, then what is held on this side.
        let held = SEND_BUFFER + MAX_OUTBOUND + 64 * 1024;
        assert!((65_535..65_535 + held).contains(&accepted), "{accepted}");
        // Reading again lets all of it through.
        let mut got = 0;
        while got < accepted {
            let Packet::Data { payload, .. } = raw.receive().await else {
                panic!("no data")
            };
            got += payload.len();
        }
        assert_eq!(got, accepted);
        assert!(!server_end.is_finished());
    })
    .await;
}

#[tokio::test]
async fn a_server_that_closes_tells_why() {
    on_a_worker(async {
        let (near, far) = duplex(64 * 1024);
        let closing = spawn_local(async move {
            let mut connection = link::server_builder()
                .handshake::<_, Batch>(near)
                .await
                .unwrap();
            let (request, mut respond) = connection.accept().await.unwrap().unwrap();
            let send = respond.send_response(grpc::response(), false).unwrap();
            let mut link = Link::new(mux(Role::Server), send, request.into_body());
            link.close(&Status::new(Code::Unavailable, "server is going away"));
            while connection.accept().await.is_some() {}
        });
        let (send, recv, _driver) = call(far).await;
        let agent = mux(Role::Agent);
        let at_agent = agent.accept(tunnel::packet::DialId(1)).unwrap();
        let mut link = Link::new(agent, send, recv);
        let end = link.run(|event| panic!("{event:?}")).await;
        assert_eq!(
            end.to_string(),
            "peer ended the stream: Unavailable: server is going away"
        );
        assert_eq!(end.code(), Some(Code::Unavailable));
        let ended = poll_fn(|cx| at_agent.poll_recv(cx, 1)).await;
        assert_eq!(ended, Err(tunnel::conn::Ended::TunnelLost));
        closing.abort();
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_vanishes_ends_dials_and_connections_at_once() {
    on_a_worker(async {
        let (near, far) = duplex(64 * 1024);
        let server = mux(Role::Server);
        let server_end = spawn_local(serve(near, server.clone()));
        let mut raw = Raw::call(far).await;
        let dial = spawn_local(server.dial("tcp", "a:1"));
        raw.accept(ConnectId(1)).await;
        let connection = dial.await.unwrap().unwrap();
        let pending = spawn_local(server.dial("tcp", "a:1"));
        let Packet::DialRequest { .. } = raw.receive().await else {
            panic!("no dial")
        };
        drop(raw);
        let end = server_end.await.unwrap();
        assert!(matches!(end, LinkEnd::Broken(_)), "{end:?}");
        assert_eq!(end.code(), Some(Code::Canceled));
        assert_eq!(pending.await.unwrap().unwrap_err(), DialError::TunnelLost);
        let ended = poll_fn(|cx| connection.poll_recv(cx, 1)).await;
        assert_eq!(ended, Err(tunnel::conn::Ended::TunnelLost));
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_ends_its_side_in_order_is_no_error() {
    on_a_worker(async {
        let (near, far) = duplex(64 * 1024);
        let server_end = spawn_local(serve(near, mux(Role::Server)));
        let mut raw = Raw::call(far).await;
        raw.send.send_data(Bytes::new(), true).unwrap();
        let end = server_end.await.unwrap();
        assert!(matches!(end, LinkEnd::Peer(None)), "{end:?}");
        assert_eq!(end.code(), None);
    })
    .await;
}

#[tokio::test]
async fn a_hundred_thousand_keystrokes_beside_a_stalled_reader_are_survived() {
    const KEYSTROKES: usize = 100_000;
    const SHELLS: usize = 10;
    on_a_worker(async {
        let (near, far) = duplex(1 << 20);
        let server = mux(Role::Server);
        let server_end = spawn_local(serve(near, server.clone()));
        let mut raw = Raw::call(far).await;
        let mut connections = Vec::new();
        for id in 1..=1 + i64::try_from(SHELLS).unwrap() {
            let dial = spawn_local(server.dial("tcp", "a:1"));
            raw.accept(ConnectId(id)).await;
            connections.push(dial.await.unwrap().unwrap());
        }
        let stalled = connections.remove(0);
        // Beyond the third of the budget that a single reader gets, so that its window is withheld.
        let bulk = message(&Packet::Data {
            conn: stalled.id(),
            payload: pattern(1, 64 * 1024),
        });
        for _ in 0..DEFAULT_BUDGET / 3 / (64 * 1024) + 16 {
            for start in (0..bulk.len()).step_by(16 * 1024) {
                raw.send(bulk.slice(start..bulk.len().min(start + 16 * 1024)))
                    .await;
            }
        }
        let readers: Vec<_> = connections
            .iter()
            .map(|connection| async {
                let mut got = 0;
                while got < KEYSTROKES / SHELLS {
                    got += read(connection).await.unwrap().len();
                }
                got
            })
            .collect();
        let keystrokes: Vec<_> = connections
            .iter()
            .map(|connection| {
                message(&Packet::Data {
                    conn: connection.id(),
                    payload: Bytes::from_static(b"x"),
                })
            })
            .collect();
        let writer = async {
            for keystroke in keystrokes.iter().cycle().take(KEYSTROKES) {
                raw.send(keystroke.clone()).await;
            }
        };
        let read = async {
            let mut total = 0;
            for reader in readers {
                total += reader.await;
            }
            total
        };
        let ((), total) = tokio::join!(writer, read);
        assert_eq!(total, KEYSTROKES);
        assert!(!server_end.is_finished());
        // Unread, they would have cost three times what h2 lets pass.
        const { assert!(KEYSTROKES * (256 - 16) > SMALL_FRAME_BUDGET * 2) };
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stalled_reader_is_reset_while_the_tunnel_goes_on() {
    on_a_worker(async {
        let pair = pair(|connection| async move {
            // A source without end, until it is told to stop.
            let block = pattern(1, 32 * 1024);
            while poll_fn(|cx| connection.poll_send_ready(cx)).await.is_ok() {
                connection.send(block.clone());
            }
        })
        .await;
        let stalled = pair.server.dial("tcp", "source:19").await.unwrap();
        let prompt = pair.server.dial("tcp", "source:19").await.unwrap();
        let started = Instant::now();
        let mut got = 0;
        while !stalled.is_reset() {
            // Paced, both share what little window is given; never nothing for long.
            let bytes = timeout(Duration::from_secs(2), read(&prompt))
                .await
                .expect("the other connection stalls too");
            got += bytes.unwrap().len();
            sleep(Duration::from_millis(1)).await;
        }
        assert!(started.elapsed() >= tunnel::mux::STALL_LIMIT);
        assert!(got > 1 << 20, "{got}");
        assert_eq!(
            poll_fn(|cx| stalled.poll_recv(cx, 1)).await,
            Err(tunnel::conn::Ended::Stalled)
        );
        assert!(!prompt.is_reset() && !pair.server_end.is_finished());
    })
    .await;
}
