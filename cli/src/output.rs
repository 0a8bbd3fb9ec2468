//! Output of the subcommands: tables, JSON and text.

use std::fmt::{Display, Write as _};
use std::io::Write as _;

use clap::ValueEnum;
use porch_fn_text::cut;
use serde_json::Value;
use serde_saphyr::SerializeError;

/// Maximum length of a table cell, in bytes.
const MAX_CELL: usize = 200;

/// Template of each subcommand's --help, in the style of kubectl.
pub(crate) const HELP: &str = "{about-with-newline}\n{before-help}{all-args}\n\nUsage:\n  {usage}\n";

/// Output format. The variants have no doc comments, because these would make --help much longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    // Prints the server's page unchanged.
    Json,
}

// === impl Output ===

impl Output {
    /// Prints a server's page. A table is formatted by `tables`; JSON is `text` as received.
    pub(crate) fn print<T>(self, (text, page): &(String, T), tables: impl FnOnce(&T) -> String) {
        match self {
            Self::Json => show(&format!("{text}\n")),
            Self::Table => show(&tables(page)),
        }
    }
}

/// Prints a text. Ignores a write error, which usually means that the reader has closed the pipe.
pub(crate) fn show(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints a line to standard error. Ignores a write error: nobody reads it.
pub(crate) fn note(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Formats YAML documents.
pub(crate) fn yaml(documents: &[Value]) -> Result<String, SerializeError> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let yaml = serde_saphyr::to_string_multiple_with_options(documents, options)?;
    Ok(format!("{}\n", yaml.trim_end()))
}

/// Formats a table like kubectl: left-aligned columns, three spaces apart.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let header: Vec<String> = header.iter().map(|&title| title.to_owned()).collect();
    let rows = rows
        .into_iter()
        .map(|row| row.iter().map(|cell| cut(&escaped(cell), MAX_CELL, "\u{2026}").into_owned()).collect());
    let lines: Vec<Vec<_>> = std::iter::once(header).chain(rows).collect();
    let length = |cell: &String| cell.chars().count();
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(length).max();
    let mut text = String::new();
    for line in &lines {
        let mut row = String::new();
        for (column, cell) in line.iter().enumerate() {
            let _ = write!(row, "{cell:<width$}   ", width = width(column).unwrap_or_default());
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// Makes untrusted text safe for the terminal: one line, no control sequences.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // These characters are harmless, and common in values.
            '"' | '\'' | '\\' => escaped.push(c),
            // Also escapes invisible characters, which may reverse the direction of a line.
            c => escaped.extend(c.escape_debug()),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_columns_cut_cells_and_escape_control_characters() {
        let row = |text: &str| vec![text.to_owned(), "x".to_owned()];
        let rows =
            ["10.0.0.1:9445", "{\"a\":'\\ä'}", "a\u{1b}[2J\u{7}", "b\r\nf   up", "\u{9b}\u{202e}\u{7f}"];
        assert_eq!(
            table(&["RUNNER", "B"], rows.map(row).to_vec()),
            "RUNNER                 B\n\
             10.0.0.1:9445          x\n\
             {\"a\":'\\ä'}             x\n\
             a\\u{1b}[2J\\u{7}        x\n\
             b\\r\\nf   up            x\n\
             \\u{9b}\\u{202e}\\u{7f}   x\n"
        );
        let long = "ä".repeat(101);
        assert_eq!(table(&["A"], vec![vec![long]]), format!("A\n{}…\n", "ä".repeat(98)));
    }
}
