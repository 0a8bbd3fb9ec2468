//! Text edits that add entries to a mapping, or take some away, and leave every other byte alone.
//!
//! Nothing here is trusted: the caller parses the result and compares it with the tree it wanted.

use std::ops::Range;

use super::emit::{block_entries, flow_entries};
use super::{Body, Entry, Node};

/// Replace `range` of a text by `text`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) range: Range<usize>,
    pub(crate) text: String,
}

/// `text` with all `edits` made. `None` when they overlap, are out of order or cut a character.
pub(crate) fn apply(text: &str, edits: &[Edit]) -> Option<String> {
    let mut out = String::with_capacity(text.len() + edits.iter().map(|e| e.text.len()).sum::<usize>());
    let mut done = 0;
    for edit in edits {
        out.push_str(text.get(done..edit.range.start)?);
        out.push_str(&edit.text);
        done = edit.range.end;
    }
    out.push_str(text.get(done..)?);
    Some(out)
}

/// `text` with `spaces` before each line that is not empty.
pub(crate) fn indent(text: &str, spaces: usize) -> String {
    let pad = " ".repeat(spaces);
    let mut out = String::with_capacity(text.len() + text.len() / 8 + spaces);
    for line in text.split_inclusive('\n') {
        // A line of spaces alone can be content of a block scalar, so it is moved like any other.
        if line != "\n" {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    out
}

/// The start of the line after `position`; `position` itself when a line starts there.
pub(crate) fn line_end(text: &str, position: usize) -> usize {
    if position == 0 || text.as_bytes().get(position - 1) == Some(&b'\n') {
        return position;
    }
    text[position..].find('\n').map_or(text.len(), |newline| position + newline + 1)
}

/// The start of the line of `position`, when only spaces stand between.
fn indented_line_start(text: &str, position: usize) -> Option<usize> {
    let line = text[..position].rfind('\n').map_or(0, |newline| newline + 1);
    text[line..position].bytes().all(|byte| byte == b' ').then_some(line)
}

/// Adds `new` at the end of `mapping`.
pub(crate) fn append_entries(text: &str, mapping: &Node, new: &[Entry]) -> Option<Edit> {
    let Body::Mapping { entries, flow } = &mapping.body else { return None };
    match entries.len().checked_sub(1) {
        Some(last) => append_after(text, mapping, last, new),
        None if *flow => {
            let brace = mapping.span.start + text.get(mapping.span.clone())?.find('{')?;
            Some(insert(brace + 1, flow_entries(new).ok()?))
        }
        None => None,
    }
}

/// Adds `new` behind the entry of `mapping` at `index`.
pub(super) fn append_after(text: &str, mapping: &Node, index: usize, new: &[Entry]) -> Option<Edit> {
    let Body::Mapping { entries, flow } = &mapping.body else { return None };
    let (key, value) = entries.get(index)?;
    if *flow {
        // Before a trailing comma, where there is one.
        return Some(insert(value.span.end, format!(", {}", flow_entries(new).ok()?)));
    }
    let (first, _) = entries.first()?;
    let column = text[..first.span.start]
        .rfind('\n')
        .map_or(first.span.start, |newline| first.span.start - newline - 1);
    let mut lines = String::new();
    block_entries(&mut lines, new, column).ok()?;
    Some(insert(line_end(text, value.span.end.max(key.span.end)), lines))
}

/// Writes the entry of `mapping` at `index` anew, as `new`.
pub(super) fn replace_entry(text: &str, mapping: &Node, index: usize, new: &Entry) -> Option<Edit> {
    let Body::Mapping { entries, flow } = &mapping.body else { return None };
    let (key, value) = entries.get(index)?;
    let range = key.span.start..value.span.end.max(key.span.end);
    if *flow {
        return Some(Edit { range, text: flow_entries(std::slice::from_ref(new)).ok()? });
    }
    let start = indented_line_start(text, key.span.start)?;
    let mut lines = String::new();
    block_entries(&mut lines, std::slice::from_ref(new), key.span.start - start).ok()?;
    Some(Edit { range: start..line_end(text, range.end), text: lines })
}

/// Replaces a null `value` by a mapping of `new`.
pub(crate) fn replace_null(text: &str, value: &Node, new: &[Entry]) -> Option<Edit> {
    let mapping = format!("{{{}}}", flow_entries(new).ok()?);
    if !value.span.is_empty() {
        return Some(Edit { range: value.span.clone(), text: mapping });
    }
    // An absent value stands where its colon starts.
    text[value.span.start..].starts_with(':').then(|| insert(value.span.start + 1, format!(" {mapping}")))
}

/// Takes the entries at `indices`, which ascend, out of `mapping`. Comments on lines of their own stay.
pub(crate) fn remove_entries(text: &str, mapping: &Node, indices: &[usize]) -> Option<Vec<Edit>> {
    let Body::Mapping { entries, flow } = &mapping.body else { return None };
    if *flow {
        return Some(remove_flow_entries(mapping.span.end, entries, indices));
    }
    indices
        .iter()
        .map(|&index| {
            let (key, value) = &entries[index];
            let start = indented_line_start(text, key.span.start)?;
            Some(remove(start..line_end(text, value.span.end.max(key.span.end))))
        })
        .collect()
}

/// Each removed entry goes with the comma after it, or before it at the end of the mapping.
fn remove_flow_entries(end: usize, entries: &[Entry], indices: &[usize]) -> Vec<Edit> {
    let mut edits = Vec::new();
    let kept = (0..entries.len()).rev().find(|index| !indices.contains(index));
    for &index in indices {
        match kept {
            Some(kept) if index < kept => {
                edits.push(remove(entries[index].0.span.start..entries[index + 1].0.span.start));
            }
            Some(kept) => {
                edits.push(remove(entries[kept].1.span.end..entries[entries.len() - 1].1.span.end));
                break;
            }
            None => {
                // With the trailing comma, up to the brace.
                edits.push(remove(entries[0].0.span.start..end - 1));
                break;
            }
        }
    }
    edits
}

fn insert(position: usize, text: String) -> Edit {
    Edit { range: position..position, text }
}

fn remove(range: Range<usize>) -> Edit {
    Edit { range, text: String::new() }
}
