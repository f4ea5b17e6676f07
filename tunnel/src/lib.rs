//! Adit's tunnel: what travels between a proxy server and its agents, and the machinery that moves it.
//!
//! The crate is in two halves. The lower half knows no socket and no clock and is tested as plain data:
//!
//! * [`packet`] and [`codec`]: the seven packets of upstream's protocol and their bytes;
//! * [`batch`]: messages that go out in one piece;
//! * [`credit`]: flow control for each connection, between our own two ends;
//! * [`grpc`]: messages inside HTTP/2 DATA, statuses, headers;
//! * [`queue`], [`ledger`], [`scheduler`], [`conn`], [`mux`]: connections as byte queues on one tunnel, who may send
//!   next, and who pays for what nobody has read yet.
//!
//! The upper half drives it:
//!
//! * [`link`]: one gRPC stream over `h2` as the carrier of one [`mux::Mux`], the *packet tunnel*;
//! * [`stream`]: the *stream tunnel*, which has an HTTP/2 stream for each connection;
//! * [`Tunnel`], [`dial`], [`connection`], [`event`]: either of them, for everything above;
//! * [`copy`]: a socket on one side, a connection of the tunnel on the other;
//! * [`keepalive`], [`probe`], [`backoff`], [`drain`]: time;
//! * [`authority`]: lets grpc-go's percent-encoded `:authority` through to `h2`.
//!
//! Everything on the data path is single-threaded on purpose: a worker owns its tunnels and all that rides on them, so
//! nothing here is `Send`, locked or sent through a channel.

pub mod authority;
pub mod backoff;
pub mod batch;
pub mod codec;
pub mod conn;
pub mod connection;
pub mod copy;
pub mod credit;
pub mod dial;
pub mod drain;
pub mod event;
pub mod grpc;
pub mod keepalive;
pub mod ledger;
pub mod link;
pub mod mux;
pub mod observe;
pub mod packet;
pub mod probe;
pub mod queue;
pub mod scheduler;
pub mod stream;
mod tunnel;

pub use tunnel::{Kind, Tunnel};
