//! Host names to addresses by the system's resolver, which blocks: a bounded number of threads wait for it.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::error::Cause;

/// Lookups under way at once, a thread each; more wait their turn. A lookup that nobody waits for any more keeps its thread
/// until the system gives up.
pub(crate) const MAX_LOOKUPS: usize = 64;

/// Longest name that DNS knows, with its final dot (RFC 1035).
const MAX_NAME: usize = 254;

/// The system's resolver. Clones share their bound.
#[derive(Clone, Debug)]
pub(crate) struct Resolver {
    turns: Arc<Semaphore>,
}

impl Default for Resolver {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(MAX_LOOKUPS)),
        }
    }
}

impl Resolver {
    #[cfg(test)]
    pub(crate) fn turns(&self) -> Arc<Semaphore> {
        self.turns.clone()
    }

    /// The addresses of `host`, in the system's order (RFC 6724). Cancel safe.
    pub(super) async fn lookup(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Cause> {
        let no_such_host = || Cause::NoSuchHost {
            host: host.to_owned(),
        };
        if host.len() > MAX_NAME || host.contains('\0') || ends_in_number(host) {
            return Err(no_such_host());
        }
        let Ok(turn) = self.turns.clone().acquire_owned().await else {
            return Err(no_such_host()); // the semaphore is never closed
        };
        let name = host.to_owned();
        let lookup = spawn_blocking(move || {
            let addresses = (name, port).to_socket_addrs().map(Vec::from_iter);
            drop(turn);
            addresses
        });
        match lookup.await {
            Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            Ok(Ok(_)) => Err(no_such_host()),
            Ok(Err(source)) if is_ours(&source) => Err(Cause::Lookup {
                host: host.to_owned(),
                source,
            }),
            Ok(Err(error)) => {
                tracing::debug!(host, %error, "lookup failed");
                Err(no_such_host())
            }
            Err(panicked) => Err(Cause::Lookup {
                host: host.to_owned(),
                source: panicked.into(),
            }),
        }
    }
}

/// Whether a name's last label is a number, which no name in DNS has. The C library takes such names for addresses in the
/// style of inet_aton(3) (`127.1`, `0x7f000001`), Go does not.
fn ends_in_number(host: &str) -> bool {
    let last = host
        .strip_suffix('.')
        .unwrap_or(host)
        .rsplit('.')
        .next()
        .unwrap_or_default();
    let is_hex = last.starts_with("0x") || last.starts_with("0X");
    is_hex || (!last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether the lookup failed for lack of something here, such as files, and not by the resolver's answer, which has no
/// number.
fn is_ours(error: &io::Error) -> bool {
    error.raw_os_error().is_some()
}
