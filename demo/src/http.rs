//! The little HTTP/1.1 that the demo speaks as a client: one request, one answer, end of connection.

use anyhow::{Context, ensure};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Sends a request with `body` and gives back the answer's body; anything but 200 is an error.
pub(crate) async fn exchange<S>(
    stream: S,
    method: &str,
    path: &str,
    body: &[u8],
) -> anyhow::Result<Vec<u8>>
where
    S: AsyncRead + AsyncWrite,
{
    let (mut read, mut write) = tokio::io::split(stream);
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut answer = Vec::new();
    let send = async {
        write.write_all(head.as_bytes()).await?;
        write.write_all(body).await?;
        write.flush().await
    };
    // At once, since the answer may begin before the request has ended.
    let receive = read.read_to_end(&mut answer);
    let (sent, received) = tokio::join!(send, receive);
    sent.context("send the request")?;
    received.context("read the answer")?;
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .context("the answer has no head")?;
    let body = answer.split_off(end + 4);
    ensure!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "the answer is {:?}",
        String::from_utf8_lossy(&answer)
            .lines()
            .next()
            .unwrap_or_default()
    );
    Ok(body)
}
