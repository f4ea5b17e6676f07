//! HTTP CONNECT, byte for byte as kube-apiserver speaks it and as strict about the answer (egress-selector.md 3.2).

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// kube-apiserver reads the answer through a buffer of this size; what it holds behind the head fails the dial.
const READ_BUFFER_BYTES: usize = 4096;

/// Largest head of an answer that is read.
const MAX_HEAD_BYTES: usize = 1024 * 1024;

pub(super) async fn dial(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    target: &str,
) -> Result<((), String)> {
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    socket
        .write_all(request.as_bytes())
        .await
        .context("send the request")?;
    socket.flush().await.context("send the request")?;
    let mut head = Vec::new();
    let mut buffer = [0; READ_BUFFER_BYTES];
    let end = loop {
        let count = socket.read(&mut buffer).await.context("read the answer")?;
        ensure!(
            count > 0,
            "the proxy closed the connection after {} bytes, without an answer",
            head.len()
        );
        head.extend(buffer.iter().take(count));
        if let Some(end) = end_of_head(&head) {
            break end;
        }
        ensure!(head.len() <= MAX_HEAD_BYTES, "the answer has no end");
    };
    let behind = head.len() - end;
    head.truncate(end);
    let head = String::from_utf8_lossy(&head);
    let line = head.lines().next().unwrap_or_default();
    let (status, reason) =
        status(line).with_context(|| format!("the answer is not HTTP: it begins with {line:?}"))?;
    ensure!(
        status == 200,
        "the proxy refused {target} with status {status}: {reason:?}"
    );
    if behind > 0 {
        bail!(
            "{behind} bytes came together with the answer, which fails every dial of kube-apiserver"
        );
    }
    Ok(((), format!("{target} is reached, status {status}")))
}

/// Behind the empty line. Go takes bare line feeds, too.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let crlf = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let lf = bytes.windows(2).position(|two| two == b"\n\n");
    crlf.map(|at| at + 4)
        .into_iter()
        .chain(lf.map(|at| at + 2))
        .min()
}

/// Status and reason phrase of `HTTP/x.y 200 reason`.
fn status(line: &str) -> Option<(u16, &str)> {
    let (version, rest) = line.split_once(' ')?;
    let digits = version.strip_prefix("HTTP/")?.split_once('.')?;
    digits.0.parse::<u8>().ok()?;
    digits.1.parse::<u8>().ok()?;
    let (code, reason) = rest.split_once(' ').unwrap_or((rest, ""));
    let is_code = code.len() == 3 && code.bytes().all(|byte| byte.is_ascii_digit());
    Some((code.parse().ok().filter(|_| is_code)?, reason.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answered(answer: &'static [u8]) -> Result<String, String> {
        let (ours, mut theirs) = tokio::io::duplex(1024);
        theirs.write_all(answer).await.unwrap();
        let outcome = dial(ours, "192.0.2.1:443").await;
        let mut request = String::new();
        theirs.read_to_string(&mut request).await.unwrap();
        assert_eq!(
            request,
            "CONNECT 192.0.2.1:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        );
        outcome
            .map(|((), detail)| detail)
            .map_err(|error| format!("{error:#}"))
    }

    #[tokio::test]
    async fn what_kube_apiserver_takes_is_taken() {
        for answer in [
            &b"HTTP/1.1 200 Connection Established\r\n\r\n"[..],
            b"HTTP/1.0 200\n\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        ] {
            answered(answer).await.unwrap();
        }
    }

    #[tokio::test]
    async fn what_kube_apiserver_fails_on_fails_with_the_reason() {
        for (answer, wanted) in [
            (
                &b"HTTP/1.1 502 no agent\r\n\r\n"[..],
                "status 502: \"no agent\"",
            ),
            (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
            (b"HTTP/1.1 200 OK\r\n\r\nSSH-2.0", "7 bytes came together"),
            (b"SSH-2.0\r\n\r\n", "not HTTP"),
            (b"HTTP/2 200\r\n\r\n", "not HTTP"),
        ] {
            let reason = answered(answer).await.unwrap_err();
            assert!(reason.contains(wanted), "{reason}");
        }
    }
}
