//! `authentication.k8s.io/v1` TokenReview.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::Method;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use serde::Deserialize;

use crate::{
    client::{Call, Client, Group},
    error::ApiError,
};

/// What the API server says of a token: `status` of its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TokenStatus {
    /// Whether the token is good for one of the audiences.
    pub authenticated: bool,
    /// Why it could not be checked, or is not good.
    pub error: String,
    /// Whose it is.
    pub user: User,
}

/// `authentication.k8s.io/v1` UserInfo, without groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    /// Such as `system:serviceaccount:kube-system:konnectivity-agent`.
    pub username: String,
    /// Of the account; differs from that of one of the same name before.
    pub uid: String,
    /// What the token is bound to, such as `authentication.kubernetes.io/node-name`.
    pub extra: Option<BTreeMap<String, Vec<String>>>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    status: TokenStatus,
}

impl Client {
    /// Asks whose `token` is, if it is meant for `audience`. What comes back of the token itself is not looked at, so that it
    /// gets into no error.
    ///
    /// # Errors
    /// [`ApiError`]
    pub async fn review_token(&self, token: &str, audience: &str) -> Result<TokenStatus, ApiError> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![audience.to_owned()]),
                token: Some(token.to_owned()),
            },
            ..TokenReview::default()
        };
        let call = Call {
            verb: "create",
            resource: "tokenreviews",
            group: Group::Authentication,
            method: Method::POST,
            target: "/apis/authentication.k8s.io/v1/tokenreviews".to_owned(),
            body: Bytes::new(),
        };
        let answer: Answer = self.object(call.with_body(&review)?).await?;
        Ok(answer.status)
    }
}
