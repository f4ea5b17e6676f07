//! gRPC `ProxyService/Proxy` (wire-protocol, sections 3.2 and 3.3; egress-selector, section 3.4).
//!
//! kube-apiserver opens an HTTP/2 connection and one stream a dial; a reusable tunnel may open many streams on one
//! connection. A stream is one dial and one connection.

mod stream;
#[cfg(test)]
mod tests;

use std::{rc::Rc, time::Duration};

use h2::server::SendResponse;
use http::Request;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tracing::Instrument as _;
use tunnel::{
    authority::AuthorityRewriter,
    batch::Batch,
    drain::Tasks,
    grpc,
    keepalive::{self, Keepalive},
    link,
};

use super::HEAD_TIMEOUT;
use crate::{
    dial::Core,
    metrics::{Gauged, Listener},
};
use stream::Stream;

/// The only method.
pub const PATH: &str = "/ProxyService/Proxy";

/// Receive window of a stream: what a client may have in flight towards a target that does not read.
const STREAM_WINDOW: u32 = 256 * 1024;

/// Receive window of a connection: so large that streams which stall cannot take it from the others.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// Streams that one connection may have open.
const MAX_STREAMS: u32 = 65_536;

/// A dial that ends is a stream that is reset; a client that works through many must not look like an attack.
const MAX_RESET_STREAMS: usize = 16_384;

/// Serves one HTTP/2 connection until its client leaves or, where `keepalive` is given, is dead.
pub async fn serve<S>(socket: S, core: Rc<Core>, tasks: Tasks, keepalive: Option<Duration>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    // grpc-go says the socket's path where `h2` wants a host.
    let handshake = builder().handshake::<_, Batch>(AuthorityRewriter::new(socket));
    let mut connection = match timeout(HEAD_TIMEOUT, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            core.metrics.refused(Listener::Frontend);
            return tracing::debug!(%error, "HTTP/2 handshake with a client failed");
        }
        Err(_) => {
            core.metrics.refused(Listener::Frontend);
            return tracing::debug!(
                "HTTP/2 handshake with a client took longer than {HEAD_TIMEOUT:?}"
            );
        }
    };
    let ping_pong = connection.ping_pong();
    let watch = async {
        match (keepalive, ping_pong) {
            (Some(interval), Some(ping_pong)) => {
                link::watch(
                    ping_pong,
                    Keepalive::new(interval, keepalive::TIMEOUT, Instant::now()),
                )
                .await;
            }
            _ => std::future::pending().await,
        }
    };
    tokio::pin!(watch);
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = &mut watch => {
                tracing::debug!("client answers no ping, connection dropped");
                return;
            }
        };
        match accepted {
            Some(Ok((request, respond))) => {
                let span = tracing::debug_span!("stream", id = respond.stream_id().as_u32());
                tasks.spawn(call(request, respond, core.clone()).instrument(span));
            }
            // grpc-go ends a connection without a word to HTTP/2: no error.
            Some(Err(error)) => return tracing::debug!(%error, "client's connection over"),
            None => return,
        }
    }
}

async fn call(request: Request<h2::RecvStream>, mut respond: SendResponse<Batch>, core: Rc<Core>) {
    let (head, body) = request.into_parts();
    if let Err(refusal) = grpc::check_request(&head, PATH) {
        core.metrics.refused(Listener::Frontend);
        tracing::debug!(
            path = head.uri.path(),
            status = refusal.status().as_u16(),
            "refused a call"
        );
        // An error means that the client has gone.
        return drop(respond.send_response(*refusal, true));
    }
    let Ok(send) = respond.send_response(grpc::response(), false) else {
        return;
    };
    let _gauge = Gauged::new(&core.metrics.proxy_streams);
    Stream::new(send, body, core).run().await;
}

fn builder() -> h2::server::Builder {
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_send_buffer_size(link::SEND_BUFFER)
        .data_frame_budget(link::SMALL_FRAME_BUDGET)
        .max_header_list_size(64 * 1024);
    builder
}
