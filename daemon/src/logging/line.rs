//! Lines of text that peers can neither forge nor fill: much of what is logged are their words.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use tracing_subscriber::fmt::MakeWriter;

/// Longest line, in bytes; of a longer one the rest is left out.
pub(super) const MAX_LINE: usize = 16 * 1024;

/// What stands where the rest was.
const CUT: &str = "…";

/// Makes writers that hand `inner`'s one line for each event.
#[derive(Clone, Debug)]
pub(super) struct Lines<M>(pub(super) M);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Lines<M> {
    type Writer = Line<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(self.0.make_writer())
    }
}

/// Takes an event at a time, as `tracing_subscriber::fmt` writes it, and makes one line of it.
#[derive(Debug)]
pub(super) struct Line<W>(W);

impl<W: Write> Write for Line<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = event.strip_suffix(b"\n").unwrap_or(event);
        // Others than ASCII's are of several bytes, none of which looks like these.
        let is_plain =
            text.len() <= MAX_LINE && text.iter().all(|byte| matches!(byte, b' '..=b'~'));
        if is_plain {
            self.0.write_all(event)?;
        } else {
            self.0
                .write_all(one_line(&String::from_utf8_lossy(text)).as_bytes())?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// `text` with what would end or paint a line escaped, and an end of line.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len().min(MAX_LINE) + CUT.len() + 1);
    for c in text.chars() {
        if line.len() >= MAX_LINE {
            line.push_str(CUT);
            break;
        }
        if is_harmful(c) {
            // A string takes all.
            write!(line, "{}", c.escape_default()).ok();
        } else {
            line.push(c);
        }
    }
    line.push('\n');
    line
}

/// Control characters, and what Unicode counts as ends of lines or writes backwards with.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(event: &str) -> String {
        let mut out = Vec::new();
        Line(&mut out).write_all(event.as_bytes()).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn an_event_becomes_one_line_without_control_characters() {
        assert_eq!(written("plain\n"), "plain\n");
        assert_eq!(written("grün\n"), "grün\n");
        assert_eq!(
            written("a\r\nINFO forged \u{1b}[31m\u{85}\u{2028}\u{202e}\t\n"),
            "a\\r\\nINFO forged \\u{1b}[31m\\u{85}\\u{2028}\\u{202e}\\t\n"
        );
        assert_eq!(written("\n"), "\n");
        assert_eq!(written(""), "");
    }

    #[test]
    fn a_line_has_a_largest_length() {
        let longest = format!("{}\n", "x".repeat(MAX_LINE));
        assert_eq!(written(&longest), longest);
        let cut = written(&"x".repeat(MAX_LINE + 1));
        assert_eq!(cut, format!("{}{CUT}\n", "x".repeat(MAX_LINE)));
        assert!(written(&"\u{1b}".repeat(1_000_000)).len() < MAX_LINE + 16);
    }
}
