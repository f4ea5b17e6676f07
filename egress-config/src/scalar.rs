//! What a plain scalar means to kube-apiserver, whose YAML library reads YAML 1.1: `on` is a boolean and `017` a number.
//!
//! The rules are those of go-yaml's version 2 (`resolve`), which sigs.k8s.io/yaml uses.

/// Meaning of a plain scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plain {
    Null,
    Bool,
    Number,
    Text,
}

/// What `text`, written without quotes or tag, is.
pub(crate) fn resolve(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Plain::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "n" | "N" | "no" | "No" | "NO" | "true" | "True"
        | "TRUE" | "false" | "False" | "FALSE" | "on" | "On" | "ON" | "off" | "Off" | "OFF" => {
            Plain::Bool
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => Plain::Number,
        _ if is_number(text) => Plain::Number,
        _ => Plain::Text,
    }
}

fn is_number(text: &str) -> bool {
    match text.bytes().next() {
        Some(b'.') => is_float(text),
        Some(b'+' | b'-' | b'0'..=b'9') => {
            let digits = text.replace('_', "");
            is_integer(&digits) || is_float(&digits)
        }
        _ => false,
    }
}

/// As Go's `ParseInt` with base 0, or `ParseUint`, of 64 bits.
fn is_integer(text: &str) -> bool {
    let (signed, negative, digits) = match text.as_bytes().first() {
        Some(b'+') => (true, false, text.get(1..).unwrap_or_default()),
        Some(b'-') => (true, true, text.get(1..).unwrap_or_default()),
        _ => (false, false, text),
    };
    let (base, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, digits.get(2..)),
        Some("0b" | "0B") => (2, digits.get(2..)),
        Some("0o" | "0O") => (8, digits.get(2..)),
        Some(two) if two.starts_with('0') => (8, digits.get(1..)),
        _ => (10, Some(digits)),
    };
    let digits = digits.unwrap_or_default();
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return false; // Rust would take a sign here.
    }
    let largest = match (signed, negative) {
        (false, _) => u64::MAX,
        (true, false) => i64::MAX.unsigned_abs(),
        (true, true) => i64::MIN.unsigned_abs(),
    };
    u64::from_str_radix(digits, base).is_ok_and(|value| value <= largest)
}

/// A decimal float that is not too large: digits on at least one side of the point, and perhaps an exponent.
fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let numeric = unsigned.starts_with(|c: char| c == '.' || c.is_ascii_digit())
        && unsigned
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    numeric && unsigned.parse::<f64>().is_ok_and(f64::is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_yaml_1_1_are_booleans_in_their_three_spellings_only() {
        for word in ["on", "Off", "YES", "no", "y", "N", "true", "FALSE"] {
            assert_eq!(resolve(word), Plain::Bool, "{word}");
        }
        for word in ["oN", "yEs", "TRue", "once", "nO"] {
            assert_eq!(resolve(word), Plain::Text, "{word}");
        }
    }

    #[test]
    fn numbers_are_those_go_reads() {
        for number in [
            "0",
            "-1",
            "+1",
            "017",
            "08",
            "0x1F",
            "0X1f",
            "0b101",
            "-0b1",
            "0o17",
            "1_000",
            "1.5",
            "1.",
            ".5",
            ".5e3",
            "1e3",
            "-.inf",
            ".NaN",
            "99999999999999999999",
            "18446744073709551615",
            "-9223372036854775808",
        ] {
            assert_eq!(resolve(number), Plain::Number, "{number}");
        }
        for text in [
            "0x",
            "0xg",
            "1e999",
            "_1",
            "1.2.3",
            "2001-12-14",
            "192.0.2.1",
            "-",
            "+",
            ".",
            ".e5",
            "inf",
            "nan",
            "1e",
            "0x1p3",
            "--1",
            "+-1",
            "1:30",
            "0x1ffffffffffffffff",
            "é",
            "0é",
        ] {
            assert_eq!(resolve(text), Plain::Text, "{text}");
        }
    }

    #[test]
    fn null_is_null_in_three_spellings_and_nothing() {
        for null in ["", "~", "null", "Null", "NULL"] {
            assert_eq!(resolve(null), Plain::Null);
        }
        assert_eq!(resolve("nULL"), Plain::Text);
    }
}
