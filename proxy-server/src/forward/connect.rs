//! A target's name to a socket, in bounded time.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::TcpStream,
    sync::Semaphore,
    task::spawn_blocking,
    time::{Instant, timeout_at},
};

use super::Target;
use crate::frontend::socket;

/// How long a target may take, its name's lookup and every address included; as long as agents give theirs.
pub const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Lookups under way at once, a thread each; more wait their turn. A lookup that nobody waits for any more keeps its thread until the
/// system gives up.
pub const MAX_LOOKUPS: usize = 16;

/// Addresses of one name that are tried.
pub const MAX_ADDRESSES: usize = 16;

/// Why a target cannot be had. Names what the operator of the agent asked for and where it leads, as whoever may use a target may know.
#[derive(Debug, thiserror::Error)]
#[error("forward target {name:?} ({at}): {cause}")]
pub(super) struct ConnectError {
    name: String,
    /// The address, and the name that led to it.
    at: String,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("name lookup timed out")]
    LookupTimedOut,
    #[error("{0}")]
    Lookup(io::Error),
    #[error("name has no address")]
    NoAddress,
    #[error("timed out")]
    TimedOut,
    #[error("{}", words(.0))]
    Connect(io::Error),
}

/// A system error without its number, which means the same on every C library.
fn words(error: &io::Error) -> String {
    match error.kind() {
        kind @ (io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown
        | io::ErrorKind::AddrNotAvailable
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::TimedOut) => kind.to_string(),
        _ => error.to_string(),
    }
}

/// Connects to targets. Clones share their bound on lookups.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    turns: Arc<Semaphore>,
    limit: Duration,
}

impl Default for Connector {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            limit: CONNECT_LIMIT,
        }
    }
}

impl Connector {
    /// With a limit of its own, and no turn for a lookup.
    #[cfg(test)]
    pub(super) fn without_lookups(limit: Duration) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(0)),
            limit,
        }
    }

    /// A connection to one of the target's addresses, which are tried in the system's order (RFC 6724), each with an equal share of the
    /// time that is left. Cancel safe.
    pub(super) async fn connect(
        &self,
        target: &Target,
    ) -> Result<(TcpStream, SocketAddr), ConnectError> {
        let deadline = Instant::now() + self.limit;
        let fail = |at: String, cause| ConnectError {
            name: target.name().to_owned(),
            at,
            cause,
        };
        let (host, port) = (target.host(), target.port());
        if let Ok(address) = host.parse::<IpAddr>() {
            let addresses = [SocketAddr::new(address, port)];
            return connect(&addresses, deadline)
                .await
                .map_err(|(_, cause)| fail(target.to_string(), cause));
        }
        let addresses = match timeout_at(deadline, self.lookup(host, port)).await {
            Ok(Ok(addresses)) => addresses,
            Ok(Err(error)) => return Err(fail(target.to_string(), Cause::Lookup(error))),
            Err(_) => return Err(fail(target.to_string(), Cause::LookupTimedOut)),
        };
        connect(&addresses, deadline)
            .await
            .map_err(|(address, cause)| match address {
                Some(address) => fail(format!("{target} at {address}"), cause),
                None => fail(target.to_string(), cause),
            })
    }

    async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let turn = self.turns.clone().acquire_owned().await;
        // The semaphore is never closed.
        let turn = turn.map_err(io::Error::other)?;
        let host = host.to_owned();
        spawn_blocking(move || {
            // For as long as the thread is taken, whoever waits.
            let _turn = turn;
            let addresses = (host, port).to_socket_addrs()?;
            Ok(addresses.take(MAX_ADDRESSES).collect())
        })
        .await
        .map_err(io::Error::other)?
    }
}

/// The first of the addresses that takes a connection, or why the first of all did not.
async fn connect(
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<(TcpStream, SocketAddr), (Option<SocketAddr>, Cause)> {
    let mut failure = (None, Cause::NoAddress);
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for &address in addresses {
        let time_left = deadline.saturating_duration_since(Instant::now());
        let until = Instant::now() + time_left / left.max(1);
        left = left.saturating_sub(1);
        let cause = match timeout_at(until, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => match socket::tune(&stream) {
                Ok(()) => return Ok((stream, address)),
                Err(error) => Cause::Connect(error),
            },
            Ok(Err(error)) => Cause::Connect(error),
            Err(_) => Cause::TimedOut,
        };
        if failure.0.is_none() {
            failure = (Some(address), cause);
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::forward::{ForwardTargets, VerifiedNames};

    async fn error(connector: &Connector, host_port: &str) -> String {
        let targets =
            ForwardTargets::parse(&[format!("api={host_port}")], &["api=*".to_owned()]).unwrap();
        let names = VerifiedNames::new(&[], None, Some("n"));
        let target = targets.check("api", &names).unwrap();
        connector.connect(target).await.unwrap_err().to_string()
    }

    /// A port that nobody listens on: ours alone, and not listening.
    fn closed_port() -> (socket2::Socket, SocketAddr) {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        (socket, address)
    }

    #[tokio::test]
    async fn a_target_that_refuses_is_named_with_its_address_in_plain_words() {
        let (_reserved, address) = closed_port();
        assert_eq!(
            error(&Connector::default(), &address.to_string()).await,
            format!("forward target \"api\" ({address}): connection refused")
        );
        let port = address.port();
        let told = error(&Connector::default(), &format!("localhost:{port}")).await;
        let (start, end) = (
            format!("forward target \"api\" (localhost:{port} at "),
            format!(":{port}): connection refused"),
        );
        assert!(told.starts_with(&start) && told.ends_with(&end), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_takes_too_long_is_given_up() {
        let connector = Connector::without_lookups(CONNECT_LIMIT);
        let started = Instant::now();
        assert_eq!(
            error(&connector, "localhost:80").await,
            "forward target \"api\" (localhost:80): name lookup timed out"
        );
        assert_eq!(started.elapsed(), CONNECT_LIMIT);
    }

    #[tokio::test]
    async fn addresses_are_tried_in_turn_and_the_first_failure_is_told() {
        let (_reserved, closed) = closed_port();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let (_stream, address) = connect(&[closed, open], deadline).await.unwrap();
        assert_eq!(address, open);
        let (_other, other) = closed_port();
        let (address, cause) = connect(&[closed, other], deadline).await.unwrap_err();
        assert_eq!(address, Some(closed));
        assert_eq!(cause.to_string(), "connection refused");
        let (address, cause) = connect(&[], deadline).await.unwrap_err();
        assert_eq!(
            (address, cause.to_string().as_str()),
            (None, "name has no address")
        );
    }

    #[test]
    fn system_errors_are_told_without_numbers_where_they_mean_something() {
        let told = |number| words(&io::Error::from_raw_os_error(number));
        for (number, text) in [
            (111, "connection refused"),
            (113, "host unreachable"),
            (101, "network unreachable"),
            (110, "timed out"),
        ] {
            assert_eq!(told(number), text);
        }
        assert!(told(24).contains("(os error 24)"), "{}", told(24));
    }
}
