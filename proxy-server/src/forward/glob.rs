//! Patterns of names.

use std::{fmt, str::FromStr};

/// Longest pattern, in bytes: that of a name in DNS with a dot behind it (RFC 1035).
const MAX_BYTES: usize = 254;

/// A pattern of whole names: `*` stands for any run of characters, none among them and dots too; all else for itself, ASCII letters
/// in either case. A final dot means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    /// What stands before the first `*`; everything, if there is none.
    start: String,
    /// What stands behind it.
    rest: Option<Rest>,
}

/// A pattern from its first `*` on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rest {
    /// Between two `*`; none is empty.
    middle: Vec<String>,
    /// Behind the last `*`.
    end: String,
}

/// Why a text is no pattern; the operator's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GlobError {
    /// Nothing at all, or nothing but a dot.
    #[error("the pattern is empty; '*' matches every name")]
    Empty,
    /// More than a name can have.
    #[error("the pattern has {0} bytes, and at most {MAX_BYTES} are taken")]
    TooLong(usize),
    /// Line breaks and the like, which no name has.
    #[error("the pattern has a control character")]
    Control,
}

impl Glob {
    /// Whether the whole of `name` is like this. `name` must be as [`VerifiedNames`](super::VerifiedNames) keeps names: lower case, no
    /// final dot.
    ///
    /// Takes time linear in `name`, whatever the pattern: pieces are searched once each, from left to right, and where one is found first
    /// leaves the most for those behind it.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(self.start.as_str()) else {
            return false;
        };
        let Some(Rest { middle, end }) = &self.rest else {
            return name.is_empty();
        };
        let Some(mut left) = name.strip_suffix(end.as_str()) else {
            return false;
        };
        for piece in middle {
            let Some((_, behind)) = left.split_once(piece.as_str()) else {
                return false;
            };
            left = behind;
        }
        true
    }
}

impl FromStr for Glob {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        if text.len() > MAX_BYTES {
            return Err(GlobError::TooLong(text.len()));
        }
        if text.chars().any(char::is_control) {
            return Err(GlobError::Control);
        }
        let text = super::names::normal(text);
        if text.is_empty() {
            return Err(GlobError::Empty);
        }
        let Some((start, rest)) = text.split_once('*') else {
            return Ok(Self {
                start: text,
                rest: None,
            });
        };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|piece| !piece.is_empty());
        Ok(Self {
            start: start.to_owned(),
            rest: Some(Rest {
                middle: middle.map(str::to_owned).collect(),
                end: end.to_owned(),
            }),
        })
    }
}

impl fmt::Display for Glob {
    /// In a form that parses to the same pattern.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.start)?;
        let Some(Rest { middle, end }) = &self.rest else {
            return Ok(());
        };
        for piece in middle {
            write!(f, "*{piece}")?;
        }
        write!(f, "*{end}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<Glob>().unwrap().matches(name)
    }

    #[test]
    fn a_star_is_any_run_within_the_whole_name() {
        for (pattern, name) in [
            ("node-1", "node-1"),
            ("Node-1.Example.", "node-1.example"),
            ("*", "node-1"),
            ("*", ""),
            ("**", "a"),
            ("node-*", "node-"),
            ("node-*", "node-1.a.example"),
            ("*.example", "a.b.example"),
            ("system:node:*", "system:node:a"),
            ("a*b*c", "abc"),
            ("a*b*c", "a-b-b-c-c"),
            ("*ab*", "aab"),
            ("a*a", "aa"),
            ("*.example", "*.example"),
            ("ü*", "ü1"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("node-1", "node-10"),
            ("node-1", "a-node-1"),
            ("node-*", "a-node-1"),
            ("*.example", "example"),
            ("*.example", "a.example.evil"),
            ("a*b*c", "acb"),
            ("a*a", "a"),
            ("ab*bc", "abc"),
            ("*ab*ba*", "aba"),
            // What a certificate names by a wildcard is that text and no other name.
            ("node-1.example", "*.example"),
            ("?", "a"),
            ("[ab]", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    /// By the definition, in exponential time.
    fn defined(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), behind) => {
                defined(rest, name) || behind.is_some_and(|(_, name)| defined(pattern, name))
            }
            (Some((one, pattern)), Some((other, name))) => one == other && defined(pattern, name),
            _ => false,
        }
    }

    #[test]
    fn every_short_pattern_matches_what_its_definition_says() {
        let texts = |letters: &[char], longest: u32| {
            let mut all = vec![String::new()];
            let mut last = all.clone();
            for _ in 0..longest {
                last = last
                    .iter()
                    .flat_map(|text| letters.iter().map(move |letter| format!("{text}{letter}")))
                    .collect();
                all.extend_from_slice(&last);
            }
            all
        };
        let names = texts(&['a', 'b'], 6);
        for pattern in texts(&['a', 'b', '*'], 5).iter().skip(1) {
            let glob: Glob = pattern.parse().unwrap();
            assert_eq!(glob.to_string().parse(), Ok(glob.clone()));
            for name in &names {
                let wanted = defined(pattern.as_bytes(), name.as_bytes());
                assert_eq!(glob.matches(name), wanted, "{pattern} {name}");
            }
        }
    }

    #[test]
    fn a_pattern_full_of_stars_needs_no_backtracking() {
        let pattern: Glob = "a*".repeat(120).parse().unwrap();
        // By trial and error this would take longer than the universe has.
        assert!(!pattern.matches(&"a".repeat(119)));
        assert!(pattern.matches(&"a".repeat(60_000)));
    }

    #[test]
    fn what_is_no_pattern_is_told() {
        let error = |text: &str| text.parse::<Glob>().unwrap_err();
        assert_eq!(error(""), GlobError::Empty);
        assert_eq!(error("."), GlobError::Empty);
        assert_eq!(error("a\n"), GlobError::Control);
        assert_eq!(error(&"a".repeat(255)), GlobError::TooLong(255));
    }
}
