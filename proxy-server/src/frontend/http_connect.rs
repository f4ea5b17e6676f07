//! HTTP CONNECT (wire-protocol, sections 3.6 and 3.7; egress-selector, section 3.2).
//!
//! One request a connection, read by hand around `httparse`: the answer must be byte-exact, go out alone, and the client must be
//! watched while its dial is pending, which a general server does not do.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};
use tunnel::copy::{self, copy};

use super::{FIRST_BYTES_PAUSE, socket::Socket};
use crate::{
    dial::{Core, DialError, Dialled},
    metrics::Gauged,
};

/// Longest request head, in bytes.
pub const MAX_HEAD: usize = 32 * 1024;

/// Most headers of a request.
const MAX_HEADERS: usize = 100;

/// What a client may send while its dial is pending; then it is not read on.
const MAX_EARLY: usize = 64 * 1024;

/// How long a client may take to accept an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// After a refusal: how long the client's remaining bytes are read, so that our close does not destroy the answer.
const REFUSAL_LINGER: Duration = Duration::from_secs(2);

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// A request head.
#[derive(Debug, PartialEq, Eq)]
pub enum Head {
    /// `CONNECT target`.
    Connect(String),
    /// Another method.
    OtherMethod,
    /// No HTTP/1 request, and what is wrong with it.
    Malformed(&'static str),
    /// Longer than [`MAX_HEAD`], or of more than 100 headers.
    TooLong,
}

/// Where the head ends, if it does: behind the first empty line, with lines that end in LF or CRLF. Looks from `from` on.
#[must_use]
pub fn head_end(read: &[u8], from: usize) -> Option<usize> {
    let tail = read.get(from..)?;
    let end = tail.iter().enumerate().find_map(|(i, &byte)| {
        let rest = tail.get(i + 1..).unwrap_or_default();
        match byte {
            b'\n' if rest.starts_with(b"\n") => Some(i + 2),
            b'\n' if rest.starts_with(b"\r\n") => Some(i + 3),
            _ => None,
        }
    })?;
    Some(from + end)
}

/// Reads a whole head.
#[must_use]
pub fn parse(head: &[u8]) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Head::Malformed("400 Bad Request"),
        Err(httparse::Error::TooManyHeaders) => return Head::TooLong,
        Err(_) => return Head::Malformed("400 Bad Request"),
    }
    if request.method != Some("CONNECT") {
        return Head::OtherMethod;
    }
    let path = request.path.unwrap_or_default();
    if !path.starts_with('/') {
        return Head::Connect(path.to_owned());
    }
    // As Go's server does; nobody but a hand-made client sends this.
    let host = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("host"));
    match host.and_then(|header| std::str::from_utf8(header.value).ok()) {
        Some(host) => Head::Connect(host.to_owned()),
        None => Head::Malformed("400 Bad Request: missing required Host header"),
    }
}

/// Serves one client whose head has been read, with the bytes that came behind it.
pub async fn serve(mut socket: Socket, head: Head, early: BytesMut, core: &Core) {
    let _gauge = Gauged::new(&core.metrics.http_connections);
    let refusal = match head {
        Head::Connect(target) => match dial(&mut socket, early, &target, core).await {
            None => return,
            Some((early, Ok(dialled))) => return establish(socket, early, &target, dialled).await,
            Some((_, Err(error))) => Refusal::of(&error),
        },
        Head::OtherMethod => Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "Method Not Allowed",
            "this proxy only supports CONNECT passthrough\n",
        ),
        Head::Malformed(what) => Refusal::new(StatusCode::BAD_REQUEST, "Bad Request", what),
        Head::TooLong => {
            let reason = "Request Header Fields Too Large";
            Refusal::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                reason,
                "the head of a request may have 32 KiB and 100 headers\n",
            )
        }
    };
    tracing::debug!(status = refusal.status.as_u16(), "refused a request");
    refusal.send(socket).await;
}

/// Dials, while watching whether the client is still there. `None`: it has gone, and its dial has been given up.
///
/// A client that shuts its sending side down while its dial is pending counts as gone: nothing has been promised to it.
async fn dial(
    socket: &mut Socket,
    mut early: BytesMut,
    target: &str,
    core: &Core,
) -> Option<(Bytes, Result<Dialled, DialError>)> {
    let outcome = tokio::select! {
        biased;
        outcome = core.dial("tcp", target) => outcome,
        () = gone(socket, &mut early) => {
            tracing::debug!(target, "client went away during its dial");
            return None;
        }
    };
    Some((early.freeze(), outcome))
}

/// Resolves when the client has closed. Cancel safe: what was read is in `early`.
async fn gone(socket: &mut Socket, early: &mut BytesMut) {
    while early.len() < MAX_EARLY {
        match socket.read_buf(early).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
    std::future::pending().await
}

async fn establish(mut socket: Socket, early: Bytes, target: &str, dialled: Dialled) {
    let Dialled {
        connection,
        agent,
        guard,
    } = dialled;
    let conn = connection.id();
    // Alone: the head must not share a write with bytes of the target.
    let answer = async {
        socket.write_all(ESTABLISHED).await?;
        socket.flush().await
    };
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            return tracing::debug!(target, %error, "client went away before its answer");
        }
        Err(_) => {
            return tracing::debug!(
                target,
                "client did not take its answer within {ANSWER_TIMEOUT:?}"
            );
        }
    }
    let copied = copy(
        socket,
        connection,
        copy::Options {
            early,
            hold: FIRST_BYTES_PAUSE,
            watch_for_hang_up: true,
        },
    )
    .await;
    drop(guard);
    tracing::debug!(target, %agent, %conn, sent = copied.sent, received = copied.received, end = ?copied.end, "connection over");
}

/// An answer other than 200; the connection ends with it.
struct Refusal {
    status: StatusCode,
    reason: String,
    body: String,
}

impl Refusal {
    fn new(status: StatusCode, reason: &str, body: &str) -> Self {
        Self {
            status,
            reason: reason.to_owned(),
            body: body.to_owned(),
        }
    }

    fn of(error: &DialError) -> Self {
        // kube-apiserver reports the reason phrase and drops the body; upstream's own clients read the body.
        Self {
            status: error.http_status(),
            reason: error.http_reason(),
            body: error.http_body(),
        }
    }

    fn to_bytes(&self) -> String {
        format!(
            "HTTP/1.1 {} {}\r\nConnection: close\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\r\n{}",
            self.status.as_u16(),
            self.reason,
            self.body.len(),
            self.body
        )
    }

    async fn send(&self, mut socket: Socket) {
        let answer = async {
            socket.write_all(self.to_bytes().as_bytes()).await?;
            socket.shutdown().await
        };
        if !matches!(timeout(ANSWER_TIMEOUT, answer).await, Ok(Ok(()))) {
            return;
        }
        let mut rest = BytesMut::new();
        let drain = async {
            while matches!(socket.read_buf(&mut rest).await, Ok(1..)) {
                rest.clear();
            }
        };
        // Whether it ends by itself or not, the socket is closed now.
        drop(timeout(REFUSAL_LINGER, drain).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::AgentId;

    #[test]
    fn the_target_is_the_request_lines_and_not_the_hosts() {
        let head = b"CONNECT 10.0.0.5:10250 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        assert_eq!(parse(head), Head::Connect("10.0.0.5:10250".into()));
        assert_eq!(
            parse(b"CONNECT [fd00::7]:443 HTTP/1.0\n\n"),
            Head::Connect("[fd00::7]:443".into())
        );
        assert_eq!(
            parse(b"CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n"),
            Head::Connect("127.0.0.1".into())
        );
        assert_eq!(
            parse(b"CONNECT /x HTTP/1.1\r\nhost: a:1\r\n\r\n"),
            Head::Connect("a:1".into())
        );
    }

    #[test]
    fn everything_else_is_refused_by_its_kind() {
        assert_eq!(
            parse(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            Head::OtherMethod
        );
        assert_eq!(
            parse(b"CONNECT /x HTTP/1.1\r\n\r\n"),
            Head::Malformed("400 Bad Request: missing required Host header")
        );
        for junk in [
            &b"\x16\x03\x01\x02\x00\x01\n\n"[..],
            b"CONNECT\r\n\r\n",
            b"CONNECT a:1 HTTP/9.9\r\n\r\n",
            b"\n\n",
        ] {
            assert!(
                matches!(parse(junk), Head::Malformed(_)),
                "{junk:?} is {:?}",
                parse(junk)
            );
        }
        let many = format!(
            "CONNECT a:1 HTTP/1.1\r\n{}\r\n",
            "a: b\r\n".repeat(MAX_HEADERS + 1)
        );
        assert_eq!(parse(many.as_bytes()), Head::TooLong);
    }

    #[test]
    fn a_head_ends_behind_its_first_empty_line_wherever_reads_end() {
        for head in [
            "CONNECT a:1 HTTP/1.1\r\nHost: b\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\n\n",
            "CONNECT a:1 HTTP/1.1\r\n\n",
        ] {
            let wire = format!("{head}early\r\n\r\n");
            for cut in 0..=wire.len() {
                // What `first_bytes` does with two reads.
                let first = head_end(&wire.as_bytes()[..cut], 0);
                let end = first.or_else(|| head_end(wire.as_bytes(), cut.saturating_sub(3)));
                assert_eq!(end, Some(head.len()), "{head:?} cut at {cut}");
            }
        }
        assert_eq!(head_end(b"CONNECT a:1 HTTP/1.1\r\n", 0), None);
    }

    #[test]
    fn a_refusal_is_a_strict_http_response_with_the_cause_in_reason_and_body() {
        let error = DialError::Refused {
            agent: AgentId::new("node-1"),
            refusal: tunnel::dial::Refusal::failed(
                "dial tcp 127.0.0.1:1: connect: connection refused",
            ),
        };
        let text = Refusal::of(&error).to_bytes();
        let mut headers = [httparse::EMPTY_HEADER; 8];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(head) = response.parse(text.as_bytes()).unwrap() else {
            panic!("not whole")
        };
        assert_eq!((response.code, response.version), (Some(502), Some(1)));
        assert_eq!(
            response.reason,
            Some("dial tcp 127.0.0.1:1: connect: connection refused (agent node-1)")
        );
        let length = response
            .headers
            .iter()
            .find(|header| header.name == "Content-Length")
            .unwrap()
            .value;
        assert_eq!(
            std::str::from_utf8(length).unwrap(),
            (text.len() - head).to_string()
        );
        assert!(text[head..].contains("connection refused"));
    }
}
