//! With real sockets on both sides.

use super::*;

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
