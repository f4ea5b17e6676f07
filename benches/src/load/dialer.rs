//! A way to the target.

use std::path::PathBuf;

use anyhow::{Context, Result};
use e2e::client::{Client, Socket};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::target::Job;

/// Opens connections to one target.
#[derive(Clone, Debug)]
pub enum Dialer {
    /// Through a server's frontend.
    Frontend {
        /// The way to the frontend.
        client: Client,
        /// The target, `host:port`.
        target: String,
    },
    /// Through a relay, which knows its target.
    Relay(PathBuf),
}

impl Dialer {
    /// A connection that has said nothing yet.
    ///
    /// # Errors
    /// If the dial fails.
    pub async fn dial(&self) -> Result<Socket> {
        match self {
            Self::Frontend { client, target } => {
                let stream = client.dial(target).await.context("dial")?;
                Ok(Box::new(stream))
            }
            Self::Relay(socket) => {
                let stream = UnixStream::connect(socket)
                    .await
                    .context("dial the relay")?;
                Ok(Box::new(stream))
            }
        }
    }

    /// A connection that has said what it is for.
    ///
    /// # Errors
    /// If the dial fails, or the connection ends.
    pub async fn ask(&self, job: Job) -> Result<Socket> {
        let mut stream = self.dial().await?;
        stream.write_all(&job.encode()).await?;
        stream.flush().await?;
        Ok(stream)
    }

    /// A connection to an echo, which has given back a byte.
    ///
    /// # Errors
    /// If the dial fails, or the connection ends.
    pub async fn echo(&self) -> Result<Socket> {
        let mut stream = self.dial().await?;
        let mut first = Job::Echo.encode().to_vec();
        first.push(b'1');
        stream.write_all(&first).await?;
        stream.flush().await?;
        stream.read_u8().await.context("first byte of an echo")?;
        Ok(stream)
    }
}
