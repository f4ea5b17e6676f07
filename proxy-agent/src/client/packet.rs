//! The packet tunnel, upstream's: one gRPC call over HTTP/2 carries all connections.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncWrite};
use tunnel::batch::Batch;
use tunnel::conn::Role;
use tunnel::credit;
use tunnel::keepalive;
use tunnel::link::{self, Link};
use tunnel::mux::Mux;
use tunnel::probe::Probe;

use super::session::{Carrier, Driver, Tunnel};
use super::{ConnectError, Connector, Material, call};

impl Connector {
    /// A packet tunnel over a connection whose TLS handshake chose it. Not bounded in time. Cancel safe: dropping it closes the
    /// connection.
    pub(super) async fn packet<T>(
        &self,
        stream: T,
        peer: SocketAddr,
        material: Material,
    ) -> Result<Tunnel, ConnectError>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (mut requests, mut connection) =
            link::client_builder().handshake::<_, Batch>(stream).await?;
        let ping_pong = connection.ping_pong();
        let mut driver: Driver = Box::pin(connection);
        let request = call::request(&self.authority, &self.announcement).await?;
        let (response, send) = requests.send_request(request, false)?;
        let response = tokio::select! {
            response = response => response?,
            ended = &mut driver => {
                ended?;
                return Err(ConnectError::Http2(h2::Reason::NO_ERROR.into()));
            }
        };
        let (head, recv) = response.into_parts();
        let greeting = call::greeting(&head)?;
        let mux = Mux::new(Role::Agent, self.ledger.clone(), self.observer.clone());
        // Upstream's server says nothing of it, and takes more frequent pings for an attack.
        let interval = match credit::announced(&head.headers) {
            Some(window) => {
                mux.use_credit(window);
                keepalive::DEFAULT_INTERVAL
            }
            None => keepalive::UPSTREAM_INTERVAL,
        };
        let link = Box::new(Link::new(mux.clone(), send, recv));
        Ok(Tunnel {
            greeting,
            peer,
            material,
            handle: mux.clone().into(),
            carrier: Carrier::Packet { mux, link, driver },
            ping_pong,
            keepalive: self.keepalive.unwrap_or(interval),
            probe: Probe::default(),
        })
    }
}
