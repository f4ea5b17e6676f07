//! From what the API server says of a token to whether its bearer may be an agent (`validateAuthToken`).

use std::collections::BTreeMap;

use cluster::token_review::{TokenStatus, User};

use super::Options;

/// Longest name that is kept of what a token is bound to, in bytes: names of objects are no longer.
const MAX_NAME: usize = 253;

/// An agent, as the Kubernetes API vouches for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reviewed {
    /// `system:serviceaccount:NAMESPACE:NAME`, of the configured account.
    pub username: String,
    /// The account's uid.
    pub uid: String,
    /// The Pod that the token is bound to, if it is to one.
    pub pod_name: Option<String>,
    /// Its uid.
    pub pod_uid: Option<String>,
    /// The node of that Pod, if the API server tells (Kubernetes 1.30 or newer).
    pub node_name: Option<String>,
    /// Its uid.
    pub node_uid: Option<String>,
}

/// Upstream's checks in upstream's order and words.
pub(super) fn judge(status: TokenStatus, options: &Options) -> Result<Reviewed, String> {
    if !status.error.is_empty() {
        return Err(format!("lookup failed: {}", one_line(&status.error)));
    }
    if !status.authenticated {
        return Err("lookup failed: service account jwt not valid".to_owned());
    }
    let mut parts = status.user.username.split(':');
    let four = [parts.next(), parts.next(), parts.next(), parts.next()];
    let ([Some(system), Some(kind), Some(namespace), Some(account)], None) = (four, parts.next())
    else {
        return Err("lookup failed: unexpected username format".to_owned());
    };
    if system != "system" || kind != "serviceaccount" {
        return Err("lookup failed: username returned is not a service account".to_owned());
    }
    if namespace != options.namespace {
        return Err(format!(
            "lookup failed: incoming request from {namespace:?} namespace. Expected {:?}",
            options.namespace
        ));
    }
    if account != options.service_account {
        return Err(format!(
            "lookup failed: incoming request from {account:?} service account. Expected {:?}",
            options.service_account
        ));
    }
    Ok(reviewed(status.user))
}

fn reviewed(user: User) -> Reviewed {
    let mut extra = user.extra.unwrap_or_default();
    Reviewed {
        username: user.username,
        uid: if user.uid.len() > MAX_NAME {
            String::new()
        } else {
            user.uid
        },
        pod_name: only(&mut extra, "authentication.kubernetes.io/pod-name"),
        pod_uid: only(&mut extra, "authentication.kubernetes.io/pod-uid"),
        node_name: only(&mut extra, "authentication.kubernetes.io/node-name"),
        node_uid: only(&mut extra, "authentication.kubernetes.io/node-uid"),
    }
}

/// The value, if there is exactly one: of two nobody could say which is meant.
fn only(extra: &mut BTreeMap<String, Vec<String>>, key: &str) -> Option<String> {
    let mut values = extra.remove(key)?.into_iter();
    match (values.next(), values.next()) {
        (Some(value), None) if value.len() <= MAX_NAME => Some(value),
        _ => None,
    }
}

/// What another process wrote goes into a header and a log.
fn one_line(text: &str) -> String {
    let chars = text.chars().take(500);
    chars
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(username: &str) -> TokenStatus {
        TokenStatus {
            authenticated: true,
            error: String::new(),
            user: User {
                username: username.to_owned(),
                uid: "u".to_owned(),
                extra: Some(BTreeMap::from([
                    (
                        "authentication.kubernetes.io/node-name".to_owned(),
                        vec!["n".to_owned()],
                    ),
                    (
                        "authentication.kubernetes.io/pod-name".to_owned(),
                        vec!["p".to_owned(), "q".to_owned()],
                    ),
                ])),
            },
        }
    }

    fn options() -> Options {
        Options {
            namespace: "ns".to_owned(),
            service_account: "sa".to_owned(),
            audience: "us".to_owned(),
        }
    }

    #[test]
    fn the_configured_service_account_is_accepted_with_what_its_token_is_bound_to() {
        let reviewed = judge(status("system:serviceaccount:ns:sa"), &options()).unwrap();
        assert_eq!(reviewed.node_name.as_deref(), Some("n"));
        assert_eq!(reviewed.pod_name, None, "two are none");
        assert_eq!(
            (reviewed.username.as_str(), reviewed.uid.as_str()),
            ("system:serviceaccount:ns:sa", "u")
        );
    }

    /// The words are those of wire-protocol.md 5.5.
    #[test]
    fn everybody_else_is_told_why_not_in_upstreams_words() {
        for (status, error) in [
            (
                TokenStatus {
                    error: "a\nb".to_owned(),
                    ..status("system:serviceaccount:ns:sa")
                },
                "lookup failed: a b",
            ),
            (
                TokenStatus {
                    authenticated: false,
                    ..status("system:serviceaccount:ns:sa")
                },
                "lookup failed: service account jwt not valid",
            ),
            (status("admin"), "lookup failed: unexpected username format"),
            (
                status("system:serviceaccount:ns:sa:x"),
                "lookup failed: unexpected username format",
            ),
            (
                status("system:node:ns:sa"),
                "lookup failed: username returned is not a service account",
            ),
            (
                status("system:serviceaccount:other:sa"),
                "lookup failed: incoming request from \"other\" namespace. Expected \"ns\"",
            ),
            (
                status("system:serviceaccount:ns:other"),
                "lookup failed: incoming request from \"other\" service account. Expected \"sa\"",
            ),
        ] {
            assert_eq!(judge(status, &options()).unwrap_err(), error);
        }
    }
}
