//! Labels as `--lease-label` has them.

use std::{collections::BTreeMap, fmt, str::FromStr};

use crate::selector::name::{check_key, check_value};

/// A set of labels, by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

/// Why a text is no set of labels; the first two in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LabelsError {
    /// Nothing at all.
    #[error("empty string provided")]
    Empty,
    /// An element without exactly one `=`.
    #[error("invalid label format: {0}")]
    Format(String),
    /// A key or a value that the API server would refuse.
    #[error("invalid label {label}: {reason}")]
    Refused {
        /// The element.
        label: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl Labels {
    /// By key, for an object's metadata.
    #[must_use]
    pub fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// The selector of exactly the objects that have all of these labels, as a query parameter.
    #[must_use]
    pub fn to_selector(&self) -> String {
        self.to_string()
    }
}

impl FromStr for Labels {
    type Err = LabelsError;

    /// Parses `k=v[,k=v…]`. Spaces around keys and values are trimmed; of two with the same key the last wins (upstream's
    /// `util.ParseLabels`). What the API server would refuse at each renewal is refused here already.
    fn from_str(text: &str) -> Result<Self, LabelsError> {
        if text.is_empty() {
            return Err(LabelsError::Empty);
        }
        let mut labels = BTreeMap::new();
        for element in text.split(',') {
            let mut parts = element.split('=');
            let (Some(key), Some(value), None) = (parts.next(), parts.next(), parts.next()) else {
                return Err(LabelsError::Format(element.to_owned()));
            };
            let (key, value) = (key.trim(), value.trim());
            check_key(key)
                .and_then(|()| check_value(value))
                .map_err(|reason| LabelsError::Refused {
                    label: element.to_owned(),
                    reason,
                })?;
            labels.insert(key.to_owned(), value.to_owned());
        }
        Ok(Self(labels))
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_trimmed_and_the_last_of_a_key_wins() {
        let labels: Labels = " a = b ,k8s-app=konnectivity-server, a=c,empty="
            .parse()
            .unwrap();
        assert_eq!(labels.to_string(), "a=c,empty=,k8s-app=konnectivity-server");
        assert_eq!(labels.as_map().len(), 3);
    }

    #[test]
    fn errors_are_upstreams() {
        for (text, error) in [
            ("", "empty string provided"),
            ("a", "invalid label format: a"),
            ("a=b=c", "invalid label format: a=b=c"),
            ("a=b,", "invalid label format: "),
        ] {
            assert_eq!(
                text.parse::<Labels>().unwrap_err().to_string(),
                error,
                "{text:?}"
            );
        }
    }

    #[test]
    fn what_the_api_server_would_refuse_is_refused_at_once() {
        for text in ["=v", "a b=c", "a=b c", "-a=b", "x/y/z=1", "Up.Per/x=1"] {
            let error = text.parse::<Labels>().unwrap_err();
            assert!(
                matches!(error, LabelsError::Refused { .. }),
                "{text:?}: {error}"
            );
        }
        let long = format!("a={}", "v".repeat(64));
        assert!(long.parse::<Labels>().is_err());
    }
}
