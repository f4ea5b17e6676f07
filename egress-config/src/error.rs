//! Why a file gave no selector. The fault is always the operator's file.

use std::fmt;
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
    /// Larger than is read.
    #[error("it is larger than {max_bytes} bytes")]
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
    /// Kubernetes' binary encoding.
    #[error("it is Kubernetes protobuf; write YAML or JSON")]
    Protobuf,
    /// Not YAML, an unknown or duplicate field, or a value of the wrong type. The message gives the path of the field.
    #[error("{}{message}", place(position.as_ref()))]
    Syntax {
        /// Where, if the YAML reader says.
        position: Option<Position>,
        /// Path of the field and what is wrong.
        message: String,
    },
    /// No `kind`, also since the document is empty.
    #[error("kind is missing; write `kind: EgressSelectorConfiguration`")]
    KindMissing,
    /// No `apiVersion`.
    #[error("apiVersion is missing; write `apiVersion: apiserver.k8s.io/v1beta1`")]
    ApiVersionMissing,
    /// Something else, or this under a wrong group or version. Letter case counts.
    #[error(
        "{kind} of {api_version} is not known here; write `apiVersion: apiserver.k8s.io/v1beta1` and `kind: EgressSelectorConfiguration`"
    )]
    KindUnknown {
        /// `apiVersion` as written.
        api_version: String,
        /// `kind` as written.
        kind: String,
    },
    /// Read, but it breaks rules; all of them, with at least one error.
    #[error("{}", lines(findings))]
    Invalid {
        /// Errors, warnings and notes, in the order of the file.
        findings: Vec<Finding>,
    },
}

/// A place in a file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

fn place(position: Option<&Position>) -> String {
    position.map_or_else(String::new, |position| format!("{position}: "))
}

fn lines(findings: &[Finding]) -> String {
    let lines: Vec<_> = findings.iter().map(Finding::to_string).collect();
    lines.join("\n")
}
