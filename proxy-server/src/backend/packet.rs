//! The packet tunnel, upstream's: one gRPC call over HTTP/2 carries all connections.

use std::rc::Rc;

use h2::server::SendResponse;
use http::{HeaderValue, Request, Response};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::server::TlsStream;
use tracing::Instrument as _;
use tunnel::{
    batch::Batch,
    conn::Role,
    credit,
    grpc::{self, Code, Status},
    keepalive::{self, Keepalive},
    link::{self, Link},
    mux::Mux,
    observe::Observe,
    probe::Probe,
};

use super::{Agents, PeerIdentity, admit::Admitted, carry::Carrier};
use crate::{frontend::HEAD_TIMEOUT, metrics::Listener, registry::Backend};

/// The only method.
pub const PATH: &str = "/AgentService/Connect";

/// `Connect` streams that one agent connection may have open; an agent opens one.
const MAX_STREAMS: u32 = 16;

impl Agents {
    /// An agent that speaks HTTP/2, until its connection ends.
    pub(super) async fn serve_packets(
        self: Rc<Self>,
        stream: TlsStream<TcpStream>,
        peer: Rc<PeerIdentity>,
    ) {
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
                        agent,
                        identifiers,
                        names,
                    } = admitted;
                    let backend = Backend::new(agent, identifiers, peer, mux.clone(), probe);
                    let carrier = Carrier::Packet(Link::new(mux, send, body));
                    return self.carry(backend, carrier, names).await;
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
        let count = self.server_count.configured();
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
}
