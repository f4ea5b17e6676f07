//! The control stream of a tunnel.

use std::{
    future::Future as _,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use h2::{RecvStream, SendStream, client::ResponseFuture};

use super::{
    control::{MAX_CONTROL_MESSAGE, ToAgent, ToServer},
    message::Reader,
    piece::Piece,
    session::Session,
};
use crate::{
    conn::Role,
    grpc::{Code, Status},
    link::LinkEnd,
};

/// Messages read in one poll before other tasks of the thread get their turn.
const READ_BUDGET: usize = 64;

/// Control messages, both ways.
#[derive(Debug)]
pub(super) struct Channel {
    send: SendStream<Piece>,
    incoming: Incoming,
    reader: Reader,
    /// A message that waits for window.
    unsent: Option<Bytes>,
    is_finished: bool,
}

#[derive(Debug)]
enum Incoming {
    /// The agent has not answered.
    Awaited(ResponseFuture),
    Open(RecvStream),
    Ended,
}

impl Channel {
    /// A server's, which has asked for it.
    pub(super) fn asked(response: ResponseFuture, send: SendStream<Piece>) -> Self {
        Self::new(send, Incoming::Awaited(response))
    }

    /// An agent's, which has granted it.
    pub(super) fn granted(recv: RecvStream, send: SendStream<Piece>) -> Self {
        Self::new(send, Incoming::Open(recv))
    }

    fn new(send: SendStream<Piece>, incoming: Incoming) -> Self {
        Self {
            send,
            incoming,
            reader: Reader::new(MAX_CONTROL_MESSAGE),
            unsent: None,
            is_finished: false,
        }
    }

    /// Moves what there is. Ready when the tunnel must end.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        session: &std::rc::Rc<Session>,
    ) -> Poll<LinkEnd> {
        if let Poll::Ready(Err(end)) = self.poll_receive(cx, session) {
            return Poll::Ready(end);
        }
        if let Poll::Ready(Err(error)) = self.poll_send(cx, session) {
            return Poll::Ready(error.into());
        }
        Poll::Pending
    }

    /// Whether the peer has ended its side, which is how it leaves.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.incoming, Incoming::Ended)
    }

    /// Ends our side behind what was sent.
    pub(super) fn finish(&mut self) {
        if !self.is_finished {
            self.is_finished = true;
            // Fails only on a stream that has ended already.
            drop(self.send.send_data(Piece::control(Bytes::new()), true));
        }
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        session: &std::rc::Rc<Session>,
    ) -> Poll<Result<(), LinkEnd>> {
        let mut budget = READ_BUDGET;
        loop {
            let recv = match &mut self.incoming {
                Incoming::Ended => return Poll::Pending,
                Incoming::Open(recv) => recv,
                Incoming::Awaited(response) => {
                    let Poll::Ready(response) = Pin::new(response).poll(cx)? else {
                        return Poll::Pending;
                    };
                    if response.status() != http::StatusCode::OK {
                        return Poll::Ready(Err(protocol(&format_args!(
                            "control stream answered with HTTP status {}",
                            response.status().as_u16()
                        ))));
                    }
                    session.on_sign();
                    self.incoming = Incoming::Open(response.into_body());
                    continue;
                }
            };
            match recv.poll_data(cx)? {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    // The peer leaves in order.
                    self.incoming = Incoming::Ended;
                    self.finish();
                }
                Poll::Ready(Some(bytes)) => {
                    // Fails only for more than was received.
                    drop(recv.flow_control().release_capacity(bytes.len()));
                    self.reader.push(bytes);
                    while let Some(message) = self
                        .reader
                        .next_message()
                        .map_err(|error| protocol(&error))?
                    {
                        budget = budget.saturating_sub(1);
                        act(&message, session)?;
                    }
                    if budget == 0 {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        session: &Session,
    ) -> Poll<Result<(), h2::Error>> {
        loop {
            if self.unsent.is_none() {
                let Some(message) = session.next_message() else {
                    self.send.reserve_capacity(0);
                    return Poll::Pending;
                };
                if self.is_finished {
                    continue;
                }
                self.unsent = message.encode();
            }
            let Some(bytes) = &self.unsent else {
                continue;
            };
            self.send.reserve_capacity(bytes.len());
            while self.send.capacity() < bytes.len() {
                match self.send.poll_capacity(cx)? {
                    Poll::Ready(Some(_)) => {}
                    Poll::Ready(None) => {
                        self.is_finished = true;
                        break;
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
            if let Some(bytes) = self.unsent.take()
                && !self.is_finished
            {
                self.send.send_data(Piece::control(bytes), false)?;
            }
        }
    }
}

/// Acts on one message; what it does not know is ignored.
fn act(message: &[u8], session: &std::rc::Rc<Session>) -> Result<(), LinkEnd> {
    match session.role() {
        Role::Server => {
            if let Some(message) = ToServer::decode(message).map_err(|error| protocol(&error))? {
                session.on_message_from_agent(message);
            }
        }
        Role::Agent => {
            if let Some(message) = ToAgent::decode(message).map_err(|error| protocol(&error))? {
                session.on_message_from_server(message);
            }
        }
    }
    Ok(())
}

fn protocol(what: &dyn std::fmt::Display) -> LinkEnd {
    LinkEnd::Protocol(Status::new(
        Code::Internal,
        format!("control stream: {what}"),
    ))
}
