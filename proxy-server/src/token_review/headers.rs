//! The token that an agent sends, and upstream's words if there is none (`authenticateAgentViaToken`).

use std::fmt;

use http::{HeaderMap, header::AUTHORIZATION};

const PREFIX: &str = "Bearer ";

const NO_TOKEN: &str = "Authentication context was not found in metadata";

/// Where an agent's token is, if it sent one.
#[derive(Clone, Copy)]
pub enum Presented<'a> {
    /// In the headers of its call.
    Headers(&'a HeaderMap),
    /// In the hello of a stream tunnel.
    Hello(Option<&'a str>),
}

impl<'a> Presented<'a> {
    /// The token, or what the agent is told.
    pub(super) fn token(self) -> Result<&'a str, String> {
        match self {
            Self::Headers(headers) => token(headers),
            Self::Hello(token) => token.ok_or_else(|| NO_TOKEN.to_owned()),
        }
    }
}

impl fmt::Debug for Presented<'_> {
    /// Nothing of the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Headers(_) => "Headers",
            Self::Hello(_) => "Hello",
        })
    }
}

fn token(headers: &HeaderMap) -> Result<&str, String> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = match (values.next(), values.count()) {
        (None, _) => return Err(NO_TOKEN.to_owned()),
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

    #[test]
    fn a_hello_without_a_token_is_told_what_a_call_without_one_is() {
        assert_eq!(Presented::Hello(Some("abc")).token(), Ok("abc"));
        let none = HeaderMap::new();
        let refused = Presented::Hello(None).token();
        assert_eq!(refused, Presented::Headers(&none).token());
        assert!(refused.is_err());
    }

    #[test]
    fn a_token_is_not_shown_by_debug() {
        let sent = headers(&[b"Bearer abc"]);
        for presented in [Presented::Headers(&sent), Presented::Hello(Some("abc"))] {
            assert!(!format!("{presented:?}").contains("abc"));
        }
    }
}
