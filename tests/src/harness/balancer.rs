//! A load balancer in front of servers that agents reach by one address.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// Passes each TCP connection on to a random one of its backends that takes it. It has no memory and no health checks: a
/// backend that is frozen gets its share, as its kernel takes connections for it.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Balancer {
    /// Listens on loopback, on a port of the kernel's choice, until it is dropped; then all connections end.
    ///
    /// # Errors
    /// If it cannot listen.
    pub async fn over(backends: Vec<SocketAddr>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((stream, _)) = accepted else { continue };
                        let mut order = backends.clone();
                        fastrand::shuffle(&mut order);
                        connections.spawn(pass_on(stream, order));
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

async fn pass_on(mut client: TcpStream, order: Vec<SocketAddr>) {
    for backend in order {
        if let Ok(mut server) = TcpStream::connect(backend).await {
            client.set_nodelay(true).ok();
            server.set_nodelay(true).ok();
            // However it ends, both ends are told.
            copy_bidirectional(&mut client, &mut server).await.ok();
            return;
        }
    }
}
