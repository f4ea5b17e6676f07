//! What most tests do with a connection.

use anyhow::{Context, Result};
use tokio::io::split;

use crate::{
    client::{Client, Stream},
    payload::{Payload, Received},
};

/// Sends `len` bytes to an echo and takes them back at the same time, checked.
///
/// # Errors
/// If a byte is lost, wrong, or the connection breaks.
pub async fn echo(stream: &mut Stream, len: u64) -> Result<()> {
    let payload = Payload::random(len);
    let (reader, writer) = split(stream);
    let (written, received) = tokio::join!(
        payload.write_to(writer),
        Received::read_exactly(reader, len)
    );
    written.with_context(|| format!("write, and {received:?} came"))?;
    payload.check(&received)
}

/// Dials an echo, exchanges `len` bytes and closes.
///
/// # Errors
/// If any of it fails.
pub async fn dial_and_echo(client: &Client, target: &str, len: u64) -> Result<()> {
    let what = || format!("{len} bytes to {target}, {}", client.frontend());
    let mut stream = client.dial(target).await.with_context(what)?;
    echo(&mut stream, len).await.with_context(what)?;
    stream.close().await.context("close").with_context(what)
}
