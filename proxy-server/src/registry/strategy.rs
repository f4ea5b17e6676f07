//! The ways to choose an agent for a dial, and the order in which they are asked (wire-protocol, section 5.4).

use std::{fmt, str::FromStr};

/// One way to choose an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Any agent.
    Default,
    /// An agent that has the destination among its identifiers.
    DestHost,
    /// An agent that calls itself a default route.
    DefaultRoute,
}

impl Strategy {
    /// Every strategy.
    pub const ALL: [Self; 3] = [Self::Default, Self::DestHost, Self::DefaultRoute];

    /// As it stands in the flag and in metric labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::DestHost => "destHost",
            Self::DefaultRoute => "defaultRoute",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Strategies in the order in which they are asked; at least one, none twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strategies(Vec<Strategy>);

impl Strategies {
    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = Strategy> + '_ {
        self.0.iter().copied()
    }

    /// Whether `strategy` is one of them.
    #[must_use]
    pub fn contains(&self, strategy: Strategy) -> bool {
        self.0.contains(&strategy)
    }

    /// The strategy that readiness looks at.
    #[must_use]
    pub fn first(&self) -> Strategy {
        self.0.first().copied().unwrap_or(Strategy::Default)
    }
}

impl Default for Strategies {
    fn default() -> Self {
        Self(vec![Strategy::Default])
    }
}

impl fmt::Display for Strategies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, strategy) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{strategy}")?;
        }
        Ok(())
    }
}

/// Why a list of strategies cannot be used. The texts are upstream's, whole.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StrategiesError {
    /// The list is the empty string.
    #[error("ProxyStrategies cannot be empty")]
    Empty,
    /// The list has nothing but commas.
    #[error("invalid proxy strategies: proxy strategies cannot be empty")]
    NoneNamed,
    /// No strategy has this name.
    #[error("invalid proxy strategies: unknown proxy strategy: {0}")]
    Unknown(String),
}

impl FromStr for Strategies {
    type Err = StrategiesError;

    /// Names between commas, exact; empty ones are skipped, and a name that comes again changes nothing.
    fn from_str(list: &str) -> Result<Self, StrategiesError> {
        if list.is_empty() {
            return Err(StrategiesError::Empty);
        }
        let mut strategies = Vec::new();
        for name in list.split(',').filter(|name| !name.is_empty()) {
            let strategy = Strategy::ALL
                .into_iter()
                .find(|strategy| strategy.name() == name)
                .ok_or_else(|| StrategiesError::Unknown(name.to_owned()))?;
            if !strategies.contains(&strategy) {
                strategies.push(strategy);
            }
        }
        if strategies.is_empty() {
            return Err(StrategiesError::NoneNamed);
        }
        Ok(Self(strategies))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_counts_and_repetition_does_not() {
        let strategies: Strategies = ",destHost,,default,destHost,".parse().unwrap();
        assert_eq!(strategies.to_string(), "destHost,default");
        assert_eq!(strategies.first(), Strategy::DestHost);
        assert_eq!(Strategies::default().to_string(), "default");
    }

    #[test]
    fn a_fault_is_told_in_upstreams_words() {
        for (list, text) in [
            ("", "ProxyStrategies cannot be empty"),
            (
                ",,",
                "invalid proxy strategies: proxy strategies cannot be empty",
            ),
            (
                "default,best",
                "invalid proxy strategies: unknown proxy strategy: best",
            ),
            (
                "desthost",
                "invalid proxy strategies: unknown proxy strategy: desthost",
            ),
            (
                " default",
                "invalid proxy strategies: unknown proxy strategy:  default",
            ),
        ] {
            let error = list.parse::<Strategies>().unwrap_err();
            assert_eq!(error.to_string(), text, "{list:?}");
        }
    }
}
