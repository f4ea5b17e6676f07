//! Agents: the listener they dial, and one agent's tunnel from its first word to its end.
//!
//! Identity comes first: nothing of a peer is read before its certificate has been verified. A connection is a tunnel,
//! whatever the agent calls itself. By ALPN it is a packet tunnel (`packet`) or a stream tunnel (`stream`); `admit` decides who may
//! have one, and `carry` runs either.

mod admit;
mod carry;
mod count;
mod identity;
mod packet;
mod stream;

use std::{io, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use certs::Current;
use daemon::accept::AcceptBackoff;
use http::HeaderValue;
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::Instrument as _;
use tunnel::{drain::Tasks, stream as stream_tunnel};

use crate::{
    dial::Core,
    forward::Forwarder,
    frontend::{HANDSHAKE_TIMEOUT, socket},
    metrics::{AgentObserver, Listener},
};
pub use admit::PeerIdentity;
pub use count::ServerCount;
pub use identity::Identity;
pub use packet::PATH;

/// What agents are told and how they are watched.
#[derive(Debug)]
pub struct Agents {
    core: Rc<Core>,
    tasks: Tasks,
    observer: Rc<AgentObserver>,
    server_id: HeaderValue,
    server_count: ServerCount,
    keepalive: Duration,
    identity: Identity,
    forwarder: Rc<Forwarder>,
}

/// A server id that cannot be sent as a header.
#[derive(Debug, thiserror::Error)]
#[error("--server-id {0:?} has characters that cannot be sent to agents")]
pub struct InvalidServerId(String);

impl Agents {
    /// Serves agents of `core`; connections run on `tasks`. Each `Connect` is told what `server_count` holds then, and admitted
    /// only by `identity`.
    ///
    /// # Errors
    /// [`InvalidServerId`]
    pub fn new(
        core: Rc<Core>,
        tasks: Tasks,
        server_id: &str,
        server_count: ServerCount,
        keepalive: Duration,
        identity: Identity,
        forwarder: Rc<Forwarder>,
    ) -> Result<Rc<Self>, InvalidServerId> {
        let observer = Rc::new(AgentObserver::new(core.metrics.clone()));
        let invalid = |_| InvalidServerId(server_id.to_owned());
        let server_id = HeaderValue::from_str(server_id).map_err(invalid)?;
        Ok(Rc::new(Self {
            core,
            tasks,
            observer,
            server_id,
            server_count,
            keepalive,
            identity,
            forwarder,
        }))
    }

    /// Accepts agents until the core stops. Each handshake is made with what `tls` holds when the agent comes.
    pub async fn serve(self: Rc<Self>, listener: TcpListener, tls: Current<Arc<ServerConfig>>) {
        let mut backoff = AcceptBackoff::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.core.stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    backoff.on_success();
                    let span = tracing::info_span!("agent", %peer);
                    let acceptor = TlsAcceptor::from(tls.current());
                    let serving = self.clone().connection(stream, peer, acceptor);
                    self.tasks.spawn(serving.instrument(span));
                }
                Err(error) => {
                    let was_pausing = backoff.is_pausing();
                    let pause = backoff.on_error(&error);
                    if !pause.is_zero() && !was_pausing {
                        tracing::warn!(%error, "cannot accept agents, trying again");
                    }
                    sleep(pause).await;
                }
            }
        }
    }

    /// Tells agents of each other number of servers, until the core stops.
    pub async fn announce_count(self: Rc<Self>) {
        let mut count = self.server_count.clone();
        loop {
            tokio::select! {
                () = self.core.stop.cancelled() => return,
                count = count.changed() => {
                    tracing::info!(count, "another number of servers");
                    self.core.registry.send_server_count(count);
                }
            }
        }
    }

    async fn connection(
        self: Rc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        acceptor: TlsAcceptor,
    ) {
        let Some(stream) = self.handshake(stream, acceptor).await else {
            return;
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let peer = Rc::new(PeerIdentity {
            address,
            certificates: certificates.unwrap_or_default().to_vec(),
        });
        match stream.get_ref().1.alpn_protocol() {
            Some(alpn) if alpn == stream_tunnel::ALPN => self.serve_stream(stream, peer).await,
            Some(b"h2") => self.serve_packets(stream, peer).await,
            // As grpc-go does: without a word.
            _ => tracing::debug!("peer offered neither ALPN h2 nor adit/1"),
        }
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        acceptor: TlsAcceptor,
    ) -> Option<TlsStream<TcpStream>> {
        if let Err(error) = socket::tune(&stream) {
            tracing::debug!(%error, "peer went away before the handshake");
            return None;
        }
        let stream = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                tracing::debug!("peer closed during the TLS handshake");
                return None;
            }
            Ok(Err(error)) => {
                self.core.metrics.refused(Listener::Agent);
                tracing::warn!(%error, "TLS handshake with an agent failed");
                return None;
            }
            Err(_) => {
                self.core.metrics.refused(Listener::Agent);
                tracing::debug!(
                    "TLS handshake with an agent took longer than {HANDSHAKE_TIMEOUT:?}"
                );
                return None;
            }
        };
        Some(stream)
    }
}
