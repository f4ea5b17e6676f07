//! HTTPS, and from a request to its answer.

use std::{
    convert::Infallible,
    net::TcpListener,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Result;
use bytes::Bytes;
use certs::{Identity, TlsOptions};
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::{
    body::{Body, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_rustls::TlsAcceptor;

use super::{
    Fault, Resource,
    fault::reason,
    lease::{Answer, Selector},
    request::Target,
    state::Shared,
    token,
};

/// Largest request body, in bytes.
const MAX_BODY: usize = 1024 * 1024;

/// An answer's body: at once, or line by line.
type Reply = Response<Either<Full<Bytes>, Lines>>;

/// The connection is to end without an answer.
#[derive(Debug, thiserror::Error)]
#[error("closed on purpose")]
struct Closed;

pub(super) fn acceptor(identity: &Identity) -> Result<TlsAcceptor> {
    let config = certs::server_config(identity, None, &[b"http/1.1"], &TlsOptions::default())?;
    Ok(TlsAcceptor::from(config))
}

/// Serves until `stopped`.
pub(super) async fn serve(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    let (acceptor, shared) = (acceptor.clone(), shared.clone());
                    connections.spawn(async move {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            let service = service_fn(move |request| answer(request, shared.clone()));
                            let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                            // How it ended is the client's business.
                            drop(serving.await);
                        }
                    });
                }
            }
        }
    }
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Reply, Closed> {
    let (head, body) = request.into_parts();
    let Some(target) = Target::parse(&head.method, &head.uri) else {
        return Ok(error(
            404,
            "the server could not find the requested resource",
        ));
    };
    shared.change(|state| state.requested(target.verb, target.resource));
    let given = head.headers.get(header::AUTHORIZATION);
    let wanted = shared.look(|state| format!("Bearer {}", state.credentials));
    if given.is_none_or(|given| given.as_bytes() != wanted.as_bytes()) {
        return Ok(error(401, "Unauthorized"));
    }
    if let Some(reply) = suffer(&target, &shared).await? {
        return Ok(reply);
    }
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Ok(error(400, "the body cannot be read")),
    };
    let body = if body.is_empty() {
        Value::Null
    } else {
        match serde_json::from_slice(&body) {
            Ok(body) if is_object(&body) => body,
            _ => return Ok(error(400, "the body is no JSON of an object")),
        }
    };
    if target.verb == "watch" {
        return Ok(match watch(target, shared) {
            Ok(lines) => Response::new(Either::Right(lines)),
            Err((code, message)) => error(code, &message),
        });
    }
    Ok(match shared.change(|state| apply(state, &target, body)) {
        Ok((code, value)) => json_reply(code, &value),
        Err((code, message)) => error(code, &message),
    })
}

fn is_object(body: &Value) -> bool {
    let parts = ["metadata", "spec"].map(|name| body.get(name));
    body.is_object() && parts.into_iter().flatten().all(Value::is_object)
}

fn apply(state: &mut super::state::State, target: &Target, body: Value) -> Answer {
    let (namespace, name) = (target.namespace.as_str(), target.name.as_str());
    match (target.resource, target.verb) {
        (Resource::TokenReviews, _) => Ok((201, token::review(state, body))),
        (_, "create") => state.leases.create(namespace, body),
        (_, "get") => state.leases.get(namespace, name),
        (_, "update") => state.leases.update(namespace, name, body),
        (_, "delete") => state.leases.delete(namespace, name, &body),
        (_, "list") => Ok(state.leases.list(namespace, &selector(target)?)),
        (_, verb) => Err((405, format!("{verb} is not for here"))),
    }
}

fn selector(target: &Target) -> Result<Selector, (u16, String)> {
    let text = target.query.get("labelSelector");
    Selector::parse(text.map_or("", String::as_str))
}

/// What the current fault makes of the request; none: it goes on.
async fn suffer(target: &Target, shared: &Shared) -> Result<Option<Reply>, Closed> {
    let fault = shared.look(|state| state.faults.get(&target.resource).copied());
    Ok(match fault {
        None => None,
        Some(Fault::Status(code)) => Some(error(code, "so the test wants it")),
        Some(Fault::TooMany(after)) => {
            let mut reply = error(429, "too many requests, please try again later");
            let seconds = header::HeaderValue::from(after.as_secs());
            reply.headers_mut().insert(header::RETRY_AFTER, seconds);
            Some(reply)
        }
        Some(Fault::Hang) => {
            let mut changes = shared.changes();
            while shared.look(|state| state.faults.get(&target.resource) == Some(&Fault::Hang)) {
                if changes.changed().await.is_err() {
                    return Err(Closed);
                }
            }
            None
        }
        Some(Fault::Slow(time)) => {
            sleep(time).await;
            None
        }
        Some(Fault::Close) => return Err(Closed),
        Some(Fault::Nonsense) => Some(reply(200, Bytes::from_static(b"{\"kind\": \"Tok"))),
        Some(Fault::Huge(bytes)) => Some(json_reply(
            200,
            &json!({"kind": "List", "filler": "x".repeat(bytes)}),
        )),
    })
}

fn watch(target: Target, shared: Arc<Shared>) -> Result<Lines, (u16, String)> {
    let selector = selector(&target)?;
    let bookmarks = target
        .query
        .get("allowWatchBookmarks")
        .is_some_and(|value| value == "true");
    let seconds = target
        .query
        .get("timeoutSeconds")
        .and_then(|value| value.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(1800));
    let newest = shared.look(|state| state.leases.version());
    let mut at = match target.query.get("resourceVersion").map(String::as_str) {
        None | Some("" | "0") => newest,
        Some(version) => version
            .parse()
            .map_err(|_| (400, format!("resourceVersion: {version:?}")))?,
    };
    let (sender, lines) = mpsc::channel(16);
    // The reply's body holds the receiver; when the client goes, this ends.
    let telling = async move {
        let _counted = Counted::new(shared.clone());
        let mut changes = shared.changes();
        loop {
            changes.borrow_and_update();
            let events = shared.look(|state| {
                state
                    .leases
                    .events_after(at, &target.namespace, &selector, bookmarks)
            });
            let (next, text, is_last) = match events {
                Ok((next, text)) => (next, text, false),
                Err(text) => (at, text, true),
            };
            at = next;
            let sent = text.is_empty() || sender.send(Bytes::from(text)).await.is_ok();
            if is_last || !sent {
                break;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = sender.closed() => break,
                () = sleep_until(end) => break,
            }
        }
    };
    Ok(Lines {
        lines,
        telling: Some(Box::pin(telling)),
    })
}

/// A watch under way.
struct Counted(Arc<Shared>);

impl Counted {
    fn new(shared: Arc<Shared>) -> Self {
        shared.change(|state| state.watches += 1);
        Self(shared)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.change(|state| state.watches -= 1);
    }
}

/// A body that is written as things happen; it drives what writes it.
struct Lines {
    lines: mpsc::Receiver<Bytes>,
    telling: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(telling) = &mut self.telling
            && telling.as_mut().poll(cx).is_ready()
        {
            self.telling = None;
        }
        match self.lines.poll_recv(cx) {
            Poll::Ready(line) => Poll::Ready(line.map(|line| Ok(Frame::data(line)))),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// `metav1.Status`.
pub(super) fn status(code: u16, message: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason(code),
        "code": code,
    })
}

fn error(code: u16, message: &str) -> Reply {
    json_reply(code, &status(code, message))
}

fn json_reply(code: u16, value: &Value) -> Reply {
    reply(code, Bytes::from(value.to_string()))
}

fn reply(code: u16, body: Bytes) -> Reply {
    let mut reply = Response::new(Either::Left(Full::new(body)));
    *reply.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    let json = header::HeaderValue::from_static("application/json");
    reply.headers_mut().insert(header::CONTENT_TYPE, json);
    reply
}
