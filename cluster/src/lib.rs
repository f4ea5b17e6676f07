//! The Kubernetes API as both of Adit's processes need it: nothing of it ever runs on the data worker.
//!
//! | module | job |
//! |---|---|
//! | [`options`] | what the flags say |
//! | [`labels`] | `--lease-label`: a set of labels |
//! | [`selector`] | `--lease-label-selector`: the whole selector syntax, checked |

pub mod labels;
pub mod options;
pub mod selector;

pub use labels::Labels;
pub use options::ClientOptions;
pub use selector::Selector;
