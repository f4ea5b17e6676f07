//! Which targets may be dialled through the tunnel: `--egress-allow` and `--egress-deny`, the same on server and agent.
//!
//! Upstream dials whatever kube-apiserver asks for, and whoever may edit a Node object says what that is
//! (CVE-2022-3294). Without rules, so do we. With rules:
//!
//! * *Deny wins*, whatever allows the target besides.
//! * If there is any allow rule, what none matches is refused.
//! * A rule for an address is compared by value: an IPv4 address within IPv6 is that IPv4 address, a zone is ignored,
//!   `0.0.0.0` and `::` are the loopback addresses that Linux makes of them, and `0x7f.1` is `127.0.0.1`, as C libraries
//!   read it.
//! * A rule for a name is compared with the name *as it was asked for*, in any case and with or without a final dot. What a
//!   resolver's search list would make of it is not known. So names are good for allowing; what must not be reached should
//!   be denied by address.
//! * *An allowed name opens its addresses*: whoever allows a name trusts the resolver about it, and the addresses need no
//!   allow rule of their own. Two things stay closed: what a deny rule for addresses matches, and this host's own addresses and
//!   those of its link (loopback, link-local, unspecified, multicast), which only a rule for addresses opens. A name
//!   that comes to resolve to the cloud's metadata address is thereby refused.
//!
//! The agent asks [`Policy::check_host`] before the lookup and [`Policy::check_address`] for each address behind it. The
//! server, which resolves nothing, asks [`Policy::check_unresolved`]: rules for addresses match no name there.
//!
//! Everything here is pure: no lookup, no socket, no clock.

mod host;
mod policy;
mod refused;
mod rule;

pub use policy::{Clearance, List, MAX_RULES, Policy, PolicyError};
pub use refused::EgressRefused;
pub use rule::{MAX_RULE_BYTES, Ports, Rule, RuleError, Subject};
