//! A real HTTP/2 client against the frontend, with an agent in memory. Time is paused.

use std::future::poll_fn;

use bytes::{Buf, Bytes};
use h2::{RecvStream, SendStream, client::SendRequest};
use tokio::{sync::mpsc, task::LocalSet, time::Instant};
use tunnel::{
    codec::{self, Decoded},
    grpc::MessageReader,
    mux::{Connection, Event},
    packet::{ConnectId, DialId, Packet},
};

use super::*;
use crate::{
    frontend::FIRST_BYTES_PAUSE,
    testing::{self, OnDial},
};

const DIAL: DialId = DialId(42);

struct Client {
    requests: SendRequest<Bytes>,
}

/// One `Proxy` stream as a client sees it.
struct Call {
    send: SendStream<Bytes>,
    recv: RecvStream,
    reader: MessageReader,
}

impl Client {
    async fn connect(core: Rc<Core>) -> Self {
        let (near, far) = tokio::io::duplex(1 << 20);
        tokio::task::spawn_local(serve(far, core, Tasks::default(), None));
        let (requests, connection) = h2::client::handshake(near).await.unwrap();
        tokio::task::spawn_local(async move { connection.await.ok() });
        Self { requests }
    }

    async fn call(&mut self) -> Call {
        let request = grpc::request("localhost", PATH, "test").unwrap();
        let (response, send) = self.requests.send_request(request, false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/grpc");
        Call {
            send,
            recv: response.into_body(),
            reader: MessageReader::new(grpc::MAX_MESSAGE),
        }
    }
}

impl Call {
    fn send(&mut self, packet: &Packet) {
        let mut batch = Batch::packet(packet);
        let bytes = batch.copy_to_bytes(batch.remaining());
        self.send.send_data(bytes, false).unwrap();
    }

    fn dial(&mut self) {
        self.send(&Packet::DialRequest {
            protocol: "tcp".into(),
            address: "target:1".into(),
            dial: DIAL,
        });
    }

    async fn packet(&mut self) -> Packet {
        loop {
            if let Some(message) = self.reader.next_message().unwrap() {
                match codec::decode(&message).unwrap() {
                    Decoded::Packet(packet) => return packet,
                    Decoded::Unknown(number) => panic!("type {number}"),
                }
            }
            let chunk = self.recv.data().await.expect("stream ended").unwrap();
            self.recv
                .flow_control()
                .release_capacity(chunk.len())
                .unwrap();
            self.reader.push(chunk);
        }
    }

    async fn established(&mut self) -> ConnectId {
        match self.packet().await {
            Packet::DialResponse {
                error,
                conn,
                dial: DIAL,
            } if error.is_empty() => conn,
            packet => panic!("{packet:?}"),
        }
    }
}

/// Accepts every dial and hands the connections out.
fn accepting() -> (OnDial, mpsc::Receiver<Connection>) {
    let (connections, accepted) = mpsc::channel(8);
    let on_dial: OnDial =
        Box::new(move |mux, dial, _| connections.try_send(mux.accept(dial).unwrap()).unwrap());
    (on_dial, accepted)
}

async fn received(connection: &Connection) -> Option<Bytes> {
    let bytes = poll_fn(|cx| connection.poll_recv(cx, usize::MAX))
        .await
        .unwrap()?;
    connection.delivered(bytes.len(), Duration::ZERO);
    Some(bytes)
}

fn data(conn: ConnectId, payload: &'static [u8]) -> Packet {
    Packet::Data {
        conn,
        payload: Bytes::from_static(payload),
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_go_both_ways_and_a_close_is_answered_at_once_with_nothing_lost() {
    LocalSet::new()
        .run_until(async {
            let (on_dial, mut accepted) = accepting();
            let (core, _events) = testing::core_with_agent(on_dial);
            let mut call = Client::connect(core.clone()).await.call().await;
            call.dial();
            let conn = call.established().await;
            let target = accepted.recv().await.unwrap();
            call.send(&data(conn, b"ping"));
            assert_eq!(received(&target).await.unwrap(), &b"ping"[..]);
            target.send(Bytes::from_static(b"pong"));
            assert_eq!(call.packet().await, data(conn, b"pong"));
            call.send(&data(conn, b"last words"));
            call.send(&Packet::CloseRequest { conn });
            assert_eq!(
                call.packet().await,
                Packet::CloseResponse {
                    error: String::new(),
                    conn
                }
            );
            assert_eq!(received(&target).await.unwrap(), &b"last words"[..]);
            assert_eq!(received(&target).await, None);
            assert_eq!(core.metrics.established.get(), 0);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_target_that_speaks_first_is_held_back_until_the_pause_is_over() {
    LocalSet::new()
        .run_until(async {
            let on_dial: OnDial = Box::new(|mux, dial, _| {
                let target = mux.accept(dial).unwrap();
                target.send(Bytes::from_static(b"SSH-2.0"));
                target.finish();
                // Stays until its queue is empty.
            });
            let (core, _events) = testing::core_with_agent(on_dial);
            let mut call = Client::connect(core).await.call().await;
            call.dial();
            let conn = call.established().await;
            let established = Instant::now();
            assert_eq!(call.packet().await, data(conn, b"SSH-2.0"));
            assert!(
                established.elapsed() >= FIRST_BYTES_PAUSE,
                "{:?}",
                established.elapsed()
            );
            assert_eq!(
                call.packet().await,
                Packet::CloseResponse {
                    error: String::new(),
                    conn
                }
            );
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_clients_first_byte_ends_the_pause() {
    LocalSet::new()
        .run_until(async {
            let (on_dial, mut accepted) = accepting();
            let (core, _events) = testing::core_with_agent(on_dial);
            let mut call = Client::connect(core).await.call().await;
            call.dial();
            let conn = call.established().await;
            let target = accepted.recv().await.unwrap();
            let established = Instant::now();
            call.send(&data(conn, b"hello"));
            target.send(Bytes::from_static(b"early"));
            assert_eq!(call.packet().await, data(conn, b"early"));
            assert_eq!(established.elapsed(), Duration::ZERO);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_failed_dial_is_told_in_the_agents_words_and_the_stream_ends_after_a_while() {
    LocalSet::new()
        .run_until(async {
            let on_dial: OnDial = Box::new(|mux, dial, address| {
                mux.refuse(
                    dial,
                    format!("dial tcp {address}: connect: connection refused"),
                )
            });
            let (core, _events) = testing::core_with_agent(on_dial);
            let mut call = Client::connect(core).await.call().await;
            call.dial();
            let Packet::DialResponse {
                error,
                conn: ConnectId::NONE,
                dial: DIAL,
            } = call.packet().await
            else {
                panic!("no DIAL_RSP")
            };
            assert_eq!(
                error,
                "dial tcp target:1: connect: connection refused (agent agent-1)"
            );
            assert!(call.recv.data().await.is_none());
            assert_eq!(
                call.recv.trailers().await.unwrap().unwrap()["grpc-status"],
                "0"
            );
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn without_an_agent_a_dial_fails_at_once_in_upstreams_words() {
    LocalSet::new()
        .run_until(async {
            let mut call = Client::connect(testing::core()).await.call().await;
            call.dial();
            let Packet::DialResponse { error, .. } = call.packet().await else {
                panic!("no DIAL_RSP")
            };
            assert_eq!(error, "No agent available");
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_never_answers_costs_the_dial_timeout_and_is_told_to_give_up() {
    LocalSet::new()
        .run_until(async {
            let (core, mut events) = testing::core_with_agent(Box::new(|_, _, _| {}));
            let mut call = Client::connect(core.clone()).await.call().await;
            let asked = Instant::now();
            call.dial();
            let Packet::DialResponse { error, .. } = call.packet().await else {
                panic!("no DIAL_RSP")
            };
            assert!(
                error.starts_with("timed out waiting for backend dial"),
                "{error}"
            );
            assert_eq!(asked.elapsed(), core.dial_timeout);
            assert!(matches!(events.recv().await, Some(Event::Dial { .. })));
            assert!(matches!(events.recv().await, Some(Event::CancelDial(_))));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gives_up_or_goes_away_cancels_its_dial_at_the_agent() {
    LocalSet::new()
        .run_until(async {
            let (core, mut events) = testing::core_with_agent(Box::new(|_, _, _| {}));
            let mut client = Client::connect(core.clone()).await;
            let mut polite = client.call().await;
            polite.dial();
            assert!(matches!(events.recv().await, Some(Event::Dial { .. })));
            polite.send(&Packet::CloseDial { dial: DIAL });
            assert!(matches!(events.recv().await, Some(Event::CancelDial(_))));
            let mut rude = client.call().await;
            rude.dial();
            assert!(matches!(events.recv().await, Some(Event::Dial { .. })));
            rude.send.send_reset(h2::Reason::CANCEL);
            assert!(matches!(events.recv().await, Some(Event::CancelDial(_))));
            assert_eq!(core.metrics.pending_dials.get(), 0);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn packets_out_of_order_get_upstreams_answers() {
    LocalSet::new()
        .run_until(async {
            let (on_dial, _accepted) = accepting();
            let (core, _events) = testing::core_with_agent(on_dial);
            let mut client = Client::connect(core).await;
            let error = |packet| match packet {
                Packet::CloseResponse { error, conn } => (error, conn.0),
                packet => panic!("{packet:?}"),
            };

            let mut call = client.call().await;
            call.send(&Packet::CloseRequest { conn: ConnectId(9) });
            assert_eq!(
                error(call.packet().await),
                ("backend uninitialized".into(), 9)
            );
            call.send(&data(ConnectId(9), b"x"));
            assert_eq!(
                error(call.packet().await),
                ("backend not initialized".into(), 9)
            );

            let mut call = client.call().await;
            call.dial();
            let conn = call.established().await;
            call.send(&data(ConnectId(conn.0 + 1), b"x"));
            assert_eq!(
                error(call.packet().await),
                ("mismatched connection IDs".into(), conn.0)
            );
            assert_eq!(
                error(call.packet().await),
                ("mismatched connection IDs".into(), conn.0 + 1)
            );
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn nonsense_is_survived_and_counted() {
    LocalSet::new()
        .run_until(async {
            let (on_dial, mut accepted) = accepting();
            let (core, _events) = testing::core_with_agent(on_dial);
            let mut call = Client::connect(core.clone()).await.call().await;
            // Empty messages, bare types, an unknown type.
            for message in [
                &[][..],
                &[8, 1],
                &[8, 2],
                &[8, 3],
                &[8, 4],
                &[8, 5],
                &[8, 99],
            ] {
                let framed =
                    [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()], message].concat();
                call.send.send_data(framed.into(), false).unwrap();
            }
            for packet in [
                Packet::Drain,
                Packet::CloseResponse {
                    error: String::new(),
                    conn: ConnectId(-1),
                },
            ] {
                call.send(&packet);
            }
            call.dial();
            let conn = call.established().await;
            let target = accepted.recv().await.unwrap();
            call.send(&data(ConnectId::NONE, b"to nobody"));
            call.dial();
            let Packet::DialResponse { error, .. } = call.packet().await else {
                panic!("no DIAL_RSP")
            };
            assert_eq!(error, "a stream carries one dial");
            call.send(&data(conn, b"still here"));
            assert_eq!(received(&target).await.unwrap(), &b"still here"[..]);
            assert_eq!(core.metrics.violations.get(), 8);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_no_packet_end_the_one_stream_with_a_status() {
    LocalSet::new()
        .run_until(async {
            let mut client = Client::connect(testing::core()).await;
            for (message, status) in [
                (&[0, 0, 0, 0, 1, 0xff][..], "13"),
                (&[1, 0, 0, 0, 0], "12"),
                (&[0, 0, 0x40, 0, 1], "8"),
            ] {
                let mut call = client.call().await;
                call.send
                    .send_data(Bytes::copy_from_slice(message), false)
                    .unwrap();
                assert!(call.recv.data().await.is_none());
                assert_eq!(
                    call.recv.trailers().await.unwrap().unwrap()["grpc-status"],
                    status
                );
            }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_idle_or_hold_a_greeting_back_leave_the_connections_window_to_others() {
    LocalSet::new()
        .run_until(async {
            let (on_dial, mut accepted) = accepting();
            let (core, _events) = testing::core_with_agent(on_dial);
            // With HTTP/2's default windows, as grpc-go starts: 65,535 bytes for the whole connection.
            let mut client = Client::connect(core).await;
            let mut readers = Vec::new();
            for _ in 0..40 {
                let mut call = client.call().await;
                call.dial();
                call.established().await;
                let target = accepted.recv().await.unwrap();
                target.send(Bytes::from(vec![7; 16 * 1024]));
                // All at once: together they have more to read than the window takes.
                readers.push(tokio::task::spawn_local(async move {
                    let packet = call.packet().await;
                    drop(target);
                    packet
                }));
            }
            for reader in readers {
                assert!(matches!(reader.await.unwrap(), Packet::Data { .. }));
            }
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_after_the_target_closed_is_reset_in_the_end() {
    LocalSet::new()
        .run_until(async {
            let (on_dial, mut accepted) = accepting();
            let (core, _events) = testing::core_with_agent(on_dial);
            let mut call = Client::connect(core.clone()).await.call().await;
            call.dial();
            let conn = call.established().await;
            let target = accepted.recv().await.unwrap();
            call.send(&data(conn, b"go"));
            // More than the client's window, which it never opens.
            for _ in 0..16 {
                target.send(Bytes::from(vec![7; 16 * 1024]));
            }
            drop(target);
            let reset = poll_fn(|cx| call.send.poll_reset(cx)).await.unwrap();
            assert_eq!(reset, h2::Reason::ENHANCE_YOUR_CALM);
            assert_eq!(core.metrics.established.get(), 0);
        })
        .await;
}
