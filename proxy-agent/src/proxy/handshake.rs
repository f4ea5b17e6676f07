//! The CONNECT that opens a way through a proxy (RFC 9110, section 9.3.6).

use http::StatusCode;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::ProxyError;
use super::environment::ProxyUrl;
use crate::server_address::ServerAddress;

/// Longest answer head that is read, in bytes.
const MAX_HEAD: usize = 16 * 1024;

/// Most header fields of an answer.
const MAX_FIELDS: usize = 100;

/// Asks the proxy for a connection to `server` and reads its answer. Must be given a time limit.
pub(super) async fn connect(
    proxy: &ProxyUrl,
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    server: &ServerAddress,
) -> Result<(), ProxyError> {
    let broken = |source| ProxyError::Io {
        proxy: proxy.to_string(),
        source,
    };
    let request = request(proxy, server);
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut head = Vec::with_capacity(1024);
    let answer = |what: &str| ProxyError::Answer {
        proxy: proxy.to_string(),
        what: what.to_owned(),
    };
    loop {
        if stream.read_buf(&mut head).await.map_err(broken)? == 0 {
            return Err(answer("it closed the connection"));
        }
        match parse(&head).map_err(|error| answer(&error.to_string()))? {
            Some((status, _)) if !status.is_success() => {
                return Err(ProxyError::Refused {
                    proxy: proxy.to_string(),
                    status,
                    server: server.to_string(),
                });
            }
            Some((_, length)) if length == head.len() => return Ok(()),
            // A TLS server does not speak first.
            Some(_) => return Err(answer("bytes follow the head of its answer")),
            None if head.len() >= MAX_HEAD => return Err(answer("its head does not end")),
            None => {}
        }
    }
}

fn request(proxy: &ProxyUrl, server: &ServerAddress) -> String {
    let mut request = format!(
        "CONNECT {server} HTTP/1.1\r\nHost: {server}\r\nUser-Agent: adit-agent/{}\r\n",
        env!("CARGO_PKG_VERSION")
    );
    if let Some(credentials) = &proxy.credentials {
        request.push_str(&format!("Proxy-Authorization: Basic {credentials}\r\n"));
    }
    request.push_str("\r\n");
    request
}

/// The status and the length of a head, if it is complete.
fn parse(bytes: &[u8]) -> Result<Option<(StatusCode, usize)>, httparse::Error> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(length) = response.parse(bytes)? else {
        return Ok(None);
    };
    let status = response
        .code
        .and_then(|code| StatusCode::from_u16(code).ok());
    Ok(Some((status.ok_or(httparse::Error::Status)?, length)))
}
