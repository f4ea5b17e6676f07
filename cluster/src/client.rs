//! Requests to the API server: in turn, within a time, with an answer of a bounded size.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, USER_AGENT},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::client::Body;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, timeout_at};

use crate::{
    connection::{ConfigError, Connection},
    error::{ApiError, Cause, Refusal, chain, one_line},
    limiter::{Limiter, TooLate},
    options::ClientOptions,
};

/// Attempts of one request: the API server can ask for patience by `Retry-After`, and credentials can have changed.
const ATTEMPTS: u32 = 3;

/// Credentials are read anew after a request that failed for want of them, at most this often.
const RELOAD_PAUSE: Duration = Duration::from_secs(10);

/// Largest answer that is one object, in bytes.
const MAX_OBJECT: usize = 256 * 1024;

/// Largest list, in bytes: some ten thousand Leases.
const MAX_LIST: usize = 16 * 1024 * 1024;

/// Largest event of a watch, in bytes.
const MAX_EVENT: usize = MAX_OBJECT;

/// A handle for requests; cheap to clone. Its futures have to run on the thread that it was made for, see
/// [`Thread`](crate::Thread).
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    options: ClientOptions,
    user_agent: HeaderValue,
    limiters: Limiters,
    current: Mutex<Current>,
}

struct Current {
    connection: Arc<Connection>,
    /// When credentials were last read again.
    reloaded: Option<Instant>,
}

/// As in client-go: one for all if a flag sets it, otherwise one for each API group.
struct Limiters {
    authentication: Arc<Limiter>,
    coordination: Arc<Limiter>,
}

/// An API group that we use.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Group {
    /// `authentication.k8s.io/v1`
    Authentication,
    /// `coordination.k8s.io/v1`
    Coordination,
}

/// A request to be made.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) group: Group,
    pub(crate) method: Method,
    /// Path and query, escaped.
    pub(crate) target: String,
    /// JSON, or nothing.
    pub(crate) body: Bytes,
}

impl Call {
    fn error(&self, cause: Cause) -> ApiError {
        ApiError {
            verb: self.verb,
            resource: self.resource,
            cause,
        }
    }

    /// With `body` as JSON.
    pub(crate) fn with_body(mut self, body: &impl Serialize) -> Result<Self, ApiError> {
        match serde_json::to_vec(body) {
            Ok(body) => self.body = body.into(),
            Err(error) => return Err(self.error(Cause::Malformed(chain(&error)))),
        }
        Ok(self)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Client").field(&self.0.options).finish()
    }
}

impl Client {
    /// Reads kubeconfig or service account; nothing is sent yet. Call on the runtime that requests are to run on. May run a
    /// credential plugin, and so block.
    ///
    /// # Errors
    /// [`ConfigError`], which names the file.
    pub async fn load(options: ClientOptions) -> Result<Self, ConfigError> {
        let connection = Arc::new(Connection::load(&options).await?);
        let authentication = Arc::new(Limiter::new(&options));
        let coordination = if options.qps == 0.0 {
            Arc::new(Limiter::new(&options))
        } else {
            authentication.clone()
        };
        let agent = format!(
            "{}/{} (Adit)",
            options.user_agent,
            env!("CARGO_PKG_VERSION")
        );
        Ok(Self(Arc::new(Inner {
            user_agent: HeaderValue::from_str(&agent)
                .unwrap_or_else(|_| HeaderValue::from_static("adit")),
            limiters: Limiters {
                authentication,
                coordination,
            },
            current: Mutex::new(Current {
                connection,
                reloaded: None,
            }),
            options,
        })))
    }

    /// Asks for one object. Cancel safe, but whether the API server has done it is open then.
    pub(crate) async fn object<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiError> {
        let body = self.fetch(&call, MAX_OBJECT).await?;
        parse(&body).map_err(|cause| call.error(cause))
    }

    /// The same for a list.
    pub(crate) async fn list<T: DeserializeOwned>(&self, call: Call) -> Result<T, ApiError> {
        let body = self.fetch(&call, MAX_LIST).await?;
        parse(&body).map_err(|cause| call.error(cause))
    }

    /// The same where the answer says no more than that it was done.
    pub(crate) async fn done(&self, call: Call) -> Result<(), ApiError> {
        self.fetch(&call, MAX_OBJECT).await.map(drop)
    }

    /// Starts a watch, which goes on until the API server ends it or it is dropped.
    pub(crate) async fn watch(&self, call: Call) -> Result<Events, ApiError> {
        let deadline = Instant::now() + self.0.options.deadline;
        let response = self
            .within(&call, deadline, self.attempts(&call, deadline))
            .await?;
        Ok(Events {
            verb: call.verb,
            resource: call.resource,
            body: response.into_body(),
            buffer: BytesMut::new(),
            searched: 0,
        })
    }

    async fn fetch(&self, call: &Call, limit: usize) -> Result<Bytes, ApiError> {
        let deadline = Instant::now() + self.0.options.deadline;
        let fetching = async {
            let response = self.attempts(call, deadline).await?;
            read(response.into_body(), limit).await
        };
        self.within(call, deadline, fetching).await
    }

    async fn within<T>(
        &self,
        call: &Call,
        deadline: Instant,
        future: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, ApiError> {
        match timeout_at(deadline, future).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(cause)) => Err(call.error(cause)),
            Err(_) => Err(call.error(Cause::TimedOut {
                after: self.0.options.deadline,
            })),
        }
    }

    async fn attempts(&self, call: &Call, deadline: Instant) -> Result<Response<Body>, Cause> {
        let mut attempt = 1;
        loop {
            let cause = match self.attempt(call, deadline).await {
                Ok(response) => return Ok(response),
                Err(cause) => cause,
            };
            let is_last = attempt >= ATTEMPTS;
            attempt += 1;
            match &cause {
                Cause::Status(refusal) if refusal.code == StatusCode::UNAUTHORIZED => {
                    if !self.reload().await || is_last {
                        return Err(cause);
                    }
                }
                Cause::Status(Refusal {
                    retry_after: Some(after),
                    ..
                }) => {
                    if is_last || Instant::now() + *after >= deadline {
                        return Err(cause);
                    }
                    sleep(*after).await;
                }
                Cause::Transport(_) => {
                    // The address or the authority may have changed; who asked tries again when it sees fit.
                    self.reload().await;
                    return Err(cause);
                }
                _ => return Err(cause),
            }
        }
    }

    async fn attempt(&self, call: &Call, deadline: Instant) -> Result<Response<Body>, Cause> {
        let limiter = match call.group {
            Group::Authentication => &self.0.limiters.authentication,
            Group::Coordination => &self.0.limiters.coordination,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        limiter
            .turn(left)
            .await
            .map_err(|TooLate { wait }| Cause::Limited { wait })?;
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(&call.target)
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, self.0.user_agent.clone());
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Body::from(call.body.clone()))
            .map_err(|error| Cause::Malformed(chain(&error)))?;
        let connection = self.current().connection.clone();
        let response = connection.send(request).await?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(Cause::Status(refusal(response).await))
        }
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Current> {
        self.0
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads kubeconfig or service account again, unless that was just done; whether it was now.
    async fn reload(&self) -> bool {
        {
            let mut current = self.current();
            if current
                .reloaded
                .is_some_and(|at| at.elapsed() < RELOAD_PAUSE)
            {
                return false;
            }
            // Already now, so that of many requests that fail at once one reads.
            current.reloaded = Some(Instant::now());
        }
        match Connection::load(&self.0.options).await {
            Ok(connection) => {
                self.current().connection = Arc::new(connection);
                tracing::debug!("read the credentials for the Kubernetes API again");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the credentials for the Kubernetes API again, the last ones serve on");
                false
            }
        }
    }
}

/// What `metav1.Status` says of an error.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct StatusWire {
    reason: String,
    message: String,
    code: Option<u16>,
}

async fn refusal(response: Response<Body>) -> Refusal {
    let code = response.status().as_u16();
    let retry_after = retry_after(response.headers());
    // An error whose text cannot be read is an error still.
    let body = read(response.into_body(), MAX_OBJECT)
        .await
        .unwrap_or_default();
    let status: StatusWire = serde_json::from_slice(&body).unwrap_or_default();
    Refusal {
        code,
        reason: one_line(&status.reason),
        message: one_line(&status.message),
        retry_after,
    }
}

/// Seconds only: the API server sends nothing else.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .parse::<u32>()
        .ok()?;
    Some(Duration::from_secs(seconds.into()))
}

async fn read(body: Body, limit: usize) -> Result<Bytes, Cause> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Cause::TooLarge { limit }),
        Err(error) => Err(Cause::Transport(chain(error.as_ref()))),
    }
}

/// The position of a mistake is told, never what is there: an answer can repeat a token.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Cause> {
    serde_json::from_slice(body).map_err(|error| {
        Cause::Malformed(format!(
            "{:?} at line {} column {} of {} bytes of JSON",
            error.classify(),
            error.line(),
            error.column(),
            body.len()
        ))
    })
}

/// What a watch tells.
#[derive(Debug, PartialEq)]
pub enum Event<T> {
    /// An object is there, or has changed.
    Applied(T),
    /// An object is gone; this was its last state.
    Deleted(T),
    /// Nothing is missing up to the version of this object, which has nothing else in it.
    Bookmark(T),
}

/// The events of a watch, as they come.
#[derive(Debug)]
pub(crate) struct Events {
    verb: &'static str,
    resource: &'static str,
    body: Body,
    buffer: BytesMut,
    /// So much of the buffer has no end of a line.
    searched: usize,
}

#[derive(Deserialize)]
struct EventType<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
}

#[derive(Deserialize)]
struct EventObject<T> {
    object: T,
}

impl Events {
    /// The next one, or nothing when the API server has ended the watch, as it does from time to time. Cancel safe.
    ///
    /// # Errors
    /// What ended the watch; there is no next one.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<Event<T>>, ApiError> {
        loop {
            if let Some(line) = self.line() {
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return match event(&line) {
                    Ok(Some(event)) => Ok(Some(event)),
                    // A kind that is newer than we are.
                    Ok(None) => continue,
                    Err(cause) => Err(self.error(cause)),
                };
            }
            if self.buffer.len() > MAX_EVENT {
                return Err(self.error(Cause::TooLarge { limit: MAX_EVENT }));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(self.error(Cause::Transport(chain(&error)))),
            }
        }
    }

    fn line(&mut self) -> Option<BytesMut> {
        let unsearched = self.buffer.get(self.searched..)?;
        match unsearched.iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let line = self.buffer.split_to(self.searched + at + 1);
                self.searched = 0;
                Some(line)
            }
            None => {
                self.searched = self.buffer.len();
                None
            }
        }
    }

    fn error(&self, cause: Cause) -> ApiError {
        ApiError {
            verb: self.verb,
            resource: self.resource,
            cause,
        }
    }
}

fn event<T: DeserializeOwned>(line: &[u8]) -> Result<Option<Event<T>>, Cause> {
    let kind: EventType<'_> = serde_json::from_slice(line)
        .map_err(|_| Cause::Malformed("an event of no type".to_owned()))?;
    let object = || parse::<EventObject<T>>(line).map(|event| event.object);
    Ok(Some(match kind.kind {
        "ADDED" | "MODIFIED" => Event::Applied(object()?),
        "DELETED" => Event::Deleted(object()?),
        "BOOKMARK" => Event::Bookmark(object()?),
        "ERROR" => {
            let status = parse::<EventObject<StatusWire>>(line)?.object;
            return Err(Cause::Status(Refusal {
                code: status.code.unwrap_or(500),
                reason: one_line(&status.reason),
                message: one_line(&status.message),
                retry_after: None,
            }));
        }
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests;
