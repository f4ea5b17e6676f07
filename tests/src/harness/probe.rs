//! A HTTP client as small as a kubelet's probe.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// As long as kubelets wait at most by default for a probe, and then some.
const LIMIT: Duration = Duration::from_secs(10);

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: HashMap<String, String>,
    /// The body.
    pub body: String,
}

/// GETs `path` over a connection of its own.
///
/// # Errors
/// If nobody listens, or the answer is none.
pub async fn get(address: SocketAddr, path: &str) -> Result<Reply> {
    request(address, "GET", path)
        .await
        .with_context(|| format!("GET http://{address}{path}"))
}

async fn request(address: SocketAddr, method: &str, path: &str) -> Result<Reply> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, anyhow::Error>(answer)
    };
    let answer = timeout(LIMIT, exchange).await.context("no answer")??;
    parse(&String::from_utf8(answer)?)
}

fn parse(answer: &str) -> Result<Reply> {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("no end of the head")?;
    let mut lines = head.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.strip_prefix("HTTP/1.1 "))
        .and_then(|rest| rest.get(..3))
        .context("no status line of HTTP/1.1")?
        .parse()?;
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    if headers.contains_key("transfer-encoding") {
        bail!("a chunked body, which this client does not read");
    }
    if let Some(length) = headers.get("content-length") {
        let length: usize = length.parse()?;
        if length != body.len() {
            bail!("content-length {length}, but {} bytes came", body.len());
        }
    }
    Ok(Reply {
        status,
        headers,
        body: body.to_owned(),
    })
}

/// The sum of a metric over all its label sets that contain `labels` (such as `reason="timeout"`); 0 if it has none.
///
/// # Errors
/// If the metrics cannot be read.
pub async fn metric(address: SocketAddr, name: &str, labels: &str) -> Result<f64> {
    let reply = get(address, "/metrics").await?;
    if reply.status != 200 {
        bail!("status {} for metrics", reply.status);
    }
    let mut sum = 0.0;
    for line in reply.body.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let (series_name, series_labels) = series.split_once('{').unwrap_or((series, ""));
        if series_name == name && series_labels.contains(labels) {
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum)
}
