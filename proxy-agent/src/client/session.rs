//! A tunnel from the server's greeting to its end.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use h2::PingPong;
use tokio::time::{Instant, timeout};
use tunnel::event::Event;
use tunnel::grpc::Code;
use tunnel::keepalive::{self, Keepalive};
use tunnel::link::{self, Link, LinkEnd};
use tunnel::mux::{IncomingDials, Mux};
use tunnel::probe::Probe;
use tunnel::stream::StreamLink;

use super::{Greeting, Material};

/// How long a tunnel that is not wanted may take to say so.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// How long the last bytes of a tunnel that is no longer needed may take, and its server's answer.
const FINISH_LIMIT: Duration = Duration::from_secs(30);

/// How a tunnel ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TunnelEnd {
    /// The stream.
    #[error(transparent)]
    Link(#[from] LinkEnd),
    /// The connection below it, with or without a word: a server that leaves closes its sockets.
    #[error("server closed the connection")]
    Closed,
    /// It was no longer needed.
    #[error("no longer needed")]
    Finished,
    /// The server does not answer pings.
    #[error("server answered no ping for {:?}", keepalive::TIMEOUT)]
    Dead,
}

impl TunnelEnd {
    /// The gRPC code that the end counts as; `None` for an orderly one.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Self::Link(end) => end.code(),
            Self::Finished => None,
            Self::Closed | Self::Dead => Some(Code::Unavailable),
        }
    }
}

/// An open tunnel. Dropped, its connection is closed.
pub(crate) struct Tunnel {
    pub(super) greeting: Greeting,
    pub(super) peer: SocketAddr,
    pub(super) material: Material,
    pub(super) carrier: Carrier,
    /// What its connections ride on.
    pub(super) handle: tunnel::Tunnel,
    pub(super) ping_pong: Option<PingPong>,
    pub(super) keepalive: Duration,
    /// Shared with whoever wants a ping besides.
    pub(super) probe: Probe,
}

/// What moves a tunnel's bytes.
pub(super) enum Carrier {
    /// One gRPC stream, and the HTTP/2 connection below it.
    Packet {
        mux: Rc<Mux>,
        link: Box<Link>,
        driver: Driver,
    },
    /// An HTTP/2 connection with a stream for each connection.
    Stream(StreamLink),
}

/// The HTTP/2 connection, which moves when polled.
pub(super) type Driver = Pin<Box<dyn Future<Output = Result<(), h2::Error>>>>;

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel")
            .field("greeting", &self.greeting)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

impl Tunnel {
    /// What the server said of itself.
    pub(crate) fn greeting(&self) -> &Greeting {
        &self.greeting
    }

    /// The server's address, or that of what stands in front of it.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The connections on it.
    pub(crate) fn handle(&self) -> &tunnel::Tunnel {
        &self.handle
    }

    /// Which certificates it was made with.
    pub(crate) fn material(&self) -> &Material {
        &self.material
    }

    /// Carries connections until the tunnel ends, or `unused` resolves and the tunnel is ended in order; its connections have then
    /// been told.
    ///
    /// Not cancel safe: dropped, the connections of a packet tunnel are not told.
    pub(crate) async fn run(
        mut self,
        mut on_event: impl FnMut(Event),
        unused: impl Future<Output = ()>,
    ) -> TunnelEnd {
        let keepalive = Keepalive::new(self.keepalive, keepalive::TIMEOUT, Instant::now());
        let ping_pong = self.ping_pong.take();
        let probe = self.probe.clone();
        let watch = async move {
            match ping_pong {
                Some(ping_pong) => link::watch_probed(ping_pong, keepalive, &probe).await,
                None => pending().await,
            }
        };
        tokio::pin!(watch);
        let end = tokio::select! {
            biased;
            end = self.carrier.carry(&mut on_event, watch.as_mut()) => Some(end),
            () = unused => None,
        };
        if let Carrier::Packet { mux, .. } = &self.carrier {
            mux.on_lost();
        }
        let Some(end) = end else {
            self.carrier.finish();
            let last = self.carrier.carry(&mut on_event, watch);
            // However it ended: nobody uses it any more.
            if let Ok(TunnelEnd::Link(_)) = timeout(FINISH_LIMIT, last).await {
                self.say_goodbye().await;
            }
            return TunnelEnd::Finished;
        };
        end
    }

    /// Ends a tunnel that is not wanted, in a way that the server can tell from a fault.
    pub(crate) async fn say_goodbye(self) {
        match self.carrier {
            Carrier::Packet { link, driver, .. } => {
                // Resets the stream; without streams the connection then ends by GOAWAY.
                drop(link);
                // The outcome is of no interest: either way the connection is closed now.
                drop(timeout(GOODBYE_LIMIT, driver).await);
            }
            Carrier::Stream(mut link) => {
                link.finish();
                drop(timeout(GOODBYE_LIMIT, link.run(|_| {})).await);
            }
        }
    }
}

impl Carrier {
    /// Moves bytes until the tunnel or the connection below it ends, or `watch` says that the server is dead. May be called again
    /// after it was dropped.
    async fn carry(
        &mut self,
        mut on_event: impl FnMut(Event),
        watch: Pin<&mut impl Future<Output = ()>>,
    ) -> TunnelEnd {
        match self {
            Self::Packet { mux, link, driver } => {
                let dials = IncomingDials::new(mux.clone());
                let on_packet_event = |event| {
                    if let Some(event) = dials.on_event(event) {
                        on_event(event);
                    }
                };
                carry_packets(link, driver, on_packet_event, watch).await
            }
            Self::Stream(link) => {
                tokio::select! {
                    biased;
                    end = link.run(on_event) => ended(end),
                    () = watch => TunnelEnd::Dead,
                }
            }
        }
    }

    /// Ends our side, with no connections left.
    fn finish(&mut self) {
        match self {
            Self::Packet { link, .. } => link.finish(),
            Self::Stream(link) => link.finish(),
        }
    }
}

/// Moves packets until the stream or the connection below it ends, or `watch` says that the server is dead.
async fn carry_packets(
    link: &mut Link,
    driver: &mut Driver,
    on_event: impl FnMut(tunnel::mux::Event),
    mut watch: Pin<&mut impl Future<Output = ()>>,
) -> TunnelEnd {
    let run = link.run(on_event);
    tokio::pin!(run);
    // The stream's end says more than the connection's, and the connection is polled first so that it can.
    let mut closed = None;
    poll_fn(|cx| {
        if closed.is_none()
            && let Poll::Ready(ended) = driver.as_mut().poll(cx)
        {
            closed = Some(ended);
        }
        if let Poll::Ready(end) = run.as_mut().poll(cx) {
            return Poll::Ready(ended(end));
        }
        if let Some(ended) = closed.take() {
            return Poll::Ready(ended.map_or_else(broken, |()| TunnelEnd::Closed));
        }
        watch.as_mut().poll(cx).map(|()| TunnelEnd::Dead)
    })
    .await
}

fn ended(end: LinkEnd) -> TunnelEnd {
    match end {
        LinkEnd::Broken(error) => broken(error),
        end => TunnelEnd::Link(end),
    }
}

/// An end of file is the server's close, though TLS would have it announced.
fn broken(error: h2::Error) -> TunnelEnd {
    match error.get_io() {
        Some(io) if io.kind() == io::ErrorKind::UnexpectedEof => TunnelEnd::Closed,
        _ => TunnelEnd::Link(LinkEnd::Broken(error)),
    }
}
