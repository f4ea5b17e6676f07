//! Several addresses of one host, one connection.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;

use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until};

use super::error::Cause;
use super::{MAX_ADDRESSES, Network, STAGGER};

/// The addresses that suit, families in turn, beginning with the first's (RFC 8305, section 4).
pub(super) fn order(addresses: Vec<SocketAddr>, network: Network) -> Vec<SocketAddr> {
    let suitable = addresses
        .into_iter()
        .filter(|address| network.suits(address));
    let (mut turn, mut other) = (VecDeque::new(), VecDeque::new());
    for address in suitable {
        let first = turn
            .front()
            .is_none_or(|first: &SocketAddr| first.is_ipv4() == address.is_ipv4());
        if first {
            turn.push_back(address)
        } else {
            other.push_back(address)
        }
    }
    let mut ordered = Vec::new();
    while let Some(address) = turn.pop_front() {
        ordered.push(address);
        if !other.is_empty() {
            std::mem::swap(&mut turn, &mut other);
        }
    }
    ordered.truncate(MAX_ADDRESSES);
    ordered
}

/// The first connection to any of the addresses.
pub(super) async fn connect(
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<(TcpStream, SocketAddr), Cause> {
    let mut waiting = addresses.iter().copied();
    let mut race = Race {
        attempts: Vec::new(),
    };
    let mut failures = Vec::new();
    let mut next_start = Instant::now();
    loop {
        if next_start <= Instant::now()
            && let Some(address) = waiting.next()
        {
            race.attempts.push(Box::pin(attempt(address)));
            next_start = Instant::now() + STAGGER;
        }
        let has_more = waiting.len() > 0;
        tokio::select! {
            biased;
            finished = race.next() => match finished {
                Some(Ok(connected)) => return Ok(connected),
                Some(Err(cause)) => {
                    failures.push(cause);
                    next_start = Instant::now();
                    if race.attempts.is_empty() && !has_more {
                        break;
                    }
                }
                // Only without any address.
                None => break,
            },
            () = sleep_until(next_start), if has_more => {}
            () = sleep_until(deadline) => break,
        }
    }
    Err(summary(failures, addresses, waiting.len()))
}

/// The first failure, or that nothing answered in time; and which other addresses were tried. `left` were not.
fn summary(failures: Vec<Cause>, addresses: &[SocketAddr], left: usize) -> Cause {
    let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
    let first = failures.into_iter().next().unwrap_or(Cause::TimedOut {
        address: addresses.first().copied().unwrap_or(unspecified),
    });
    let told = match &first {
        Cause::Connect { address, .. }
        | Cause::Socket { address, .. }
        | Cause::TimedOut { address } => *address,
        _ => unspecified,
    };
    let tried = addresses.len().saturating_sub(left);
    let others: Vec<_> = addresses
        .iter()
        .take(tried)
        .copied()
        .filter(|address| *address != told)
        .collect();
    if others.is_empty() {
        return first;
    }
    Cause::Several {
        first: Box::new(first),
        others,
    }
}

type Outcome = Result<(TcpStream, SocketAddr), Cause>;

async fn attempt(address: SocketAddr) -> Outcome {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    };
    let socket = socket.map_err(|source| Cause::Socket { address, source })?;
    match socket.connect(address).await {
        Ok(stream) => Ok((stream, address)),
        Err(source) => Err(Cause::Connect { address, source }),
    }
}

/// Attempts under way, few.
struct Race {
    attempts: Vec<Pin<Box<dyn Future<Output = Outcome>>>>,
}

impl Race {
    /// The next attempt that ends; `None` without any. Cancel safe.
    async fn next(&mut self) -> Option<Outcome> {
        poll_fn(|cx| {
            if self.attempts.is_empty() {
                return Poll::Ready(None);
            }
            for index in 0..self.attempts.len() {
                let Some(attempt) = self.attempts.get_mut(index) else {
                    break;
                };
                if let Poll::Ready(outcome) = attempt.as_mut().poll(cx) {
                    drop(self.attempts.swap_remove(index));
                    return Poll::Ready(Some(outcome));
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(addresses: &[&str], network: Network) -> Vec<String> {
        let addresses = addresses
            .iter()
            .map(|ip| SocketAddr::new(ip.parse().unwrap(), 1))
            .collect();
        order(addresses, network)
            .iter()
            .map(|address| address.ip().to_string())
            .collect()
    }

    #[test]
    fn families_take_turns_in_the_resolvers_order() {
        let addresses = ["::1", "::2", "::3", "10.0.0.1", "10.0.0.2"];
        assert_eq!(
            ordered(&addresses, Network::Tcp),
            ["::1", "10.0.0.1", "::2", "10.0.0.2", "::3"]
        );
        assert_eq!(
            ordered(&["10.0.0.1", "::1"], Network::Tcp),
            ["10.0.0.1", "::1"]
        );
        assert_eq!(ordered(&addresses, Network::Tcp4), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(ordered(&addresses, Network::Tcp6), ["::1", "::2", "::3"]);
        assert_eq!(ordered(&["::1"], Network::Tcp4), [""; 0]);
    }

    #[test]
    fn a_name_with_a_thousand_addresses_costs_few_attempts() {
        assert_eq!(
            ordered(&["10.0.0.1"; 1000], Network::Tcp).len(),
            MAX_ADDRESSES
        );
    }
}
