//! Cuts a file into its YAML documents without parsing them.
//!
//! `---` and `...` at the start of a line end a document whatever stands around them, even inside a quoted
//! string, so this needs lines only. What lies between the documents (separators with their comments,
//! directives, a byte order mark) belongs to the file and is never sent to a function.

use std::ops::Range;

const BYTE_ORDER_MARK: char = '\u{feff}';

/// One document's place in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    /// Everything before its `---`, where directives may stand; empty for a document without.
    pub(crate) directives: Range<usize>,
    /// The document, from its first line that is not blank.
    pub(crate) body: Range<usize>,
}

/// The documents of `text` in order. One that holds comments alone is included.
pub(crate) fn sections(text: &str) -> Vec<Section> {
    let mut found = Vec::new();
    let mut next_line = text.strip_prefix(BYTE_ORDER_MARK).map_or(0, |rest| text.len() - rest.len());
    let mut prefix = next_line;
    let mut open: Option<Section> = None;
    for line in text[next_line..].split_inclusive('\n') {
        let start = next_line;
        next_line += line.len();
        if let Some(rest) = marker(line, "---") {
            let directives = match open.take() {
                Some(section) => {
                    close(text, section, start, &mut found);
                    start..start
                }
                None => prefix..start,
            };
            let content = rest.trim_start();
            let starts_here = !content.is_empty() && !content.starts_with('#');
            let body = if starts_here { next_line - content.len() } else { next_line };
            open = Some(Section { directives, body: body..body });
        } else if marker(line, "...").is_some() {
            if let Some(section) = open.take() {
                close(text, section, start, &mut found);
            }
            prefix = next_line;
        } else if open.is_none() && starts_document(line) {
            // Without `---` the comments above the first key are the document's own.
            open = Some(Section { directives: start..start, body: prefix..prefix });
        }
    }
    if let Some(section) = open {
        close(text, section, text.len(), &mut found);
    }
    found
}

/// What follows a marker on its line, when `line` is that marker.
fn marker<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    line.strip_prefix(marker).filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

fn starts_document(line: &str) -> bool {
    let content = line.trim_start();
    !content.is_empty() && !content.starts_with('#') && !line.starts_with('%')
}

fn close(text: &str, mut section: Section, end: usize, found: &mut Vec<Section>) {
    let body = &text[section.body.start..end];
    let blank: usize =
        body.split_inclusive('\n').take_while(|line| line.trim().is_empty()).map(str::len).sum();
    section.body = section.body.start + blank..end;
    if !section.body.is_empty() {
        found.push(section);
    }
}
