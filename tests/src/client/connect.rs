//! HTTP CONNECT, byte for byte as kube-apiserver speaks it (egress-selector.md 3.2).

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{DialFailure, Socket};

/// kube-apiserver reads the answer through a buffer of this size; what it holds behind the head fails the dial.
const READ_BUFFER: usize = 4096;

/// kube-apiserver's limit on the head of an answer.
const MAX_HEAD: usize = 1024 * 1024;

/// An answer to CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialAnswer {
    /// Status code.
    pub status: u16,
    /// Reason phrase.
    pub reason: String,
    /// The head as it came, both empty lines included.
    pub head: String,
    /// What came in the same read behind it.
    pub behind: Vec<u8>,
}

impl DialAnswer {
    /// Reads the head of an answer, and nothing that does not come with it.
    ///
    /// # Errors
    /// [`DialFailure::Closed`] and [`DialFailure::Malformed`].
    pub async fn read(socket: &mut Socket) -> Result<Self, DialFailure> {
        let mut bytes = Vec::new();
        let mut buffer = [0; READ_BUFFER];
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if bytes.len() > MAX_HEAD {
                return Err(DialFailure::Malformed("the head has no end".into()));
            }
            let read = socket.read(&mut buffer).await;
            let count = read.map_err(DialFailure::Connect)?;
            if count == 0 {
                return Err(DialFailure::Closed {
                    how: format!("after {} bytes", bytes.len()),
                });
            }
            bytes.extend(buffer.iter().take(count));
        };
        let behind = bytes.split_off(end);
        let head = String::from_utf8(bytes)
            .map_err(|_| DialFailure::Malformed("the head is not UTF-8".into()))?;
        let (status, reason) = status_line(&head)
            .ok_or_else(|| DialFailure::Malformed(format!("status line in {head:?}")))?;
        Ok(Self {
            status,
            reason,
            head,
            behind,
        })
    }
}

/// Dials on a fresh connection.
pub(super) async fn dial(
    mut socket: Socket,
    target: &str,
    patience: Duration,
) -> Result<Socket, DialFailure> {
    let exchange = async {
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        let written = async {
            socket.write_all(request.as_bytes()).await?;
            socket.flush().await
        };
        written.await.map_err(DialFailure::Connect)?;
        let answer = DialAnswer::read(&mut socket).await?;
        if answer.status == 200 {
            if answer.behind.is_empty() {
                return Ok(());
            }
            return Err(DialFailure::EarlyBytes {
                bytes: answer.behind.len(),
            });
        }
        let mut body = answer.behind;
        // A reset behind the body is as good an end as any here.
        socket.read_to_end(&mut body).await.ok();
        Err(DialFailure::Status {
            status: answer.status,
            reason: answer.reason,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    match timeout(patience, exchange).await {
        Ok(Ok(())) => Ok(socket),
        Ok(Err(failure)) => Err(failure),
        Err(_) => Err(DialFailure::NoAnswer(patience)),
    }
}

/// Strictly `HTTP/1.1 <three digits>[ <reason>]`.
fn status_line(head: &str) -> Option<(u16, String)> {
    let line = head.split("\r\n").next()?;
    let rest = line.strip_prefix("HTTP/1.1 ")?;
    let code = rest.get(..3)?;
    let reason = match rest.get(3..)? {
        "" => "",
        reason => reason.strip_prefix(' ')?,
    };
    Some((code.parse().ok()?, reason.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer(written: &'static [u8]) -> Result<Socket, DialFailure> {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(written).await.unwrap();
        let dial = dial(Box::new(ours), "127.0.0.1:1", Duration::from_secs(60)).await;
        let mut request = [0; 512];
        let count = theirs.read(&mut request).await.unwrap();
        assert_eq!(
            &request[..count],
            b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        );
        dial
    }

    #[tokio::test]
    async fn a_lonely_200_is_a_connection() {
        answer(b"HTTP/1.1 200 Connection Established\r\n\r\n")
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn bytes_behind_a_200_fail_the_dial() {
        let failure = answer(b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0").await.unwrap_err();
        assert!(matches!(failure, DialFailure::EarlyBytes { bytes: 7 }));
    }

    #[tokio::test]
    async fn an_answer_of_another_version_is_none() {
        let failure = answer(b"HTTP/1.0 200 OK\r\n\r\n").await.unwrap_err();
        assert!(matches!(failure, DialFailure::Malformed(_)));
    }
}
