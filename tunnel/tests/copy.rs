//! Sockets copied to connections of a tunnel: two ends in memory, real sockets on both sides.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

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

#[tokio::test]
async fn a_client_that_sends_and_closes_at_once_loses_nothing() {
    on_a_worker(async {
        for len in [0, 1, 16_320, 16_321, 70_000, 3_000_001] {
            let mut path = unix().await;
            let sent = pattern(len, len);
            let (client, bytes) = (&mut path.client, &sent[..]);
            let write = async {
                client.write_all(bytes).await.unwrap();
                client.shutdown().await.unwrap();
            };
            let ((), got) = tokio::join!(write, read_to_end(&mut path.target));
            assert_eq!(got, sent);
            drop(path.target);
            let (server, agent) = (path.at_server.await.unwrap(), path.at_agent.await.unwrap());
            assert!(
                matches!((&server.end, &agent.end), (End::Closed, End::Closed)),
                "{server:?} {agent:?}"
            );
            assert_eq!((server.sent, agent.received), (len as u64, len as u64));
            assert_eq!(path.client.read(&mut [0]).await.unwrap(), 0);
        }
    })
    .await;
}

#[tokio::test]
async fn a_target_that_sends_and_closes_at_once_loses_nothing() {
    on_a_worker(async {
        for len in [0, 1, 16_320, 16_321, 70_000, 3_000_001] {
            let mut path = tcp().await;
            let sent = pattern(len, len);
            let mut target = path.target;
            let write = async {
                target.write_all(&sent).await.unwrap();
                drop(target);
            };
            let ((), got) = tokio::join!(write, read_to_end(&mut path.client));
            assert_eq!(got, sent);
            drop(path.client);
            let (server, agent) = (path.at_server.await.unwrap(), path.at_agent.await.unwrap());
            assert!(
                matches!((&server.end, &agent.end), (End::Closed, End::Closed)),
                "{server:?} {agent:?}"
            );
            assert_eq!((agent.sent, server.received), (len as u64, len as u64));
        }
    })
    .await;
}

#[tokio::test]
async fn bytes_pass_both_ways_at_once_and_a_slow_reader_gets_all() {
    on_a_worker(async {
        const LEN: usize = 4_000_000;
        let path = tcp().await;
        let (up, down) = (pattern(1, LEN), pattern(2, LEN));
        let (mut client_read, mut client_write) = path.client.into_split();
        let (mut target_read, mut target_write) = path.target.into_split();
        let slow_read = async {
            let mut got = vec![0; LEN];
            for (turn, piece) in got.chunks_mut(10_000).enumerate() {
                client_read.read_exact(piece).await.unwrap();
                // Everything else has had its turn, several times over.
                for _ in 0..turn % 50 {
                    tokio::task::yield_now().await;
                }
            }
            got
        };
        let fast_read = async {
            let mut got = vec![0; LEN];
            target_read.read_exact(&mut got).await.unwrap();
            got
        };
        let (slow, fast, a, b) = tokio::join!(
            slow_read,
            fast_read,
            client_write.write_all(&up),
            target_write.write_all(&down)
        );
        a.and(b).unwrap();
        assert!(slow == down && fast == up);
        target_write.shutdown().await.unwrap();
        assert_eq!(client_read.read(&mut [0]).await.unwrap(), 0);
        drop((client_read, client_write, target_read));
        assert!(matches!(path.at_server.await.unwrap().end, End::Closed));
        assert!(matches!(path.at_agent.await.unwrap().end, End::Closed));
        assert_eq!(
            (
                path.tunnel.server.connections(),
                path.tunnel.agent.connections()
            ),
            (0, 0)
        );
    })
    .await;
}

#[tokio::test]
async fn bytes_read_before_the_copy_come_first() {
    on_a_worker(async {
        let tunnel = Tunnel::new();
        let (at_server, at_agent) = tunnel.connect().await;
        let (mut client, socket) = UnixStream::pair().unwrap();
        let (target, agent_socket) = UnixStream::pair().unwrap();
        client.write_all(b" late").await.unwrap();
        client.shutdown().await.unwrap();
        let options = Options {
            early: Bytes::from_static(b"early"),
            ..Options::default()
        };
        let (server, agent, got) = tokio::join!(
            copy(socket, at_server, options),
            copy(agent_socket, at_agent, Options::default()),
            async {
                let mut target = target;
                read_to_end(&mut target).await
            }
        );
        assert_eq!(got, b"early late");
        assert_eq!((server.sent, agent.received), (10, 10));
    })
    .await;
}

/// A socket of which a test holds the other end, for paused time.
struct Plain {
    io: DuplexStream,
    aborted: Rc<std::cell::Cell<bool>>,
}

impl Plain {
    fn pair(size: usize) -> (DuplexStream, Self) {
        let (far, io) = duplex(size);
        (
            far,
            Self {
                io,
                aborted: Rc::default(),
            },
        )
    }
}

impl AsyncRead for Plain {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Plain {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl Socket for Plain {
    fn abort(&mut self) {
        self.aborted.set(true);
    }
}

/// A copy at a server's end: the client's socket, the agent's side of the connection, and how it ends.
struct Half {
    tunnel: Tunnel,
    client: DuplexStream,
    agent: Connection,
    copied: JoinHandle<Copied>,
    aborted: Rc<std::cell::Cell<bool>>,
}

async fn half(size: usize, options: Options) -> Half {
    let tunnel = Tunnel::new();
    let (connection, agent) = tunnel.connect().await;
    let (client, socket) = Plain::pair(size);
    let aborted = socket.aborted.clone();
    let copied = spawn_local(copy(socket, connection, options));
    Half {
        tunnel,
        client,
        agent,
        copied,
        aborted,
    }
}

/// What the client can read within a second in which nothing else happens.
async fn next(client: &mut DuplexStream) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 1024];
    let len = timeout(Duration::from_secs(1), client.read(&mut buffer))
        .await
        .ok()?
        .unwrap();
    buffer.truncate(len);
    Some(buffer)
}

fn held() -> Options {
    Options {
        hold: Duration::from_secs(10),
        ..Options::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_greeting_is_held_until_the_client_speaks() {
    on_a_worker(async {
        let mut half = half(4096, held()).await;
        half.agent.send(Bytes::from_static(b"220 ready"));
        assert_eq!(next(&mut half.client).await, None);
        half.client.write_all(b"E").await.unwrap();
        assert_eq!(
            next(&mut half.client).await.as_deref(),
            Some(&b"220 ready"[..])
        );
        half.agent.send(Bytes::from_static(b"250 ok"));
        assert_eq!(
            next(&mut half.client).await.as_deref(),
            Some(&b"250 ok"[..])
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_greeting_is_held_no_longer_than_the_pause() {
    on_a_worker(async {
        let started = Instant::now();
        let mut half = half(4096, held()).await;
        half.agent.send(Bytes::from_static(b"220 ready"));
        half.agent.finish();
        assert_eq!(next(&mut half.client).await, None);
        let mut greeting = [0; 9];
        half.client.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"220 ready");
        assert!(started.elapsed() >= Duration::from_secs(10));
        assert!(started.elapsed() < Duration::from_secs(11));
        assert_eq!(half.client.read(&mut greeting).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_has_spoken_does_not_wait_for_its_answer() {
    on_a_worker(async {
        let mut half = half(4096, held()).await;
        half.client.write_all(b"hello").await.unwrap();
        assert_eq!(next(&mut half.client).await, None);
        half.agent.send(Bytes::from_static(b"answer"));
        // The client has spoken: its answer does not wait.
        assert_eq!(
            next(&mut half.client).await.as_deref(),
            Some(&b"answer"[..])
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_after_the_targets_close_is_given_up() {
    on_a_worker(async {
        let half = half(1024, Options::default()).await;
        half.agent.send(pattern(1, 10_000).into());
        half.agent.finish();
        let started = Instant::now();
        let copied = half.copied.await.unwrap();
        assert!(matches!(copied.end, End::NotFlushed), "{copied:?}");
        assert_eq!(copied.received, 1024);
        let waited = started.elapsed();
        assert!(
            waited >= FLUSH_LIMIT && waited < FLUSH_LIMIT + Duration::from_secs(1),
            "{waited:?}"
        );
        assert!(half.aborted.get(), "a cut stream must not look whole");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_after_the_targets_close_gets_everything() {
    on_a_worker(async {
        let mut half = half(1024, Options::default()).await;
        let sent = pattern(1, 10_000);
        half.agent.send(sent.clone().into());
        half.agent.finish();
        let mut got = Vec::new();
        while let Some(piece) = next(&mut half.client)
            .await
            .filter(|piece| !piece.is_empty())
        {
            got.extend(piece);
            sleep(FLUSH_LIMIT - Duration::from_secs(1)).await;
        }
        assert_eq!(got, sent);
        drop(half.client);
        let copied = half.copied.await.unwrap();
        assert!(
            matches!(copied.end, End::Closed) && !half.aborted.get(),
            "{copied:?}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_a_byte_at_a_time_is_given_up_in_the_end() {
    on_a_worker(async {
        let mut half = half(1, Options::default()).await;
        half.agent.send(pattern(1, 10_000).into());
        half.agent.finish();
        let started = Instant::now();
        let reading = async {
            let mut byte = [0];
            while half.client.read(&mut byte).await.unwrap() > 0 {
                sleep(Duration::from_secs(10)).await;
            }
        };
        let (copied, ()) = tokio::join!(half.copied, reading);
        assert!(matches!(copied.unwrap().end, End::NotFlushed));
        let waited = started.elapsed();
        assert!(
            waited >= CLOSING_LIMIT && waited < CLOSING_LIMIT + FLUSH_LIMIT,
            "{waited:?}"
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_on_sending_after_the_end_is_heard_for_a_while() {
    on_a_worker(async {
        let mut half = half(1 << 20, Options::default()).await;
        half.agent.send(Bytes::from_static(b"bye"));
        half.agent.finish();
        assert_eq!(next(&mut half.client).await.as_deref(), Some(&b"bye"[..]));
        let started = Instant::now();
        let writing = async {
            // Dropped at the other side, but taken: a reset could destroy the `bye`.
            while half.client.write_all(b"still talking").await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let (copied, ()) = tokio::join!(half.copied, writing);
        let copied = copied.unwrap();
        assert!(matches!(copied.end, End::Closed), "{copied:?}");
        assert_eq!((copied.received, copied.sent), (3, 0));
        let waited = started.elapsed();
        assert!(
            waited <= LINGER + Duration::from_secs(1) && waited >= LINGER - Duration::from_secs(1),
            "{waited:?}"
        );
        assert!(!half.aborted.get());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_never_confirms_a_close_is_not_waited_for_for_ever() {
    on_a_worker(async {
        let mut half = half(4096, Options::default()).await;
        half.tunnel.carrier.abort();
        half.client.shutdown().await.unwrap();
        let started = Instant::now();
        let copied = half.copied.await.unwrap();
        assert!(matches!(copied.end, End::NotFlushed), "{copied:?}");
        assert!(started.elapsed() < FLUSH_LIMIT + Duration::from_secs(1));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_tunnel_delivers_what_came_and_then_aborts() {
    on_a_worker(async {
        let mut half = half(4096, Options::default()).await;
        half.agent.send(Bytes::from_static(b"last"));
        assert_eq!(next(&mut half.client).await.as_deref(), Some(&b"last"[..]));
        half.agent.send(Bytes::from_static(b" words"));
        // Arrived, but not yet looked at.
        while half.tunnel.agent.has_outgoing() {
            tokio::task::yield_now().await;
        }
        half.tunnel.lose();
        let copied = half.copied.await.unwrap();
        assert!(
            matches!(copied.end, End::Ended(Ended::TunnelLost)),
            "{copied:?}"
        );
        assert!(half.aborted.get());
        assert_eq!(read_to_end(&mut half.client).await, b" words");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_is_reset_for_stalling_loses_its_socket_at_once() {
    on_a_worker(async {
        let half = half(1024, Options::default()).await;
        let block = Bytes::from(pattern(1, 60_000));
        while timeout(
            Duration::from_secs(1),
            poll_fn(|cx| half.agent.poll_send_ready(cx)),
        )
        .await
        .is_ok_and(|r| r.is_ok())
            && half.tunnel.server.connections() == 1
        {
            half.agent.send(block.clone());
            // Until its share of the budget is used and the server's end, asked now and then, calls it stalled.
            half.tunnel.server.tick(Instant::now());
            sleep(Duration::from_millis(30)).await;
        }
        let reset_at = Instant::now();
        let copied = half.copied.await.unwrap();
        assert!(
            matches!(copied.end, End::Ended(Ended::Stalled)),
            "{copied:?}"
        );
        assert!(reset_at.elapsed() < Duration::from_secs(1) && half.aborted.get());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_given_up_when_the_tunnel_is_lost() {
    on_a_worker(async {
        let half = half(1024, Options::default()).await;
        // More pieces than one write takes, so that the copy waits for nothing but its socket.
        for seed in 0..100 {
            half.agent.send(pattern(seed, 10_000).into());
            sleep(Duration::from_millis(1)).await;
        }
        half.tunnel.lose();
        let copied = timeout(2 * FLUSH_LIMIT, half.copied)
            .await
            .unwrap()
            .unwrap();
        assert!(matches!(copied.end, End::NotFlushed), "{copied:?}");
        assert!(half.aborted.get());
    })
    .await;
}

#[tokio::test]
async fn a_lost_tunnel_resets_a_tcp_client_rather_than_ending_its_stream() {
    on_a_worker(async {
        let mut path = tcp().await;
        path.target.write_all(b"x").await.unwrap();
        assert_eq!(path.client.read_u8().await.unwrap(), b'x');
        path.tunnel.lose();
        let error = path.client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert!(matches!(
            path.at_server.await.unwrap().end,
            End::Ended(Ended::TunnelLost)
        ));
    })
    .await;
}

#[tokio::test]
async fn a_client_that_resets_ends_the_targets_connection() {
    on_a_worker(async {
        let mut path = tcp().await;
        path.client.write_all(b"x").await.unwrap();
        assert_eq!(path.target.read_u8().await.unwrap(), b'x');
        path.client.abort();
        drop(path.client);
        assert_eq!(path.target.read(&mut [0]).await.unwrap(), 0);
        let copied = path.at_server.await.unwrap();
        assert!(
            matches!(&copied.end, End::Socket(error) if error.kind() == ErrorKind::ConnectionReset),
            "{copied:?}"
        );
        drop(path.target);
        assert!(matches!(path.at_agent.await.unwrap().end, End::Closed));
    })
    .await;
}

#[tokio::test]
async fn a_copy_is_small() {
    on_a_worker(async {
        let tunnel = Tunnel::new();
        let (connection, _agent) = tunnel.connect().await;
        let (_client, socket) = tcp_pair().await;
        let copy = copy(socket, connection, Options::default());
        let size = size_of_val(&copy);
        assert!(size <= 512, "{size} bytes a connection");
    })
    .await;
}

/// A client whose target reads nothing, once it has sent all that it can; and its copy.
async fn blocked(
    tunnel: &Tunnel,
    options: Options,
) -> (UnixStream, Connection, JoinHandle<Copied>) {
    tunnel.server.use_credit(credit::WINDOW);
    tunnel.agent.use_credit(credit::WINDOW);
    let (at_server, at_agent) = tunnel.connect().await;
    let (mut client, socket) = UnixStream::pair().unwrap();
    let copying = spawn_local(copy(socket, at_server, options));
    let endless = async {
        loop {
            client.write_all(&[7; 16 * 1024]).await.unwrap();
        }
    };
    assert!(timeout(Duration::from_secs(60), endless).await.is_err());
    (client, at_agent, copying)
}

fn watching() -> Options {
    Options {
        watch_for_hang_up: true,
        ..Options::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_its_target_reads_nothing_is_noticed() {
    on_a_worker(async {
        let tunnel = Tunnel::new();
        let (client, _target, copying) = blocked(&tunnel, watching()).await;
        drop(client);
        let left = Instant::now();
        let copied = copying.await.unwrap();
        assert!(matches!(copied.end, End::NotFlushed), "{:?}", copied.end);
        let bound = FLUSH_LIMIT + 2 * HANG_UP_CHECK;
        assert!(
            (FLUSH_LIMIT..=bound).contains(&left.elapsed()),
            "{:?}",
            left.elapsed()
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_only_waits_for_its_target_waits_as_long_as_it_likes() {
    on_a_worker(async {
        let tunnel = Tunnel::new();
        let (_client, _target, copying) = blocked(&tunnel, watching()).await;
        assert!(timeout(Duration::from_secs(7200), copying).await.is_err());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_closed_target_left_is_kept_for_a_client_that_pauses() {
    on_a_worker(async {
        let tunnel = Tunnel::new();
        let (target, _client, copying) = blocked(&tunnel, Options::default()).await;
        drop(target);
        assert!(timeout(Duration::from_secs(7200), copying).await.is_err());
    })
    .await;
}
