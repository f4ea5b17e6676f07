//! Leases, their versions, and what watches are told.

#![expect(
    clippy::indexing_slicing,
    reason = "reading a JSON value so never panics, and writing does not below an object, which a body is (see serve)"
)]

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A Lease as tests look at it and make it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// `spec.holderIdentity`.
    pub holder: Option<String>,
    /// `spec.leaseDurationSeconds`.
    pub duration_seconds: Option<i64>,
    /// `spec.renewTime`, as it stands there: RFC 3339 with microseconds.
    pub renewed: Option<String>,
    /// `spec.acquireTime`.
    pub acquired: Option<String>,
    /// `metadata.resourceVersion`; not looked at in [`put_lease`](super::KubeApi::put_lease).
    pub version: u64,
}

impl Lease {
    fn from_object(object: &Value, version: u64) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            namespace: text(&object["metadata"]["namespace"]).unwrap_or_default(),
            name: text(&object["metadata"]["name"]).unwrap_or_default(),
            labels: labels(object),
            holder: text(&object["spec"]["holderIdentity"]),
            duration_seconds: object["spec"]["leaseDurationSeconds"].as_i64(),
            renewed: text(&object["spec"]["renewTime"]),
            acquired: text(&object["spec"]["acquireTime"]),
            version,
        }
    }

    fn to_object(&self) -> Value {
        let mut spec = serde_json::Map::new();
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                spec.insert(name.to_owned(), value);
            }
        };
        set("holderIdentity", self.holder.clone().map(Value::from));
        set(
            "leaseDurationSeconds",
            self.duration_seconds.map(Value::from),
        );
        set("renewTime", self.renewed.clone().map(Value::from));
        set("acquireTime", self.acquired.clone().map(Value::from));
        json!({
            "metadata": {"namespace": self.namespace, "name": self.name, "labels": self.labels},
            "spec": spec,
        })
    }
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object();
    labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// A status, and what the body says.
pub(super) type Answer = Result<(u16, Value), (u16, String)>;

/// What happened, for watches.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Object {
        kind: &'static str,
        namespace: String,
        object: Value,
    },
    Bookmark,
}

/// All of them, and their history.
#[derive(Debug)]
pub(super) struct Leases {
    objects: BTreeMap<(String, String), (u64, Value)>,
    history: Vec<(u64, Change)>,
    version: u64,
    /// Nothing up to here is remembered.
    compacted: u64,
}

impl Default for Leases {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            history: Vec::new(),
            version: 100,
            compacted: 0,
        }
    }
}

impl Leases {
    pub(super) fn all(&self) -> Vec<Lease> {
        let objects = self.objects.values();
        objects
            .map(|(version, object)| Lease::from_object(object, *version))
            .collect()
    }

    pub(super) fn put(&mut self, lease: &Lease) {
        self.store(&lease.namespace, &lease.name, lease.to_object());
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        let Some((_, mut object)) = self.objects.remove(&key) else {
            return false;
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.record("DELETED", namespace, object);
        true
    }

    pub(super) fn bookmark(&mut self) {
        self.version += 1;
        self.history.push((self.version, Change::Bookmark));
    }

    pub(super) fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
        self.history.clear();
    }

    fn record(&mut self, kind: &'static str, namespace: &str, object: Value) {
        let change = Change::Object {
            kind,
            namespace: namespace.to_owned(),
            object,
        };
        self.history.push((self.version, change));
    }

    fn store(&mut self, namespace: &str, name: &str, mut object: Value) -> Value {
        let key = (namespace.to_owned(), name.to_owned());
        let kind = if self.objects.contains_key(&key) {
            "MODIFIED"
        } else {
            "ADDED"
        };
        self.version += 1;
        object["apiVersion"] = json!("coordination.k8s.io/v1");
        object["kind"] = json!("Lease");
        let metadata = &mut object["metadata"];
        metadata["namespace"] = json!(namespace);
        metadata["name"] = json!(name);
        metadata["resourceVersion"] = json!(self.version.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.version));
        }
        self.objects.insert(key, (self.version, object.clone()));
        self.record(kind, namespace, object.clone());
        object
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Answer {
        self.find(namespace, name).map(|(_, object)| (200, object))
    }

    fn find(&self, namespace: &str, name: &str) -> Result<(u64, Value), (u16, String)> {
        let found = self.objects.get(&(namespace.to_owned(), name.to_owned()));
        found.cloned().ok_or_else(|| {
            (
                404,
                format!("leases.coordination.k8s.io {name:?} not found"),
            )
        })
    }

    pub(super) fn create(&mut self, namespace: &str, object: Value) -> Answer {
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if name.is_empty() {
            return Err((422, "metadata.name: Required value".to_owned()));
        }
        if self.find(namespace, &name).is_ok() {
            return Err((
                409,
                format!("leases.coordination.k8s.io {name:?} already exists"),
            ));
        }
        Ok((201, self.store(namespace, &name, object)))
    }

    pub(super) fn update(&mut self, namespace: &str, name: &str, mut object: Value) -> Answer {
        let (version, old) = self.find(namespace, name)?;
        let seen = object["metadata"]["resourceVersion"].as_str();
        if seen.is_some_and(|seen| seen != version.to_string()) {
            return Err((409, conflict(name)));
        }
        object["metadata"]["uid"] = old["metadata"]["uid"].clone();
        Ok((200, self.store(namespace, name, object)))
    }

    pub(super) fn delete(&mut self, namespace: &str, name: &str, options: &Value) -> Answer {
        let (version, object) = self.find(namespace, name)?;
        let preconditions = &options["preconditions"];
        let wanted = preconditions["resourceVersion"].as_str();
        let uid = preconditions["uid"].as_str();
        if wanted.is_some_and(|wanted| wanted != version.to_string())
            || uid.is_some_and(|uid| object["metadata"]["uid"] != uid)
        {
            return Err((409, conflict(name)));
        }
        self.remove(namespace, name);
        Ok((
            200,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
        ))
    }

    pub(super) fn list(&self, namespace: &str, selector: &Selector) -> (u16, Value) {
        let items: Vec<_> = self
            .objects
            .iter()
            .filter(|((ns, _), (_, object))| ns == namespace && selector.matches(object))
            .map(|(_, (_, object))| object)
            .collect();
        let list = json!({
            "kind": "LeaseList",
            "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"resourceVersion": self.version.to_string()},
            "items": items,
        });
        (200, list)
    }

    /// The newest version, where a watch without one starts.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// What a watch of this kind is told after `version`, as lines; and where it is then. `Err`: the last it is told.
    pub(super) fn events_after(
        &self,
        version: u64,
        namespace: &str,
        selector: &Selector,
        bookmarks: bool,
    ) -> Result<(u64, String), String> {
        if version < self.compacted {
            let message = format!("too old resource version: {version} ({})", self.compacted);
            return Err(line("ERROR", &super::serve::status(410, &message)));
        }
        let mut lines = String::new();
        for (_, change) in self.history.iter().filter(|(at, _)| *at > version) {
            match change {
                Change::Object {
                    kind,
                    namespace: ns,
                    object,
                } => {
                    if ns == namespace && selector.matches(object) {
                        lines.push_str(&line(kind, object));
                    }
                }
                Change::Bookmark if bookmarks => {
                    let object = json!({
                        "kind": "Lease",
                        "apiVersion": "coordination.k8s.io/v1",
                        "metadata": {"resourceVersion": self.version.to_string()},
                        "spec": {},
                    });
                    lines.push_str(&line("BOOKMARK", &object));
                }
                Change::Bookmark => {}
            }
        }
        Ok((self.version, lines))
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn conflict(name: &str) -> String {
    format!(
        "Operation cannot be fulfilled on leases.coordination.k8s.io {name:?}: the object has been modified; please apply \
         your changes to the latest version and try again"
    )
}

/// A label selector, of the forms that occur in tests.
#[derive(Debug, Default)]
pub(super) struct Selector(Vec<(String, Match)>);

#[derive(Debug)]
enum Match {
    Equals(String),
    Differs(String),
    Exists,
    Missing,
}

impl Selector {
    pub(super) fn parse(text: &str) -> Result<Self, (u16, String)> {
        let mut terms = Vec::new();
        for term in text
            .split(',')
            .map(str::trim)
            .filter(|term| !term.is_empty())
        {
            if term.contains(['(', ')', '<', '>']) {
                return Err((
                    400,
                    format!("this API server does not know selectors like {term:?}"),
                ));
            }
            terms.push(if let Some((key, value)) = term.split_once("!=") {
                (key.to_owned(), Match::Differs(value.to_owned()))
            } else if let Some((key, value)) = term.split_once("==").or(term.split_once('=')) {
                (key.to_owned(), Match::Equals(value.to_owned()))
            } else if let Some(key) = term.strip_prefix('!') {
                (key.to_owned(), Match::Missing)
            } else {
                (term.to_owned(), Match::Exists)
            });
        }
        Ok(Self(terms))
    }

    fn matches(&self, object: &Value) -> bool {
        let labels = labels(object);
        self.0
            .iter()
            .all(|(key, term)| match (labels.get(key), term) {
                (Some(value), Match::Equals(wanted)) => value == wanted,
                (Some(value), Match::Differs(other)) => value != other,
                (None, Match::Differs(_) | Match::Missing) | (Some(_), Match::Exists) => true,
                _ => false,
            })
    }
}
