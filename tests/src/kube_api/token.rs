//! Service accounts, their tokens, and what a TokenReview says of them.

#![expect(
    clippy::indexing_slicing,
    reason = "reading a JSON value so never panics, and writing does not below an object, which a body is (see serve)"
)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::state::State;

/// Whose a token is, and what it is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccount {
    namespace: String,
    name: String,
    audiences: Vec<String>,
    pod: Option<String>,
    node: Option<String>,
    expires: Option<SystemTime>,
}

impl ServiceAccount {
    /// The account `name` in `namespace`; its tokens are for nobody yet.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            audiences: Vec::new(),
            pod: None,
            node: None,
            expires: None,
        }
    }

    /// The one of upstream's manifests: `konnectivity-agent` in `kube-system`, for `system:konnectivity-server`.
    #[must_use]
    pub fn agent() -> Self {
        Self::new("kube-system", "konnectivity-agent").audience("system:konnectivity-server")
    }

    /// Tokens are for this audience, too.
    #[must_use]
    pub fn audience(mut self, audience: &str) -> Self {
        self.audiences.push(audience.to_owned());
        self
    }

    /// Tokens are bound to this Pod.
    #[must_use]
    pub fn pod(mut self, name: &str) -> Self {
        self.pod = Some(name.to_owned());
        self
    }

    /// Tokens are bound to a Pod on this node.
    #[must_use]
    pub fn node(mut self, name: &str) -> Self {
        self.node = Some(name.to_owned());
        self
    }

    /// Tokens expire at this time; otherwise an hour after they were made.
    #[must_use]
    pub fn expires(mut self, at: SystemTime) -> Self {
        self.expires = Some(at);
        self
    }

    pub(super) fn to_jwt(&self) -> String {
        let expires = self
            .expires
            .unwrap_or_else(|| SystemTime::now() + Duration::from_secs(3600));
        let claims = json!({
            "aud": self.audiences,
            "exp": expires.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            "sub": self.username(),
            "jti": format!("{:016x}", fastrand::u64(..)),
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!(
            "{}.{}.bm90LWEtc2lnbmF0dXJl",
            part(&json!({"alg": "RS256", "kid": "adit"})),
            part(&claims)
        )
    }

    fn username(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }

    fn extra(&self) -> Value {
        let mut extra = serde_json::Map::new();
        if let Some(pod) = &self.pod {
            extra.insert(
                "authentication.kubernetes.io/pod-name".to_owned(),
                json!([pod]),
            );
            extra.insert(
                "authentication.kubernetes.io/pod-uid".to_owned(),
                json!([format!("uid-of-{pod}")]),
            );
        }
        if let Some(node) = &self.node {
            extra.insert(
                "authentication.kubernetes.io/node-name".to_owned(),
                json!([node]),
            );
        }
        Value::Object(extra)
    }
}

/// The TokenReview with its status filled in, in the real API server's words.
pub(super) fn review(state: &State, mut review: Value) -> Value {
    let token = review["spec"]["token"].as_str().unwrap_or_default();
    let wanted: Vec<String> = review["spec"]["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect();
    let account = state
        .accounts
        .get(token)
        .filter(|account| account.expires.is_none_or(|at| SystemTime::now() < at));
    let status = match account {
        None => json!({"authenticated": false, "error": "invalid bearer token"}),
        Some(account) => {
            let matching: Vec<_> = account
                .audiences
                .iter()
                .filter(|audience| wanted.contains(audience))
                .collect();
            if matching.is_empty() {
                json!({
                    "authenticated": false,
                    "error": format!(
                        "[invalid bearer token, token audiences {:?} is invalid for the target audiences {wanted:?}]",
                        account.audiences
                    ),
                })
            } else {
                json!({
                    "authenticated": true,
                    "audiences": matching,
                    "user": {
                        "username": account.username(),
                        "uid": format!("uid-of-{}", account.name),
                        "groups": ["system:serviceaccounts", "system:authenticated"],
                        "extra": account.extra(),
                    },
                })
            }
        }
    };
    review["status"] = status;
    review
}
