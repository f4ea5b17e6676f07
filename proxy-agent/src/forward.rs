//! Connections of this node to targets of the control plane: taken at node-local listeners (`--forward`), carried through a tunnel
//! to a server, which allows or refuses them. Off unless the flag is given.
//!
//! A connection takes a tunnel whose server forwards. There is none, or the server refuses: it is closed at once, on TCP by a reset, so
//! that its client does not take it for a connection that its target has closed in order. A drained agent takes no more
//! connections, and waits for those that it has.

mod local;
mod told;

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use daemon::accept::AcceptBackoff;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument as _;
use tunnel::connection::Connection;
use tunnel::copy::{Options, copy};
use tunnel::drain::Tasks;

use crate::activity::Activity;
use crate::metrics::{ForwardFailure, Metrics};
pub use local::BindError;
pub(crate) use local::{Bound, Listener};
use local::{Client, Local};
use told::Told;

/// How long a connection may wait for a server's answer, another try after a lost tunnel included: what a server takes to dial
/// the target at most.
const OPEN_LIMIT: Duration = Duration::from_secs(15);

/// A server's words are logged up to this many characters.
const MAX_LOGGED_REASON: usize = 300;

/// Why a connection is not carried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OpenError {
    /// No tunnel, or none to a server that can do it.
    #[error("no tunnel to a server that forwards")]
    NoTunnel,
    /// The server's word, which may say anything.
    #[error("the server refused: {}", shortened(.0))]
    Refused(String),
    /// The tunnel went away before the server answered.
    #[error("the tunnel was lost before the server answered")]
    TunnelLost,
    /// [`OPEN_LIMIT`]
    #[error("no answer of the server within {OPEN_LIMIT:?}")]
    TimedOut,
    /// `--forward-max-connections`
    #[error("there are {0} connections already, see --forward-max-connections")]
    Full(usize),
}

impl OpenError {
    fn label(&self) -> ForwardFailure {
        match self {
            Self::NoTunnel => ForwardFailure::NoTunnel,
            Self::Refused(_) => ForwardFailure::Refused,
            Self::TunnelLost => ForwardFailure::TunnelLost,
            Self::TimedOut => ForwardFailure::Timeout,
            Self::Full(_) => ForwardFailure::Limit,
        }
    }
}

/// What opens connections to targets of the control plane: the tunnels of this agent.
pub(crate) trait Carry: 'static {
    /// A connection to the target that servers call `name`. Dropped before that, the server is told that nobody waits any more. Not
    /// bounded in time.
    fn open(&self, name: &str) -> impl Future<Output = Result<Connection, OpenError>>;
}

/// What connections of this node need, shared by all listeners.
#[derive(Debug)]
pub(crate) struct Forwarder<C> {
    /// Opens the other side.
    pub(crate) carry: C,
    /// Counts.
    pub(crate) metrics: Arc<Metrics>,
    /// Where listeners and connections run.
    pub(crate) tasks: Tasks,
    /// Connections are what a drained agent waits for.
    pub(crate) activity: Rc<Activity>,
    /// Connections at once, of all listeners.
    pub(crate) most: usize,
}

/// Where the connections of one listener go.
#[derive(Debug)]
struct Target {
    name: String,
    told: Told,
}

impl<C: Carry> Forwarder<C> {
    /// Takes connections at `listener` until the tasks are to stop.
    pub(crate) fn serve(self: &Rc<Self>, listener: Listener, name: String) {
        let target = Rc::new(Target {
            name,
            told: Told::default(),
        });
        let forwarder = self.clone();
        self.tasks.spawn(async move {
            let stop = forwarder.tasks.stop().clone();
            let accept = forwarder.accept(&listener, &target);
            // What stands in the listener's queue then is reset with it.
            stop.run_until_cancelled(accept).await;
        });
    }

    async fn accept(self: &Rc<Self>, listener: &Listener, target: &Rc<Target>) {
        let mut backoff = AcceptBackoff::default();
        loop {
            match listener.accept().await {
                Ok(client) => {
                    backoff.on_success();
                    match client {
                        Client::Tcp(socket) => self.take(target, socket),
                        Client::Unix(socket) => self.take(target, socket),
                    }
                }
                Err(error) => {
                    let was_pausing = backoff.is_pausing();
                    let pause = backoff.on_error(&error);
                    if !pause.is_zero() && !was_pausing {
                        tracing::warn!(target = target.name, %error, "cannot accept connections to forward, trying again");
                    }
                    sleep(pause).await;
                }
            }
        }
    }

    fn take<S: Local>(self: &Rc<Self>, target: &Rc<Target>, mut socket: S) {
        let span =
            tracing::debug_span!("forward", target = target.name, client = %socket.describe());
        let Some(open) = self.metrics.forward_within(self.most) else {
            span.in_scope(|| self.failed(target, &OpenError::Full(self.most)));
            socket.abort();
            return;
        };
        let busy = self.activity.begin();
        let (forwarder, target) = (self.clone(), target.clone());
        let carry = async move {
            let _under_way = (open, busy);
            forwarder.carry(&target, socket).await;
        };
        self.tasks.spawn(carry.instrument(span));
    }

    /// One connection, from its first moment to its end.
    async fn carry<S: Local>(&self, target: &Target, mut socket: S) {
        let opened = tokio::select! {
            biased;
            () = socket.gone() => {
                tracing::debug!("the client has gone before the server answered");
                return;
            }
            opened = timeout(OPEN_LIMIT, self.open(&target.name)) => {
                opened.unwrap_or(Err(OpenError::TimedOut))
            }
        };
        match opened {
            Ok(connection) => relay(socket, connection).await,
            Err(error) => {
                self.failed(target, &error);
                socket.abort();
            }
        }
    }

    /// Once more where nobody has said anything about the target.
    async fn open(&self, name: &str) -> Result<Connection, OpenError> {
        match self.carry.open(name).await {
            Err(OpenError::TunnelLost) => {
                tracing::debug!("the tunnel was lost, another one is tried");
                self.carry.open(name).await
            }
            opened => opened,
        }
    }

    fn failed(&self, target: &Target, error: &OpenError) {
        self.metrics.forward_failed(error.label());
        if target.told.is_news(error.label(), Instant::now()) {
            let reason = error.to_string();
            tracing::warn!(
                target = target.name,
                reason,
                "a connection of this node is not carried; repeats within {:?} are told at debug level",
                told::INTERVAL
            );
        } else {
            tracing::debug!(%error, "not carried");
        }
    }
}

async fn relay<S: Local>(socket: S, connection: Connection) {
    socket.tune();
    let started = Instant::now();
    let options = Options {
        watch_for_hang_up: true,
        ..Options::default()
    };
    let copied = Box::pin(copy(socket, connection, options)).await;
    tracing::debug!(
        from_client = copied.sent,
        to_client = copied.received,
        took = ?started.elapsed(),
        end = ?copied.end,
        "connection over"
    );
}

/// What can be logged.
fn shortened(reason: &str) -> String {
    let reason: String = reason.chars().take(MAX_LOGGED_REASON).collect();
    reason.escape_debug().to_string()
}

#[cfg(test)]
mod tests;
