//! A selector's tokens.

/// A token; words carry their text, which `in` and `notin` may be, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    /// One of `) , ! == = > < != (`.
    Symbol(&'a str),
    /// Characters of symbols that are none together.
    Nonsense(&'a str),
    End,
}

impl<'a> Token<'a> {
    /// As errors quote it.
    pub(super) fn text(self) -> &'a str {
        match self {
            Self::Word(text) | Self::Symbol(text) | Self::Nonsense(text) => text,
            Self::End => "",
        }
    }
}

const SYMBOLS: [&str; 9] = ["==", "!=", ")", ",", "!", "=", ">", "<", "("];

fn is_special(c: char) -> bool {
    matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<')
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n')
}

/// Splits `text`; the longest symbol wins.
pub(super) fn tokens(mut text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    loop {
        text = text.trim_start_matches(is_space);
        let Some(first) = text.chars().next() else {
            return tokens;
        };
        let (token, rest) = if is_special(first) {
            match SYMBOLS.iter().find(|symbol| text.starts_with(**symbol)) {
                Some(symbol) => {
                    let (symbol, rest) = text.split_at(symbol.len());
                    (Token::Symbol(symbol), rest)
                }
                None => (Token::Nonsense(text), ""),
            }
        } else {
            let end = text
                .find(|c| is_special(c) || is_space(c))
                .unwrap_or(text.len());
            let (word, rest) = text.split_at(end);
            (Token::Word(word), rest)
        };
        tokens.push(token);
        text = rest;
    }
}
