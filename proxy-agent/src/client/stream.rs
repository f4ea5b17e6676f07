//! The stream tunnel, ours: a hello, the server's answer, and an HTTP/2 stream for each connection.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tunnel::keepalive;
use tunnel::probe::Probe;
use tunnel::stream::Ends;

use super::hello::greet;
use super::session::{Carrier, Tunnel};
use super::{ConnectError, Connector, Material};

impl Connector {
    /// A stream tunnel over a connection whose TLS handshake chose it. Not bounded in time. Cancel safe: dropping it closes the
    /// connection.
    pub(super) async fn stream<T>(
        &self,
        mut stream: T,
        peer: SocketAddr,
        material: Material,
    ) -> Result<Tunnel, ConnectError>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let greeting = greet(&mut stream, &self.announcement).await?;
        let probe = Probe::default();
        let ends = Ends {
            ledger: self.ledger.clone(),
            observer: self.observer.clone(),
            probe: probe.clone(),
        };
        let mut link = ends.agent(stream).await?;
        Ok(Tunnel {
            greeting,
            peer,
            material,
            handle: link.session().clone().into(),
            ping_pong: link.take_ping_pong(),
            carrier: Carrier::Stream(link),
            keepalive: self.keepalive.unwrap_or(keepalive::DEFAULT_INTERVAL),
            probe,
        })
    }
}
