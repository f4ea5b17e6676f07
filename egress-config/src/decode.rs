//! From a document's tree to the fields kube-apiserver knows, as strictly as it decodes: unknown fields, duplicate fields
//! and wrong types, all of them and each with its path.

use std::collections::{HashMap, HashSet};

use crate::finding::{Finding, Rule};
use crate::meta;
use crate::node::{Entry, Node, Value};
use crate::position::Lines;
use crate::selection::ApiVersion;
use crate::wire::{Connection, Field, Place, Selection, State, Tcp, Tls, Transport, Uds};

/// Longest piece of the file that a message quotes, in characters.
const MAX_QUOTED_CHARS: usize = 100;

/// What was decoded, as far as it went.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// `None` if kind or version are not ours.
    pub(crate) version: Option<ApiVersion>,
    pub(crate) selections: Field<Vec<Selection>>,
    pub(crate) findings: Vec<Finding>,
}

/// Decodes a document.
///
/// If its kind or version is not ours, its fields are looked at only if it looks like ours otherwise: a file of another kind
/// should hear that, not that its fields are unknown.
pub(crate) fn decode(root: &Node, lines: &Lines<'_>, is_yaml: bool) -> Decoded {
    let mut decoder = Decoder {
        lines,
        is_yaml,
        findings: Vec::new(),
    };
    let mut version = None;
    let mut selections = Field {
        at: None,
        state: State::Wrong,
    };
    match &root.value {
        Value::Map(entries) => {
            let entries = decoder.entries("", entries);
            version = meta::version(&mut decoder, root.at, &entries);
            if version.is_some() || entries.iter().any(|entry| entry.key == SELECTIONS) {
                selections = decoder.configuration(root.at, &entries);
            }
        }
        Value::Null => decoder.report(Rule::Empty, "", None, EMPTY),
        other => decoder.report(
            Rule::NotMapping,
            "",
            root.at,
            format!(
                "is {}, but must be a mapping with apiVersion, kind and egressSelections",
                describe(other)
            ),
        ),
    }
    Decoded {
        version,
        selections,
        findings: decoder.findings,
    }
}

pub(crate) const EMPTY: &str = "is empty; write apiVersion: apiserver.k8s.io/v1beta1, kind: EgressSelectorConfiguration and egressSelections";

const SELECTIONS: &str = "egressSelections";

/// The fields of each type.
const CONFIGURATION: &[&str] = &["apiVersion", "kind", SELECTIONS];
const SELECTION: &[&str] = &["name", "connection"];
const CONNECTION: &[&str] = &["proxyProtocol", "transport"];
const TRANSPORT: &[&str] = &["tcp", "uds"];
const TCP: &[&str] = &["url", "tlsConfig"];
const TLS: &[&str] = &["caBundle", "clientKey", "clientCert", "tlsServerName"];
const UDS: &[&str] = &["udsName"];

/// Collects what is wrong on the way.
#[derive(Debug)]
pub(crate) struct Decoder<'a> {
    lines: &'a Lines<'a>,
    pub(crate) is_yaml: bool,
    findings: Vec<Finding>,
}

/// A mapping's path, place and entries.
struct Object<'n> {
    path: String,
    at: Place,
    entries: Vec<&'n Entry>,
}

impl Decoder<'_> {
    pub(crate) fn report(
        &mut self,
        rule: Rule,
        path: impl Into<String>,
        at: Place,
        problem: impl Into<String>,
    ) {
        self.findings.push(Finding {
            rule,
            path: path.into(),
            position: at.map(|at| self.lines.position(at)),
            problem: problem.into(),
        });
    }

    fn configuration(&mut self, at: Place, entries: &[&Entry]) -> Field<Vec<Selection>> {
        let object = Object {
            path: String::new(),
            at,
            entries: entries.to_vec(),
        };
        self.only(&object, CONFIGURATION);
        let field = self.field(&object, SELECTIONS, |decoder, path, at, node| {
            let Value::List(items) = &node.value else {
                decoder.wrong_type(path, at, &node.value, "a list");
                return None;
            };
            Some((items, path.to_owned()))
        });
        let state = match field.state {
            State::Set((items, path)) => State::Set(
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| {
                        let at = item.at.or(field.at);
                        self.selection(&format!("{path}[{index}]"), at, item)
                    })
                    .collect(),
            ),
            State::Absent => State::Absent,
            State::Wrong => State::Wrong,
        };
        Field {
            at: field.at,
            state,
        }
    }

    /// One of the list. `null` is an empty one.
    fn selection(&mut self, path: &str, at: Place, node: &Node) -> Selection {
        let object = match &node.value {
            Value::Null => Some(Object {
                path: path.to_owned(),
                at,
                entries: Vec::new(),
            }),
            _ => self.object(path, at, node, SELECTION),
        };
        let Some(object) = object else {
            return Selection {
                name: wrong(at),
                connection: wrong(at),
            };
        };
        let mut connection =
            self.object_field(&object, "connection", CONNECTION, |decoder, object| {
                Connection {
                    proxy_protocol: decoder.text(object, "proxyProtocol"),
                    transport: decoder.object_field(
                        object,
                        "transport",
                        TRANSPORT,
                        Self::transport,
                    ),
                }
            });
        if connection.is_absent() {
            connection.state = State::Set(Connection {
                proxy_protocol: absent(connection.at),
                transport: absent(connection.at),
            });
        }
        Selection {
            name: self.text(&object, "name"),
            connection,
        }
    }

    fn transport(&mut self, object: &Object<'_>) -> Transport {
        Transport {
            tcp: self.object_field(object, "tcp", TCP, |decoder, tcp| Tcp {
                url: decoder.text(tcp, "url"),
                tls_config: decoder.object_field(tcp, "tlsConfig", TLS, |decoder, tls| Tls {
                    ca_bundle: decoder.text(tls, "caBundle"),
                    client_key: decoder.text(tls, "clientKey"),
                    client_cert: decoder.text(tls, "clientCert"),
                    tls_server_name: decoder.text(tls, "tlsServerName"),
                }),
            }),
            uds: self.object_field(object, "uds", UDS, |decoder, uds| Uds {
                uds_name: decoder.text(uds, "udsName"),
            }),
        }
    }

    fn text(&mut self, object: &Object<'_>, name: &str) -> Field<String> {
        self.field(object, name, |decoder, path, at, node| match &node.value {
            Value::Text(text) => Some(text.clone()),
            other => {
                decoder.wrong_type(path, at, other, "text");
                None
            }
        })
    }

    fn object_field<T>(
        &mut self,
        parent: &Object<'_>,
        name: &str,
        known: &[&str],
        read: impl FnOnce(&mut Self, &Object<'_>) -> T,
    ) -> Field<T> {
        self.field(parent, name, |decoder, path, at, node| {
            let object = decoder.object(path, at, node, known)?;
            Some(read(decoder, &object))
        })
    }

    /// A field of an object; `read` reports why it gives none.
    fn field<'n, T>(
        &mut self,
        object: &Object<'n>,
        name: &str,
        read: impl FnOnce(&mut Self, &str, Place, &'n Node) -> Option<T>,
    ) -> Field<T> {
        let entry = object.entries.iter().find(|entry| entry.key == name);
        let at = entry.and_then(|entry| entry.at).or(object.at);
        let state = match entry {
            Some(entry) if !matches!(entry.value.value, Value::Null) => {
                let path = join(&object.path, name);
                read(self, &path, at, &entry.value).map_or(State::Wrong, State::Set)
            }
            _ => State::Absent,
        };
        Field { at, state }
    }

    fn object<'n>(
        &mut self,
        path: &str,
        at: Place,
        node: &'n Node,
        known: &[&str],
    ) -> Option<Object<'n>> {
        let Value::Map(entries) = &node.value else {
            self.wrong_type(path, at, &node.value, "a mapping");
            return None;
        };
        let object = Object {
            path: path.to_owned(),
            at,
            entries: self.entries(path, entries),
        };
        self.only(&object, known);
        Some(object)
    }

    /// Reports fields that are not known. Letter case counts.
    fn only(&mut self, object: &Object<'_>, known: &[&str]) {
        for entry in &object.entries {
            if known.contains(&entry.key.as_str()) {
                continue;
            }
            let cure = cure(&entry.key, known, object.path.is_empty());
            let path = join(&object.path, &entry.key);
            let at = entry.at.or(object.at);
            self.report(
                Rule::FieldUnknown,
                path.clone(),
                at,
                format!("is not a field; {cure}"),
            );
            if self.is_yaml {
                self.duplicates_below(&path, &entry.value);
            }
        }
    }

    /// The entries of a mapping with merge keys resolved. Duplicates are reported, and the last counts, as in kube-apiserver's
    /// first look at kind and version.
    fn entries<'n>(&mut self, path: &str, written: &'n [Entry]) -> Vec<&'n Entry> {
        let mut all = Vec::new();
        self.flatten(path, written, &mut all);
        let mut kept: Vec<&Entry> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut reported = HashSet::new();
        for entry in all {
            let key = entry.key.as_str();
            let Some(first) = places.get(key).and_then(|&place| kept.get_mut(place)) else {
                places.insert(key, kept.len());
                kept.push(entry);
                continue;
            };
            *first = entry;
            if reported.insert(key) {
                self.report(
                    Rule::FieldDuplicate,
                    join(path, key),
                    entry.at,
                    "stands there a second time; keep one of them",
                );
            }
        }
        kept
    }

    /// What a merge key brings stands in its place, so that a key beside it is a duplicate, as to go-yaml.
    fn flatten<'n>(&mut self, path: &str, written: &'n [Entry], all: &mut Vec<&'n Entry>) {
        for entry in written {
            match &entry.value.value {
                Value::Map(brought) if entry.is_merge => self.flatten(path, brought, all),
                Value::List(items) if entry.is_merge => {
                    for item in items.iter().rev() {
                        if let Value::Map(brought) = &item.value {
                            self.flatten(path, brought, all);
                        } else {
                            self.bad_merge(path, entry);
                        }
                    }
                }
                _ if entry.is_merge => self.bad_merge(path, entry),
                _ => all.push(entry),
            }
        }
    }

    fn bad_merge(&mut self, path: &str, entry: &Entry) {
        self.report(
            Rule::Syntax,
            join(path, "<<"),
            entry.at,
            "merges something that is no mapping; give it a mapping or remove it",
        );
    }

    /// YAML is searched for duplicates as a whole, JSON only where fields are known.
    fn duplicates_below(&mut self, path: &str, node: &Node) {
        match &node.value {
            Value::Map(written) => {
                for entry in self.entries(path, written) {
                    self.duplicates_below(&join(path, &entry.key), &entry.value);
                }
            }
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.duplicates_below(&format!("{path}[{index}]"), item);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn wrong_type(&mut self, path: &str, at: Place, value: &Value, wanted: &str) {
        let cure = match value {
            Value::Bool(text) | Value::Number(text) if wanted == "text" => {
                format!("; if it is meant, write it in quotes: \"{text}\"")
            }
            _ => String::new(),
        };
        let problem = format!("is {}, but must be {wanted}{cure}", describe(value));
        self.report(Rule::WrongType, path, at, problem);
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(text) if matches!(text.to_lowercase().as_str(), "true" | "false") => {
            format!("the boolean {text}")
        }
        Value::Bool(text) => format!("{text}, which YAML 1.1 takes for a boolean"),
        Value::Number(text) => format!("the number {}", quotable(text)),
        Value::Text(text) => format!("the text \"{}\"", quotable(text)),
        Value::List(_) => "a list".to_owned(),
        Value::Map(_) => "a mapping".to_owned(),
    }
}

/// What to write instead of an unknown field.
fn cure(key: &str, known: &[&str], is_root: bool) -> String {
    if is_root && key == "metadata" {
        return "remove it, this kind has no metadata".to_owned();
    }
    let lower = key.to_lowercase();
    let meant = known.iter().find(|name| {
        let name = name.to_lowercase();
        name == lower || lower.len() > 2 && (name.contains(&lower) || lower.contains(&name))
    });
    match meant {
        Some(name) => format!("write {name}, in this spelling"),
        None => format!(
            "write one of {}, in this spelling, or remove it",
            known.join(", ")
        ),
    }
}

/// `text` fit for one line of a message.
pub(crate) fn quotable(text: &str) -> String {
    let mut short: String = text.chars().take(MAX_QUOTED_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    if short.chars().any(char::is_control) {
        short = short.escape_debug().to_string();
    }
    short
}

fn join(path: &str, key: &str) -> String {
    let key = quotable(key);
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

fn absent<T>(at: Place) -> Field<T> {
    Field {
        at,
        state: State::Absent,
    }
}

fn wrong<T>(at: Place) -> Field<T> {
    Field {
        at,
        state: State::Wrong,
    }
}
