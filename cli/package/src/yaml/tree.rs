//! The tree of one document: its nodes with their byte ranges, and the comparison of nodes.

use std::ops::Range;

use super::scalar::{Scalar, Style};

/// A key with its value.
pub(crate) type Entry = (Node, Node);

/// A node and its byte range in the text.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Byte range of the content, without anchor, tag and comments. A block scalar starts below its
    /// `|` or `>` and ends at the start of a line. Empty if the node has no text, such as an absent
    /// value.
    pub(crate) span: Range<usize>,
    pub(crate) body: Body,
    /// The full tag, such as `tag:yaml.org,2002:str` or `!local`.
    pub(crate) tag: Option<String>,
    /// Whether this is an alias. Then `span` is that of the alias, and `body` is a copy of the
    /// anchored node's body.
    pub(crate) is_alias: bool,
}

/// The content of a node.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Scalar(Scalar),
    Sequence { items: Vec<Node>, flow: bool },
    Mapping { entries: Vec<Entry>, flow: bool },
}

impl Node {
    /// Creates a node that has no text.
    fn new(body: Body) -> Self {
        Self { span: 0..0, body, tag: None, is_alias: false }
    }

    /// Creates a string. It is serialized with quotes where necessary.
    pub(crate) fn string(text: impl Into<String>) -> Self {
        Self::new(Body::Scalar(Scalar { text: text.into(), style: Style::Quoted('"') }))
    }

    /// Creates a block mapping.
    pub(crate) fn mapping(entries: Vec<Entry>) -> Self {
        Self::new(Body::Mapping { entries, flow: false })
    }

    pub(crate) fn scalar(&self) -> Option<&Scalar> {
        if let Body::Scalar(scalar) = &self.body { Some(scalar) } else { None }
    }

    /// Returns the text of a scalar that is not null.
    pub(crate) fn text(&self) -> Option<&str> {
        self.scalar().filter(|_| !self.is_null()).map(|scalar| scalar.text.as_str())
    }

    pub(crate) fn is_null(&self) -> bool {
        self.tag.is_none() && self.scalar().is_some_and(Scalar::is_null)
    }

    /// Returns the entries of a mapping.
    pub(crate) fn entries(&self) -> Option<&[Entry]> {
        if let Body::Mapping { entries, .. } = &self.body { Some(entries) } else { None }
    }

    /// Returns the entries of a mapping, for changes.
    pub(crate) fn entries_mut(&mut self) -> Option<&mut Vec<Entry>> {
        if let Body::Mapping { entries, .. } = &mut self.body { Some(entries) } else { None }
    }

    /// Returns the value of `key` in a mapping.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries()?.iter().find(|(k, _)| k.text() == Some(key)).map(|(_, value)| value)
    }

    /// Returns the last scalar in the document.
    pub(crate) fn last_scalar(&self) -> Option<(&Node, &Scalar)> {
        match &self.body {
            Body::Scalar(scalar) => Some((self, scalar)),
            Body::Sequence { items, .. } => items.last()?.last_scalar(),
            Body::Mapping { entries, .. } => entries.last()?.1.last_scalar(),
        }
    }
}

/// Returns whether both trees have the same values in the same order. Byte ranges, comments,
/// needless quotes and aliases do not matter.
pub(crate) fn same(a: &Node, b: &Node) -> bool {
    let same_body = match (&a.body, &b.body) {
        (Body::Scalar(a), Body::Scalar(b)) => a.same(b),
        (Body::Sequence { items: a, .. }, Body::Sequence { items: b, .. }) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Body::Mapping { entries: a, .. }, Body::Mapping { entries: b, .. }) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(&a.0, &b.0) && same(&a.1, &b.1))
        }
        _ => false,
    };
    same_body && a.tag == b.tag
}
