//! A router that passes TLS through by the name in its ClientHello, as an OpenShift Route does.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use e2e::harness::PATIENCE;
use rustls::server::Acceptor;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

/// More than any ClientHello of ours has.
const MAX_HELLO: usize = 64 * 1024;

/// What a ClientHello asks for.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) name: Option<String>,
    pub(crate) protocols: Vec<String>,
}

/// A running router. It reads ClientHellos, and not a byte more of what is in TLS.
#[derive(Debug)]
pub(crate) struct Router {
    address: SocketAddr,
    hellos: mpsc::Receiver<Hello>,
    _tasks: JoinSet<()>,
}

impl Router {
    /// Routes connections for `name` to `backend`, and drops all others.
    pub(crate) async fn to(name: &'static str, backend: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (sender, hellos) = mpsc::channel(16);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut routes = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let sender = sender.clone();
                routes.spawn(async move { route(stream, name, backend, &sender).await });
            }
        });
        Ok(Self {
            address,
            hellos,
            _tasks: tasks,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the next client asked for.
    pub(crate) async fn hello(&mut self) -> Result<Hello> {
        let hello = timeout(PATIENCE, self.hellos.recv()).await;
        hello.context("nobody came")?.context("the router ended")
    }
}

async fn route(
    mut client: TcpStream,
    name: &str,
    backend: SocketAddr,
    hellos: &mpsc::Sender<Hello>,
) -> io::Result<()> {
    let (hello, bytes) = timeout(Duration::from_secs(30), read_hello(&mut client)).await??;
    let is_known = hello.name.as_deref() == Some(name);
    // The test looks at the first few only.
    hellos.try_send(hello).ok();
    if !is_known {
        return Ok(());
    }
    let mut server = TcpStream::connect(backend).await?;
    server.write_all(&bytes).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// Reads until rustls has seen a whole ClientHello; returns it and the bytes that were read.
async fn read_hello(client: &mut TcpStream) -> io::Result<(Hello, Vec<u8>)> {
    let mut acceptor = Acceptor::default();
    let mut bytes = Vec::new();
    while bytes.len() < MAX_HELLO {
        let mut buffer = [0; 4096];
        let count = client.read(&mut buffer).await?;
        let mut read = buffer.get(..count).unwrap_or_default();
        if read.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(read);
        while !read.is_empty() {
            acceptor.read_tls(&mut read)?;
            let accepted = acceptor
                .accept()
                .map_err(|(error, _)| io::Error::other(error))?;
            if let Some(accepted) = accepted {
                let hello = accepted.client_hello();
                let protocols = hello.alpn().into_iter().flatten();
                let hello = Hello {
                    name: hello.server_name().map(str::to_owned),
                    protocols: protocols
                        .map(|name| String::from_utf8_lossy(name).into_owned())
                        .collect(),
                };
                return Ok((hello, bytes));
            }
        }
    }
    Err(io::Error::other("a ClientHello without end"))
}
