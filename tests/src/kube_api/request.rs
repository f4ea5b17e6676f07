//! What a request asks for.

use std::{collections::HashMap, fmt};

use http::{Method, Uri};

/// What this API server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// `authentication.k8s.io/v1`.
    TokenReviews,
    /// `coordination.k8s.io/v1`.
    Leases,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TokenReviews => "tokenreviews",
            Self::Leases => "leases",
        })
    }
}

/// A request's target, understood.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) verb: &'static str,
    pub(super) resource: Resource,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) query: HashMap<String, String>,
}

impl Target {
    pub(super) fn parse(method: &Method, uri: &Uri) -> Option<Self> {
        let query = parse_query(uri.query().unwrap_or_default());
        let parts: Vec<_> = uri.path().trim_matches('/').split('/').collect();
        let (resource, namespace, name) = match parts.as_slice() {
            ["apis", "authentication.k8s.io", "v1", "tokenreviews"] => {
                (Resource::TokenReviews, "", "")
            }
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
            ] => (Resource::Leases, *namespace, ""),
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
                name,
            ] => (Resource::Leases, *namespace, *name),
            _ => return None,
        };
        let is_watch = matches!(query.get("watch").map(String::as_str), Some("1" | "true"));
        let verb = match (method.as_str(), name.is_empty()) {
            ("POST", true) => "create",
            ("GET", true) if is_watch => "watch",
            ("GET", true) => "list",
            ("GET", false) => "get",
            ("PUT", false) => "update",
            ("DELETE", false) => "delete",
            _ => return None,
        };
        if resource == Resource::TokenReviews && verb != "create" {
            return None;
        }
        Some(Self {
            verb,
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            query,
        })
    }
}

fn parse_query(query: &str) -> HashMap<String, String> {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (unescape(name), unescape(value)))
        .collect()
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&hex, 16).unwrap_or(b'?')
            }
            other => other,
        });
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
