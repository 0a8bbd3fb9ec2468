//! Annotations that record which file an item came from, and its position in that file.
//!
//! kpt (kyaml) defines them. The annotations for path and index exist twice: with the current
//! internal prefix, and with the older public prefix that existing functions still read. All
//! annotations are added when a package is read, and removed before its files are written.

use crate::yaml::{Entry, Node, Yaml, rewrite, same, sequence_indent};

pub(super) const PATH: &str = "internal.config.kubernetes.io/path";
pub(super) const INDEX: &str = "internal.config.kubernetes.io/index";
pub(super) const SEQINDENT: &str = "internal.config.kubernetes.io/seqindent";
pub(super) const LEGACY_PATH: &str = "config.kubernetes.io/path";
pub(super) const LEGACY_INDEX: &str = "config.kubernetes.io/index";
const ALL: [&str; 5] = [LEGACY_INDEX, LEGACY_PATH, INDEX, PATH, SEQINDENT];

/// Returns the value of an annotation of `item`.
pub(super) fn get<'a>(item: &'a Node, key: &str) -> Option<&'a str> {
    item.get("metadata")?.get("annotations")?.get(key)?.text()
}

/// Adds the annotations after the document's other annotations. Call [`remove`] first, because the
/// document may already have them. `path` is relative to the package, with slashes. `index` is the
/// document's position in the file, from 0. `Ok(None)`: the document cannot be serialized.
///
/// # Errors
///
/// Returns the name of a value that must be a mapping, but is not.
pub(super) fn add(document: &Yaml, path: &str, index: usize) -> Result<Option<Yaml>, &'static str> {
    let mut wanted = document.root.clone();
    let top = wanted.entries_mut().ok_or("the document")?;
    let metadata = existing_or_new(top, "metadata").ok_or("metadata")?;
    let annotations = existing_or_new(metadata, "annotations").ok_or("annotations")?;
    let index = index.to_string();
    let values = [&index, path, &index, path, sequence_indent(document)];
    annotations.extend(ALL.iter().zip(values).map(|(key, value)| (Node::string(*key), Node::string(value))));
    Ok(rewrite(document, &wanted))
}

/// Returns the document without the annotations. `None`: it cannot be serialized.
pub(super) fn remove(document: Yaml) -> Option<Yaml> {
    let wanted = bare(&document.root);
    if same(&wanted, &document.root) { Some(document) } else { rewrite(&document, &wanted) }
}

/// Returns the tree without the annotations. Then removes empty `annotations` and `metadata`, like
/// kyaml.
pub(super) fn bare(root: &Node) -> Node {
    let is_ours = |(key, _): &Entry| key.text().is_some_and(|key| ALL.contains(&key));
    let mut wanted = root.clone();
    if let Some(top) = wanted.entries_mut() {
        if let Some(metadata) = existing(top, "metadata") {
            if let Some(annotations) = existing(metadata, "annotations") {
                annotations.retain(|entry| !is_ours(entry));
            }
            remove_if_empty(metadata, "annotations");
        }
        remove_if_empty(top, "metadata");
    }
    wanted
}

fn remove_if_empty(entries: &mut Vec<Entry>, key: &str) {
    let is_empty = |value: &Node| value.is_null() || value.entries().is_some_and(<[_]>::is_empty);
    entries.retain(|(k, value)| k.text() != Some(key) || !is_empty(value));
}

/// Returns the entries of the mapping at `key`, for changes. Clears the key's span: for a
/// key with a span, [`rewrite`] may copy the old lines instead of serializing the changed entry.
fn existing<'a>(entries: &'a mut [Entry], key: &str) -> Option<&'a mut Vec<Entry>> {
    let (key, value) = entries.iter_mut().find(|(k, _)| k.text() == Some(key))?;
    key.span = 0..0;
    value.is_alias = false;
    value.entries_mut()
}

/// Like [`existing`], but creates a missing mapping. `None`: the value is not a mapping.
fn existing_or_new<'a>(entries: &'a mut Vec<Entry>, key: &str) -> Option<&'a mut Vec<Entry>> {
    if entries.iter().all(|(k, _)| k.text() != Some(key)) {
        entries.push((Node::string(key), Node::mapping(Vec::new())));
    }
    existing(entries, key)
}
