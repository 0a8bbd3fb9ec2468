//! Brings new values into an old text.
//!
//! Functions parse YAML and write it anew, and what their library drops on the way (comments, blank lines,
//! quotes) they did not mean to drop. So the values that changed are edited in the user's own text.

use super::edit::{Edit, append_after, remove_entries, replace_entry};
use super::emit::scalar_like;
use super::{Body, Entry, Node, Style, apply, parse, same};

/// `text`, whose tree is `old`, with the values of `new`. `None` when that takes more than changed, added and
/// removed fields: then the function's own text has to do.
pub(crate) fn patch(text: &str, old: &Node, new: &Node) -> Option<String> {
    let mut edits = Vec::new();
    value(text, old, new, &mut edits)?;
    edits.sort_by_key(|edit| (edit.range.start, edit.range.end));
    let patched = apply(text, &edits)?;
    parse(&patched).ok()?.is_some_and(|root| same(&root, new)).then_some(patched)
}

fn value(text: &str, old: &Node, new: &Node, edits: &mut Vec<Edit>) -> Option<()> {
    if same(old, new) {
        return Some(());
    }
    if old.anchor != 0 || new.anchor != 0 || old.tag.is_some() || new.tag.is_some() {
        return None;
    }
    match (&old.body, &new.body) {
        (Body::Scalar(was), Body::Scalar(is)) => {
            if was.style == Style::Block || old.span.is_empty() {
                return None;
            }
            edits.push(Edit { range: old.span.clone(), text: scalar_like(is, was.style)? });
            Some(())
        }
        (Body::Sequence { items: was, .. }, Body::Sequence { items: is, .. }) if was.len() == is.len() => {
            was.iter().zip(is).try_for_each(|(old, new)| value(text, old, new, edits))
        }
        (Body::Mapping { entries: was, .. }, Body::Mapping { entries: is, .. }) => {
            mapping(text, old, was, is, edits)
        }
        _ => None,
    }
}

fn mapping(text: &str, old: &Node, was: &[Entry], is: &[Entry], edits: &mut Vec<Edit>) -> Option<()> {
    let mut kept = Vec::new();
    let mut added: Vec<Entry> = Vec::new();
    for entry @ (key, new) in is {
        let next = kept.last().map_or(0, |&last| last + 1);
        let is_next = was.get(next).is_some_and(|(k, _)| same(k, key));
        let at = if is_next { Some(next) } else { was.iter().position(|(k, _)| same(k, key)) };
        let Some(at) = at else {
            added.push(entry.clone());
            continue;
        };
        if at < next {
            // The order has changed as well.
            return None;
        }
        insert(text, old, kept.last(), &mut added, edits)?;
        kept.push(at);
        let before = edits.len();
        if value(text, &was[at].1, new, edits).is_none() {
            edits.truncate(before);
            edits.push(replace_entry(text, old, at, entry)?);
        }
    }
    insert(text, old, kept.last(), &mut added, edits)?;
    let removed: Vec<usize> = (0..was.len()).filter(|at| kept.binary_search(at).is_err()).collect();
    if !removed.is_empty() {
        edits.extend(remove_entries(text, old, &removed)?);
    }
    Some(())
}

/// Puts what has been `added` behind the entry at `after`.
fn insert(
    text: &str,
    mapping: &Node,
    after: Option<&usize>,
    added: &mut Vec<Entry>,
    edits: &mut Vec<Edit>,
) -> Option<()> {
    if !added.is_empty() {
        edits.push(append_after(text, mapping, *after?, added)?);
        added.clear();
    }
    Some(())
}
