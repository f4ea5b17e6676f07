//! Agents: the listener they dial, and one agent's stream from its headers to its end.
//!
//! Identity comes first: nothing of a peer is read before its certificate has been verified. A connection is a tunnel,
//! whatever the agent calls itself.

use std::{io, net::SocketAddr, rc::Rc, sync::Arc, time::Duration};

use certs::Current;
use daemon::accept::AcceptBackoff;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request};
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
};

use crate::{
    dial::Core,
    frontend::{HANDSHAKE_TIMEOUT, HEAD_TIMEOUT, socket},
    metrics::{AgentObserver, Gauged, Listener, Segment},
    registry::{AgentId, Backend},
};

/// The only method.
pub const PATH: &str = "/AgentService/Connect";

/// `Connect` streams that one agent connection may have open; an agent opens one.
const MAX_STREAMS: u32 = 16;

/// Longest agent id that is taken, in bytes.
const MAX_AGENT_ID: usize = 256;

/// What agents are told and how they are watched.
#[derive(Debug)]
pub struct Agents {
    core: Rc<Core>,
    tasks: Tasks,
    observer: Rc<AgentObserver>,
    server_id: HeaderValue,
    server_count: HeaderValue,
    keepalive: Duration,
}

/// A server id that cannot be sent as a header.
#[derive(Debug, thiserror::Error)]
#[error("--server-id {0:?} has characters that cannot be sent to agents")]
pub struct InvalidServerId(String);

impl Agents {
    /// Serves agents of `core`; connections run on `tasks`.
    ///
    /// # Errors
    /// [`InvalidServerId`]
    pub fn new(
        core: Rc<Core>,
        tasks: Tasks,
        server_id: &str,
        server_count: u32,
        keepalive: Duration,
    ) -> Result<Rc<Self>, InvalidServerId> {
        let observer = Rc::new(AgentObserver::new(core.metrics.clone()));
        let invalid = |_| InvalidServerId(server_id.to_owned());
        let server_id = HeaderValue::from_str(server_id).map_err(invalid)?;
        Ok(Rc::new(Self {
            core,
            tasks,
            observer,
            server_id,
            server_count: HeaderValue::from(server_count),
            keepalive,
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
        peer: SocketAddr,
        acceptor: TlsAcceptor,
    ) {
        let Some(stream) = self.handshake(stream, acceptor).await else {
            return;
        };
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
        let watch = link::watch(
            ping_pong,
            Keepalive::new(self.keepalive, keepalive::TIMEOUT, Instant::now()),
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
                    let call = self.clone().call(request, respond, peer);
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
        peer: SocketAddr,
    ) {
        let (head, body) = request.into_parts();
        let refusal = match grpc::check_request(&head, PATH) {
            Err(refusal) => *refusal,
            Ok(()) => match agent_id(&head.headers) {
                Err(status) => {
                    tracing::warn!(%status, "refused an agent");
                    grpc::refusal(&status)
                }
                Ok(_) if self.core.stop.is_cancelled() => grpc::refusal(&Status::new(
                    Code::Unavailable,
                    "proxy server is shutting down",
                )),
                Ok(agent) => {
                    let mut response = grpc::response();
                    response
                        .headers_mut()
                        .insert("serverid", self.server_id.clone());
                    response
                        .headers_mut()
                        .insert("servercount", self.server_count.clone());
                    let credit = credit::announced(&head.headers);
                    if credit.is_some() {
                        response
                            .headers_mut()
                            .insert(credit::HEADER, credit::announcement());
                    }
                    // At once: the agent waits for these headers.
                    let Ok(send) = respond.send_response(response, false) else {
                        return;
                    };
                    return self.tunnel(agent, credit, send, body, peer).await;
                }
            },
        };
        self.core.metrics.refused(Listener::Agent);
        // An error means that the agent has gone.
        drop(respond.send_response(refusal, true));
    }

    async fn tunnel(
        &self,
        agent: AgentId,
        credit: Option<u32>,
        send: h2::SendStream<Batch>,
        body: h2::RecvStream,
        peer: SocketAddr,
    ) {
        let _gauge = Gauged::new(&self.core.metrics.connect_streams);
        let observer: Rc<dyn Observe> = self.observer.clone();
        let mux = Mux::new(Role::Server, self.core.ledger.clone(), observer);
        if let Some(window) = credit {
            mux.use_credit(window);
        }
        let backend = Backend::new(agent.clone(), mux.clone());
        let registered = self.core.registry.add(backend.clone());
        tracing::info!(%agent, %peer, "agent connected");
        let mut link = Link::new(mux.clone(), send, body);
        let end = link
            .run(|event| match event {
                Event::Drain => {
                    tracing::info!(agent = %backend.agent, "agent drains: it gets no new dials while another agent is there");
                    backend.drain();
                }
                // An agent's packets become no such event.
                Event::Dial { .. } | Event::CancelDial(_) => {}
            })
            .await;
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
            end => tracing::info!(%agent, %peer, error = source(end), "agent's tunnel lost"),
        }
    }
}

fn source(error: &dyn std::error::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// The agent's id, by upstream's rules and in its words (wire-protocol, section 2.2).
fn agent_id(headers: &HeaderMap) -> Result<AgentId, Status> {
    let ids: Vec<_> = headers
        .get_all("agentid")
        .iter()
        .map(|id| id.to_str().unwrap_or("<not ASCII>"))
        .collect();
    let [id] = ids[..] else {
        return Err(Status::new(
            Code::Unknown,
            format!(
                "expected one agent ID in the context, got [{}]",
                ids.join(" ")
            ),
        ));
    };
    if id.len() > MAX_AGENT_ID {
        return Err(Status::new(
            Code::Unknown,
            format!(
                "agent ID of {} bytes is longer than {MAX_AGENT_ID}",
                id.len()
            ),
        ));
    }
    let identifiers = headers.get_all("agentidentifiers").iter().count();
    if identifiers > 1 {
        let message = format!(
            "expected at most one set of agent identifiers in the context, got {identifiers}"
        );
        return Err(Status::new(Code::Unknown, message));
    }
    Ok(AgentId::new(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(pairs: &[(&'static str, &str)]) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        agent_id(&headers)
            .map(|id| id.to_string())
            .map_err(|status| status.message)
    }

    #[test]
    fn exactly_one_agent_id_is_wanted_and_it_may_be_empty() {
        assert_eq!(
            id(&[("agentid", "node-1"), ("agentidentifiers", "")]),
            Ok("node-1".into())
        );
        assert_eq!(id(&[("agentid", "")]), Ok(String::new()));
        assert_eq!(
            id(&[]),
            Err("expected one agent ID in the context, got []".into())
        );
        assert_eq!(
            id(&[("agentid", "a"), ("agentid", "b")]),
            Err("expected one agent ID in the context, got [a b]".into())
        );
        assert!(id(&[("agentid", &"x".repeat(257))]).is_err());
        assert!(
            id(&[
                ("agentid", "a"),
                ("agentidentifiers", ""),
                ("agentidentifiers", "")
            ])
            .is_err()
        );
    }
}
