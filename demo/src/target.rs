//! What lies behind the agents: a small HTTP server that knows a word nobody else knows.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
};

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{Method, Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// The server, until it is dropped.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// In every answer to a GET: who has it has talked to this server.
    word: String,
    _serving: AbortOnDropHandle<()>,
}

impl Target {
    pub(crate) async fn start(tasks: &TaskTracker) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("bind the target")?;
        let address = listener.local_addr().context("bind the target")?;
        let word = format!("{:016x}", fastrand::u64(..));
        let serving = tasks.spawn_local(serve(listener, word.clone(), tasks.clone()));
        Ok(Self {
            address,
            word,
            _serving: AbortOnDropHandle::new(serving),
        })
    }

    /// Whether `answer` came from here.
    pub(crate) fn is_greeting(&self, answer: &[u8]) -> bool {
        String::from_utf8_lossy(answer).contains(&self.word)
    }
}

async fn serve(listener: TcpListener, word: String, tasks: TaskTracker) {
    while let Ok((socket, _)) = listener.accept().await {
        let word = word.clone();
        let service = service_fn(move |request| {
            std::future::ready(Ok::<_, Infallible>(answer(request, &word)))
        });
        let connection = http1::Builder::new().serve_connection(TokioIo::new(socket), service);
        // A client that goes away is none of the target's business.
        tasks.spawn_local(async move { drop(connection.await) });
    }
}

/// A greeting for a GET, the request's own body for anything else.
fn answer(request: Request<Incoming>, word: &str) -> Response<BoxBody<Bytes, hyper::Error>> {
    Response::new(if request.method() == Method::GET {
        let greeting = format!("hello from behind the agent; the word is {word}\n");
        Full::from(greeting).map_err(|never| match never {}).boxed()
    } else {
        request.into_body().boxed()
    })
}
