//! What the end-to-end tests are made of: the real binaries as child processes, a client that dials as kube-apiserver
//! does, and targets with every manner a target can have.
//!
//! | module | job |
//! |---|---|
//! | [`harness`] | builds and starts `proxy-server` and `proxy-agent` with certificates and ports of their own |
//! | [`client`] | plays kube-apiserver: HTTP CONNECT and gRPC, over a Unix socket and mTLS |
//! | [`targets`] | what is dialled: echo, sink, source, greeter, black hole and others |
//! | [`exchange`] | what most tests do with a connection |
//! | [`kube_api`] | plays the Kubernetes API: TokenReview and Lease, over HTTPS, with faults on demand |
//! | [`payload`] | bytes that say themselves what must follow, so that a receiver can check them |
//!
//! Everything is real but the network, which is loopback. Waits are for a state, with generous deadlines: the tests must be
//! fair on a loaded machine, so they assert that things complete, not how fast. The demo is built of the same parts.

pub mod client;
pub mod exchange;
pub mod harness;
pub mod kube_api;
pub mod payload;
pub mod targets;

/// Writes a line for whoever runs the tests: a figure that is measured and not asserted, or what was skipped and why. Shown for
/// a test that fails, and for all with `--nocapture`. Takes what `format!` takes.
#[macro_export]
macro_rules! say {
    ($($what:tt)*) => { $crate::say_line(&::std::format!($($what)*)) };
}

/// What [`say!`] ends in.
#[doc(hidden)]
#[expect(
    clippy::print_stderr,
    reason = "the test runner captures it and shows it for a test that fails"
)]
pub fn say_line(line: &str) {
    eprintln!("{line}");
}
