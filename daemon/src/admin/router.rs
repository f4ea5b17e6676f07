//! Paths, handlers and the few kinds of response, byte for byte those of Go's `net/http` where upstream's clients see
//! them.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::Full;
use prometheus::{Registry, TextEncoder};

/// What upstream sends with every body but metrics.
pub const TEXT_CONTENT_TYPE: &str = "text/plain; charset=utf-8";

/// The Prometheus text format.
pub const METRICS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

type Handler = Box<dyn Fn(&Parts) -> Response<Full<Bytes>> + Send + Sync>;

type Answer = Pin<Box<dyn Future<Output = Response<Full<Bytes>>> + Send>>;

type SlowHandler = Box<dyn Fn(&Parts) -> Answer + Send + Sync>;

/// Handlers by exact path. As with upstream, the method is not looked at (wire-protocol.md 8), and every other path is
/// [`not_found`].
#[derive(Default)]
pub struct Router {
    routes: BTreeMap<String, Handler>,
    below: BTreeMap<String, Handler>,
    slow: BTreeMap<String, SlowHandler>,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.routes.keys().chain(self.slow.keys());
        f.debug_set()
            .entries(paths)
            .entries(self.below.keys().map(|prefix| format!("{prefix}*")))
            .finish()
    }
}

impl Router {
    /// A router without paths.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a path, which begins with `/`, or replaces its handler. A handler sees the request's head, must not block,
    /// and answers on the server's one thread.
    #[must_use]
    pub fn route<H>(mut self, path: &str, handler: H) -> Self
    where
        H: Fn(&Parts) -> Response<Full<Bytes>> + Send + Sync + 'static,
    {
        self.routes.insert(path.to_owned(), Box::new(handler));
        self
    }

    /// Adds a handler for every path that begins with `prefix` and has none of its own.
    #[must_use]
    pub fn route_below<H>(mut self, prefix: &str, handler: H) -> Self
    where
        H: Fn(&Parts) -> Response<Full<Bytes>> + Send + Sync + 'static,
    {
        self.below.insert(prefix.to_owned(), Box::new(handler));
        self
    }

    /// Adds a path whose answer takes its time, at most as long as a connection lives
    /// ([`MAX_CONNECTION_LIFE`](super::MAX_CONNECTION_LIFE)); it is dropped if the client goes away.
    #[must_use]
    pub fn slow_route<H, A>(mut self, path: &str, handler: H) -> Self
    where
        H: Fn(&Parts) -> A + Send + Sync + 'static,
        A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let boxed: SlowHandler = Box::new(move |head| Box::pin(handler(head)));
        self.slow.insert(path.to_owned(), boxed);
        self
    }

    /// The response to a request.
    pub async fn answer(&self, head: &Parts) -> Response<Full<Bytes>> {
        match self.slow.get(head.uri.path()) {
            Some(handler) => handler(head).await,
            None => self.respond(head),
        }
    }

    /// The response to a request whose path is no [`slow_route`](Self::slow_route).
    pub fn respond(&self, head: &Parts) -> Response<Full<Bytes>> {
        let path = head.uri.path();
        let below = || {
            let mut handlers = self.below.iter();
            handlers.find_map(|(prefix, handler)| path.starts_with(prefix).then_some(handler))
        };
        self.routes
            .get(path)
            .or_else(below)
            .map_or_else(not_found, |handler| handler(head))
    }
}

/// Whether a request asks for details: `?verbose`, with any value, as Kubernetes' health endpoints have it.
pub fn is_verbose(head: &Parts) -> bool {
    head.uri.query().unwrap_or_default().split('&').any(|pair| {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        name == "verbose"
    })
}

/// A body of plain text, as given: upstream's bodies have no line feed of their own.
pub fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    typed(status, TEXT_CONTENT_TYPE, body)
}

/// Go's answer to a path that nobody serves.
pub fn not_found() -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::NOT_FOUND, "404 page not found\n");
    response
        .headers_mut()
        .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Go's `http.Redirect` with 301: the target in `Location` and, for a person, as a link. A location that no header can
/// carry, which only a client's own odd `Host` leads to, is a 400.
pub fn moved_permanently(location: &str) -> Response<Full<Bytes>> {
    let Ok(value) = HeaderValue::from_str(location) else {
        return text(StatusCode::BAD_REQUEST, "400 Bad Request");
    };
    let body = format!(
        "<a href=\"{}\">Moved Permanently</a>.\n\n",
        escape(location)
    );
    let mut response = typed(
        StatusCode::MOVED_PERMANENTLY,
        "text/html; charset=utf-8",
        body,
    );
    response.headers_mut().insert(LOCATION, value);
    response
}

/// A handler that renders everything in `registry` in the text format.
pub fn metrics_handler(
    registry: &Registry,
) -> impl Fn(&Parts) -> Response<Full<Bytes>> + Send + Sync + use<> {
    let registry = registry.clone();
    move |_| match TextEncoder::new().encode_to_string(&registry.gather()) {
        Ok(body) => typed(StatusCode::OK, METRICS_CONTENT_TYPE, body),
        Err(error) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("cannot encode metrics: {error}\n"),
        ),
    }
}

fn typed(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// For text within an HTML attribute.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}
