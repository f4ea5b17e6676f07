//! The yardstick: two processes that do nothing but carry bytes, with a connection between them for each connection, and the same
//! TLS settings, allocator and kind of runtime as ours. What a tunnel costs more than this, it costs for being a tunnel.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::{Context, Result};
use certs::{Identity, Roots, TlsOptions};
use clap::{Args, Subcommand};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes},
    net::{TcpListener, TcpStream, UnixListener},
    task::{LocalSet, spawn_local},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What is read in one piece, each way.
const BUFFER: usize = 64 * 1024;

/// One end of a relay.
#[derive(Debug, Subcommand)]
pub enum Relay {
    /// Where the server would be: a Unix socket in front, a connection to the far end behind each of its connections.
    Near {
        /// The Unix socket.
        #[arg(long)]
        socket: PathBuf,
        /// Where the far end listens.
        #[arg(long)]
        far: SocketAddr,
        /// None for plain TCP.
        #[command(flatten)]
        tls: TlsFiles,
    },
    /// Where the agent would be: a connection to the target behind each of its connections.
    Far {
        /// Where it listens.
        #[arg(long)]
        listen: SocketAddr,
        /// What is dialled.
        #[arg(long)]
        target: SocketAddr,
        /// None for plain TCP.
        #[command(flatten)]
        tls: TlsFiles,
    },
}

/// PEM files.
#[derive(Args, Debug)]
pub struct TlsFiles {
    /// Whom to trust.
    #[arg(long, requires_all = ["cert", "key"])]
    pub ca: Option<PathBuf>,
    /// What to show.
    #[arg(long)]
    pub cert: Option<PathBuf>,
    /// Its key.
    #[arg(long)]
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    fn read(&self) -> Result<Option<(Roots, Identity)>> {
        let (Some(ca), Some(cert), Some(key)) = (&self.ca, &self.cert, &self.key) else {
            return Ok(None);
        };
        Ok(Some((Roots::load(ca)?, Identity::load(cert, key)?)))
    }
}

impl Relay {
    /// Carries bytes until the process is ended.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn run(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start the runtime")?;
        LocalSet::new().block_on(&runtime, async {
            match self {
                Self::Near { socket, far, tls } => near(socket, *far, tls).await,
                Self::Far {
                    listen,
                    target,
                    tls,
                } => far(*listen, *target, tls).await,
            }
        })
    }
}

async fn near(socket: &Path, far: SocketAddr, tls: &TlsFiles) -> Result<()> {
    let connector = match tls.read()? {
        Some((roots, identity)) => Some(Rc::new(TlsConnector::from(certs::client_config(
            &roots,
            Some(&identity),
            &[],
            &TlsOptions::default(),
        )?))),
        None => None,
    };
    let listener = UnixListener::bind(socket).context("listen")?;
    loop {
        let (front, _) = listener.accept().await?;
        let connector = connector.clone();
        spawn_local(async move {
            // However it ends, both sides are closed.
            drop(reach(front, far, connector.as_deref()).await);
        });
    }
}

async fn reach(
    front: impl AsyncRead + AsyncWrite + Unpin,
    far: SocketAddr,
    connector: Option<&TlsConnector>,
) -> io::Result<()> {
    let back = TcpStream::connect(far).await?;
    back.set_nodelay(true)?;
    match connector {
        Some(connector) => {
            let name = ServerName::from(far.ip());
            carry(front, connector.connect(name, back).await?).await
        }
        None => carry(front, back).await,
    }
}

async fn far(listen: SocketAddr, target: SocketAddr, tls: &TlsFiles) -> Result<()> {
    let acceptor = match tls.read()? {
        Some((roots, identity)) => Some(Rc::new(TlsAcceptor::from(certs::server_config(
            &identity,
            Some(&roots),
            &[],
            &TlsOptions::default(),
        )?))),
        None => None,
    };
    let listener = TcpListener::bind(listen).await.context("listen")?;
    loop {
        let (front, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        spawn_local(async move {
            // However it ends, both sides are closed.
            drop(dial(front, target, acceptor.as_deref()).await);
        });
    }
}

async fn dial(
    front: TcpStream,
    target: SocketAddr,
    acceptor: Option<&TlsAcceptor>,
) -> io::Result<()> {
    front.set_nodelay(true)?;
    match acceptor {
        Some(acceptor) => {
            let front = acceptor.accept(front).await?;
            carry(front, connect(target).await?).await
        }
        None => carry(front, connect(target).await?).await,
    }
}

async fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn carry(
    mut one: impl AsyncRead + AsyncWrite + Unpin,
    mut other: impl AsyncRead + AsyncWrite + Unpin,
) -> io::Result<()> {
    copy_bidirectional_with_sizes(&mut one, &mut other, BUFFER, BUFFER)
        .await
        .map(drop)
}

/// The files of an end as flags.
#[must_use]
pub fn tls_flags(ca: &Path, files: &certs::issue::Files) -> [String; 3] {
    [
        format!("--ca={}", ca.display()),
        format!("--cert={}", files.certificate.display()),
        format!("--key={}", files.key.display()),
    ]
}
