//! The adapter in front of a real h2 server.

use std::{future::poll_fn, time::Duration};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, Version};
use tokio::{task::JoinSet, time::timeout};

use super::{
    client::{Client, Form, Pieces},
    *,
};

/// What a server saw of a request.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    method: Method,
    uri: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    trailers: Vec<(String, String)>,
}

fn texts(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

async fn read_body(body: &mut RecvStream) -> (Vec<u8>, Vec<(String, String)>) {
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        bytes.extend(chunk);
    }
    let trailers = body.trailers().await.unwrap();
    (bytes, trailers.as_ref().map(texts).unwrap_or_default())
}

/// Serves what `pieces` bring until `count` requests have been read to their ends.
async fn serve(pieces: Vec<Vec<u8>>, count: usize) -> Vec<Seen> {
    let mut server =
        h2::server::handshake(AuthorityRewriter::new(Pieces::new(pieces).then_silent()))
            .await
            .unwrap();
    let mut reading = JoinSet::new();
    let mut seen = Vec::new();
    while seen.len() < count {
        tokio::select! {
            request = server.accept() => {
                let (request, mut respond) = request.expect("more requests").expect("a good connection");
                let number = reading.len() + seen.len();
                reading.spawn(async move {
                    let (head, mut body) = request.into_parts();
                    let (body, trailers) = read_body(&mut body).await;
                    respond.send_response(Response::new(()), true).unwrap();
                    let seen = Seen { method: head.method, uri: head.uri.to_string(), headers: texts(&head.headers), body, trailers };
                    (number, seen)
                });
            }
            Some(done) = reading.join_next() => seen.push(done.unwrap()),
        }
    }
    seen.sort_by_key(|(number, _)| *number);
    seen.into_iter().map(|(_, seen)| seen).collect()
}

fn tunnel_request(body: &[u8], trailers: &[(&str, &str)]) -> Seen {
    let owned = |list: &[(&str, &str)]| {
        list.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    };
    Seen {
        method: Method::POST,
        uri: "http://localhost/ProxyService/Proxy".to_owned(),
        headers: owned(&[
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.81.1"),
            ("te", "trailers"),
            ("grpc-accept-encoding", "gzip"),
        ]),
        body: body.to_vec(),
        trailers: owned(trailers),
    }
}

#[tokio::test]
async fn h2_serves_the_same_requests_at_every_split_point() {
    let input = busy_connection();
    for at in 0..input.len() {
        let (left, right) = input.split_at(at);
        let seen = serve(vec![left.to_vec(), right.to_vec()], 3).await;
        let expected = [
            tunnel_request(
                b"\0\0\0\0\x05hello",
                &[("grpc-status", "0"), ("secret", "x")],
            ),
            tunnel_request(&[7; 40], &[]),
            tunnel_request(b"", &[]),
        ];
        assert_eq!(seen, expected, "split at {at}");
    }
}

#[tokio::test]
async fn h2_serves_what_comes_byte_by_byte() {
    let input = busy_connection();
    let seen = serve(input.chunks(1).map(<[u8]>::to_vec).collect(), 3).await;
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[2], tunnel_request(b"", &[]));
}

/// The frames that grpc-go 1.81.1 wrote behind the preface for three streams over one connection to a Unix socket,
/// the last with metadata: captured from the library, a frame a line.
const GRPC_GO: &str = include_str!("grpc_go.hex");

#[tokio::test]
async fn h2_serves_the_bytes_that_grpc_go_sends() {
    let hex: Vec<u8> = GRPC_GO.bytes().filter(u8::is_ascii_hexdigit).collect();
    let frames = hex
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
    let input: Vec<u8> = PREFACE.iter().copied().chain(frames).collect();
    let seen = serve(vec![input], 3).await;
    let plain = Seen {
        headers: without_timeout(&seen[0].headers),
        ..tunnel_request(&[0; 5], &[])
    };
    assert_eq!(plain.headers, tunnel_request(b"", &[]).headers[..3]);
    for request in &seen {
        assert_eq!(
            (&request.method, request.uri.as_str()),
            (&Method::POST, "http://localhost/ProxyService/Proxy")
        );
        assert_eq!(request.body, [0; 5]);
        assert_eq!(without_timeout(&request.headers)[..3], plain.headers);
    }
    let metadata = [
        ("agentid".to_owned(), "node-1".to_owned()),
        ("authorization".to_owned(), "Bearer abc".to_owned()),
    ];
    assert_eq!(without_timeout(&seen[2].headers)[3..], metadata);
}

/// The capture ran under a deadline, kube-apiserver's tunnels don't.
fn without_timeout(headers: &[(String, String)]) -> Vec<(String, String)> {
    headers
        .iter()
        .filter(|(name, _)| name != "grpc-timeout")
        .cloned()
        .collect()
}

/// Runs a server on `io` until it is done with the connection; returns the frames that it wrote, as (type, payload).
async fn written<T: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    input: &[u8],
    wrap: impl FnOnce(tokio::io::DuplexStream) -> T,
) -> Vec<(u8, Vec<u8>)> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let (mut ours, theirs) = tokio::io::duplex(1 << 20);
    ours.write_all(input).await.unwrap();
    let io = wrap(theirs);
    let server = async {
        let mut server = h2::server::handshake(io).await.unwrap();
        while let Some(Ok(_)) = server.accept().await {}
        _ = poll_fn(|cx| server.poll_closed(cx)).await;
    };
    let mut output = Vec::new();
    let client = async {
        // A stream that was reset leaves the connection open; end it so that the server does.
        let mut head = [0; HEAD_BYTES];
        while ours.read_exact(&mut head).await.is_ok() {
            let head = Head::parse(&head).unwrap();
            let mut payload = vec![0; head.len];
            ours.read_exact(&mut payload).await.unwrap();
            output.push((head.kind, payload));
            if head.kind == 0x3 {
                ours.shutdown().await.unwrap();
            }
        }
    };
    timeout(Duration::from_secs(30), async {
        tokio::join!(server, client)
    })
    .await
    .unwrap();
    output
}

#[tokio::test]
async fn h2_alone_resets_the_stream_that_the_adapter_lets_through() {
    const RST_STREAM: u8 = 0x3;
    let mut client = Client::new();
    client.grpc_request(1, flag::END_STREAM, SOCKET);
    let alone = written(&client.bytes, |io| io).await;
    assert!(
        alone.contains(&(
            RST_STREAM,
            u32::from(Reason::PROTOCOL_ERROR).to_be_bytes().to_vec()
        )),
        "{alone:?}"
    );
    // A CONNECT is h2's to refuse also behind the adapter.
    let mut client = Client::new();
    let block = client.block(&[
        (":method", "CONNECT", Form::Indexed),
        (":authority", SOCKET, Form::Indexed),
    ]);
    client.frame(kind::HEADERS, flag::END_HEADERS, 1, &block);
    let connect = written(&client.bytes, AuthorityRewriter::new).await;
    assert!(
        connect.contains(&(
            RST_STREAM,
            u32::from(Reason::PROTOCOL_ERROR).to_be_bytes().to_vec()
        )),
        "{connect:?}"
    );
}

#[tokio::test]
async fn h2_says_goaway_with_the_reason_to_a_client_that_breaks_the_rules() {
    async fn check(reason: Reason, sent: impl FnOnce(&mut Client)) {
        const GOAWAY: u8 = 0x7;
        let mut client = Client::new();
        sent(&mut client);
        let frames = written(&client.bytes, AuthorityRewriter::new).await;
        let (_, goaway) = frames
            .iter()
            .find(|(kind, _)| *kind == GOAWAY)
            .expect("a GOAWAY");
        assert_eq!(goaway[4..8], u32::from(reason).to_be_bytes());
    }
    use kind::{CONTINUATION, HEADERS, PUSH_PROMISE};
    check(Reason::PROTOCOL_ERROR, |c| {
        _ = c.frame(CONTINUATION, 4, 1, &[0x82])
    })
    .await;
    check(Reason::PROTOCOL_ERROR, |c| {
        _ = c.frame(HEADERS, 0, 1, &[0x82]).frame(DATA, 0, 1, b"x")
    })
    .await;
    check(Reason::PROTOCOL_ERROR, |c| {
        _ = c.frame(PUSH_PROMISE, 4, 1, &[0, 0, 0, 2, 0x82])
    })
    .await;
    check(Reason::PROTOCOL_ERROR, |c| {
        _ = c.frame(HEADERS, 4, 0, &[0x82])
    })
    .await;
    check(Reason::PROTOCOL_ERROR, |c| {
        _ = c.frame(HEADERS, 4, 1, &[0x80])
    })
    .await;
    check(Reason::PROTOCOL_ERROR, |c| {
        _ = c.frame(HEADERS, 4, 1, &[0x82; 2_000])
    })
    .await;
    check(Reason::FRAME_SIZE_ERROR, |c| {
        _ = c.frame(HEADERS, 4, 1, &[0x82; 16_385])
    })
    .await;
    // Not header blocks, so h2's own business.
    check(Reason::FRAME_SIZE_ERROR, |c| {
        _ = c.frame(DATA, 0, 1, &[0; 16_385])
    })
    .await;
}

#[tokio::test]
async fn an_h2_client_is_served_through_the_adapter_with_large_bodies_both_ways() {
    const STREAMS: u8 = 20;
    let (ours, theirs) = tokio::io::duplex(10_000);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut server = h2::server::handshake(AuthorityRewriter::new(theirs))
            .await
            .unwrap();
        let mut streams = JoinSet::new();
        while let Some(request) = server.accept().await {
            let (request, mut respond) = request.unwrap();
            streams.spawn(async move {
                let (head, mut body) = request.into_parts();
                let (bytes, trailers) = read_body(&mut body).await;
                assert_eq!(trailers, [("sum".to_owned(), bytes.len().to_string())]);
                let mut response = Response::new(());
                response.headers_mut().insert(
                    "authority",
                    head.uri.authority().unwrap().as_str().parse().unwrap(),
                );
                response
                    .headers_mut()
                    .insert("long", head.headers["long"].clone());
                let mut stream = respond.send_response(response, false).unwrap();
                stream.reserve_capacity(bytes.len());
                stream.send_data(bytes.into(), true).unwrap();
                while let Some(Ok(_)) = poll_fn(|cx| stream.poll_capacity(cx)).await {}
            });
        }
        while let Some(done) = streams.join_next().await {
            done.unwrap();
        }
    });
    let (client, connection) = h2::client::handshake(ours).await.unwrap();
    tasks.spawn(async move { connection.await.unwrap() });
    let mut requests = JoinSet::new();
    for number in 0..STREAMS {
        let mut client = client.clone().ready().await.unwrap();
        requests.spawn(async move {
            let body = vec![number; 10_000 * usize::from(number)];
            // Some longer than a frame, all in the client's table as far as they fit.
            let long = number.to_string().repeat(1 << (number % 14));
            let request = Request::builder()
                .method("POST")
                .uri(format!("http://host-{}:80/", number % 3))
                .version(Version::HTTP_2)
                .header("long", &long);
            let (response, mut stream) = client
                .send_request(request.body(()).unwrap(), false)
                .unwrap();
            stream.send_data(Bytes::from(body.clone()), false).unwrap();
            stream
                .send_trailers(HeaderMap::from_iter([(
                    "sum".parse().unwrap(),
                    body.len().to_string().parse().unwrap(),
                )]))
                .unwrap();
            let (head, mut received) = response.await.unwrap().into_parts();
            assert_eq!(head.headers["authority"], format!("host-{}:80", number % 3));
            assert_eq!(head.headers["long"], long);
            assert!(read_body(&mut received).await.0 == body);
        });
    }
    drop(client);
    timeout(Duration::from_secs(60), async {
        while let Some(done) = requests.join_next().await {
            done.unwrap();
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await
    .unwrap();
}
