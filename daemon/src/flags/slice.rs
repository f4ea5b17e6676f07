//! pflag's string slice: a line of comma-separated values.

use std::str::FromStr;

/// One occurrence of a list flag: CSV as pflag reads it (RFC 4180 with `""` for a quote), or the same in brackets, which
/// is how Go prints such a flag and how upstream's test harness passes defaults back (`--alpn-proto=[]`,
/// wire-protocol.md T16).
///
/// Declare the flag as `Vec<StringSlice>` and flatten it with [`concat`](Self::concat).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StringSlice(Vec<String>);

impl StringSlice {
    /// The values of all occurrences, in order.
    pub fn concat(occurrences: impl IntoIterator<Item = Self>) -> Vec<String> {
        occurrences.into_iter().flat_map(|slice| slice.0).collect()
    }
}

/// Text that is not one line of CSV.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StringSliceError {
    /// A quote inside a value that does not begin with one.
    #[error("bare \" in a value that is not quoted")]
    BareQuote,
    /// Text between a closing quote and the next comma.
    #[error("text behind a closing \"")]
    AfterQuote,
    /// The line ended inside quotes.
    #[error("missing closing \"")]
    OpenQuote,
    /// More than one line.
    #[error("line break outside quotes")]
    LineBreak,
}

impl FromStr for StringSlice {
    type Err = StringSliceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let inner = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(text);
        if inner.is_empty() {
            return Ok(Self::default());
        }
        let mut values = Vec::new();
        let mut rest = inner;
        loop {
            let (value, tail) = match rest.strip_prefix('"') {
                Some(quoted) => quoted_value(quoted)?,
                None => bare_value(rest)?,
            };
            values.push(value);
            match tail {
                Some(tail) => rest = tail,
                None => return Ok(Self(values)),
            }
        }
    }
}

/// A value and what stands behind its comma, if there is one.
type Split<'a> = (String, Option<&'a str>);

fn bare_value(text: &str) -> Result<Split<'_>, StringSliceError> {
    let (value, tail) = match text.split_once(',') {
        Some((value, tail)) => (value, Some(tail)),
        None => (text, None),
    };
    if value.contains('"') {
        return Err(StringSliceError::BareQuote);
    }
    if value.contains(['\n', '\r']) {
        return Err(StringSliceError::LineBreak);
    }
    Ok((value.to_owned(), tail))
}

/// `text` begins behind the opening quote.
fn quoted_value(mut text: &str) -> Result<Split<'_>, StringSliceError> {
    let mut value = String::new();
    loop {
        let (part, behind) = text.split_once('"').ok_or(StringSliceError::OpenQuote)?;
        value.push_str(part);
        if let Some(more) = behind.strip_prefix('"') {
            value.push('"');
            text = more;
        } else if behind.is_empty() {
            return Ok((value, None));
        } else {
            return match behind.strip_prefix(',') {
                Some(tail) => Ok((value, Some(tail))),
                None => Err(StringSliceError::AfterQuote),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Result<Vec<String>, StringSliceError> {
        text.parse().map(|slice: StringSlice| slice.0)
    }

    #[test]
    fn values_are_split_at_commas_and_kept_as_written() {
        assert_eq!(values("a,b").unwrap(), ["a", "b"]);
        assert_eq!(values("one").unwrap(), ["one"]);
        assert_eq!(values(" a, b").unwrap(), [" a", " b"]);
        assert_eq!(values("a,,b,").unwrap(), ["a", "", "b", ""]);
    }

    #[test]
    fn nothing_and_empty_brackets_are_the_empty_list() {
        assert!(values("").unwrap().is_empty());
        assert!(values("[]").unwrap().is_empty());
    }

    #[test]
    fn brackets_around_the_list_are_gos_way_to_print_it() {
        assert_eq!(values("[a,b]").unwrap(), ["a", "b"]);
        assert_eq!(values("[a").unwrap(), ["[a"]);
    }

    #[test]
    fn quotes_hold_commas_and_doubled_quotes() {
        assert_eq!(values(r#""a,b",c"#).unwrap(), ["a,b", "c"]);
        assert_eq!(values(r#""say ""hi""","""#).unwrap(), [r#"say "hi""#, ""]);
        assert_eq!(values("\"two\nlines\"").unwrap(), ["two\nlines"]);
    }

    #[test]
    fn broken_quoting_is_refused_with_its_reason() {
        assert_eq!(values(r#"a"b"#), Err(StringSliceError::BareQuote));
        assert_eq!(values(r#""a"b,c"#), Err(StringSliceError::AfterQuote));
        assert_eq!(values(r#""a"#), Err(StringSliceError::OpenQuote));
        assert_eq!(values("a\nb"), Err(StringSliceError::LineBreak));
    }
}
