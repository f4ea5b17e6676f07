//! The proxy-server's gRPC method, as kube-apiserver's client library uses it (egress-selector.md 3.4).

use std::future::poll_fn;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use h2::client::{Connection, SendRequest};
use h2::{Ping, RecvStream};
use tokio::net::UnixStream;
use tunnel::codec::{self, Decoded};
use tunnel::grpc::{self, MAX_MESSAGE, MessageReader, Status};
use tunnel::packet::{DialId, Packet};

/// The only method there is.
const PROXY: &str = "http://localhost/ProxyService/Proxy";

const USER_AGENT: &str = concat!("egress-config/", env!("CARGO_PKG_VERSION"));

/// An HTTP/2 connection whose other end has answered.
pub(super) struct Session {
    sender: SendRequest<Bytes>,
    connection: Connection<UnixStream>,
}

/// Begins HTTP/2, and waits until the other end speaks it too, as gRPC does.
pub(super) async fn open(socket: UnixStream) -> Result<(Session, String)> {
    let (sender, mut connection) = h2::client::Builder::new()
        .enable_push(false)
        .handshake(socket)
        .await
        .context("begin HTTP/2")?;
    let mut pings = connection
        .ping_pong()
        .context("take the connection's pings")?;
    tokio::select! {
        pong = pings.ping(Ping::opaque()) => pong.context("wait for the proxy's first frames")?,
        ended = &mut connection => {
            ended.context("wait for the proxy's first frames")?;
            bail!("the proxy closed the connection");
        }
    };
    let session = Session { sender, connection };
    Ok((session, "the proxy speaks HTTP/2".to_owned()))
}

impl Session {
    /// Dials `target` and hangs up.
    pub(super) async fn dial(self, target: &str) -> Result<((), String)> {
        let Self {
            sender,
            mut connection,
        } = self;
        tokio::select! {
            outcome = exchange(sender, target) => outcome,
            ended = &mut connection => {
                ended.context("wait for the answer")?;
                bail!("the proxy closed the connection without an answer");
            }
        }
    }
}

async fn exchange(sender: SendRequest<Bytes>, target: &str) -> Result<((), String)> {
    let mut request = grpc::request("localhost", "/", USER_AGENT).context("make the request")?;
    *request.uri_mut() = http::Uri::from_static(PROXY);
    let mut sender = sender.ready().await.context("open a stream")?;
    let (response, mut stream) = sender
        .send_request(request, false)
        .context("open a stream")?;
    let dial = DialId(fastrand::i64(0..));
    let mut message = BytesMut::new();
    let packet = Packet::DialRequest {
        protocol: "tcp".into(),
        address: target.into(),
        dial,
    };
    codec::put_packet(&mut message, &packet);
    stream
        .send_data(message.freeze(), false)
        .context("send DIAL_REQ")?;
    let response = response.await.context("wait for the response")?;
    let refused = Status::from_headers(response.headers());
    if !response.status().is_success() || refused.is_some() {
        let status = refused.map_or_else(
            || response.status().to_string(),
            |status| status.to_string(),
        );
        bail!("the proxy refused the call: {status}");
    }
    answer(response.into_body(), dial, target).await
}

/// Waits for the answer to the dial.
async fn answer(mut body: RecvStream, dial: DialId, target: &str) -> Result<((), String)> {
    let mut reader = MessageReader::new(MAX_MESSAGE);
    loop {
        while let Some(message) = reader.next_message().context("read the answer")? {
            match codec::decode(&message).context("read the answer")? {
                Decoded::Packet(Packet::DialResponse {
                    error,
                    dial: answered,
                    ..
                }) if answered == dial => {
                    if error.is_empty() {
                        return Ok(((), format!("{target} is reached")));
                    }
                    bail!("the proxy could not reach {target}: {error}");
                }
                Decoded::Packet(Packet::CloseDial { dial: closed }) if closed == dial => {
                    bail!("the proxy took the dial back (DIAL_CLS)");
                }
                Decoded::Packet(other) => {
                    bail!("the proxy sent {} before it answered", other.kind().name());
                }
                Decoded::Unknown(_) => {}
            }
        }
        let Some(chunk) = poll_fn(|cx| body.poll_data(cx)).await else {
            let trailers = body.trailers().await.context("read the answer")?;
            let status = trailers.as_ref().and_then(Status::from_headers);
            let status = status.map_or_else(|| "no status".to_owned(), |status| status.to_string());
            bail!("the proxy ended the call without an answer: {status}");
        };
        let chunk = chunk.context("read the answer")?;
        body.flow_control()
            .release_capacity(chunk.len())
            .context("read the answer")?;
        reader.push(chunk);
    }
}
