//! TCP listeners at addresses as Go's `net.Listen("tcp", "host:port")` takes them.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait to be accepted. The kernel caps it at `net.core.somaxconn`, whose default this is.
pub const BACKLOG: i32 = 4096;

/// Why there is no listener; the operator's to solve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The host is neither an address nor a name that resolves.
    #[error("{flag}: cannot resolve {host:?}: {cause}")]
    Resolve {
        /// The flag that set the address.
        flag: String,
        /// The host as written.
        host: String,
        /// What the resolver said.
        cause: io::Error,
    },
    /// The address cannot be listened on.
    #[error("{flag}: cannot listen on {address}: {reason}", reason = Reason(cause))]
    Bind {
        /// The flag that set the address.
        flag: String,
        /// The address that was tried.
        address: SocketAddr,
        /// What the kernel said.
        cause: io::Error,
    },
}

/// The three usual reasons in an operator's words, others in the system's.
struct Reason<'a>(&'a io::Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind() {
            io::ErrorKind::AddrInUse => f.write_str("address already in use by another socket"),
            io::ErrorKind::AddrNotAvailable => {
                f.write_str("no interface of this host has this address")
            }
            io::ErrorKind::PermissionDenied => {
                f.write_str("permission denied (ports below 1024 need a privilege)")
            }
            _ => self.0.fmt(f),
        }
    }
}

/// Opens a non-blocking listener with SO_REUSEADDR and a queue of [`BACKLOG`]; `flag` is named in errors. Hand the
/// result to [`tokio::net::TcpListener::from_std`] on the runtime that serves it.
///
/// The host is, as in Go:
///
/// - empty, `0.0.0.0` or `::`: every interface, IPv6 and IPv4 (IPv4 alone on a host without IPv6);
/// - an IP address, IPv6 with or without brackets and with a zone (`fe80::1%eth0`) where it needs one;
/// - a name: the first IPv4 address it resolves to, else the first of any kind. The lookup blocks the thread.
///
/// Port 0 lets the kernel choose.
///
/// # Errors
///
/// [`ListenError`], which names flag, address and reason.
pub fn listen(flag: &str, host: &str, port: u16) -> Result<TcpListener, ListenError> {
    let bind_error = |address| {
        let flag = flag.to_owned();
        move |cause| ListenError::Bind {
            flag,
            address,
            cause,
        }
    };
    let address = resolve(host, port).map_err(|cause| ListenError::Resolve {
        flag: flag.to_owned(),
        host: host.to_owned(),
        cause,
    })?;
    if !address.ip().is_unspecified() {
        return open(address).map_err(bind_error(address));
    }
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match open(any) {
        Err(error) if lacks_ipv6(&error) => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            open(any).map_err(bind_error(any))
        }
        other => other.map_err(bind_error(any)),
    }
}

fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    if host.is_empty() {
        return Ok(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    }
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::from((ip, port)));
    }
    let found: Vec<_> = (bare, port).to_socket_addrs()?.collect();
    found
        .iter()
        .find(|address| address.is_ipv4())
        .or(found.first())
        .copied()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no address"))
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking(),
        Some(Protocol::TCP),
    )?;
    // So that a restart need not wait for the connections of the process before it to leave TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // The default is the host's net.ipv6.bindv6only.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Whether an attempt at `[::]` failed because the kernel has no IPv6 or has it switched off.
fn lacks_ipv6(error: &io::Error) -> bool {
    const EAFNOSUPPORT: i32 = 97;
    error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn an_empty_host_is_reached_over_ipv4_and_where_there_is_one_over_ipv6() {
        for host in ["", "0.0.0.0", "::", "[::]"] {
            let listener = listen("--health-bind-address", host, 0).unwrap();
            let address = listener.local_addr().unwrap();
            TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).unwrap();
            if address.is_ipv6() && TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
                TcpStream::connect((Ipv6Addr::LOCALHOST, address.port())).unwrap();
            }
        }
    }

    #[test]
    fn localhost_and_literal_addresses_bind_to_loopback_alone() {
        for host in ["localhost", "127.0.0.1"] {
            let address = listen("--admin-bind-address", host, 0)
                .unwrap()
                .local_addr()
                .unwrap();
            assert!(address.ip().is_loopback(), "{host}: {address}");
        }
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            for host in ["::1", "[::1]"] {
                let address = listen("--admin-bind-address", host, 0)
                    .unwrap()
                    .local_addr()
                    .unwrap();
                assert_eq!(address.ip(), Ipv6Addr::LOCALHOST);
            }
        }
    }

    #[test]
    fn a_zone_is_resolved_to_its_interface() {
        // Every Linux host has `lo`, and its index is not zero; no IPv6 is needed to parse.
        let SocketAddr::V6(address) = resolve("fe80::1%lo", 80).unwrap() else {
            panic!("not IPv6")
        };
        assert_ne!(address.scope_id(), 0);
        assert_eq!(address.port(), 80);
    }

    #[test]
    fn a_port_in_use_is_named_with_flag_and_address() {
        let held = listen("--x", "127.0.0.1", 0).unwrap();
        let port = held.local_addr().unwrap().port();
        let error = listen("--agent-port", "127.0.0.1", port).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "--agent-port: cannot listen on 127.0.0.1:{port}: address already in use by another socket"
            )
        );
    }

    #[test]
    fn an_address_of_no_interface_is_said_to_be_one() {
        // TEST-NET-1, RFC 5737.
        let error = listen("--agent-bind-address", "192.0.2.1", 0)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("192.0.2.1:0: no interface of this host has this address"),
            "{error}"
        );
    }

    #[test]
    fn a_host_that_cannot_be_a_name_is_refused_with_the_flag() {
        let error = listen("--admin-bind-address", "not a host", 1)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("--admin-bind-address: cannot resolve \"not a host\": "),
            "{error}"
        );
    }
}
