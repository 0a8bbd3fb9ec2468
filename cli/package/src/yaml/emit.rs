//! Serializes nodes that did not come from a file and so have no text of their own. The output is
//! in block style. A level is indented by two spaces, but a sequence is not indented below its key.
//!
//! These nodes are new annotations, a functionConfig that is set in the user's ResourceList, and
//! items that a function returned as JSON. Plain scalars keep their exact spelling; aliases are
//! replaced by their values.

use super::lines::indent;
use super::{Body, Entry, Node, Scalar, Style, Yaml, same};

/// Serializes `root`. `None`: a key is a collection, or the text does not parse to `root`.
pub(crate) fn document(root: &Node) -> Option<Yaml> {
    let separator = if is_block(root) && root.tag.is_some() { "\n" } else { "" };
    let text = format!("{}{separator}{}", tag_before(root), lines(root)?);
    Yaml::valid(text).filter(|read| same(&read.root, root))
}

/// Serializes a mapping's entry.
pub(super) fn entry((key, value): &Entry) -> Option<String> {
    let scalar = key.scalar()?;
    let mut text = tag_before(key);
    text += &if scalar.text.contains('\n') {
        serde_json::to_string(&scalar.text).ok()?
    } else {
        scalar_lines(scalar)?.trim_end().to_owned()
    };
    let lines = lines(value)?;
    let is_mapping = is_block(value) && matches!(value.body, Body::Mapping { .. });
    let lines = if is_mapping { indent(&lines, 2) } else { lines };
    Some(after(text + ":", value, &lines))
}

fn item(node: &Node) -> Option<String> {
    let lines = lines(node)?;
    if !is_block(node) {
        return Some(after("-".to_owned(), node, &lines));
    }
    let lines = indent(&lines, 2);
    // Without a tag, the first key or dash follows this dash on the same line.
    Some(if node.tag.is_none() { format!("-{}", &lines[1..]) } else { after("-".to_owned(), node, &lines) })
}

/// Puts the `lines` of `node` after its colon or dash.
fn after(mut indicator: String, node: &Node, lines: &str) -> String {
    if node.tag.is_some() {
        indicator.push(' ');
        indicator.push_str(tag_before(node).trim_end());
    }
    let separator = if is_block(node) { "\n" } else { " " };
    // There is no space before an absent value.
    if lines == "\n" { indicator + lines } else { indicator + separator + lines }
}

fn is_block(node: &Node) -> bool {
    match &node.body {
        Body::Scalar(_) => false,
        Body::Sequence { items, .. } => !items.is_empty(),
        Body::Mapping { entries, .. } => !entries.is_empty(),
    }
}

fn tag_before(node: &Node) -> String {
    match &node.tag {
        None => String::new(),
        Some(tag) if tag.starts_with('!') => format!("{tag} "),
        Some(tag) => format!("!<{tag}> "),
    }
}

/// Serializes a node at column 0, without its tag.
fn lines(node: &Node) -> Option<String> {
    match &node.body {
        Body::Scalar(scalar) => scalar_lines(scalar),
        Body::Sequence { items, .. } if items.is_empty() => Some("[]\n".to_owned()),
        Body::Mapping { entries, .. } if entries.is_empty() => Some("{}\n".to_owned()),
        Body::Sequence { items, .. } => items.iter().map(item).collect(),
        Body::Mapping { entries, .. } => entries.iter().map(entry).collect(),
    }
}

/// Serializes a scalar at column 0. The lines of a block are indented by two spaces.
fn scalar_lines(scalar: &Scalar) -> Option<String> {
    if scalar.style == Style::Plain && !scalar.text.contains('\n') {
        return Some(format!("{}\n", scalar.text));
    }
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let text = serde_saphyr::to_string_with_options(&scalar.text, options).ok()?;
    Some(text.split('\n').map(|line| if line == "  " { "" } else { line }).collect::<Vec<_>>().join("\n"))
}
