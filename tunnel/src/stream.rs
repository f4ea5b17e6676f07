//! The stream tunnel, between our own two ends: one HTTP/2 stream a connection, with HTTP/2's own flow control, half-close and
//! resets. `docs/protocol.md` has the protocol.
//!
//! The agent dials, so it is the client of TCP and TLS; above that roles are reversed. Both ends agree by ALPN ([`ALPN`]), the
//! agent says who it is ([`hello`]), and from the server's answer on the server is HTTP/2's client: it opens a `CONNECT` stream for
//! each dial. Without sockets:
//!
//! * [`message`], [`hello`], [`control`]: what is said beside the streams, and its bytes;
//! * [`connect`]: what a stream's request and answer say;
//! * [`window`]: how much one stream may have unread.
//!
//! Over `h2`:
//!
//! * `session`: what everybody on one end shares;
//! * `link`: the connection and its task; `channel`: the control stream;
//! * `dial`, `forward`: streams that wait for their answer, in either direction;
//! * `shrink`: has streams go on when all windows shrink;
//! * `connection`, `piece`: an established stream and what of it has yet to be written; `linger`: what is left when its local side
//!   has gone.

mod channel;
pub mod connect;
mod connection;
pub mod control;
mod dial;
mod forward;
pub mod hello;
mod linger;
mod link;
pub mod message;
mod piece;
mod session;
mod shrink;
#[cfg(test)]
mod tests;
pub mod window;

pub use connection::{Connection, SEND_BUFFER};
pub use dial::{Dial, IncomingDial};
pub use forward::{Forward, ForwardError, IncomingForward, MAX_PENDING_FORWARDS};
pub use link::{CONNECTION_WINDOW, Ends, StreamLink};
pub use session::{MAX_OUTBOX, Session};

/// What both ends name this protocol in TLS (RFC 7301).
pub const ALPN: &[u8] = b"adit/1";
