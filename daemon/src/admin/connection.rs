//! One admin connection, from accept to close.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::router::Router;
use super::{CUT_AFTER, HEAD_TIMEOUT, MAX_CONNECTION_LIFE, MAX_HEAD_BYTES};

/// Serves requests until the client closes, a limit of the parent module is reached or `shutdown` is cancelled.
pub(super) async fn serve(socket: TcpStream, router: Arc<Router>, shutdown: CancellationToken) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (head, _unread_body) = request.into_parts();
        let response = router.respond(&head);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(socket), service)
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => finish(connection).await,
        () = sleep(MAX_CONNECTION_LIFE) => finish(connection).await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an admin connection ended early");
    }
}

type Http<S> = http1::Connection<TokioIo<TcpStream>, S>;

/// Lets the response under way end, within [`CUT_AFTER`].
async fn finish<S, B>(mut connection: std::pin::Pin<&mut Http<S>>) -> hyper::Result<()>
where
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: hyper::body::Body + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    connection.as_mut().graceful_shutdown();
    timeout(CUT_AFTER, connection).await.unwrap_or(Ok(()))
}
