//! `coordination.k8s.io/v1` Leases of one namespace.

use bytes::Bytes;
use http::Method;
use k8s_openapi::api::coordination::v1::Lease as Object;
use serde::Deserialize;
use serde_json::json;

use crate::{
    client::{Call, Client, Event, Events, Group},
    error::ApiError,
    lease::Lease,
};

/// Requests about the Leases of a namespace.
#[derive(Clone, Debug)]
pub struct Leases {
    client: Client,
    path: String,
}

/// All Leases at one moment.
#[derive(Debug, Deserialize)]
#[serde(from = "ListWire")]
pub struct List {
    /// Those that were asked for.
    pub leases: Vec<Lease>,
    /// The moment, where a watch can go on.
    pub version: String,
}

#[derive(Deserialize)]
struct ListWire {
    metadata: ListMetadata,
    /// `null` for none comes from Go.
    items: Option<Vec<Lease>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(default)]
    resource_version: String,
}

impl From<ListWire> for List {
    fn from(wire: ListWire) -> Self {
        Self {
            leases: wire.items.unwrap_or_default(),
            version: wire.metadata.resource_version,
        }
    }
}

/// Changes of Leases as they happen.
#[derive(Debug)]
pub struct Watch(Events);

impl Watch {
    /// The next change, or nothing when the API server has ended the watch. Cancel safe.
    ///
    /// # Errors
    /// What ended the watch, such as 410 ([`ApiError::is_gone`]).
    pub async fn next(&mut self) -> Result<Option<Event<Lease>>, ApiError> {
        self.0.next().await
    }
}

impl Leases {
    /// Those of `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
            escape(namespace)
        );
        Self { client, path }
    }

    fn call(&self, verb: &'static str, method: Method, rest: &str) -> Call {
        Call {
            verb,
            resource: "leases",
            group: Group::Coordination,
            method,
            target: format!("{}{rest}", self.path),
            body: Bytes::new(),
        }
    }

    /// One by its name.
    ///
    /// # Errors
    /// [`ApiError`]; [`is_not_found`](ApiError::is_not_found) if there is none.
    pub async fn get(&self, name: &str) -> Result<Object, ApiError> {
        let call = self.call("get", Method::GET, &format!("/{}", escape(name)));
        self.client.object(call).await
    }

    /// Makes a new one.
    ///
    /// # Errors
    /// [`ApiError`]; [`is_conflict`](ApiError::is_conflict) if there is one of this name.
    pub async fn create(&self, lease: &Object) -> Result<Object, ApiError> {
        let call = self.call("create", Method::POST, "").with_body(lease)?;
        self.client.object(call).await
    }

    /// Replaces one, if it is still as `lease` says in `metadata.resourceVersion`.
    ///
    /// # Errors
    /// [`ApiError`]; [`is_conflict`](ApiError::is_conflict) if it is not.
    pub async fn update(&self, name: &str, lease: &Object) -> Result<Object, ApiError> {
        let call = self
            .call("update", Method::PUT, &format!("/{}", escape(name)))
            .with_body(lease)?;
        self.client.object(call).await
    }

    /// Deletes one; with `version` only if it is still that.
    ///
    /// # Errors
    /// [`ApiError`]; [`is_conflict`](ApiError::is_conflict) if it is not.
    pub async fn delete(&self, name: &str, version: Option<&str>) -> Result<(), ApiError> {
        let mut call = self.call("delete", Method::DELETE, &format!("/{}", escape(name)));
        if let Some(version) = version {
            call = call.with_body(&json!({
                "kind": "DeleteOptions",
                "apiVersion": "v1",
                "preconditions": {"resourceVersion": version},
            }))?;
        }
        self.client.done(call).await
    }

    /// All that `selector` selects.
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn list(&self, selector: &str) -> Result<List, ApiError> {
        let query = format!("?labelSelector={}", escape(selector));
        self.client
            .list(self.call("list", Method::GET, &query))
            .await
    }

    /// What happens to them after `version`, for so many seconds.
    ///
    /// # Errors
    /// [`ApiError`] if the watch does not begin.
    pub async fn watch(
        &self,
        selector: &str,
        version: &str,
        seconds: u32,
    ) -> Result<Watch, ApiError> {
        let query = format!(
            "?watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}&labelSelector={}",
            escape(version),
            escape(selector)
        );
        let call = self.call("watch", Method::GET, &query);
        self.client.watch(call).await.map(Watch)
    }
}

/// Percent-encodes all but RFC 3986's unreserved characters.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_selectors_cannot_leave_their_place() {
        assert_eq!(escape("a in (b,c)"), "a%20in%20%28b%2Cc%29");
        assert_eq!(escape("../x?y#z&é"), "..%2Fx%3Fy%23z%26%C3%A9");
    }
}
