//! The tree of one document: its nodes and where each stands, when two are the same, and what aliases stand for.

use std::collections::HashMap;
use std::ops::Range;

use super::{Scalar, Style};

/// Deeper documents are refused, since trees are walked by recursion. Real resources stay below 50.
pub(super) const MAX_DEPTH: usize = 256;
/// Bound on the nodes of a tree whose aliases are written out ("billion laughs").
const MAX_EXPANDED_NODES: usize = 1_000_000;

/// A key with its value.
pub(crate) type Entry = (Node, Node);

/// A node and where it stands.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// Bytes from the node's anchor, tag or first character to the end of its content. Comments after it are
    /// outside. A literal or folded block starts below its `|` or `>` and ends at the start of a line.
    pub(crate) span: Range<usize>,
    pub(crate) body: Body,
    /// The tag in full, such as `tag:yaml.org,2002:str` or `!local`.
    pub(crate) tag: Option<String>,
    /// Number of the anchor set here, counted from 1; 0 is none.
    pub(crate) anchor: usize,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    Scalar(Scalar),
    Sequence { items: Vec<Node>, flow: bool },
    Mapping { entries: Vec<Entry>, flow: bool },
    Alias(usize),
}

// === impl Node ===

impl Node {
    /// A node that stands in no text yet.
    fn new(body: Body) -> Self {
        Self { span: 0..0, body, tag: None, anchor: 0 }
    }

    /// A string, quoted where it has to be.
    pub(crate) fn string(text: impl Into<String>) -> Self {
        Self::new(Body::Scalar(Scalar { text: text.into(), style: Style::DoubleQuoted }))
    }

    /// A string in single quotes.
    pub(crate) fn quoted(text: impl Into<String>) -> Self {
        Self::new(Body::Scalar(Scalar { text: text.into(), style: Style::SingleQuoted }))
    }

    /// A block mapping.
    pub(crate) fn mapping(entries: Vec<Entry>) -> Self {
        Self::new(Body::Mapping { entries, flow: false })
    }

    /// The scalar here, if it is one.
    pub(crate) fn scalar(&self) -> Option<&Scalar> {
        if let Body::Scalar(scalar) = &self.body { Some(scalar) } else { None }
    }

    /// The text of a scalar that is not null.
    pub(crate) fn text(&self) -> Option<&str> {
        self.scalar().filter(|_| !self.is_null()).map(|scalar| scalar.text.as_str())
    }

    pub(crate) fn is_null(&self) -> bool {
        self.tag.is_none() && self.scalar().is_some_and(Scalar::is_null)
    }

    /// The entries of a mapping, if it is one.
    pub(crate) fn entries(&self) -> Option<&[Entry]> {
        if let Body::Mapping { entries, .. } = &self.body { Some(entries) } else { None }
    }

    /// The value of `key` in a mapping.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries()?.iter().find(|(k, _)| k.text() == Some(key)).map(|(_, value)| value)
    }
}

// === comparing ===

/// True when both trees hold the same values in the same order. Places, comments and needless quotes do not
/// count, nor do the numbers of anchors, as long as each alias means the same node.
pub(crate) fn same(a: &Node, b: &Node) -> bool {
    same_node(a, b, &mut HashMap::new())
}

fn same_node(a: &Node, b: &Node, anchors: &mut HashMap<usize, usize>) -> bool {
    if (a.anchor == 0) != (b.anchor == 0) || a.tag != b.tag {
        return false;
    }
    if a.anchor != 0 {
        anchors.insert(a.anchor, b.anchor);
    }
    match (&a.body, &b.body) {
        (Body::Scalar(a), Body::Scalar(b)) => a.same(b),
        (Body::Alias(a), Body::Alias(b)) => anchors.get(a) == Some(b),
        (Body::Sequence { items: a, .. }, Body::Sequence { items: b, .. }) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_node(a, b, anchors))
        }
        (Body::Mapping { entries: a, .. }, Body::Mapping { entries: b, .. }) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|((ka, va), (kb, vb))| same_node(ka, kb, anchors) && same_node(va, vb, anchors))
        }
        _ => false,
    }
}

// === aliases ===

/// `node` with every alias written out and no anchors; `root` is the document that sets the anchors. `None`:
/// an alias contains itself, or the result would be too large.
pub(crate) fn expand(root: &Node, node: &Node) -> Option<Node> {
    let mut anchors = HashMap::new();
    collect_anchors(root, &mut anchors);
    let mut budget = MAX_EXPANDED_NODES;
    expand_node(node, &anchors, 0, &mut budget)
}

fn collect_anchors<'a>(node: &'a Node, anchors: &mut HashMap<usize, &'a Node>) {
    if node.anchor != 0 {
        anchors.insert(node.anchor, node);
    }
    match &node.body {
        Body::Sequence { items, .. } => items.iter().for_each(|item| collect_anchors(item, anchors)),
        Body::Mapping { entries, .. } => entries.iter().for_each(|(key, value)| {
            collect_anchors(key, anchors);
            collect_anchors(value, anchors);
        }),
        Body::Scalar(_) | Body::Alias(_) => {}
    }
}

fn expand_node(
    node: &Node,
    anchors: &HashMap<usize, &Node>,
    depth: usize,
    budget: &mut usize,
) -> Option<Node> {
    *budget = budget.checked_sub(1)?;
    if depth > MAX_DEPTH {
        return None;
    }
    let mut expand = |node| expand_node(node, anchors, depth + 1, budget);
    let body = match &node.body {
        Body::Alias(anchor) => return expand(anchors.get(anchor)?),
        Body::Scalar(scalar) => Body::Scalar(scalar.clone()),
        Body::Sequence { items, flow } => {
            Body::Sequence { items: items.iter().map(expand).collect::<Option<_>>()?, flow: *flow }
        }
        Body::Mapping { entries, flow } => Body::Mapping {
            entries: entries
                .iter()
                .map(|(key, value)| Some((expand(key)?, expand(value)?)))
                .collect::<Option<_>>()?,
            flow: *flow,
        },
    };
    Some(Node { span: node.span.clone(), body, tag: node.tag.clone(), anchor: 0 })
}
