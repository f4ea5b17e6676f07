//! Places in a file.

use std::fmt;

/// A place in a file, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Finds lines and columns of byte offsets in a text. Lines end with LF, CRLF or CR, as in YAML.
#[derive(Debug)]
pub(crate) struct Lines<'a> {
    text: &'a [u8],
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        let ends = text.iter().enumerate().filter(|&(index, &byte)| {
            byte == b'\n' || byte == b'\r' && text.get(index + 1) != Some(&b'\n')
        });
        let starts = std::iter::once(0)
            .chain(ends.map(|(index, _)| index + 1))
            .collect();
        Self { text, starts }
    }

    pub(crate) fn position(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|&start| start <= offset);
        let start = line.checked_sub(1).and_then(|at| self.starts.get(at));
        let before = self
            .text
            .get(start.copied().unwrap_or(0)..offset)
            .unwrap_or_default();
        // Every byte but the continuing ones of UTF-8 begins a character.
        let characters = before.iter().filter(|&&byte| byte & 0xc0 != 0x80).count();
        Position {
            line,
            column: characters + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters_and_every_kind_of_line_end_counts_once() {
        let text = "a\r\nbé: c\rd\n\ne";
        let lines = Lines::new(text.as_bytes());
        for (needle, line, column) in [("a", 1, 1), ("c", 2, 5), ("d", 3, 1), ("e", 5, 1)] {
            let offset = text.find(needle).unwrap();
            assert_eq!(lines.position(offset), Position { line, column });
        }
    }
}
