//! Text in columns.

use std::fmt::Write as _;

/// A table for people, in Markdown.
#[derive(Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// One with these columns.
    #[must_use]
    pub fn new<const N: usize>(heads: [&str; N]) -> Self {
        Self::with(heads.map(str::to_owned).to_vec())
    }

    /// One with these columns, however many.
    #[must_use]
    pub fn with(heads: Vec<String>) -> Self {
        Self { rows: vec![heads] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.push(cells.to_vec());
    }

    /// Adds a row of as many cells as there are columns.
    pub fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or_default()
            })
            .collect();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::from("|");
            for (cell, width) in row.iter().zip(&widths) {
                write!(line, " {cell:width$} |")?;
            }
            writeln!(f, "{line}")?;
            if number == 0 {
                let rule: String = widths
                    .iter()
                    .map(|width| format!("{}|", "-".repeat(width + 2)))
                    .collect();
                writeln!(f, "|{rule}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["a", "kind"]);
        table.row(["100".to_owned(), "x".to_owned()]);
        assert_eq!(
            table.to_string(),
            "| a   | kind |\n|-----|------|\n| 100 | x    |\n"
        );
    }
}
