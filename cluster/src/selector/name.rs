//! Which keys and values labels may have (apimachinery's `IsQualifiedName`, `IsValidLabelValue`), and names of objects.

/// Longest name part of a key, and longest value, in bytes.
const MAX_PART: usize = 63;

/// Longest DNS subdomain, in bytes: an object's name, and the prefix of a key.
const MAX_SUBDOMAIN: usize = 253;

/// Checks `[subdomain/]name`.
pub(crate) fn check_key(key: &str) -> Result<(), String> {
    let name = match key.split_once('/') {
        None => key,
        Some((prefix, name)) => {
            check_object_name(prefix).map_err(|reason| format!("prefix part {reason}"))?;
            name
        }
    };
    if name.is_empty() {
        return Err("name part must be non-empty".to_owned());
    }
    check_part(name).map_err(|reason| format!("name part {reason}"))
}

/// Checks a label's value, which may be empty.
pub(crate) fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Ok(());
    }
    check_part(value)
}

fn check_part(part: &str) -> Result<(), String> {
    if part.len() > MAX_PART {
        return Err(format!("must be no more than {MAX_PART} bytes"));
    }
    let bytes = part.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = [bytes.first(), bytes.last()]
        .into_iter()
        .flatten()
        .all(u8::is_ascii_alphanumeric);
    if ends && bytes.iter().all(inner) {
        Ok(())
    } else {
        Err(format!(
            "{part:?} must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character"
        ))
    }
}

/// Whether `name` may be the name of an object: a DNS subdomain (RFC 1123) in lower case, at most 253 bytes.
///
/// # Errors
/// What is wrong with it, to follow its name.
pub fn check_object_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("must be non-empty".to_owned());
    }
    if name.len() > MAX_SUBDOMAIN {
        return Err(format!("must be no more than {MAX_SUBDOMAIN} bytes"));
    }
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(alphanumeric)
            && bytes.last().is_some_and(alphanumeric)
            && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
    };
    if name.split('.').all(is_label) {
        Ok(())
    } else {
        Err(format!(
            "{name:?} must consist of lower case alphanumeric characters, '-' or '.', and each part between dots must \
             start and end with an alphanumeric character"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_names_are_dns_subdomains() {
        for name in ["a", "konnectivity-proxy-server-0", "a.b-c.d", "0"] {
            check_object_name(name).unwrap();
        }
        for name in [
            "",
            "A",
            "a_b",
            "-a",
            "a-",
            "a..b",
            "a.",
            "a b",
            &"a".repeat(254),
        ] {
            assert!(check_object_name(name).is_err(), "{name:?}");
        }
    }
}
