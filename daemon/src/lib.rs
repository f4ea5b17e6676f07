//! What Adit's two processes, `proxy-server` and `proxy-agent`, share because they are processes and not because they
//! speak the tunnel.
//!
//! | Module | Job |
//! |---|---|
//! | [`flags`] | command lines in Go's syntax, on top of clap |
//! | [`logging`] | tracing to stderr or a file, steered by klog's flags |
//! | [`listen`] | TCP listeners at Go-style addresses |
//! | [`uds`] | Unix socket files that appear whole and never displace a live server's |
//! | [`accept`] | what an accept loop does with an error |
//! | [`admin`] | health, readiness and metrics over HTTP/1.1, on a thread of their own |
//! | [`metrics`] | how metrics are made, and guards that measure by living |
//! | [`profile`] | CPU profiles for `go tool pprof` |
//! | [`process_metrics`] | the `process_*` series |
//! | [`file_metrics`] | series on watched files |
//! | [`limits`] | the limit on open files |
//! | [`memory`] | the limit on memory |
//! | [`signals`] | first and second request to terminate |
//!
//! Nothing here knows Kubernetes, TLS or the tunnel, and nothing here ends the process: that is for `main` alone.

pub mod accept;
pub mod admin;
pub mod logging;

pub mod file_metrics;
pub mod flags;
pub mod limits;
pub mod listen;
pub mod memory;
pub mod metrics;

pub mod process_metrics;
pub mod profile;
pub mod signals;
pub mod uds;
