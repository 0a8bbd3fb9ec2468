//! How the status subcommands print.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::process::ExitCode;

use clap::ValueEnum;

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
    let lines: Vec<_> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(String::len).max();
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
}
