//! kube-apiserver's `EgressSelectorConfiguration`: read, checked, explained in the operator's words, and written.
//!
//! [`load`](fn@load::load) takes a file to an [`EgressSelector`], which can only hold what kube-apiserver could work with, or
//! to errors that give the path of the field at fault and what to write instead. Which rules kube-apiserver itself applies
//! and which are ours is data: see [`Rule`]. The rules are those of egress-selector.md, sections 2.1 to 2.4, by its
//! numbers.
//!
//! | module | job |
//! |---|---|
//! | [`mod@load`] | bytes to a selector and a selector to YAML; the only one that names the YAML crate |
//! | `wire` | the file as written; unknown keys refused |
//! | `check` | from `wire` to [`selection`], collecting every fault |
//! | [`selection`] | what the program sees: only states that make sense |
//! | [`finding`] | the rules and what breaking one says |
//! | [`error`] | why a file gave no selector |
//! | [`url`] | the few parts of a proxy's URL that count |

mod check;
pub mod error;
pub mod finding;
pub mod load;
pub mod selection;
pub mod url;
mod wire;

pub use error::{DocumentError, LoadError};
pub use finding::{Finding, Rule, Severity};
pub use load::{Files, Loaded, load, parse, to_yaml};
pub use selection::{
    ApiVersion, ClientTls, Connection, EgressSelector, FilePath, HttpConnect, SelectionName,
    TcpProxy, UdsPath,
};
pub use url::ProxyUrl;
