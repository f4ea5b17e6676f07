//! An agent's tunnel from its welcome to its end, whatever carries it.

use std::{convert::Infallible, future::pending, rc::Rc};

use tokio::time::sleep;
use tunnel::{
    Kind,
    event::Event,
    grpc::Status,
    link::{Link, LinkEnd},
    mux::Event as PacketEvent,
    stream::StreamLink,
};

use super::Agents;
use crate::{
    forward::{AgentForwards, VerifiedNames},
    metrics::{Gauged, Segment, TunnelKind},
    registry::{Backend, PROBATION},
};

/// Characters of what ended a tunnel, in a log line.
const MAX_CAUSE: usize = 512;

/// What moves a tunnel's bytes.
#[derive(Debug)]
pub(super) enum Carrier {
    Packet(Link),
    Stream(StreamLink),
}

impl Carrier {
    async fn run(&mut self, mut on_event: impl FnMut(Event)) -> LinkEnd {
        match self {
            Self::Packet(link) => {
                let on_packet_event = |event| match event {
                    PacketEvent::Drain => on_event(Event::Drain),
                    // An agent's packets become no such event.
                    PacketEvent::Dial { .. } | PacketEvent::CancelDial(_) => {}
                };
                link.run(on_packet_event).await
            }
            Self::Stream(link) => link.run(on_event).await,
        }
    }

    /// Tells the agent how its tunnel has ended, where there is a way.
    fn close(&mut self, status: &Status) {
        match self {
            Self::Packet(link) => link.close(status),
            // HTTP/2 has told it.
            Self::Stream(_) => {}
        }
    }
}

impl Agents {
    /// Has `backend` chosen for dials until its tunnel ends. `names` decide what the agent may forward to.
    pub(super) async fn carry(
        &self,
        backend: Rc<Backend>,
        mut carrier: Carrier,
        names: VerifiedNames,
    ) {
        let _gauge = Gauged::new(&self.core.metrics.connect_streams);
        let kind = backend.tunnel.kind();
        let _kind = self.core.metrics.tunnel(match kind {
            Kind::Packet => TunnelKind::Packet,
            Kind::Credit => TunnelKind::Credit,
            Kind::Stream => TunnelKind::Stream,
        });
        let agent = backend.agent.clone();
        let forwards = AgentForwards::new(agent.clone(), names);
        let registered = self.core.registry.add(backend);
        tracing::info!(%agent, ?kind, "agent connected");
        let run = carrier.run(|event| match event {
            Event::Drain if registered.drain() => {
                tracing::info!(%agent, "agent drains: it gets no new dials while another agent is there");
            }
            Event::Forward(request) => self.forwarder.accept(request, &forwards),
            // An agent's end says nothing else.
            _ => {}
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
                carrier.close(status);
            }
            LinkEnd::Peer(_) => {
                tracing::info!(%agent, "agent disconnected");
                carrier.close(&Status::ok());
            }
            end => tracing::info!(%agent, error = source(end), "agent's tunnel lost"),
        }
    }
}

/// The cause of `error`. HTTP/2's may quote its peer, at length.
fn source(error: &dyn std::error::Error) -> String {
    let text = error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string);
    text.chars().take(MAX_CAUSE).collect()
}
