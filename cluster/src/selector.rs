//! Label selectors as `--lease-label-selector` has them: the whole syntax of apimachinery's `labels.Parse`.
//!
//! A selector is only checked here; the API server applies it, so that nobody has to hold what is not wanted. (The parser of
//! `kube` knows neither `>` and `<` nor the errors that users of Kubernetes know.)

mod lexer;
pub(crate) mod name;
mod parser;

use std::{fmt, str::FromStr};

pub use name::check_object_name;
pub use parser::SelectorError;

/// Longest selector that is taken, in bytes; it has to fit into a request's target.
pub const MAX_LEN: usize = 4096;

/// A label selector that has been checked; the empty one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(String);

impl Selector {
    /// As it goes to the API server.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it selects everything.
    #[must_use]
    pub fn selects_all(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    /// Checks `text` and brings it into the form that apimachinery prints: sorted by key, values sorted, without spaces
    /// that mean nothing.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_LEN {
            return Err(SelectorError::TooLong);
        }
        parser::parse(text).map(|requirements| Self(requirements.join(",")))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected texts are those that apimachinery's `labels.Parse(x).String()` gives.
    #[test]
    fn selectors_are_normalised_as_apimachinery_does() {
        for (text, normal) in [
            ("", ""),
            ("  ", ""),
            ("k8s-app=konnectivity-server", "k8s-app=konnectivity-server"),
            ("a==b", "a==b"),
            ("x=a,y=b,z=c", "x=a,y=b,z=c"),
            ("z=c, a!=b", "a!=b,z=c"),
            ("x in (c,a,b)", "x in (a,b,c)"),
            ("x notin ( foo , bar )", "x notin (bar,foo)"),
            ("x in ()", "x in ()"),
            (
                "x in (foo,,baz),y,z notin ()",
                "x in (,baz,foo),y,z notin ()",
            ),
            ("!y", "!y"),
            ("x", "x"),
            ("x>1,z<5", "x>1,z<5"),
            ("x=", "x="),
            ("x= ,y", "x=,y"),
            ("value in (in)", "value in (in)"),
            ("in in (a)", "in in (a)"),
            ("example.com/a=b", "example.com/a=b"),
        ] {
            let selector: Selector = text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"));
            assert_eq!(selector.as_str(), normal, "{text:?}");
        }
    }

    #[test]
    fn errors_say_what_was_found_and_what_belongs_there() {
        for (text, error) in [
            ("x=a||y=b", "invalid value of label \"x\": \"a||y\""),
            (
                ",",
                "found ',', expected: !, identifier, or 'end of string'",
            ),
            ("x=a,", "found '', expected: identifier after ','"),
            ("x==a==b", "found '==', expected: ',' or 'end of string'"),
            ("!x=a", "found '=', expected: ',' or 'end of string'"),
            (
                "x in a",
                "unable to parse requirement: found 'a' expected: '('",
            ),
            (
                "x in (a",
                "unable to parse requirement: found '', expected: ',' or ')'",
            ),
            (
                "x a",
                "unable to parse requirement: found 'a', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("x>a", "the value must be an integer"),
            (
                "a b c",
                "unable to parse requirement: found 'b', expected: ",
            ),
            ("-x=a", "invalid label key \"-x\""),
        ] {
            let found = text.parse::<Selector>().unwrap_err().to_string();
            assert!(found.contains(error), "{text:?}: {found}");
        }
        assert!("x,".repeat(3000).parse::<Selector>().is_err());
    }
}
