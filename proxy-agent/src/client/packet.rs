//! The packet tunnel, upstream's: one gRPC call over HTTP/2 carries all connections.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;

use tunnel::batch::Batch;
use tunnel::conn::Role;
use tunnel::cork::{Cork, cork};
use tunnel::credit;
use tunnel::keepalive;
use tunnel::link::{self, Link};
use tunnel::mux::Mux;
use tunnel::probe::Probe;
use tunnel::ration::Rationed;

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
        T: Cork + 'static,
    {
        let (stream, tap) = cork(stream);
        let handshake = link::client_builder().handshake::<_, Batch>(Rationed::new(stream));
        let (mut requests, mut connection) = handshake.await?;
        let ping_pong = connection.ping_pong();
        let mut driver: Driver = Box::pin(poll_fn(move |cx| {
            let ended = Pin::new(&mut connection).poll(cx);
            tap.send(cx);
            ended
        }));
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
