//! A dial, from both ends: a stream that waits for its answer.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use h2::{Reason, RecvStream, SendStream, client::ResponseFuture, server::SendResponse};

use super::{
    connect,
    connection::Connection,
    piece::Piece,
    session::{Session, Slot},
};
use crate::{
    dial::{DialError, Refusal},
    packet::{DialId, PacketKind},
};

/// A dial that waits for the agent's answer. Resolves once; dropped before that, its stream is cancelled, and with it whatever the
/// agent has made of it.
#[must_use = "dropping a dial gives it up"]
pub struct Dial(State);

enum State {
    Asking(Box<Asking>),
    Failed(DialError),
    Over,
}

struct Asking {
    session: Rc<Session>,
    response: ResponseFuture,
    send: SendStream<Piece>,
    slot: Slot,
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dial").field(&self.id()).finish()
    }
}

impl Dial {
    pub(super) fn asking(
        session: Rc<Session>,
        response: ResponseFuture,
        send: SendStream<Piece>,
    ) -> Self {
        let slot = Slot::dial(&session);
        Self(State::Asking(Box::new(Asking {
            session,
            response,
            send,
            slot,
        })))
    }

    pub(super) fn failed(error: DialError) -> Self {
        Self(State::Failed(error))
    }

    /// Its HTTP/2 stream id, for both ends' logs; `None` if it failed before there was one.
    #[must_use]
    pub fn id(&self) -> Option<DialId> {
        match &self.0 {
            State::Asking(asking) => Some(DialId(asking.send.stream_id().as_u32().into())),
            State::Failed(_) | State::Over => None,
        }
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        if let State::Asking(asking) = &self.0 {
            asking.session.observer().sent(PacketKind::CloseDial);
        }
    }
}

impl Future for Dial {
    type Output = Result<Connection, DialError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.0 {
            State::Asking(asking) => Some(ready!(Pin::new(&mut asking.response).poll(cx))),
            State::Failed(_) | State::Over => None,
        };
        Poll::Ready(
            match (std::mem::replace(&mut self.0, State::Over), answer) {
                (State::Asking(asking), Some(answer)) => asking.answered(answer),
                (State::Failed(error), _) => Err(error),
                // Polled again.
                (State::Asking(_) | State::Over, _) => Err(DialError::Abandoned),
            },
        )
    }
}

impl Asking {
    fn answered(
        self,
        answer: Result<http::Response<RecvStream>, h2::Error>,
    ) -> Result<Connection, DialError> {
        let response = answer.map_err(|error| failure(&error))?;
        self.session.on_sign();
        self.session
            .observer()
            .received(Some(PacketKind::DialResponse));
        let (head, recv) = response.into_parts();
        if let Some(refusal) = connect::refusal(head.status, &head.headers) {
            return Err(DialError::Refused(refusal));
        }
        let slot = self.slot.connected();
        Ok(Connection::new(self.session, self.send, recv, slot))
    }
}

/// Why a stream ended without an answer.
fn failure(error: &h2::Error) -> DialError {
    if !error.is_reset() {
        return DialError::TunnelLost;
    }
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => DialError::TooManyConnections,
        _ => DialError::Abandoned,
    }
}

/// A dial that the server asks for. Dropped without an answer, it is refused.
pub struct IncomingDial {
    session: Rc<Session>,
    id: DialId,
    network: String,
    address: String,
    /// There until it is answered.
    stream: Option<(SendResponse<Piece>, RecvStream)>,
    slot: Option<Slot>,
}

impl fmt::Debug for IncomingDial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingDial")
            .field("id", &self.id)
            .field("network", &self.network)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl IncomingDial {
    pub(super) fn new(
        session: Rc<Session>,
        network: String,
        address: String,
        respond: SendResponse<Piece>,
        body: RecvStream,
    ) -> Self {
        let slot = Slot::dial(&session);
        Self {
            session,
            id: DialId(respond.stream_id().as_u32().into()),
            network,
            address,
            stream: Some((respond, body)),
            slot: Some(slot),
        }
    }

    /// Its HTTP/2 stream id.
    #[must_use]
    pub fn id(&self) -> DialId {
        self.id
    }

    /// Go network name.
    #[must_use]
    pub fn network(&self) -> &str {
        &self.network
    }

    /// `host:port`, not checked.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Resolves when nobody waits for it any more. Cancel safe.
    pub async fn cancelled(&mut self) {
        let Some((respond, _)) = &mut self.stream else {
            return;
        };
        poll_fn(|cx| respond.poll_reset(cx).map(drop)).await;
        let observer = self.session.observer();
        observer.received(Some(PacketKind::CloseDial));
    }

    /// Tells the server that there is a connection.
    ///
    /// # Errors
    /// [`DialError::Abandoned`], [`DialError::TunnelLost`]
    pub fn accept(mut self) -> Result<Connection, DialError> {
        if self.session.is_lost() {
            return Err(DialError::TunnelLost);
        }
        let (Some((mut respond, body)), Some(slot)) = (self.stream.take(), self.slot.take()) else {
            return Err(DialError::Abandoned);
        };
        let send = respond
            .send_response(connect::connected(), false)
            .map_err(|_| DialError::Abandoned)?;
        self.session.observer().sent(PacketKind::DialResponse);
        let slot = slot.connected();
        Ok(Connection::new(self.session.clone(), send, body, slot))
    }

    /// Tells the server why there is none.
    pub fn refuse(mut self, refusal: &Refusal) {
        if let Some((respond, _)) = self.stream.take() {
            self.session.observer().sent(PacketKind::DialResponse);
            refuse(respond, refusal);
        }
    }
}

impl Drop for IncomingDial {
    fn drop(&mut self) {
        if let Some((respond, _)) = self.stream.take() {
            refuse(respond, &Refusal::failed("agent gave the dial up"));
        }
    }
}

/// Answers a stream that becomes no connection.
pub(super) fn refuse(mut respond: SendResponse<Piece>, refusal: &Refusal) {
    // An error means that nobody waits for it.
    drop(respond.send_response(connect::refused(refusal), true));
}
