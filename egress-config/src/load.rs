//! Bytes to what they mean, and a selector to YAML. The only module that names the YAML crate.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, IgnoredAny};

use crate::check::check;
use crate::decode::{EMPTY, decode};
use crate::error::{DocumentError, LoadError};
use crate::finding::{Finding, Rule, Severity};
use crate::node::{self, Node, Reader};
use crate::position::{Lines, Position};
use crate::selection::EgressSelector;
use crate::write;

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

/// Whether certificate files that are named must exist on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Yes: this is where kube-apiserver runs, which refuses the file otherwise. What is in them is checked, too.
    MustExist,
    /// No: the file is meant for another machine.
    Elsewhere,
}

/// What became of a file.
#[derive(Clone, Debug)]
pub struct Report {
    /// All that was found, in the order of the file.
    pub findings: Vec<Finding>,
    selector: Option<EgressSelector>,
}

impl Report {
    /// kube-apiserver's own verdict: whether it reads the file and finds it valid. It may still be unable to use it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| finding.severity() != Severity::Error)
    }

    /// The configuration, if kube-apiserver can work with it: no finding stops it from starting or makes every dial fail.
    #[must_use]
    pub fn selector(&self) -> Option<&EgressSelector> {
        self.selector.as_ref()
    }
}

/// A configuration that kube-apiserver takes and can work with.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The configuration.
    pub selector: EgressSelector,
    /// Warnings and notes, in the order of the file. No errors.
    pub findings: Vec<Finding>,
}

/// Reads a file, symlinks followed, that kube-apiserver can work with.
///
/// # Errors
///
/// [`LoadError`] with the file and everything that is wrong with it.
pub fn load(file: &Path, files: Files) -> Result<Loaded, LoadError> {
    usable(inspect_file(file, files)?).map_err(|source| LoadError::Document {
        file: file.to_owned(),
        source,
    })
}

/// As [`load`], for the content of a file.
///
/// # Errors
///
/// [`DocumentError`].
pub fn parse(bytes: &[u8], files: Files) -> Result<Loaded, DocumentError> {
    usable(inspect(bytes, files)?)
}

fn usable(report: Report) -> Result<Loaded, DocumentError> {
    let Report { findings, selector } = report;
    match selector {
        Some(selector) => Ok(Loaded { selector, findings }),
        None => Err(DocumentError::Invalid { findings }),
    }
}

/// Reads a file, symlinks followed, and tells everything about it.
///
/// # Errors
///
/// [`LoadError::Read`], [`LoadError::NotAFile`], and those of [`inspect`] with the file's name.
pub fn inspect_file(file: &Path, files: Files) -> Result<Report, LoadError> {
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
    inspect(&bytes, files).map_err(|source| LoadError::Document {
        file: file.to_owned(),
        source,
    })
}

/// All of a reader, or one byte more than [`inspect`] takes, which it then refuses as too large.
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

/// Tells everything about the content of a file: YAML, or JSON if it begins with a brace. Of several documents the first
/// counts.
///
/// Time and memory are bounded by the limits on size, brackets and values, and by the YAML reader's own on depth and
/// aliases.
///
/// # Errors
///
/// [`DocumentError::TooLarge`] and [`DocumentError::TooManyBrackets`], limits that kube-apiserver does not have.
pub fn inspect(bytes: &[u8], files: Files) -> Result<Report, DocumentError> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(DocumentError::TooLarge {
            max_bytes: MAX_FILE_BYTES,
        });
    }
    if bytes.starts_with(PROTOBUF_MAGIC) {
        return Ok(refused(
            Rule::Protobuf,
            None,
            "is Kubernetes protobuf; write YAML or JSON",
        ));
    }
    let is_json = bytes.trim_ascii_start().starts_with(b"{");
    let text = if is_json {
        Cow::Borrowed(bytes)
    } else if let Some(text) = without_mark(bytes) {
        text
    } else {
        let problem = "begins as UTF-16, and then is not; write it in UTF-8";
        return Ok(refused(Rule::Syntax, None, problem));
    };
    let brackets = text.iter().filter(|byte| matches!(byte, b'[' | b'{'));
    if brackets.count() > MAX_OPENING_BRACKETS {
        return Err(DocumentError::TooManyBrackets {
            max: MAX_OPENING_BRACKETS,
        });
    }
    Ok(if is_json {
        json(&text, files)
    } else {
        yaml(&text, files)
    })
}

/// Without byte order mark, which the YAML reader takes for content, and in UTF-8: kube-apiserver takes UTF-16 with a mark,
/// as some editors and shells write it. `None` if it is broken UTF-16.
fn without_mark(bytes: &[u8]) -> Option<Cow<'_, [u8]>> {
    let utf16 = |rest: &[u8], unit: fn([u8; 2]) -> u16| {
        let (units, odd) = rest.as_chunks();
        let text: Result<String, _> =
            char::decode_utf16(units.iter().map(|&bytes| unit(bytes))).collect();
        let text = text.ok().filter(|_| odd.is_empty())?;
        Some(Cow::Owned(text.into_bytes()))
    };
    match bytes {
        [0xef, 0xbb, 0xbf, rest @ ..] => Some(Cow::Borrowed(rest)),
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        _ => Some(Cow::Borrowed(bytes)),
    }
}

/// kube-apiserver takes a file that begins with a brace for JSON, and then it must be JSON to the letter, without the comma
/// or comment that YAML would let pass.
fn json(text: &[u8], files: Files) -> Report {
    let budget = node::budget();
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let root = Reader::json(text, &budget)
        .deserialize(&mut deserializer)
        .and_then(|root| deserializer.end().map(|()| root));
    match root {
        Ok(root) => report(&root, &Lines::new(text), false, files),
        Err(error) => {
            let (line, column) = (error.line(), error.column());
            let reason = error.to_string();
            let suffix = format!(" at line {line} column {column}");
            let reason = reason.strip_suffix(&suffix).unwrap_or(&reason);
            let problem = format!(
                "begins with a brace, so it must be JSON, and here it is not ({reason}); correct it, or write YAML"
            );
            let offset = json_offset(text, line, column);
            refused(
                Rule::Syntax,
                Some(Lines::new(text).position(offset)),
                problem,
            )
        }
    }
}

/// Where the JSON reader's places lie: its lines end with a line feed alone, its columns count bytes and may be 0.
fn json_offset(text: &[u8], line: usize, column: usize) -> usize {
    let before = text
        .split_inclusive(|&byte| byte == b'\n')
        .take(line.saturating_sub(1));
    let start: usize = before.map(<[u8]>::len).sum();
    (start + column.saturating_sub(1)).min(text.len())
}

fn yaml(text: &[u8], files: Files) -> Report {
    let budget = node::budget();
    let mut documents = serde_yaml::Deserializer::from_slice(text);
    let Some(first) = documents.next() else {
        return refused(Rule::Empty, None, EMPTY);
    };
    let root = match Reader::yaml(text, &budget).deserialize(first) {
        Ok(root) => root,
        Err(error) => return yaml_fault(&error),
    };
    let mut report = report(&root, &Lines::new(text), true, files);
    // A second document that has content, or is something that does not even parse.
    let more = documents
        .next()
        .map(Option::<IgnoredAny>::deserialize)
        .is_some_and(|second| !matches!(second, Ok(None)));
    if more {
        report.findings.push(Finding {
            rule: Rule::SeveralDocuments,
            path: String::new(),
            position: None,
            problem: "has more than one document, and kube-apiserver never looks behind the first; remove the others"
                .to_owned(),
        });
    }
    report
}

fn yaml_fault(error: &serde_yaml::Error) -> Report {
    let position = error.location().map(|location| Position {
        line: location.line(),
        column: location.column(),
    });
    let reason = error.to_string();
    let suffix = position.map_or_else(String::new, |Position { line, column }| {
        format!(" at line {line} column {column}")
    });
    let reason = reason.strip_suffix(&suffix).unwrap_or(&reason);
    let problem = format!(
        "is not YAML that can be read: {reason}; look at indentation, quotes and colons there"
    );
    refused(Rule::Syntax, position, problem)
}

fn refused(rule: Rule, position: Option<Position>, problem: impl Into<String>) -> Report {
    Report {
        findings: vec![Finding {
            rule,
            path: String::new(),
            position,
            problem: problem.into(),
        }],
        selector: None,
    }
}

fn report(root: &Node, lines: &Lines<'_>, is_yaml: bool, files: Files) -> Report {
    let decoded = decode(root, lines, is_yaml);
    let (selector, found) = check(decoded.version, &decoded.selections, lines, files);
    let mut findings = decoded.findings;
    findings.extend(found);
    let fatal = findings
        .iter()
        .any(|finding| finding.rule.effect().is_fatal());
    // Stable, so that what stands at one place keeps kube-apiserver's order.
    findings.sort_by_key(|finding| finding.position);
    Report {
        findings,
        selector: selector.filter(|_| !fatal),
    }
}

/// The configuration as a YAML file that [`parse`] takes back unchanged.
///
/// If some text is one that YAML 1.1 takes for something else, such as a socket named `on`, it is JSON, which is YAML with
/// everything in quotes: the YAML crate knows version 1.2 and leaves them away.
#[must_use]
pub fn to_yaml(selector: &EgressSelector) -> String {
    let written = write::Configuration::of(selector);
    #[expect(
        clippy::expect_used,
        reason = "only I/O, nested enums and byte strings can fail, and there are none"
    )]
    let yaml = serde_yaml::to_string(&written).expect("structs of strings are YAML");
    let same = parse(yaml.as_bytes(), Files::Elsewhere);
    if same.is_ok_and(|same| same.selector == *selector) {
        return yaml;
    }
    #[expect(clippy::expect_used, reason = "as above")]
    let mut json = serde_json::to_string_pretty(&written).expect("structs of strings are JSON");
    json.push('\n');
    json
}
