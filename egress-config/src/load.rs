//! Bytes to a selector, and a selector to YAML. The only module that names the YAML crate.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::check::check;
use crate::error::{DocumentError, LoadError, Position};
use crate::finding::{Finding, Rule, Severity};
use crate::selection::{ApiVersion, ClientTls, Connection, EgressSelector, HttpConnect, UdsPath};
use crate::wire::{self, Text, text};

/// Largest file that is read, in bytes. A usual one has less than a thousand.
pub const MAX_FILE_BYTES: usize = 64 * 1024;

/// Most opening brackets and braces in a file. A usual one written as JSON has 20.
///
/// The YAML scanner's time grows with the square of how deep they nest, long before its own limit on depth is asked:
/// 256 KiB of `{` took it a quarter of an hour. All are counted, not only those left open, since a closing one may stand
/// in a string.
pub const MAX_OPENING_BRACKETS: usize = 1000;

/// What a Kubernetes protobuf message begins with.
const PROTOBUF_MAGIC: &[u8] = b"k8s\0";

const KIND: &str = "EgressSelectorConfiguration";

/// Whether certificate files that are named must exist on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Yes: this is where kube-apiserver runs, which refuses the file otherwise.
    MustExist,
    /// No: the file is meant for another machine.
    Elsewhere,
}

/// A configuration that kube-apiserver takes and can work with.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub selector: EgressSelector,
    /// Warnings and notes, in the order of the file. No errors.
    pub findings: Vec<Finding>,
}

/// Reads and checks a file, symlinks followed.
///
/// # Errors
///
/// [`LoadError`] with the file and everything that is wrong with it.
pub fn load(file: &Path, files: Files) -> Result<Loaded, LoadError> {
    let unreadable = |source| LoadError::Read {
        file: file.to_owned(),
        source,
    };
    // Before opening, since opening a pipe may wait for ever.
    if !std::fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err(LoadError::NotAFile {
            file: file.to_owned(),
        });
    }
    let open = File::open(file).map_err(unreadable)?;
    let bytes = read(open).map_err(unreadable)?;
    parse(&bytes, files).map_err(|source| LoadError::Document {
        file: file.to_owned(),
        source,
    })
}

/// All of a reader, or one byte more than [`parse`] takes, which it then refuses as too large.
///
/// # Errors
///
/// Those of the reader.
pub fn read(reader: impl Read) -> std::io::Result<Vec<u8>> {
    let limit = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX) + 1;
    let mut bytes = Vec::new();
    reader.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Checks the content of a file: YAML, or JSON, which is YAML. Of several documents the first counts.
///
/// Time and memory are bounded by the size limit and by the YAML reader's own limits on depth and aliases.
///
/// # Errors
///
/// [`DocumentError`]. What the YAML reader stops at comes alone; rules that are broken come all at once.
pub fn parse(bytes: &[u8], files: Files) -> Result<Loaded, DocumentError> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(DocumentError::TooLarge {
            max_bytes: MAX_FILE_BYTES,
        });
    }
    if bytes.starts_with(PROTOBUF_MAGIC) {
        return Err(DocumentError::Protobuf);
    }
    let brackets = bytes.iter().filter(|byte| matches!(byte, b'[' | b'{'));
    if brackets.count() > MAX_OPENING_BRACKETS {
        return Err(DocumentError::TooManyBrackets {
            max: MAX_OPENING_BRACKETS,
        });
    }
    // The YAML reader takes a byte order mark for content.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.trim_ascii_start().starts_with(b"{") {
        check_json(bytes)?;
    }
    let version = version(first_document(bytes)?)?;
    let file: wire::Configuration = first_document(bytes)?.unwrap_or_default();
    let (selector, mut findings) = check(version, &file, files);
    if has_more_documents(bytes) {
        findings.push(Finding {
            rule: Rule::SeveralDocuments,
            path: "the file".to_owned(),
            problem: "has more than one document, and kube-apiserver never looks behind the first; remove the others"
                .to_owned(),
        });
    }
    let faulty = findings
        .iter()
        .any(|finding| finding.severity() == Severity::Error);
    match selector {
        Some(selector) if !faulty => Ok(Loaded { selector, findings }),
        _ => Err(DocumentError::Invalid { findings }),
    }
}

/// The version, if kind and version are ours. The internal version, which kube-apiserver takes by accident, is not.
fn version(meta: Option<wire::TypeMeta>) -> Result<ApiVersion, DocumentError> {
    let meta = meta.ok_or(DocumentError::KindMissing)?;
    let (api_version, kind) = (text(meta.api_version.as_ref()), text(meta.kind.as_ref()));
    if kind.is_empty() {
        return Err(DocumentError::KindMissing);
    }
    if api_version.is_empty() {
        return Err(DocumentError::ApiVersionMissing);
    }
    [ApiVersion::V1Beta1, ApiVersion::V1Alpha1]
        .into_iter()
        .find(|known| kind == KIND && known.to_string() == api_version)
        .ok_or_else(|| DocumentError::KindUnknown {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })
}

/// kube-apiserver takes a file that begins with a brace for JSON, and then it must be JSON to the letter, without the
/// comma or comment that YAML would let pass.
fn check_json(bytes: &[u8]) -> Result<(), DocumentError> {
    serde_json::from_slice::<IgnoredAny>(bytes)
        .map(drop)
        .map_err(|error| DocumentError::Syntax {
            position: Some(Position {
                line: error.line(),
                column: error.column(),
            }),
            message: "the file begins with a brace, so it must be JSON, and here it is not"
                .to_owned(),
        })
}

/// The first document; `None` if it is empty or null.
fn first_document<T: DeserializeOwned>(bytes: &[u8]) -> Result<Option<T>, DocumentError> {
    let document = || serde_yaml::Deserializer::from_slice(bytes).next();
    let Some(first) = document() else {
        return Ok(None);
    };
    let error = match Option::<T>::deserialize(first) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    // A merge key is an unknown field to serde. Resolving it loses the places of errors, so it is only tried here.
    if may_merge(bytes)
        && let Some(again) = document()
        && let Ok(mut value) = serde_yaml::Value::deserialize(again)
        && has_merge_key(&value)
    {
        return value
            .apply_merge()
            .and_then(|()| Option::<T>::deserialize(value))
            .map_err(|error| syntax(&error));
    }
    Err(syntax(&error))
}

/// Whether there is a merge key to resolve, in a file that stays small when its aliases are written out: a value tree
/// copies what an alias stands for, and nested aliases multiply.
fn may_merge(bytes: &[u8]) -> bool {
    const MAX_BYTES: usize = 8 * 1024;
    const MAX_ALIASES: usize = 12;
    bytes.len() <= MAX_BYTES
        && bytes.windows(2).any(|pair| pair == b"<<")
        && bytes.iter().filter(|&&byte| byte == b'*').count() <= MAX_ALIASES
}

fn has_merge_key(value: &serde_yaml::Value) -> bool {
    match value {
        serde_yaml::Value::Mapping(mapping) => {
            mapping.contains_key("<<") || mapping.values().any(has_merge_key)
        }
        serde_yaml::Value::Sequence(sequence) => sequence.iter().any(has_merge_key),
        _ => false,
    }
}

/// Whether a second document has content, or is something that does not even parse.
fn has_more_documents(bytes: &[u8]) -> bool {
    serde_yaml::Deserializer::from_slice(bytes)
        .nth(1)
        .is_some_and(|second| !matches!(Option::<IgnoredAny>::deserialize(second), Ok(None)))
}

fn syntax(error: &serde_yaml::Error) -> DocumentError {
    let position = error.location().map(|location| Position {
        line: location.line(),
        column: location.column(),
    });
    let mut message = error.to_string();
    if let Some(Position { line, column }) = position {
        // Said once, in front. Faults of the syntax itself tell of two places and keep their wording.
        let suffix = format!(" at line {line} column {column}");
        if let Some(kept) = message.strip_suffix(&suffix) {
            message.truncate(kept.len());
        }
    }
    DocumentError::Syntax { position, message }
}

/// The configuration as a YAML file that [`parse`] takes back unchanged.
#[must_use]
pub fn to_yaml(selector: &EgressSelector) -> String {
    #[expect(
        clippy::expect_used,
        reason = "only I/O, nested enums and byte strings can fail, and there are none"
    )]
    serde_yaml::to_string(&to_wire(selector)).expect("structs of strings are YAML")
}

fn to_wire(selector: &EgressSelector) -> wire::Configuration {
    wire::Configuration {
        api_version: some(selector.api_version()),
        kind: some(KIND),
        egress_selections: Some(
            selector
                .iter()
                .map(|(name, connection)| {
                    Some(wire::Selection {
                        name: some(name),
                        connection: Some(connection_to_wire(connection)),
                    })
                })
                .collect(),
        ),
    }
}

fn connection_to_wire(connection: &Connection) -> wire::Connection {
    let (protocol, transport) = match connection {
        Connection::Direct => ("Direct", None),
        Connection::Grpc(path) => ("GRPC", Some(uds_to_wire(path))),
        Connection::HttpConnect(HttpConnect::Uds(path)) => ("HTTPConnect", Some(uds_to_wire(path))),
        Connection::HttpConnect(HttpConnect::Tcp(proxy)) => (
            "HTTPConnect",
            Some(wire::Transport {
                tcp: Some(wire::Tcp {
                    url: some(&proxy.url),
                    tls_config: Some(tls_to_wire(&proxy.tls)),
                }),
                uds: None,
            }),
        ),
    };
    wire::Connection {
        proxy_protocol: some(protocol),
        transport,
    }
}

fn uds_to_wire(path: &UdsPath) -> wire::Transport {
    wire::Transport {
        tcp: None,
        uds: Some(wire::Uds {
            uds_name: some(path),
        }),
    }
}

fn tls_to_wire(tls: &ClientTls) -> wire::Tls {
    wire::Tls {
        ca_bundle: tls.ca_bundle.as_ref().and_then(some),
        client_key: some(&tls.client_key),
        client_cert: some(&tls.client_cert),
        tls_server_name: tls.server_name.as_ref().and_then(some),
    }
}

fn some(text: impl ToString) -> Option<Text> {
    Some(Text(text.to_string()))
}
