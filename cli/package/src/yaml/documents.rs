//! Finds the YAML documents of a file without parsing them.
//!
//! `---` and `...` at the start of a line end a document even inside a quoted string, so splitting
//! into lines is enough. The text between the documents (separators with their comments,
//! directives, a byte order mark) belongs to the file; no function gets it.

use std::ops::Range;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Returns the byte range of each document of `text`, from its first line that is not blank. A
/// document with only comments is included if it follows a `---`.
pub(crate) fn document_ranges(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut next_line = text.strip_prefix(BYTE_ORDER_MARK).map_or(0, |rest| text.len() - rest.len());
    let mut prefix = next_line;
    let mut open = None;
    for line in text[next_line..].split_inclusive('\n') {
        let start = next_line;
        next_line += line.len();
        let separator = after_marker(line, "---");
        if separator.is_some() || after_marker(line, "...").is_some() {
            found.extend(open.take().map(|open| open..start));
            prefix = next_line;
            open = separator.map(|rest| match rest.trim_start() {
                content if content.is_empty() || content.starts_with('#') => next_line,
                content => next_line - content.len(),
            });
        } else if open.is_none() && starts_document(line) {
            // Without `---`, the comments above the first key belong to the document.
            open = Some(prefix);
        }
    }
    found.extend(open.map(|open| open..text.len()));
    found
        .into_iter()
        .map(|range| without_blank_lines(text, range))
        .filter(|range| !range.is_empty())
        .collect()
}

/// Returns the rest of a line that starts with `marker`.
fn after_marker<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    line.strip_prefix(marker).filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

fn starts_document(line: &str) -> bool {
    let content = line.trim_start();
    !content.is_empty() && !content.starts_with('#') && !line.starts_with('%')
}

fn without_blank_lines(text: &str, range: Range<usize>) -> Range<usize> {
    let lines = text[range.clone()].split_inclusive('\n');
    let blank: usize = lines.take_while(|line| line.trim().is_empty()).map(str::len).sum();
    range.start + blank..range.end
}
