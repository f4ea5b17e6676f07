//! A host that never answers.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail};
use socket2::{Domain, Socket, Type};

/// How long the kernel answers a handshake at most, if it answers at all: both ends are on this machine.
const ANSWER: Duration = Duration::from_millis(500);

/// More connections than any queue of length 0 takes.
const MAX_FILLERS: usize = 16;

/// A listener whose queue of connections is full and never emptied, so that the kernel drops every further SYN.
#[derive(Debug)]
pub struct BlackHole {
    address: SocketAddr,
    _listener: TcpListener,
    _fillers: Vec<TcpStream>,
}

impl BlackHole {
    /// Listens and fills the queue. Blocks for half a second.
    ///
    /// # Errors
    /// If the kernel goes on to accept.
    pub fn open() -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        socket.listen(0)?;
        let listener = TcpListener::from(socket);
        let address = listener.local_addr()?;
        let mut fillers = Vec::new();
        while fillers.len() < MAX_FILLERS {
            match TcpStream::connect_timeout(&address, ANSWER) {
                Ok(stream) => fillers.push(stream),
                Err(_) => {
                    return Ok(Self {
                        address,
                        _listener: listener,
                        _fillers: fillers,
                    });
                }
            }
        }
        bail!("a queue of length 0 took {MAX_FILLERS} connections")
    }

    /// Where it does not answer.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
