//! The targets that one tunnel's server asks for: dial, copy, close.
//!
//! A dial is given up when the server gives it up or the tunnel is lost; a connection made meanwhile is closed. What is
//! established ends by its own rules, see [`tunnel::copy`].

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use egress_policy::Policy;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tracing::Instrument as _;
use tunnel::Tunnel;
use tunnel::connection::Connection;
use tunnel::copy::{Options, copy};
use tunnel::dial::{IncomingDial, Refusal};
use tunnel::drain::Tasks;

use crate::activity::Activity;
use crate::client::tcp_keepalive;
use crate::dial::{DialFailure, Resolver, Target, dial};
use crate::metrics::Metrics;

/// How long a dial may take, the name's resolution and every address included; upstream's.
pub(crate) const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// What the kernel may hold of a connection's bytes beyond what its target's window takes, in bytes. By default it is megabytes, which
/// for a thousand targets that read nothing is memory of the node that no budget counts.
const MAX_UNSENT: u32 = 128 * 1024;

/// Target addresses are logged up to this many characters.
const MAX_LOGGED_ADDRESS: usize = 300;

/// What dials need, shared by all tunnels.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    /// Resolves targets' names.
    pub(crate) resolver: Resolver,
    /// What may be dialled.
    pub(crate) policy: Rc<Policy>,
    /// Counts.
    pub(crate) metrics: Arc<Metrics>,
    /// Where dials and connections run.
    pub(crate) tasks: Tasks,
    /// Dials and connections under way.
    pub(crate) activity: Rc<Activity>,
    /// [`DIAL_LIMIT`], but for tests.
    pub(crate) limit: Duration,
}

/// The dials of one tunnel.
#[derive(Debug)]
pub(crate) struct Endpoints {
    dialer: Dialer,
    tunnel: Tunnel,
    /// Dials under way.
    dialling: Rc<Cell<usize>>,
}

impl Endpoints {
    /// Serves the dials of `tunnel`.
    pub(crate) fn new(dialer: Dialer, tunnel: Tunnel) -> Self {
        Self {
            dialer,
            tunnel,
            dialling: Rc::default(),
        }
    }

    /// Whether there is neither a dial nor a connection, and nothing of one that has yet to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.dialling.get() == 0 && self.connections() == 0 && !self.tunnel.has_outgoing()
    }

    /// Connections established now.
    pub(crate) fn connections(&self) -> usize {
        self.tunnel.connections()
    }

    /// Dials, and carries the connection to its end. Given up when the server does or the tunnel is lost.
    pub(crate) fn on_dial(&self, mut incoming: IncomingDial) {
        let address = incoming.address();
        let logged: String = address.chars().take(MAX_LOGGED_ADDRESS).collect();
        let dial = incoming.id().0;
        let span = tracing::debug_span!("dial", dial, target = %logged.escape_debug());
        let target = Target::parse(incoming.network(), address);
        let dialer = self.dialer.clone();
        let busy = self.dialer.activity.begin();
        let dialling = Dialling::new(&self.dialling);
        let serve = async move {
            let _busy = busy;
            let connected = tokio::select! {
                biased;
                () = incoming.cancelled() => {
                    tracing::debug!("dial given up");
                    return;
                }
                connected = dialer.dial(target) => connected,
            };
            drop(dialling);
            match connected {
                Ok((stream, address)) => dialer.establish(incoming, stream, address).await,
                Err(failure) => {
                    tracing::debug!(%failure, "dial failed");
                    dialer.metrics.dial_failed(failure.reason());
                    incoming.refuse(Refusal {
                        kind: failure.kind(),
                        text: failure.to_string(),
                    });
                }
            }
        };
        self.dialer.tasks.spawn(serve.instrument(span));
    }
}

/// A dial under way.
struct Dialling(Rc<Cell<usize>>);

impl Dialling {
    fn new(count: &Rc<Cell<usize>>) -> Self {
        count.update(|count| count + 1);
        Self(count.clone())
    }
}

impl Drop for Dialling {
    fn drop(&mut self) {
        self.0.update(|count| count.saturating_sub(1));
    }
}

impl Dialer {
    async fn dial(
        &self,
        target: Result<Target, DialFailure>,
    ) -> Result<(TcpStream, SocketAddr), DialFailure> {
        let started = Instant::now();
        let connected = dial(&self.resolver, &self.policy, &target?, self.limit).await?;
        self.metrics.dialled(started.elapsed());
        Ok(connected)
    }

    /// Tells the server, and copies until the connection is over.
    async fn establish(&self, incoming: IncomingDial, stream: TcpStream, address: SocketAddr) {
        tune(&stream);
        match incoming.accept() {
            Ok(connection) => self.relay(connection, stream, address).await,
            Err(error) => {
                tracing::debug!(%error, "closed a connection that the tunnel does not take")
            }
        }
    }

    async fn relay(&self, connection: Connection, stream: TcpStream, address: SocketAddr) {
        let _open = self.metrics.endpoint_opened();
        let conn = connection.id();
        let started = Instant::now();
        let copied = Box::pin(copy(stream, connection, Options::default())).await;
        tracing::debug!(
            conn = conn.0,
            %address,
            from_target = copied.sent,
            to_target = copied.received,
            took = ?started.elapsed(),
            end = ?copied.end,
            "connection over"
        );
    }
}

/// As Go's dialler leaves a socket, and [`MAX_UNSENT`]. What the kernel refuses is only worse, not wrong.
fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let tuned = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&tcp_keepalive()))
        .and_then(|()| socket.set_tcp_notsent_lowat(MAX_UNSENT));
    if let Err(error) = tuned {
        tracing::debug!(%error, "could not set the options of a socket to a target");
    }
}

#[cfg(test)]
mod tests;
