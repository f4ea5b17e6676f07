//! An established connection over a `Proxy` stream, as bytes.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, timeout},
};
use tunnel::packet::{ConnectId, Packet};

use super::{
    super::{CLOSE_LIMIT, DialFailure},
    Call,
};

/// The client library loses DATA that comes this soon behind DIAL_RSP now and then: it registers a connection only after it
/// has woken the dialler (egress-selector.md D2). Such DATA is an error here, always, unless the dialler has written: then it
/// has been woken, and a quick answer to it is no early one.
const REGISTRATION: Duration = Duration::from_millis(1);

/// The client library writes any length as one DATA; this is the longest here.
const MAX_WRITE: usize = 100_000;

/// A connection to a target through gRPC.
#[derive(Debug)]
pub struct GrpcStream {
    call: Call,
    conn: ConnectId,
    established: Option<Instant>,
    unread: Bytes,
    is_closing: bool,
    /// CLOSE_RSP has come, with this error.
    closed: Option<String>,
}

impl GrpcStream {
    /// The stream of an answered dial.
    ///
    /// # Errors
    /// [`DialFailure::EarlyBytes`] if DATA is there already.
    pub(super) fn established(mut call: Call, conn: ConnectId) -> Result<Self, DialFailure> {
        if conn == ConnectId::NONE {
            return Err(DialFailure::Malformed("connection id 0".into()));
        }
        let established = Instant::now();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut closed = None;
        match call.poll_receive(&mut cx) {
            Poll::Pending => {}
            Poll::Ready(Ok(Some(Packet::Data { payload, .. }))) => {
                return Err(DialFailure::EarlyBytes {
                    bytes: payload.len(),
                });
            }
            Poll::Ready(Ok(Some(Packet::CloseResponse { error, .. }))) => closed = Some(error),
            Poll::Ready(Ok(other)) => {
                return Err(DialFailure::Malformed(format!("{other:?} after DIAL_RSP")));
            }
            Poll::Ready(Err(error)) => return Err(DialFailure::Connect(error)),
        }
        Ok(Self {
            call,
            conn,
            established: Some(established),
            unread: Bytes::new(),
            is_closing: false,
            closed,
        })
    }

    /// Its number on the tunnel between server and agent.
    #[must_use]
    pub fn id(&self) -> ConnectId {
        self.conn
    }

    /// The error of CLOSE_RSP, empty as a rule, once it has come.
    #[must_use]
    pub fn close_error(&self) -> Option<&str> {
        self.closed.as_deref()
    }

    /// CLOSE_REQ, wait for CLOSE_RSP, leave.
    ///
    /// # Errors
    /// If the stream breaks, or no answer comes within [`CLOSE_LIMIT`].
    pub async fn close(mut self) -> io::Result<()> {
        let closing = async {
            if self.closed.is_none() {
                poll_fn(|cx| Pin::new(&mut self).poll_shutdown(cx)).await?;
            }
            while self.closed.is_none() {
                self.unread.clear();
                poll_fn(|cx| self.poll_packet(cx)).await?;
            }
            Ok(())
        };
        let result = timeout(CLOSE_LIMIT, closing)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no CLOSE_RSP"))?;
        self.call.finish().await;
        result
    }

    /// Takes the next packet into `unread` or `closed`.
    fn poll_packet(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let error = match ready!(self.call.poll_receive(cx))? {
            Some(Packet::Data { conn, payload }) if conn == self.conn => {
                let waited = self.established.take().map(|since| since.elapsed());
                if waited.is_some_and(|waited| waited < REGISTRATION) {
                    format!("DATA came {waited:?} behind DIAL_RSP")
                } else if payload.is_empty() {
                    "empty DATA, which ends the client library's stream".into()
                } else {
                    self.unread = payload;
                    return Poll::Ready(Ok(()));
                }
            }
            Some(Packet::CloseResponse { error, conn }) if conn == self.conn => {
                self.closed = Some(error);
                return Poll::Ready(Ok(()));
            }
            Some(other) => format!("unexpected {other:?}"),
            None => "the stream ended without CLOSE_RSP".into(),
        };
        Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)))
    }
}

impl AsyncRead for GrpcStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.unread.is_empty() {
            if this.closed.is_some() {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_packet(cx))?;
        }
        let count = buf.remaining().min(this.unread.len());
        buf.put_slice(this.unread.get(..count).unwrap_or_default());
        this.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for GrpcStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.closed.is_some() || this.is_closing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.call.poll_drain(cx))?;
        let part = buf.get(..MAX_WRITE).unwrap_or(buf);
        if !part.is_empty() {
            this.established = None;
            this.call.queue(&Packet::Data {
                conn: this.conn,
                payload: Bytes::copy_from_slice(part),
            });
            // What does not fit now is sent by the next call, or by flush.
            if let Poll::Ready(result) = this.call.poll_drain(cx) {
                result?;
            }
        }
        Poll::Ready(Ok(part.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.call.poll_drain(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.closed.is_some() {
            return Poll::Ready(Ok(()));
        }
        if !this.is_closing {
            this.is_closing = true;
            this.call.queue(&Packet::CloseRequest { conn: this.conn });
        }
        this.call.poll_drain(cx)
    }
}
