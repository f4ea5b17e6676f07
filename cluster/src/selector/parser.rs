//! From tokens to requirements, by apimachinery's grammar:
//!
//! ```text
//! selector    = [ requirement { "," requirement } ]
//! requirement = [ "!" ] KEY | KEY ( "in" | "notin" ) "(" [ VALUE ] { "," [ VALUE ] } ")"
//!             | KEY ( "=" | "==" | "!=" | ">" | "<" ) [ VALUE ]
//! ```

use std::collections::BTreeSet;

use super::{
    lexer::{Token, tokens},
    name::{check_key, check_value},
};

/// Why a text is no selector. The words are apimachinery's where a user can have met them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectorError {
    /// More than [`MAX_LEN`](super::MAX_LEN) bytes.
    #[error("label selector is longer than {} bytes", super::MAX_LEN)]
    TooLong,
    /// Something else belongs between requirements.
    #[error("found '{found}', expected: {expected}")]
    Unexpected {
        /// What is there.
        found: String,
        /// What may be there.
        expected: &'static str,
    },
    /// A requirement makes no sense.
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
}

/// The requirements of `text` in normal form, sorted by key.
pub(super) fn parse(text: &str) -> Result<Vec<String>, SelectorError> {
    let mut parser = Parser {
        tokens: tokens(text),
        at: 0,
    };
    let mut requirements = Vec::new();
    loop {
        match parser.peek() {
            Token::End => break,
            Token::Word(_) | Token::Symbol("!") => {}
            other => return Err(unexpected(other, "!, identifier, or 'end of string'")),
        }
        requirements.push(parser.requirement().map_err(SelectorError::Requirement)?);
        match parser.next() {
            Token::End => break,
            Token::Symbol(",") => match parser.peek() {
                Token::Word(_) | Token::Symbol("!") => {}
                other => return Err(unexpected(other, "identifier after ','")),
            },
            other => return Err(unexpected(other, "',' or 'end of string'")),
        }
    }
    // By key alone and stable, as apimachinery.
    requirements.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(requirements.into_iter().map(|(_, text)| text).collect())
}

fn unexpected(found: Token<'_>, expected: &'static str) -> SelectorError {
    SelectorError::Unexpected {
        found: found.text().to_owned(),
        expected,
    }
}

struct Parser<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
}

/// A key, and the requirement as text.
type Requirement = (String, String);

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.at).copied().unwrap_or(Token::End)
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at = self.at.saturating_add(1);
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.peek() == Token::Symbol("!");
        if negated {
            self.next();
        }
        let key = match self.next() {
            Token::Word(key) => key,
            other => return Err(format!("found '{}', expected: identifier", other.text())),
        };
        check_key(key).map_err(|reason| format!("invalid label key {key:?}: {reason}"))?;
        if negated {
            return Ok((key.to_owned(), format!("!{key}")));
        }
        if matches!(self.peek(), Token::End | Token::Symbol(",")) {
            return Ok((key.to_owned(), key.to_owned()));
        }
        let text = match self.next() {
            Token::Word(operator @ ("in" | "notin")) => {
                let values = self.set()?;
                for value in &values {
                    valid_value(key, value)?;
                }
                let values: Vec<_> = values.into_iter().collect();
                format!("{key} {operator} ({})", values.join(","))
            }
            Token::Symbol(operator @ ("=" | "==" | "!=" | ">" | "<")) => {
                let value = match self.peek() {
                    Token::End | Token::Symbol(",") => "",
                    Token::Word(value) => {
                        self.next();
                        value
                    }
                    other => {
                        return Err(format!("found '{}', expected: identifier", other.text()));
                    }
                };
                if matches!(operator, ">" | "<") && value.parse::<i64>().is_err() {
                    return Err(format!(
                        "invalid value of label {key:?}: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                    ));
                }
                valid_value(key, value)?;
                format!("{key}{operator}{value}")
            }
            other => {
                return Err(format!(
                    "found '{}', expected: in, notin, =, ==, !=, gt, lt",
                    other.text()
                ));
            }
        };
        Ok((key.to_owned(), text))
    }

    /// `(a,b,,c)`: nothing between commas or parentheses is the empty value.
    fn set(&mut self) -> Result<BTreeSet<&'a str>, String> {
        match self.next() {
            Token::Symbol("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.text())),
        }
        let mut values = BTreeSet::new();
        loop {
            let value = match self.peek() {
                Token::Word(value) => {
                    self.next();
                    value
                }
                Token::Symbol("," | ")") => "",
                other => {
                    return Err(format!(
                        "found '{}', expected: ',', ')' or identifier",
                        other.text()
                    ));
                }
            };
            values.insert(value);
            match self.next() {
                Token::Symbol(")") => return Ok(values),
                Token::Symbol(",") => {}
                other => return Err(format!("found '{}', expected: ',' or ')'", other.text())),
            }
        }
    }
}

fn valid_value(key: &str, value: &str) -> Result<(), String> {
    check_value(value)
        .map_err(|reason| format!("invalid value of label {key:?}: {value:?}: {reason}"))
}
