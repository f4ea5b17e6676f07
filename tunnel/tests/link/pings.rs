//! Peers that answer pings, and one that does not.

use super::*;

/// Both ends of an idle HTTP/2 connection; the server's is polled as long as its task lives.
async fn idle() -> (h2::PingPong, JoinHandle<()>, JoinHandle<()>) {
    let (near, far) = duplex(64 * 1024);
    let peer = spawn_local(async move {
        let mut connection = server::handshake(near).await.unwrap();
        while connection.accept().await.is_some() {}
    });
    let (send_request, mut connection) = link::client_builder()
        .handshake::<_, Batch>(far)
        .await
        .unwrap();
    let ping_pong = connection.ping_pong().unwrap();
    let driver = spawn_local(async move {
        // Held, or the connection would end for want of use.
        let _send_request = send_request;
        drop(connection.await);
    });
    (ping_pong, peer, driver)
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_answers_pings_lives_and_one_that_falls_silent_is_dead() {
    on_a_worker(async {
        let (near, far) = duplex(64 * 1024);
        let (silence, silenced) = tokio::sync::oneshot::channel::<()>();
        let _peer = spawn_local(async move {
            let mut connection = server::handshake(near).await.unwrap();
            tokio::select! {
                _ = connection.accept() => panic!("the connection ended"),
                _ = silenced => {}
            }
            // Neither polled nor closed from here on.
            std::future::pending::<()>().await;
            drop(connection);
        });
        let (_send_request, mut connection) = link::client_builder()
            .handshake::<_, Batch>(far)
            .await
            .unwrap();
        let ping_pong = connection.ping_pong().unwrap();
        let _driver = spawn_local(async move { drop(connection.await) });
        let (interval, limit) = (Duration::from_secs(10), Duration::from_secs(5));
        let mut watch = pin!(link::watch(
            ping_pong,
            Keepalive::new(interval, limit, Instant::now())
        ));
        assert!(
            timeout(Duration::from_secs(1000), watch.as_mut())
                .await
                .is_err()
        );
        silence.send(()).unwrap();
        let silent_since = Instant::now();
        watch.await;
        assert!(silent_since.elapsed() <= interval + limit + Duration::from_millis(10));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_probe_pings_long_before_the_next_ping_is_due() {
    on_a_worker(async {
        let (ping_pong, _peer, _driver) = idle().await;
        let (hour, limit) = (Duration::from_secs(3600), Duration::from_secs(5));
        let keepalive = Keepalive::new(hour, limit, Instant::now());
        let probe = Probe::default();
        let mut watch = pin!(link::watch_probed(ping_pong, keepalive, &probe));
        for pongs in [0, 1, 2] {
            assert_eq!(probe.pongs(), pongs);
            let second = timeout(Duration::from_secs(1), watch.as_mut());
            assert!(second.await.is_err(), "called dead");
            assert_eq!(probe.pongs(), pongs, "a ping that nobody asked for");
            probe.ask();
            probe.ask();
            let second = timeout(Duration::from_secs(1), watch.as_mut());
            assert!(second.await.is_err(), "called dead");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_has_ended_is_not_called_dead() {
    on_a_worker(async {
        let (ping_pong, peer, driver) = idle().await;
        let keepalive = Keepalive::new(
            Duration::from_secs(10),
            Duration::from_secs(5),
            Instant::now(),
        );
        let mut watch = pin!(link::watch(ping_pong, keepalive));
        assert!(
            timeout(Duration::from_secs(100), watch.as_mut())
                .await
                .is_err()
        );
        peer.abort();
        driver.await.unwrap();
        assert!(
            timeout(Duration::from_secs(100), watch.as_mut())
                .await
                .is_err()
        );
    })
    .await;
}
