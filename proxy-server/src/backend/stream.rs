//! The stream tunnel, ours: an agent's hello, our answer, and HTTP/2 with an HTTP/2 stream for each connection.

use std::rc::Rc;

use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::server::TlsStream;
use tunnel::{
    grpc::{Code, Status},
    keepalive::{self, Keepalive},
    link,
    probe::Probe,
    stream::{
        Ends,
        hello::{Answer, FORWARD, Hello, Welcome, receive_hello, send_answer},
        message::MessageError,
    },
};

use super::{Agents, PeerIdentity, admit::Admitted, carry::Carrier};
use crate::{
    frontend::HEAD_TIMEOUT,
    metrics::{Listener, Segment},
    registry::Backend,
};

/// What agents are told that we are.
const SOFTWARE: &str = concat!("adit-server/", env!("CARGO_PKG_VERSION"));

impl Agents {
    /// An agent that speaks `adit/1`, until its connection ends.
    pub(super) async fn serve_stream(
        self: Rc<Self>,
        mut stream: TlsStream<TcpStream>,
        peer: Rc<PeerIdentity>,
    ) {
        let hello = match timeout(HEAD_TIMEOUT, receive_hello(&mut stream)).await {
            Ok(Ok(hello)) => hello,
            // Load balancers open and drop connections all the time.
            Ok(Err(error @ (MessageError::Closed | MessageError::Io(_)))) => {
                return tracing::debug!(%error, "peer left before its hello");
            }
            Ok(Err(error)) => return self.refuse(stream, error.to_status()).await,
            Err(_) => {
                self.core.metrics.refused(Listener::Agent);
                return tracing::debug!("no hello within {HEAD_TIMEOUT:?}");
            }
        };
        let (version, admitted) = match self.admit_stream(&hello, &peer).await {
            Ok(admitted) => admitted,
            Err(status) => return self.refuse(stream, status).await,
        };
        let answer = Answer::Welcome(self.welcome_stream(version));
        let probe = Probe::default();
        let ends = Ends {
            ledger: self.core.ledger.clone(),
            observer: self.observer.clone(),
            probe: probe.clone(),
        };
        let open = async {
            send_answer(&mut stream, &answer)
                .await
                .map_err(|error| error.to_string())?;
            ends.server(stream).await.map_err(|error| error.to_string())
        };
        let mut link = match timeout(HEAD_TIMEOUT, open).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return tracing::debug!(error, "agent left at its welcome"),
            Err(_) => return tracing::debug!("agent did not take its welcome"),
        };
        let Some(ping_pong) = link.take_ping_pong() else {
            return;
        };
        let keepalive = Keepalive::new(self.keepalive, keepalive::TIMEOUT, Instant::now());
        let Admitted {
            agent,
            identifiers,
            names,
        } = admitted;
        let session = link.session().clone();
        let address = Some(peer.address.ip());
        let backend = Backend::new(agent, identifiers, address, session, probe.clone());
        tokio::select! {
            () = self.carry(backend, Carrier::Stream(link), names) => {}
            () = link::watch_probed(ping_pong, keepalive, &probe) => {
                self.core.metrics.stream_failed(Segment::FromAgent, Code::Unavailable);
                tracing::warn!("agent answers no ping, its tunnel is dropped");
            }
        }
    }

    async fn admit_stream(
        &self,
        hello: &Hello,
        peer: &PeerIdentity,
    ) -> Result<(u32, Admitted), Status> {
        let version = hello.check()?;
        let token = hello.token.as_ref().map(|token| token.expose());
        let admitted = self
            .admit_hello(peer, &hello.agent_id, &hello.identifiers, token)
            .await?;
        tracing::debug!(agent = %admitted.agent, version, software = ?hello.software, features = ?hello.features, "hello");
        // Asked last, so that nobody is added to the registry after all have been told to leave.
        if self.core.stop.is_cancelled() {
            return Err(Status::new(
                Code::Unavailable,
                "proxy server is shutting down",
            ));
        }
        Ok((version, admitted))
    }

    fn welcome_stream(&self, version: u32) -> Welcome {
        Welcome {
            version,
            server_id: self.server_id.to_str().unwrap_or_default().to_owned(),
            server_count: self.server_count.known(),
            software: SOFTWARE.to_owned(),
            features: vec![FORWARD.to_owned()],
        }
    }

    /// Tells the agent why it is not taken, and ends the connection.
    async fn refuse(&self, mut stream: TlsStream<TcpStream>, status: Status) {
        self.core.metrics.refused(Listener::Agent);
        tracing::warn!(%status, "refused an agent");
        let answer = Answer::Refused(status);
        let goodbye = async {
            // An error means that the agent has gone.
            if send_answer(&mut stream, &answer).await.is_ok() {
                drop(stream.shutdown().await);
            }
        };
        if timeout(HEAD_TIMEOUT, goodbye).await.is_err() {
            tracing::debug!("agent did not take its refusal");
        }
    }
}
