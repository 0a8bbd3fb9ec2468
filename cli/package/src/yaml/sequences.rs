//! Indentation of sequences below their key.
//!
//! Go's YAML library, and so most functions, does not indent a sequence below its key. If a
//! document indents its sequences, kpt records `wide` in an annotation of the function's input. kpt
//! then indents the sequences in the function's output before it writes them. This module does the
//! same. Without it, a document whose text comes from the function would lose its indentation.

use std::collections::HashMap;
use std::ops::Range;

use super::lines::{column, indent, line_end};
use super::{Body, Node, Yaml, same};

/// A block sequence that is the value of a key.
struct Sequence {
    /// Spaces between the column of the key and the column of the dashes.
    offset: usize,
    /// The byte range of its lines.
    lines: Range<usize>,
}

/// Returns `compact` or `wide`. Like in kyaml, the first sequence with one of these two layouts
/// decides.
pub(crate) fn sequence_indent(document: &Yaml) -> &'static str {
    let found = sequences(&document.text, &document.root);
    if found.iter().map(|sequence| sequence.offset).find(|offset| matches!(offset, 0 | 2)) == Some(2) {
        "wide"
    } else {
        "compact"
    }
}

/// Indents the lines of each sequence by two spaces. If a sequence is already indented, the
/// document is unchanged: the function kept the user's layout.
pub(crate) fn widen(document: Yaml) -> Yaml {
    let found = sequences(&document.text, &document.root);
    if found.iter().any(|sequence| sequence.offset != 0) {
        return document;
    }
    // For each line: the number of sequences that start there, minus the number that end there.
    let mut changes: HashMap<usize, isize> = HashMap::new();
    for Sequence { lines, .. } in &found {
        *changes.entry(lines.start).or_default() += 1;
        *changes.entry(lines.end).or_default() -= 1;
    }
    let (mut text, mut start, mut depth) = (String::new(), 0, 0);
    for line in document.text.split_inclusive('\n') {
        depth += changes.get(&start).unwrap_or(&0);
        text.push_str(&indent(line, 2 * depth.unsigned_abs()));
        start += line.len();
    }
    Yaml::valid(text).filter(|wide| same(&wide.root, &document.root)).unwrap_or(document)
}

fn sequences(text: &str, node: &Node) -> Vec<Sequence> {
    match &node.body {
        Body::Sequence { items, .. } if !node.is_alias => {
            items.iter().flat_map(|item| sequences(text, item)).collect()
        }
        Body::Mapping { entries, .. } if !node.is_alias => entries
            .iter()
            .flat_map(|(key, value)| sequence(text, key, value).into_iter().chain(sequences(text, value)))
            .collect(),
        // The lines of an alias's value are at the anchor.
        _ => Vec::new(),
    }
}

fn sequence(text: &str, key: &Node, value: &Node) -> Option<Sequence> {
    let Body::Sequence { items, flow: false } = &value.body else { return None };
    let lines = line_end(text, key.span.end)..line_end(text, value.span.end);
    let above = text.get(lines.start..items.first()?.span.start).filter(|_| !value.is_alias)?;
    let dash = above.split('\n').find(|line| line.trim_start_matches(' ').starts_with('-'))?.find('-')?;
    Some(Sequence { offset: dash.checked_sub(column(text, key.span.start))?, lines })
}
