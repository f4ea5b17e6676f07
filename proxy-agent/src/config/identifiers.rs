//! `--agent-identifiers`: URL query syntax with few keys (wire-protocol.md 2.4). Checked here, sent as it is written.

/// Keys that a server makes something of.
const KEYS: [&str; 5] = ["ipv4", "ipv6", "cidr", "host", "default-route"];

/// Why identifiers are refused; the operator's fault. In upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifiersError {
    /// A key that means nothing.
    #[error("unknown address type: {key}")]
    UnknownKey {
        /// The key, decoded.
        key: String,
    },
    /// `;`, which some take for a separator and Go refuses.
    #[error("invalid semicolon separator in query")]
    Semicolon,
    /// A `%` that no two hexadecimal digits follow.
    #[error("invalid URL escape {escape:?}")]
    Escape {
        /// Up to three characters from the `%` on.
        escape: String,
    },
    /// Bytes that no metadata value can hold.
    #[error("only printable ASCII can be sent, escape the rest as %XX")]
    NotPrintable,
}

/// Checks identifiers as upstream's agent does: the keys, and that Go's query rules can read the rest.
///
/// # Errors
/// [`IdentifiersError`], for the first thing wrong.
pub(super) fn check(text: &str) -> Result<(), IdentifiersError> {
    if !text.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
        return Err(IdentifiersError::NotPrintable);
    }
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        if pair.contains(';') {
            return Err(IdentifiersError::Semicolon);
        }
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let key = unescape(key)?;
        unescape(value)?;
        if !KEYS.iter().any(|known| known.as_bytes() == key) {
            let key = String::from_utf8_lossy(&key).into_owned();
            return Err(IdentifiersError::UnknownKey { key });
        }
    }
    Ok(())
}

/// Go's `url.QueryUnescape`: `+` is a space, `%XX` a byte.
fn unescape(text: &str) -> Result<Vec<u8>, IdentifiersError> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let escape = tail.get(..2).unwrap_or(tail);
                let value = std::str::from_utf8(escape)
                    .ok()
                    .filter(|hex| {
                        hex.len() == 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit())
                    })
                    .and_then(|hex| u8::from_str_radix(hex, 16).ok());
                let Some(value) = value else {
                    let escape = format!("%{}", String::from_utf8_lossy(escape));
                    return Err(IdentifiersError::Escape { escape });
                };
                out.push(value);
                rest = tail.get(2..).unwrap_or_default();
            }
            byte => out.push(byte),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        check(text).unwrap_err().to_string()
    }

    #[test]
    fn known_keys_may_repeat_and_have_any_value() {
        for text in [
            "",
            "host=node1.example&ipv4=10.0.0.7&ipv6=fd00::7&default-route=true",
            "ipv4=a&ipv4=b&&cidr",
            "host=a+b%20c&default%2Droute=%7e",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_upstream_refuses_is_refused_in_its_words() {
        assert_eq!(error("uid=1"), "unknown address type: uid");
        assert_eq!(error("host=a;b"), "invalid semicolon separator in query");
        assert_eq!(error("host=%zz"), "invalid URL escape \"%zz\"");
        assert_eq!(error("host=%4"), "invalid URL escape \"%4\"");
        assert_eq!(error("h%6fst=a&%"), "invalid URL escape \"%\"");
    }

    #[test]
    fn bytes_that_metadata_cannot_hold_are_refused() {
        assert_eq!(check("host=nöde"), Err(IdentifiersError::NotPrintable));
        assert_eq!(check("host=a\n"), Err(IdentifiersError::NotPrintable));
    }
}
