//! When a token says that it ends. Nobody verifies its signature here, so this only ever shortens what is remembered.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Deserialize;

#[derive(Deserialize)]
struct Claims {
    /// RFC 7519: seconds since 1970, maybe with a fraction.
    exp: f64,
}

/// The end by a JWT's `exp`, if it is one and has it.
pub(super) fn expiry(token: &str) -> Option<SystemTime> {
    let mut parts = token.split('.');
    let (_, claims, _) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    // What is before 1970 is over as well as 1970 itself.
    let since = Duration::try_from_secs_f64(claims.exp.max(0.0)).ok()?;
    UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(claims: &str) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims))
    }

    #[test]
    fn the_end_of_a_jwt_is_read_and_nothing_else_has_one() {
        let end = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        assert_eq!(
            expiry(&token(r#"{"exp": 1800000000, "sub": "x"}"#)),
            Some(end)
        );
        assert_eq!(expiry(&token(r#"{"exp": 1800000000.0}"#)), Some(end));
        assert_eq!(expiry(&token(r#"{"exp": -5}"#)), Some(UNIX_EPOCH));
        for token in [
            "opaque",
            "a.b.c",
            "e30..",
            &token("{}"),
            &token(r#"{"exp": "soon"}"#),
            &token(r#"{"exp": 1e300}"#),
            &format!("{}.more", token(r#"{"exp": 1800000000}"#)),
        ] {
            assert_eq!(expiry(token), None, "{token}");
        }
    }
}
