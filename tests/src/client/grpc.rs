//! gRPC, as upstream's client library speaks it (egress-selector.md 3.4).

mod call;
mod stream;

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, header};
use tokio::{task::JoinSet, time::timeout};
use tunnel::packet::{DialId, Packet};

use super::{DialFailure, Socket};
pub use call::{Call, End};
pub use stream::GrpcStream;

/// The only method of a frontend.
pub(super) const PROXY: &str = "/ProxyService/Proxy";

/// grpc-go gives a connection's window back as frames come in, whoever reads them. h2 does so as they are read, so that
/// one idle reader would stop all others of a shared connection: a window that is never used up stands in.
const CONNECTION_WINDOW: u32 = 1 << 30;

/// How long a connection may take for its last frames once nobody uses it.
const GOODBYE: Duration = Duration::from_secs(5);

/// A gRPC connection, on which every dial has a stream of its own.
///
/// It ends when the last of its handles and streams is dropped, without a goodbye.
#[derive(Clone, Debug)]
pub struct Connection {
    sender: SendRequest<Bytes>,
    driver: Arc<Driver>,
    scheme: &'static str,
}

/// The task that moves the connection's bytes.
#[derive(Debug, Default)]
struct Driver {
    tasks: Mutex<JoinSet<Result<(), h2::Error>>>,
}

impl Driver {
    /// Waits for the connection's last frames, if this is its last user.
    async fn finish(self: Arc<Self>) {
        let Some(driver) = Arc::into_inner(self) else {
            return;
        };
        let mut tasks = driver
            .tasks
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        // A connection that the server has closed first ends with an error, and nothing depends on it.
        timeout(GOODBYE, tasks.join_next()).await.ok();
    }
}

impl Connection {
    /// Begins HTTP/2 on `socket`; `is_plain` decides the scheme of requests.
    pub(super) async fn open(socket: Socket, is_plain: bool) -> Result<Self, DialFailure> {
        let (sender, connection) = h2::client::Builder::new()
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            .handshake(socket)
            .await
            .map_err(broken)?;
        let driver = Driver::default();
        driver
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .spawn(connection);
        Ok(Self {
            sender,
            driver: Arc::new(driver),
            scheme: if is_plain { "http" } else { "https" },
        })
    }

    /// Opens a stream and dials `target` on it. When `patience` is over, the dial is taken back with DIAL_CLS.
    ///
    /// # Errors
    /// [`DialFailure`].
    pub async fn dial(&self, target: &str, patience: Duration) -> Result<GrpcStream, DialFailure> {
        let mut call = self.call().await?;
        let dial = DialId(fastrand::i64(0..));
        call.send(&Packet::DialRequest {
            protocol: "tcp".into(),
            address: target.into(),
            dial,
        })
        .await
        .map_err(DialFailure::Connect)?;
        match timeout(patience, call.answer(dial)).await {
            Ok(answer) => {
                let conn = answer?;
                GrpcStream::established(call, conn)
            }
            Err(_) => {
                call.send(&Packet::CloseDial { dial })
                    .await
                    .map_err(DialFailure::Connect)?;
                call.finish().await;
                Err(DialFailure::NoAnswer(patience))
            }
        }
    }

    /// Opens a stream without dialling: to misbehave on.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn call(&self) -> Result<Call, DialFailure> {
        let request = self.request(PROXY).body(()).map_err(malformed)?;
        self.call_with(request).await
    }

    /// A request like grpc-go's, to be changed.
    pub fn request(&self, path: &str) -> http::request::Builder {
        Request::builder()
            .method(Method::POST)
            .uri(format!("{}://localhost{path}", self.scheme))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .header(header::USER_AGENT, "grpc-go/1.81.1")
    }

    /// Opens a stream with any request.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn call_with(&self, request: Request<()>) -> Result<Call, DialFailure> {
        let mut sender = self.sender.clone().ready().await.map_err(broken)?;
        let (response, send) = sender.send_request(request, false).map_err(broken)?;
        Ok(Call::new(response, send, Arc::clone(&self.driver)))
    }
}

fn broken(error: h2::Error) -> DialFailure {
    DialFailure::Connect(io_error(error))
}

fn malformed(error: http::Error) -> DialFailure {
    DialFailure::Malformed(error.to_string())
}

pub(super) fn io_error(error: h2::Error) -> io::Error {
    if error.is_io() {
        error
            .into_io()
            .unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())
    } else {
        io::Error::new(io::ErrorKind::ConnectionReset, error)
    }
}
