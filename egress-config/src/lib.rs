//! kube-apiserver's `EgressSelectorConfiguration`: read, checked, explained in the operator's words, tried out, and written.
//!
//! [`inspect_file`] says everything about a file: kube-apiserver's own verdict to the letter, and beside it, as warnings, what
//! kube-apiserver lets through and then fails, panics or is silent about. Each [`Finding`] has the field's path, its line and
//! column, what is wrong and what to write instead. [`load`](fn@load::load) takes a file to an [`EgressSelector`], which can
//! only hold what kube-apiserver could work with. The rules are data, see [`Rule`]; they are those of egress-selector.md,
//! sections 2.1 to 2.4, by its numbers.
//!
//! In three things we are stricter than kube-apiserver on purpose: size and number of brackets are limited; the internal
//! version of the API, which it decodes by accident, is refused; and so is text in base64 (`!!binary`).
//!
//! | module | job |
//! |---|---|
//! | [`mod@load`] | bytes to a report or a selector, and a selector to YAML; the only one that names the YAML crate |
//! | `node`, `scalar` | the document as a tree with places, duplicates and YAML 1.1's view of plain words |
//! | `meta`, `decode` | from the tree to `wire`, collecting every fault of kind, version, fields and types |
//! | `wire` | the file as written, with places |
//! | `check`, `certificates` | from `wire` to [`selection`], collecting every broken rule |
//! | [`selection`] | what the program sees: only states that make sense |
//! | [`finding`], [`position`] | the rules, what breaking one says, and where |
//! | [`error`] | why a file gave no selector |
//! | [`url`] | the few parts of a proxy's URL that count |
//! | [`explain`] | which traffic goes where |
//! | [`probe`] | dials as kube-apiserver would, step by step |

mod certificates;
mod check;
mod decode;
pub mod error;
pub mod explain;
pub mod finding;
pub mod load;
mod meta;
mod node;
pub mod position;
pub mod probe;
mod scalar;
pub mod selection;
pub mod url;
mod wire;
mod write;

pub use error::{DocumentError, LoadError};
pub use finding::{Effect, Finding, Rule, Severity};
pub use load::{Files, Loaded, Report, inspect, inspect_file, load, parse, to_yaml};
pub use position::Position;
pub use selection::{
    ApiVersion, ClientTls, Connection, EgressSelector, FilePath, HttpConnect, SelectionName,
    TcpProxy, UdsPath,
};
pub use url::ProxyUrl;
