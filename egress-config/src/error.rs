//! Why a file gave no selector. The fault is always the operator's file.

use std::io;
use std::path::PathBuf;

use crate::finding::Finding;

/// Why a file gave no selector.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// Missing, not permitted, or an I/O fault.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A directory, socket, pipe or device.
    #[error("{} is not a regular file", file.display())]
    NotAFile {
        /// The path.
        file: PathBuf,
    },
    /// Read, but no configuration.
    #[error("{} is not a configuration that kube-apiserver can use", file.display())]
    Document {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        #[source]
        source: DocumentError,
    },
}

/// Why the content of a file is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// Larger than is read here; kube-apiserver has no limit.
    #[error(
        "it is larger than {max_bytes} bytes, which no such configuration needs; a usual one has less than a thousand"
    )]
    TooLarge {
        /// The limit.
        max_bytes: usize,
    },
    /// More brackets than a reader of bounded patience takes.
    #[error(
        "it has more than {max} opening brackets and braces, which no such configuration needs"
    )]
    TooManyBrackets {
        /// The limit.
        max: usize,
    },
    /// Read, but it breaks rules; all of them, of which at least one makes it useless.
    #[error("{}", lines(findings))]
    Invalid {
        /// Errors, warnings and notes, in the order of the file.
        findings: Vec<Finding>,
    },
}

fn lines(findings: &[Finding]) -> String {
    let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
    lines.join("\n")
}
