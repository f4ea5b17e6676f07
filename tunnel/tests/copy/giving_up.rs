//! A side that leaves or waits while the other reads nothing.

use super::*;

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
