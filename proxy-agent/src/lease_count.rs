//! How many servers there are, by their Leases (wire-protocol.md 4.3).

use cluster::Selector;

/// Which Leases count, from `--lease-namespace` and `--lease-label-selector`; with `--count-server-leases` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where they are.
    pub namespace: String,
    /// Which of them; applied by the API server.
    pub selector: Selector,
}

/// What is known of the number of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseCount {
    /// At least 1: valid Leases, 1 if there are none, and the last count while the API cannot be asked.
    pub count: usize,
    /// Whether the API has ever answered; until then `count` is the initial 1.
    pub known: bool,
}
