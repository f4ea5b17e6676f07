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
        let router = Arc::clone(&router);
        async move { Ok::<_, Infallible>(router.answer(&head).await) }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::StatusCode;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::super::router::text;
    use super::*;

    /// Time is paused in these tests: it jumps to the next timer whenever nobody has anything to do.
    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, accepted) = tokio::join!(
            TcpStream::connect(listener.local_addr().unwrap()),
            listener.accept()
        );
        (client.unwrap(), accepted.unwrap().0)
    }

    /// How long the server bears with a client that sends `bytes` and then does nothing.
    async fn borne(bytes: &[u8], router: Router) -> Duration {
        let (mut client, server) = pair().await;
        client.write_all(bytes).await.unwrap();
        let began = Instant::now();
        serve(server, Arc::new(router), CancellationToken::new()).await;
        began.elapsed()
    }

    fn is_about(took: Duration, want: Duration) -> bool {
        (want..want + Duration::from_secs(1)).contains(&took)
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_end_is_cut_off_in_time() {
        for head in [&b""[..], b"GET / HTTP/1.1\r\nhost:"] {
            let took = borne(head, Router::new()).await;
            assert!(is_about(took, HEAD_TIMEOUT), "{took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kept_connection_may_be_idle_for_as_long_as_a_head_may_take() {
        let took = borne(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", Router::new()).await;
        assert!(is_about(took, HEAD_TIMEOUT), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_cut_at_the_end_of_a_connections_life() {
        let large = Bytes::from(vec![b'x'; 64 << 20]); // more than the kernel buffers
        let router = Router::new().route("/", move |_| text(StatusCode::OK, large.clone()));
        let took = borne(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", router).await;
        assert!(is_about(took, MAX_CONNECTION_LIFE + CUT_AFTER), "{took:?}");
    }
}
