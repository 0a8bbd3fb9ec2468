//! How the status subcommands print.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;

/// Longest cell of a table, in characters.
const MAX_CELL: usize = 200;

/// How to print. What is written of a variant here would be in the way in --help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Table,
    // What the server gives.
    Json,
}

/// Prints a page, text and value, as `output` has it, or why `subcommand` has none.
pub(crate) fn print<T>(
    subcommand: &str,
    fetched: Result<(String, T), impl Display>,
    output: Output,
    tables: impl FnOnce(&T) -> String,
) -> ExitCode {
    match fetched {
        Ok((text, page)) => {
            match output {
                Output::Json => show(&(text + "\n")),
                Output::Table => show(&tables(&page)),
            }
            ExitCode::SUCCESS
        }
        Err(error) => fail(subcommand, error),
    }
}

/// Prints a text. A reader that has hung up needs no more of it.
pub(crate) fn show(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Says why a subcommand did nothing.
pub(crate) fn fail(subcommand: &str, error: impl Display) -> ExitCode {
    eprintln!("porch-fn {subcommand}: {error}");
    ExitCode::FAILURE
}

/// Columns as kubectl prints them: left-aligned, three spaces apart.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let header: Vec<String> = header.iter().map(|&title| title.to_owned()).collect();
    let rows = rows.into_iter().map(|row| row.iter().map(|cell| shown(cell)).collect());
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

/// A cell as it may stand in a table.
fn shown(cell: &str) -> String {
    let text = escaped(cell);
    match text.char_indices().nth(MAX_CELL) {
        Some((end, _)) => format!("{}\u{2026}", &text[..end]),
        None => text,
    }
}

/// A text that others may have made, on one line and without what a terminal would obey.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // They do nothing to a terminal, and values have them.
            '"' | '\'' | '\\' => escaped.push(c),
            // What is invisible, too: it may turn a line's order round.
            c => escaped.extend(c.escape_debug()),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![
            vec!["10.0.0.1:9445".to_owned(), "well".to_owned()],
            vec!["a:1".to_owned(), "draining".to_owned()],
        ];
        assert_eq!(
            table(&["RUNNER", "STATE"], rows),
            "RUNNER          STATE\n10.0.0.1:9445   well\na:1             draining\n"
        );
    }

    #[test]
    fn cells_cannot_steer_the_terminal() {
        let cell = |text: &str| vec![text.to_owned(), "x".to_owned()];
        assert_eq!(
            table(
                &["A", "B"],
                vec![cell("a\u{1b}[2J\u{7}"), cell("b\r\nf   up"), cell("\u{9b}2J\u{202e}\u{7f}")]
            ),
            "A                        B\n\
             a\\u{1b}[2J\\u{7}          x\n\
             b\\r\\nf   up              x\n\
             \\u{9b}2J\\u{202e}\\u{7f}   x\n"
        );
        let plain = "{\"a\":'\\ä'}";
        assert_eq!(table(&["A", "B"], vec![cell(plain)]), format!("A            B\n{plain}   x\n"));
    }

    #[test]
    fn long_cells_are_cut() {
        for (length, cut) in [(200, ""), (201, "…"), (4096, "…")] {
            let rows = vec![vec!["ä".repeat(length)]];
            assert_eq!(table(&["A"], rows), format!("A\n{}{cut}\n", "ä".repeat(200)));
        }
    }
}
