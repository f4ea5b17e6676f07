//! With a socket whose other end the test holds, in paused time.

use super::*;

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
