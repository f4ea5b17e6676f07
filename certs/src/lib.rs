//! Certificates for Adit: PEM files in, rustls configurations out, taken up anew whenever files change, and a small authority for tests, the demo and first steps.
//!
//! | module | job |
//! |---|---|
//! | [`pem`] | files to certificate chain, private key and roots; an error names its file |
//! | [`identity`] | a chain with its key, proved to belong together and to be in date |
//! | [`options`] | minimum version and cipher suites under Go's names |
//! | [`tls`] | rustls server and client configurations |
//! | [`chain`] | who signed whom |
//! | [`store`] | what is in use now, and how new contents are proved before they are |
//! | [`reload`] | reads files on a timer, publishes what changed, else keeps the last good |
//! | [`status`] | what became of each file: for readiness and metrics |
//! | [`expiry`] | when to warn that a certificate runs out |
//! | [`verify`] | whether the other side would let us in, without a handshake |
//! | [`describe`] | what a person wants to know about a certificate |
//! | [`peer`] | who the peer is, from its certificate |
//! | [`dates`] | moments and validity as certificates know them |
//! | [`issue`] | a certificate authority and the leaves it signs |
//!
//! The crypto provider is always aws-lc-rs and always passed explicitly; the process default of rustls is neither
//! read nor set, so nothing here depends on who called first.

pub mod chain;
pub mod dates;
pub mod describe;
pub mod expiry;
pub mod identity;
pub mod issue;
pub mod options;
pub mod peer;
pub mod pem;
pub mod reload;
pub mod status;
pub mod store;
pub mod tls;
pub mod verify;

pub use dates::{Timestamp, Validity};
pub use identity::Identity;
pub use issue::{Authority, Issued};
pub use options::{CipherSuites, MinVersion, TlsOptions};
pub use peer::Peer;
pub use pem::{LoadError, Roots};
pub use reload::Watcher;
pub use status::Status;
pub use store::{ClientFiles, Current, ServerFiles, StoreError, Token};
pub use tls::{client_config, server_config};
