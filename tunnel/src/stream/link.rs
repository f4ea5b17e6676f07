//! The HTTP/2 connection of a stream tunnel: the tunnel's only task beside those of its connections.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use h2::{PingPong, Reason, client, server};
use http::{Method, Request, Response};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
    time::Duration,
};

use super::{
    channel::Channel, connect::CONTROL_PATH, connection::SEND_BUFFER, dial::refuse, piece::Piece,
    session::Session, window,
};
use crate::{
    conn::Role,
    dial::{Refusal, RefusalKind},
    event::Event,
    grpc::{Code, Status},
    ledger::Ledger,
    link::{LinkEnd, SMALL_FRAME_BUDGET},
    mux::MAX_CONNECTIONS,
    observe::Observe,
    probe::Probe,
};

/// Receive window of the whole HTTP/2 connection: as large as there is (RFC 9113, section 6.9.1), so that no stream's unread bytes
/// can hold up another's. What is unread is bounded by the windows of the streams.
pub const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Largest frame that is taken. More is a longer wait for whoever is next.
const MAX_FRAME: u32 = 64 * 1024;

/// Largest list of headers.
const MAX_HEADERS: u32 = 16 * 1024;

/// Streams that were reset and are remembered, because frames of theirs may still be on the way; and those that were reset by the
/// server before they were looked at. Dials that are given up are many when kube-apiserver is in a hurry.
const MAX_RESET_STREAMS: usize = 16_384;

/// For how long.
const RESET_MEMORY: Duration = Duration::from_secs(5);

/// Streams of the server in one poll before other tasks of the thread get their turn.
const ACCEPT_BUDGET: usize = 256;

/// One end of a stream tunnel, and its connection.
pub struct StreamLink {
    session: Rc<Session>,
    /// Until it has ended.
    driver: Option<Box<dyn Drive>>,
    ping_pong: Option<PingPong>,
}

impl fmt::Debug for StreamLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamLink")
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Makes one end of a tunnel on a connection whose hello is over. Both must be called on a `LocalSet`.
#[derive(Debug)]
pub struct Ends {
    /// The byte budget of the process.
    pub ledger: Rc<Ledger>,
    /// Counts.
    pub observer: Rc<dyn Observe>,
    /// What the owner's keepalive shares with the tunnel, which has it ping to learn the round trip.
    pub probe: Probe,
}

impl Ends {
    /// The server's end, which is HTTP/2's client. Cancel safe: dropping it drops `io`.
    ///
    /// # Errors
    /// If `io` breaks.
    pub async fn server<T>(self, io: T) -> Result<StreamLink, h2::Error>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (mut requests, mut connection) = client_builder().handshake::<T, Piece>(io).await?;
        let ping_pong = connection.ping_pong();
        let (response, send) = requests.send_request(control_request(), false)?;
        let session = self.session(Role::Server, Some(requests));
        let channel = Channel::asked(response, send);
        let driver = ServerDriver {
            connection,
            channel,
            lingering: JoinSet::new(),
        };
        Ok(StreamLink {
            session,
            driver: Some(Box::new(driver)),
            ping_pong,
        })
    }

    /// The agent's end, which is HTTP/2's server. Cancel safe: dropping it drops `io`. Waits for the server's preface.
    ///
    /// # Errors
    /// If `io` breaks, or the peer does not speak HTTP/2.
    pub async fn agent<T>(self, io: T) -> Result<StreamLink, h2::Error>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let mut connection = server_builder().handshake::<T, Piece>(io).await?;
        let ping_pong = connection.ping_pong();
        let driver = AgentDriver {
            connection,
            channel: None,
            is_leaving: false,
            lingering: JoinSet::new(),
        };
        Ok(StreamLink {
            session: self.session(Role::Agent, None),
            driver: Some(Box::new(driver)),
            ping_pong,
        })
    }

    fn session(self, role: Role, requests: Option<client::SendRequest<Piece>>) -> Rc<Session> {
        Session::new(role, self.ledger, self.observer, self.probe, requests)
    }
}

impl StreamLink {
    /// What rides on it.
    #[must_use]
    pub fn session(&self) -> &Rc<Session> {
        &self.session
    }

    /// For the owner's keepalive, once.
    pub fn take_ping_pong(&mut self) -> Option<PingPong> {
        self.ping_pong.take()
    }

    /// Carries connections until the tunnel ends; its dials and connections have then failed. `on_event` hears what the tunnel cannot
    /// do itself.
    ///
    /// Cancel safe: it may be run again. Dropped, everything on it fails.
    pub async fn run(&mut self, mut on_event: impl FnMut(Event)) -> LinkEnd {
        let end = poll_fn(|cx| self.poll(cx, &mut on_event)).await;
        self.session.on_lost();
        // With it go its streams, or those who wait for them would wait for the owner to drop us.
        self.driver = None;
        end
    }

    /// Asks the server to open no more streams, and ends the connection with the last one (GOAWAY). Of an agent's end.
    /// [`run`](Self::run) again to see the end.
    pub fn finish(&mut self) {
        if let Some(driver) = &mut self.driver {
            driver.finish();
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>, on_event: &mut impl FnMut(Event)) -> Poll<LinkEnd> {
        let Some(driver) = &mut self.driver else {
            return Poll::Ready(LinkEnd::Peer(None));
        };
        self.session.set_link(cx.waker());
        let polled = driver.poll(cx, &self.session);
        while let Some(event) = self.session.take_event() {
            on_event(event);
        }
        polled
    }
}

impl Drop for StreamLink {
    fn drop(&mut self) {
        self.session.on_lost();
    }
}

/// Either role of HTTP/2, whatever it runs on.
trait Drive {
    fn poll(&mut self, cx: &mut Context<'_>, session: &Rc<Session>) -> Poll<LinkEnd>;

    fn finish(&mut self);
}

struct ServerDriver<T: AsyncRead + AsyncWrite + Unpin> {
    connection: client::Connection<T, Piece>,
    channel: Channel,
    lingering: JoinSet<()>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Drive for ServerDriver<T> {
    fn poll(&mut self, cx: &mut Context<'_>, session: &Rc<Session>) -> Poll<LinkEnd> {
        update_window(session, |size| {
            self.connection.set_initial_window_size(size)
        });
        let polled = Pin::new(&mut self.connection).poll(cx);
        check_shrunk(session, cx, |size| {
            self.connection.set_initial_window_size(size)
        });
        // What came before the end counts.
        let channel = self.channel.poll(cx, session);
        if let Poll::Ready(ended) = polled {
            return Poll::Ready(match end_of(ended) {
                // It has gone while we said goodbye.
                LinkEnd::Broken(error) if error.is_io() && self.channel.has_ended() => {
                    LinkEnd::Peer(None)
                }
                end => end,
            });
        }
        poll_lingering(&mut self.lingering, cx, session);
        channel
    }

    fn finish(&mut self) {}
}

struct AgentDriver<T> {
    connection: server::Connection<T, Piece>,
    /// Until the server asks for it.
    channel: Option<Channel>,
    is_leaving: bool,
    lingering: JoinSet<()>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> AgentDriver<T> {
    /// Acts on every stream that the server has opened.
    fn poll_accept(&mut self, cx: &mut Context<'_>, session: &Rc<Session>) -> Poll<LinkEnd> {
        for _ in 0..ACCEPT_BUDGET {
            let accepted = match self.connection.poll_accept(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(LinkEnd::Peer(None)),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(end_of(Err(error))),
                Poll::Ready(Some(Ok(accepted))) => accepted,
            };
            let (request, respond) = accepted;
            let Some((recv, mut respond)) = session.on_request(request, respond) else {
                continue;
            };
            if self.channel.is_some() {
                session.violation(&"a second control stream");
                let kind = RefusalKind::Malformed;
                let text = "there is a control stream".to_owned();
                refuse(respond, &Refusal { kind, text });
            } else if let Ok(send) = respond.send_response(Response::new(()), false) {
                let mut channel = Channel::granted(recv, send);
                if self.is_leaving {
                    channel.finish();
                }
                self.channel = Some(channel);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Drive for AgentDriver<T> {
    fn poll(&mut self, cx: &mut Context<'_>, session: &Rc<Session>) -> Poll<LinkEnd> {
        update_window(session, |size| {
            self.connection.set_initial_window_size(size)
        });
        let accepted = self.poll_accept(cx, session);
        check_shrunk(session, cx, |size| {
            self.connection.set_initial_window_size(size)
        });
        let channel = match &mut self.channel {
            Some(channel) => channel.poll(cx, session),
            None => Poll::Pending,
        };
        if accepted.is_ready() {
            return accepted;
        }
        poll_lingering(&mut self.lingering, cx, session);
        channel
    }

    fn finish(&mut self) {
        self.is_leaving = true;
        if let Some(channel) = &mut self.channel {
            channel.finish();
        }
        self.connection.graceful_shutdown();
    }
}

/// Has all streams' windows be what they should, unless HTTP/2 waits for the peer to acknowledge the last change; then it is tried
/// again with what comes.
fn update_window(session: &Session, set: impl FnOnce(u32) -> Result<(), h2::Error>) {
    let window = session.poll_window();
    if window != session.window() && set(window).is_ok() {
        // It took this one, so the last is acknowledged.
        session.on_acknowledged();
        session.set_window(window);
    }
}

/// Notices when the peer has acknowledged smaller windows. That `h2` takes another change is all it says of that: the same once more.
fn check_shrunk(
    session: &Session,
    cx: &Context<'_>,
    set: impl FnOnce(u32) -> Result<(), h2::Error>,
) {
    if session.is_shrinking() && set(session.window()).is_ok() {
        session.on_acknowledged();
        // It has something to send.
        cx.waker().wake_by_ref();
    }
}

/// Lets what connections have left behind come to its end.
fn poll_lingering(lingering: &mut JoinSet<()>, cx: &mut Context<'_>, session: &Session) {
    for left in session.take_lingering() {
        lingering.spawn_local(left.run());
    }
    while let Poll::Ready(Some(_)) = lingering.poll_join_next(cx) {}
}

/// What the end of HTTP/2 means. What the peer did that HTTP/2 does not allow, or not so often, is against the protocol.
fn end_of(ended: Result<(), h2::Error>) -> LinkEnd {
    match ended {
        Ok(()) => LinkEnd::Peer(None),
        Err(error) if error.is_library() && error.is_go_away() => {
            let what = error.reason().unwrap_or(Reason::PROTOCOL_ERROR);
            LinkEnd::Protocol(Status::new(Code::Internal, format!("HTTP/2: {what}")))
        }
        Err(error) => LinkEnd::Broken(error),
    }
}

fn control_request() -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    // HTTP/2 wants a scheme and an authority; nobody looks at them.
    *request.uri_mut() = http::Uri::from_static(CONTROL_URI);
    debug_assert_eq!(request.uri().path(), CONTROL_PATH);
    request
}

/// [`CONTROL_PATH`] with what HTTP/2 wants in front.
const CONTROL_URI: &str = "https://adit/control";

fn client_builder() -> client::Builder {
    let mut builder = client::Builder::new();
    builder
        .initial_window_size(window::BASE)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .reset_stream_duration(RESET_MEMORY)
        .data_frame_budget(SMALL_FRAME_BUDGET)
        // The agent opens none.
        .max_concurrent_streams(0)
        .enable_push(false);
    builder
}

fn server_builder() -> server::Builder {
    let mut builder = server::Builder::new();
    // One is the control stream.
    let streams = u32::try_from(MAX_CONNECTIONS + 1).unwrap_or(u32::MAX);
    builder
        .initial_window_size(window::BASE)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_header_list_size(MAX_HEADERS)
        .max_send_buffer_size(SEND_BUFFER)
        .max_concurrent_streams(streams)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .reset_stream_duration(RESET_MEMORY)
        .data_frame_budget(SMALL_FRAME_BUDGET);
    builder
}
