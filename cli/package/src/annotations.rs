//! The annotations that tell a function's runner which file an item came from, and where in it.
//!
//! They are kpt's (kyaml's): each twice, under today's internal prefix and under the older public one that
//! existing functions still read. They are added when a package is read and taken off again before it is
//! written.

use thiserror::Error;

use super::yaml::{
    Body, Edit, Entry, Node, append_entries, apply, document, expand, parse, remove_entries, replace_null,
    same,
};

pub(super) const PATH: &str = "internal.config.kubernetes.io/path";
pub(super) const INDEX: &str = "internal.config.kubernetes.io/index";
pub(super) const SEQINDENT: &str = "internal.config.kubernetes.io/seqindent";
pub(super) const LEGACY_PATH: &str = "config.kubernetes.io/path";
pub(super) const LEGACY_INDEX: &str = "config.kubernetes.io/index";
const ALL: [&str; 5] = [LEGACY_INDEX, LEGACY_PATH, INDEX, PATH, SEQINDENT];

/// Why an item cannot be annotated.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum AnnotateError {
    #[error("{0} is not a mapping")]
    NotAMapping(&'static str),
    #[error("an alias in it contains itself or grows too large")]
    Aliases,
}

/// A change of a document: the tree it shall have, and the edits of its text that ought to give that tree.
/// Without edits the tree has to be written anew.
pub(super) struct Change {
    pub(super) expected: Node,
    pub(super) edits: Option<Vec<Edit>>,
}

/// The place of an item in its package, as the annotations say it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    /// Relative to the package, with slashes.
    pub(super) path: &'a str,
    /// Position among the documents of the file, from 0.
    pub(super) index: usize,
    /// `compact` or `wide`.
    pub(super) sequence_indent: &'a str,
}

impl Place<'_> {
    fn entries(&self) -> Vec<Entry> {
        let index = self.index.to_string();
        let values = [&index, self.path, &index, self.path, self.sequence_indent];
        ALL.iter().zip(values).map(|(key, value)| (Node::string(*key), Node::quoted(value))).collect()
    }
}

/// The value of an annotation of `item`.
pub(super) fn get<'a>(item: &'a Node, key: &str) -> Option<&'a str> {
    item.get("metadata")?.get("annotations")?.get(key)?.text()
}

/// Adds the annotations to a document that has none of them, at the end of those it has.
pub(super) fn add(text: &str, root: &Node, place: Place<'_>) -> Result<Change, AnnotateError> {
    let new = place.entries();
    let is_alias = |node: Option<&Node>| node.is_some_and(|node| matches!(node.body, Body::Alias(_)));
    let metadata = root.get("metadata");
    if is_alias(metadata) || is_alias(metadata.and_then(|metadata| metadata.get("annotations"))) {
        // To add to an alias would change every other use of it.
        let mut expected = expand(root, root).ok_or(AnnotateError::Aliases)?;
        append(child(child(&mut expected, "metadata")?, "annotations")?, new)?;
        return Ok(Change { expected, edits: None });
    }
    let mut expected = root.clone();
    append(child(child(&mut expected, "metadata")?, "annotations")?, new.clone())?;
    let annotations = |new| vec![(Node::string("annotations"), Node::mapping(new))];
    let edit = match metadata {
        None => append_entries(text, root, &[(Node::string("metadata"), Node::mapping(annotations(new)))]),
        Some(metadata) if metadata.is_null() => replace_null(text, metadata, &annotations(new)),
        Some(metadata) => match metadata.get("annotations") {
            None => append_entries(text, metadata, &annotations(new)),
            Some(existing) if existing.is_null() => replace_null(text, existing, &new),
            Some(existing) => append_entries(text, existing, &new),
        },
    };
    Ok(Change { expected, edits: edit.map(|edit| vec![edit]) })
}

/// Takes the annotations off. Annotations and metadata that are empty then go as well, as kyaml has it.
/// `None`: there are none.
pub(super) fn remove(text: &str, root: &Node) -> Option<Change> {
    let (metadata_at, metadata) = find(root, "metadata")?;
    let (annotations_at, annotations) = find(metadata, "annotations")?;
    let entries = annotations.entries()?;
    let ours: Vec<usize> = (0..entries.len()).filter(|&i| is_ours(&entries[i])).collect();
    if ours.is_empty() {
        return None;
    }
    let mut expected = root.clone();
    let edits = if ours.len() < entries.len() {
        prune(&mut expected, &[metadata_at, annotations_at], is_ours);
        remove_entries(text, annotations, &ours)
    } else if metadata.entries()?.len() > 1 {
        prune(&mut expected, &[metadata_at], |(key, _)| key.text() == Some("annotations"));
        remove_entries(text, metadata, &[annotations_at])
    } else {
        prune(&mut expected, &[], |(key, _)| key.text() == Some("metadata"));
        remove_entries(text, root, &[metadata_at])
    };
    Some(Change { expected, edits })
}

/// The text that a change gives: edited, or written anew when no edit gives the tree that was meant.
/// `check` gives the tree of a text where it is going to stand.
pub(super) fn realise(text: &str, change: &Change, check: impl Fn(&str) -> Option<Node>) -> Option<String> {
    let gives_expected = |text: &String| check(text).is_some_and(|node| same(&node, &change.expected));
    let edited = change.edits.as_ref().and_then(|edits| apply(text, edits)).filter(gives_expected);
    edited.or_else(|| {
        let expanded = expand(&change.expected, &change.expected)?;
        let text = document(&expanded).ok()?;
        check(&text).is_some_and(|node| same(&node, &expanded)).then_some(text)
    })
}

/// The tree of a text that stands alone.
pub(super) fn alone(text: &str) -> Option<Node> {
    parse(text).ok().flatten()
}

fn is_ours((key, _): &Entry) -> bool {
    key.text().is_some_and(|key| ALL.contains(&key))
}

fn find<'a>(node: &'a Node, key: &str) -> Option<(usize, &'a Node)> {
    let entries = node.entries()?;
    let at = entries.iter().position(|(k, _)| k.text() == Some(key))?;
    Some((at, &entries[at].1))
}

fn prune(node: &mut Node, path: &[usize], unwanted: impl Fn(&Entry) -> bool) {
    let Body::Mapping { entries, .. } = &mut node.body else { return };
    match path {
        [] => entries.retain(|entry| !unwanted(entry)),
        [at, rest @ ..] => prune(&mut entries[*at].1, rest, unwanted),
    }
}

/// The mapping at `key`, made when it is absent or null.
fn child<'a>(node: &'a mut Node, key: &'static str) -> Result<&'a mut Node, AnnotateError> {
    let Body::Mapping { entries, .. } = &mut node.body else {
        return Err(AnnotateError::NotAMapping("the document"));
    };
    let at = entries.iter().position(|(k, _)| k.text() == Some(key)).unwrap_or_else(|| {
        entries.push((Node::string(key), Node::mapping(Vec::new())));
        entries.len() - 1
    });
    let value = &mut entries[at].1;
    if value.is_null() {
        *value = Node::mapping(Vec::new());
    }
    match value.body {
        Body::Mapping { .. } => Ok(value),
        _ => Err(AnnotateError::NotAMapping(key)),
    }
}

fn append(node: &mut Node, new: Vec<Entry>) -> Result<(), AnnotateError> {
    let Body::Mapping { entries, .. } = &mut node.body else {
        return Err(AnnotateError::NotAMapping("annotations"));
    };
    entries.extend(new);
    Ok(())
}
