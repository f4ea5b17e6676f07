//! One `Proxy` stream: packets there, packets back.

use std::{
    fmt,
    future::poll_fn,
    io,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream, client::ResponseFuture};
use http::StatusCode;
use tunnel::{
    codec::{self, Decoded},
    grpc::{MAX_MESSAGE, MessageReader, Status},
    packet::{ConnectId, DialId, Packet},
};

use super::{super::DialFailure, Driver, io_error};

/// One `Proxy` stream, for those that want to see or send every packet.
pub struct Call {
    send: SendStream<Bytes>,
    outgoing: BytesMut,
    answer: Answer,
    reader: MessageReader,
    /// Of the chunk in `reader`, to be given back when it is used up.
    held: usize,
    driver: Arc<Driver>,
}

enum Answer {
    Awaited(ResponseFuture),
    Body(RecvStream),
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The HTTP status, if one came.
    pub http: Option<StatusCode>,
    /// The gRPC status, if one came.
    pub status: Option<Status>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("stream", &self.send.stream_id())
            .finish_non_exhaustive()
    }
}

impl Call {
    pub(super) fn new(
        response: ResponseFuture,
        send: SendStream<Bytes>,
        driver: Arc<Driver>,
    ) -> Self {
        Self {
            send,
            outgoing: BytesMut::new(),
            answer: Answer::Awaited(response),
            reader: MessageReader::new(MAX_MESSAGE),
            held: 0,
            driver,
        }
    }

    /// Sends a packet, as soon as the windows have room for all of it.
    ///
    /// # Errors
    /// If the stream has ended.
    pub async fn send(&mut self, packet: &Packet) -> io::Result<()> {
        codec::put_packet(&mut self.outgoing, packet);
        poll_fn(|cx| self.poll_drain(cx)).await
    }

    /// Sends any bytes as DATA of HTTP/2.
    ///
    /// # Errors
    /// If the stream has ended.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.outgoing.extend_from_slice(bytes);
        poll_fn(|cx| self.poll_drain(cx)).await
    }

    /// Says that nothing more will be sent.
    ///
    /// # Errors
    /// If the stream has ended.
    pub fn end(&mut self) -> io::Result<()> {
        self.send.send_data(Bytes::new(), true).map_err(io_error)
    }

    /// The next packet; `None` at the end of the stream. Packets of unknown types are skipped.
    ///
    /// # Errors
    /// If the stream was reset, or what came is no packet.
    pub async fn receive(&mut self) -> io::Result<Option<Packet>> {
        poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// Reads to the end, whatever comes, and returns how the server ended the stream.
    ///
    /// # Errors
    /// If it was reset instead.
    pub async fn status(&mut self) -> io::Result<End> {
        let body = poll_fn(|cx| self.poll_body(cx)).await;
        let (http, head) = match body {
            Ok(head) => head,
            Err(error) => return Err(error),
        };
        if let Some(status) = head {
            return Ok(End {
                http,
                status: Some(status),
            });
        }
        let Answer::Body(body) = &mut self.answer else {
            return Ok(End { http, status: None });
        };
        while let Some(chunk) = body.data().await {
            let chunk = chunk.map_err(io_error)?;
            body.flow_control()
                .release_capacity(chunk.len())
                .map_err(io_error)?;
        }
        let trailers = body.trailers().await.map_err(io_error)?;
        Ok(End {
            http,
            status: trailers.as_ref().and_then(Status::from_headers),
        })
    }

    /// Waits for the answer to `dial`, which is the first packet of a stream.
    pub(super) async fn answer(&mut self, dial: DialId) -> Result<ConnectId, DialFailure> {
        let how = match self.receive().await {
            Ok(Some(Packet::DialResponse {
                error,
                conn,
                dial: answered,
            })) if answered == dial => {
                return if error.is_empty() {
                    Ok(conn)
                } else {
                    Err(DialFailure::Response { text: error })
                };
            }
            Ok(Some(Packet::CloseDial { dial: closed })) if closed == dial => "DIAL_CLS".into(),
            Ok(Some(other)) => return Err(DialFailure::Malformed(format!("{other:?}"))),
            Ok(None) => "the stream ended".into(),
            Err(error) => error.to_string(),
        };
        Err(DialFailure::Closed { how })
    }

    /// Leaves the stream, and if it was the last the connection, in order.
    pub async fn finish(self) {
        let Self {
            send,
            answer,
            driver,
            ..
        } = self;
        drop(answer);
        drop(send);
        driver.finish().await;
    }

    pub(super) fn queue(&mut self, packet: &Packet) {
        codec::put_packet(&mut self.outgoing, packet);
    }

    /// Hands everything queued to HTTP/2, as its windows allow.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            self.send.reserve_capacity(self.outgoing.len());
            if self.send.capacity() == 0 {
                match ready!(self.send.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                    None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                }
            }
            let room = self.send.capacity().min(self.outgoing.len());
            if room > 0 {
                let part = self.outgoing.split_to(room).freeze();
                self.send.send_data(part, false).map_err(io_error)?;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The next packet, as [`receive`](Self::receive).
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Packet>>> {
        let (http, head) = ready!(self.poll_body(cx))?;
        if let Some(status) = head {
            return Poll::Ready(Err(io::Error::other(format!("refused: {status}"))));
        }
        if let Some(http) = http
            && http != StatusCode::OK
        {
            return Poll::Ready(Err(io::Error::other(format!("refused: {http}"))));
        }
        loop {
            match self.reader.next_message().map_err(invalid)? {
                Some(message) => match codec::decode(&message).map_err(invalid)? {
                    Decoded::Packet(packet) => return Poll::Ready(Ok(Some(packet))),
                    Decoded::Unknown(_) => {}
                },
                None => {
                    let held = std::mem::take(&mut self.held);
                    let Answer::Body(body) = &mut self.answer else {
                        return Poll::Pending;
                    };
                    if held > 0 {
                        body.flow_control()
                            .release_capacity(held)
                            .map_err(io_error)?;
                    }
                    match ready!(body.poll_data(cx)) {
                        Some(Ok(chunk)) => {
                            self.held = chunk.len();
                            self.reader.push(chunk);
                        }
                        Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                        None => return Poll::Ready(Ok(None)),
                    }
                }
            }
        }
    }

    /// Waits for the response's head; returns its status, and the gRPC status if that is all there is.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(Option<StatusCode>, Option<Status>)>> {
        let Answer::Awaited(response) = &mut self.answer else {
            return Poll::Ready(Ok((None, None)));
        };
        let response = ready!(std::pin::Pin::new(response).poll(cx)).map_err(io_error)?;
        let (head, body) = response.into_parts();
        self.answer = Answer::Body(body);
        Poll::Ready(Ok((Some(head.status), Status::from_headers(&head.headers))))
    }
}

fn invalid(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
