//! The targets that one tunnel's server asks for: dial, copy, close.
//!
//! A dial is given up when the server gives it up or the tunnel is lost; a connection made meanwhile is closed. What is
//! established ends by its own rules, see [`tunnel::copy`].

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use egress_policy::Policy;
use socket2::SockRef;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use tunnel::copy::{Options, copy};
use tunnel::drain::Tasks;
use tunnel::mux::{Connection, Event, MAX_PENDING_DIALS, Mux};
use tunnel::observe::Limit;
use tunnel::packet::DialId;

use crate::activity::Activity;
use crate::client::tcp_keepalive;
use crate::dial::{DialFailure, Resolver, Target, dial};
use crate::metrics::Metrics;

/// How long a dial may take, the name's resolution and every address included; upstream's.
pub(crate) const DIAL_LIMIT: Duration = Duration::from_secs(5);

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

/// The dials of one tunnel. Dropped, it gives up those under way.
#[derive(Debug)]
pub(crate) struct Endpoints {
    dialer: Dialer,
    mux: Rc<Mux>,
    pending: Pending,
    lost: CancellationToken,
}

/// Dials under way, by what gives them up.
type Pending = Rc<RefCell<hashbrown::HashMap<DialId, CancellationToken>>>;

impl Endpoints {
    /// Serves the dials of `mux`.
    pub(crate) fn new(dialer: Dialer, mux: Rc<Mux>) -> Self {
        Self {
            dialer,
            mux,
            pending: Pending::default(),
            lost: CancellationToken::new(),
        }
    }

    /// Acts on what the tunnel cannot do itself.
    pub(crate) fn on_event(&self, event: Event) {
        match event {
            Event::Dial {
                dial,
                protocol,
                address,
            } => self.on_dial(dial, &protocol, &address),
            Event::CancelDial(dial) => {
                if let Some(cancel) = self.pending.borrow().get(&dial) {
                    cancel.cancel();
                }
            }
            // The tunnel's affair, not a target's.
            Event::Drain => {}
        }
    }

    /// Whether there is neither a dial nor a connection, and nothing of one that has yet to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.borrow().is_empty() && self.connections() == 0 && !self.mux.has_outgoing()
    }

    /// Connections established now.
    pub(crate) fn connections(&self) -> usize {
        self.mux.connections()
    }

    fn on_dial(&self, dial: DialId, network: &str, address: &str) {
        let mut pending = self.pending.borrow_mut();
        if pending.len() >= MAX_PENDING_DIALS {
            self.dialer.metrics.limited(Limit::PendingDials);
            self.mux.refuse(
                dial,
                format!("dial {network}: too many dials in progress on this agent"),
            );
            return;
        }
        if pending.contains_key(&dial) {
            // Its answer would be taken for that of the first.
            tracing::debug!(
                dial = dial.0,
                "ignored a second dial under an id that is being dialled"
            );
            return;
        }
        let cancel = self.lost.child_token();
        pending.insert(dial, cancel.clone());
        drop(pending);
        let entry = Entry {
            pending: self.pending.clone(),
            dial,
        };
        let logged: String = address.chars().take(MAX_LOGGED_ADDRESS).collect();
        let span = tracing::debug_span!("dial", dial = dial.0, target = %logged.escape_debug());
        let target = Target::parse(network, address);
        let (dialer, mux) = (self.dialer.clone(), self.mux.clone());
        let busy = self.dialer.activity.begin();
        let serve = async move {
            let _busy = busy;
            let connected = cancel.run_until_cancelled(dialer.dial(target)).await;
            drop(entry);
            match connected {
                Some(Ok((stream, address))) => dialer.establish(&mux, dial, stream, address).await,
                Some(Err(failure)) => {
                    tracing::debug!(%failure, "dial failed");
                    dialer.metrics.dial_failed(failure.reason());
                    mux.refuse(dial, failure.to_string());
                }
                None => tracing::debug!("dial given up"),
            }
        };
        self.dialer.tasks.spawn(serve.instrument(span));
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.lost.cancel();
    }
}

/// Forgets a dial when it is over.
struct Entry {
    pending: Pending,
    dial: DialId,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.pending.borrow_mut().remove(&self.dial);
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
    async fn establish(&self, mux: &Rc<Mux>, dial: DialId, stream: TcpStream, address: SocketAddr) {
        tune(&stream);
        match mux.accept(dial) {
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

/// As Go's dialler leaves a socket. What the kernel refuses is only worse, not wrong.
fn tune(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let tuned = socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&tcp_keepalive()));
    if let Err(error) = tuned {
        tracing::debug!(%error, "could not set the options of a socket to a target");
    }
}

#[cfg(test)]
mod tests;
