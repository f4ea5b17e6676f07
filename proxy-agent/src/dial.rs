//! Opens TCP connections the way Go's `net.DialTimeout` does, and fails in its words (wire-protocol.md 4.6, T10): upstream's
//! server makes HTTP statuses of substrings of them.
//!
//! The time limit covers name resolution and every address. Addresses are tried as RFC 8305 says: families in turn, a new
//! attempt every [`STAGGER`] or as soon as one has failed, the first that connects wins.

mod address;
mod error;
mod race;
mod resolve;

use std::net::SocketAddr;
use std::time::Duration;

use egress_policy::Policy;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

pub(crate) use address::{Network, Target};
pub(crate) use error::DialFailure;
pub(crate) use resolve::Resolver;

use error::Cause;

/// How long the addresses of one host wait for each other (RFC 8305, section 5).
pub(crate) const STAGGER: Duration = Duration::from_millis(250);

/// Addresses of one host that are tried; more only cost time that the limit does not have.
pub(crate) const MAX_ADDRESSES: usize = 16;

/// Connects to `target` within `limit`, as far as `policy` allows it. Cancel safe: dropping it gives every attempt up.
///
/// # Errors
/// [`DialFailure`], in Go's words; of several addresses' failures the first's, with the others' addresses.
pub(crate) async fn dial(
    resolver: &Resolver,
    policy: &Policy,
    target: &Target,
    limit: Duration,
) -> Result<(TcpStream, SocketAddr), DialFailure> {
    let deadline = Instant::now() + limit;
    let refused = |refusal| target.failure(Cause::Policy(refusal));
    let clearance = policy
        .check_host(target.host(), target.port())
        .map_err(refused)?;
    let mut addresses = resolve(resolver, target, deadline).await?;
    let mut refusal = None;
    addresses.retain(|address| {
        let checked = policy.check_address(clearance, target.host(), *address);
        checked
            .map_err(|error| refusal.get_or_insert(error).clone())
            .is_ok()
    });
    if let (true, Some(refusal)) = (addresses.is_empty(), refusal) {
        return Err(refused(refusal));
    }
    let connected = race::connect(&addresses, deadline).await;
    connected.map_err(|cause| target.failure(cause))
}

/// The addresses of `target`, in the order in which they should be tried; at least one, at most [`MAX_ADDRESSES`]. Cancel safe.
///
/// # Errors
/// [`DialFailure`], also when `deadline` has passed.
pub(crate) async fn resolve(
    resolver: &Resolver,
    target: &Target,
    deadline: Instant,
) -> Result<Vec<SocketAddr>, DialFailure> {
    let addresses = match target.literal() {
        Some(addresses) => addresses,
        None => timeout_at(deadline, resolver.lookup(target.host(), target.port()))
            .await
            .unwrap_or(Err(Cause::LookupTimedOut {
                host: target.host().to_owned(),
            }))
            .map_err(|cause| target.failure(cause))?,
    };
    let addresses = race::order(addresses, target.network());
    if addresses.is_empty() {
        return Err(target.failure(Cause::NoSuitableAddress {
            host: target.host().to_owned(),
        }));
    }
    Ok(addresses)
}

/// Connects to one address until `deadline`. Cancel safe.
///
/// # Errors
/// [`DialFailure`]
pub(crate) async fn connect(
    address: SocketAddr,
    deadline: Instant,
) -> Result<TcpStream, DialFailure> {
    match race::connect(&[address], deadline).await {
        Ok((stream, _)) => Ok(stream),
        Err(cause) => Err(DialFailure {
            network: Network::Tcp,
            cause,
        }),
    }
}

#[cfg(test)]
pub(crate) mod tests;
