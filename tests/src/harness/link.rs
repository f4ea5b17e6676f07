//! A slow network between an agent and its server.

use std::{io, net::SocketAddr, time::Duration};

use anyhow::Result;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

/// How often the link carries its share.
const TICK: Duration = Duration::from_millis(10);

/// What the kernel may hold on either side of the link, in bytes: a slow link with megabytes of buffers would be a fast one.
const SOCKET_BUFFER: usize = 64 * 1024;

/// Passes TCP connections on to one address, each direction of each with a bounded rate.
#[derive(Debug)]
pub struct SlowLink {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl SlowLink {
    /// Listens on loopback, on a port of the kernel's choice, until it is dropped; then all connections end.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn to(server: SocketAddr, bytes_per_second: u32) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        // What it accepts inherits them.
        SockRef::from(&listener).set_recv_buffer_size(SOCKET_BUFFER)?;
        let address = listener.local_addr()?;
        let share = usize::try_from(bytes_per_second)? / 100;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((stream, _)) = accepted else { continue };
                        connections.spawn(carry(stream, server, share));
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self {
            address,
            _tasks: tasks,
        })
    }

    /// Where agents connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn carry(mut client: TcpStream, server: SocketAddr, share: usize) {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    for stream in [&client, &server] {
        let socket = SockRef::from(stream);
        socket.set_recv_buffer_size(SOCKET_BUFFER).ok();
        socket.set_send_buffer_size(SOCKET_BUFFER).ok();
        socket.set_tcp_nodelay(true).ok();
    }
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    // However it ends, both ends are told.
    tokio::try_join!(
        throttled(&mut from_client, &mut to_server, share),
        throttled(&mut from_server, &mut to_client, share),
    )
    .ok();
}

async fn throttled(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    share: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; share];
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let len = from.read(&mut buffer).await?;
        if len == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..len).unwrap_or_default()).await?;
    }
}
