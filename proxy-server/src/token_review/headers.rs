//! The token in a call's headers, and upstream's words if there is none (`authenticateAgentViaToken`).

use http::{HeaderMap, header::AUTHORIZATION};

const PREFIX: &str = "Bearer ";

/// The token, or what the agent is told.
pub(super) fn token(headers: &HeaderMap) -> Result<&str, String> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = match (values.next(), values.count()) {
        (None, _) => return Err("Authentication context was not found in metadata".to_owned()),
        (Some(value), 0) => value,
        (Some(_), more) => {
            return Err(format!(
                "too many ({}) tokens are received",
                more.saturating_add(1)
            ));
        }
    };
    // No token has other characters than those of this type.
    value
        .to_str()
        .ok()
        .and_then(|value| value.strip_prefix(PREFIX))
        .ok_or_else(|| format!("received token does not have {PREFIX:?} prefix"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let values = values
            .iter()
            .map(|value| HeaderValue::from_bytes(value).unwrap());
        values.map(|value| (AUTHORIZATION, value)).collect()
    }

    #[test]
    fn exactly_one_bearer_token_is_taken() {
        assert_eq!(token(&headers(&[b"Bearer abc"])), Ok("abc"));
        let cases: [(&[&[u8]], &str); 5] = [
            (&[], "Authentication context was not found in metadata"),
            (
                &[b"Bearer a", b"Bearer b"],
                "too many (2) tokens are received",
            ),
            (
                &[b"bearer a"],
                "received token does not have \"Bearer \" prefix",
            ),
            (
                &[b"Bearer"],
                "received token does not have \"Bearer \" prefix",
            ),
            (
                &[b"Bearer \xff"],
                "received token does not have \"Bearer \" prefix",
            ),
        ];
        for (values, error) in cases {
            assert_eq!(token(&headers(values)).unwrap_err(), error);
        }
    }
}
