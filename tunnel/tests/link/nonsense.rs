//! Peers that send what makes no sense.

use super::*;

/// What the server makes of `bytes`, and what it tells the peer.
async fn verdict(bytes: &'static [u8], ends: bool) -> (LinkEnd, Option<Status>) {
    on_a_worker(async {
        let (near, far) = duplex(64 * 1024);
        let server_end = spawn_local(serve(near, mux(Role::Server)));
        let mut raw = Raw::call(far).await;
        raw.send.send_data(Bytes::from_static(bytes), ends).unwrap();
        let status = raw.status().await;
        drop(raw);
        (server_end.await.unwrap(), status)
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn what_makes_no_sense_ends_the_stream_with_a_status_that_says_why() {
    for (bytes, ends, code, words) in [
        (
            &[0, 0, 0, 0, 1, 0x08][..],
            false,
            Code::Internal,
            "malformed packet: message ends inside a value",
        ),
        (
            &[1, 0, 0, 0, 1, 0x08],
            false,
            Code::Unimplemented,
            "compressed message, and no compression was agreed on",
        ),
        (
            &[0, 0, 0x40, 0, 1],
            false,
            Code::ResourceExhausted,
            "grpc: received message larger than max (4194305 vs. 4194304)",
        ),
        (
            &[0, 0, 0, 0, 9, 0x08],
            true,
            Code::Internal,
            "stream ended inside a message",
        ),
        (
            &[0, 0],
            true,
            Code::Internal,
            "stream ended inside a message",
        ),
    ] {
        let (end, told) = verdict(bytes, ends).await;
        let expected = Status::new(code, words);
        assert!(
            matches!(&end, LinkEnd::Protocol(status) if *status == expected),
            "{end:?}"
        );
        assert_eq!(end.code(), Some(code));
        assert_eq!(told, Some(expected));
    }
}

#[tokio::test]
async fn nonsense_within_the_protocol_ends_nothing() {
    on_a_worker(async {
        let (near, far) = duplex(64 * 1024);
        let server = mux(Role::Server);
        let _server_end = spawn_local(serve(near, server.clone()));
        let mut raw = Raw::call(far).await;
        // An empty message, a DATA without its payload, an unknown type, a DIAL_REQ: all in one frame.
        let nonsense = [
            &[0, 0, 0, 0, 0][..],
            &[0, 0, 0, 0, 2, 8, 4],
            &[0, 0, 0, 0, 2, 8, 99],
            &[0, 0, 0, 0, 2, 0x12, 0],
        ];
        raw.send(nonsense.concat().into()).await;
        let dial = spawn_local(server.dial("tcp", "a:1"));
        raw.accept(ConnectId(1)).await;
        assert_eq!(dial.await.unwrap().unwrap().id(), ConnectId(1));
    })
    .await;
}
