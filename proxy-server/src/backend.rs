//! Agents: the listener they dial, and one agent's stream from its headers to its end.
//!
//! Identity comes first: nothing of a peer is read before its certificate has been verified. A connection is a tunnel,
//! whatever the agent calls itself. `admit` decides who may have one.

mod admit;
mod identity;

use std::{
    convert::Infallible,
    future::pending,
    io,
    net::SocketAddr,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use certs::Current;
use daemon::accept::AcceptBackoff;
use h2::server::SendResponse;
use http::{HeaderValue, Request, Response};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::Instrument as _;
use tunnel::{
    batch::Batch,
    conn::Role,
    credit,
    drain::Tasks,
    grpc::{self, Code, Status},
    keepalive::{self, Keepalive},
    link::{self, Link, LinkEnd},
    mux::{Event, Mux},
    observe::Observe,
    probe::Probe,
};

use crate::{
    dial::Core,
    frontend::{HANDSHAKE_TIMEOUT, HEAD_TIMEOUT, socket},
    metrics::{AgentObserver, Gauged, Listener, Segment, TunnelKind},
    registry::{Backend, PROBATION},
};
use admit::Admitted;
pub use admit::PeerIdentity;
pub use identity::Identity;

/// The only method.
pub const PATH: &str = "/AgentService/Connect";

/// `Connect` streams that one agent connection may have open; an agent opens one.
const MAX_STREAMS: u32 = 16;

/// What agents are told and how they are watched.
#[derive(Debug)]
pub struct Agents {
    core: Rc<Core>,
    tasks: Tasks,
    observer: Rc<AgentObserver>,
    server_id: HeaderValue,
    server_count: Arc<AtomicU32>,
    keepalive: Duration,
    identity: Identity,
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
        server_count: Arc<AtomicU32>,
        keepalive: Duration,
        identity: Identity,
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
        let handshake = link::server_builder()
            .max_concurrent_streams(MAX_STREAMS)
            .handshake::<_, Batch>(stream);
        let mut connection = match timeout(HEAD_TIMEOUT, handshake).await {
            Ok(Ok(connection)) => connection,
            // Load balancers open and drop connections all the time.
            Ok(Err(error)) => {
                return tracing::debug!(%error, "agent connection ended before HTTP/2");
            }
            Err(_) => {
                return tracing::debug!("agent connection sent no HTTP/2 within {HEAD_TIMEOUT:?}");
            }
        };
        let Some(ping_pong) = connection.ping_pong() else {
            return;
        };
        let probe = Probe::default();
        let watch = link::watch_probed(
            ping_pong,
            Keepalive::new(self.keepalive, keepalive::TIMEOUT, Instant::now()),
            &probe,
        );
        tokio::pin!(watch);
        loop {
            let accepted = tokio::select! {
                accepted = connection.accept() => accepted,
                () = &mut watch => {
                    tracing::warn!("agent answers no ping, its tunnel is dropped");
                    return;
                }
            };
            match accepted {
                Some(Ok((request, respond))) => {
                    let call = self
                        .clone()
                        .call(request, respond, peer.clone(), probe.clone());
                    self.tasks.spawn(call.in_current_span());
                }
                // The stream's task tells what it means.
                Some(Err(error)) => return tracing::debug!(%error, "agent connection over"),
                None => return,
            }
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
        if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            // As grpc-go does: without a word.
            tracing::debug!("peer did not offer ALPN h2");
            return None;
        }
        Some(stream)
    }

    async fn call(
        self: Rc<Self>,
        request: Request<h2::RecvStream>,
        mut respond: SendResponse<Batch>,
        peer: Rc<PeerIdentity>,
        probe: Probe,
    ) {
        let (head, body) = request.into_parts();
        let refusal = match grpc::check_request(&head, PATH) {
            Err(refusal) => *refusal,
            Ok(()) => match self.admit(&peer, &head.headers).await {
                Err(status) => {
                    tracing::warn!(%status, "refused an agent");
                    grpc::refusal(&status)
                }
                // Asked last, so that nobody is added to the registry after all have been told to leave.
                Ok(_) if self.core.stop.is_cancelled() => grpc::refusal(&Status::new(
                    Code::Unavailable,
                    "proxy server is shutting down",
                )),
                Ok(admitted) => {
                    let credit = credit::announced(&head.headers);
                    // At once: the agent waits for these headers.
                    let Ok(send) = respond.send_response(self.welcome(credit), false) else {
                        return;
                    };
                    let mux = self.mux(credit);
                    let peer = Some(peer.address.ip());
                    let Admitted {
                        agent, identifiers, ..
                    } = admitted;
                    let backend = Backend::new(agent, identifiers, peer, mux, probe);
                    let link = Link::new(backend.tunnel.clone(), send, body);
                    let _kind = self.core.metrics.tunnel(kind(credit));
                    return self.tunnel(backend, link).await;
                }
            },
        };
        self.core.metrics.refused(Listener::Agent);
        // An error means that the agent has gone.
        drop(respond.send_response(refusal, true));
    }

    /// What an agent hears that is admitted; `credit` is what it announced.
    fn welcome(&self, credit: Option<u32>) -> Response<()> {
        let mut response = grpc::response();
        let headers = response.headers_mut();
        headers.insert("serverid", self.server_id.clone());
        let count = self.server_count.load(Ordering::Relaxed);
        headers.insert("servercount", HeaderValue::from(count));
        if credit.is_some() {
            headers.insert(credit::HEADER, credit::announcement());
        }
        response
    }

    fn mux(&self, credit: Option<u32>) -> Rc<Mux> {
        let observer: Rc<dyn Observe> = self.observer.clone();
        let mux = Mux::new(Role::Server, self.core.ledger.clone(), observer);
        if let Some(window) = credit {
            mux.use_credit(window);
        }
        mux
    }

    async fn tunnel(&self, backend: Rc<Backend>, mut link: Link) {
        let _gauge = Gauged::new(&self.core.metrics.connect_streams);
        let agent = backend.agent.clone();
        let registered = self.core.registry.add(backend);
        tracing::info!(%agent, "agent connected");
        let run = link.run(|event| match event {
            Event::Drain => {
                tracing::info!(%agent, "agent drains: it gets no new dials while another agent is there");
                registered.drain();
            }
            // An agent's packets become no such event.
            Event::Dial { .. } | Event::CancelDial(_) => {}
        });
        let prove = async {
            sleep(PROBATION).await;
            registered.prove();
            pending::<Infallible>().await
        };
        let end = tokio::select! {
            biased;
            end = run => end,
            never = prove => match never {},
        };
        drop(registered);
        if let Some(code) = end.code() {
            self.core.metrics.stream_failed(Segment::FromAgent, code);
        }
        match &end {
            LinkEnd::Protocol(status) => {
                tracing::warn!(%agent, %status, "agent's tunnel ended: it broke the protocol");
                link.close(status);
            }
            LinkEnd::Peer(_) => {
                tracing::info!(%agent, "agent disconnected");
                link.close(&Status::ok());
            }
            end => tracing::info!(%agent, error = source(end), "agent's tunnel lost"),
        }
    }
}

fn kind(credit: Option<u32>) -> TunnelKind {
    match credit {
        Some(_) => TunnelKind::Credit,
        None => TunnelKind::Packet,
    }
}

fn source(error: &dyn std::error::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}
