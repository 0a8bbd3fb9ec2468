//! The tree of one document, with the byte range of each node.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use thiserror::Error;

use super::{Scalar, Style};

/// Deeper documents are refused, since trees are walked by recursion. Real resources stay below 50.
const MAX_DEPTH: usize = 256;
/// Bound on the nodes of a tree whose aliases are written out ("billion laughs").
const MAX_EXPANDED_NODES: usize = 1_000_000;

const MERGE_TAG: &str = "tag:yaml.org,2002:merge";

/// A key with its value.
pub(in crate::package) type Entry = (Node, Node);

/// A node and where it stands.
#[derive(Debug, Clone)]
pub(in crate::package) struct Node {
    /// Bytes from the node's anchor, tag or first character to the end of its content. Comments after it are
    /// outside. A literal or folded block starts below its `|` or `>` and ends at the start of a line.
    pub(in crate::package) span: Range<usize>,
    pub(in crate::package) body: Body,
    /// The tag in full, such as `tag:yaml.org,2002:str` or `!local`.
    pub(in crate::package) tag: Option<String>,
    /// Number of the anchor set here, counted from 1; 0 is none.
    pub(in crate::package) anchor: usize,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(in crate::package) enum Body {
    Scalar(Scalar),
    Sequence { items: Vec<Node>, flow: bool },
    Mapping { entries: Vec<Entry>, flow: bool },
    Alias(usize),
}

/// Why a text is not one document.
#[derive(Debug, Error, PartialEq, Eq)]
pub(in crate::package) enum ParseError {
    #[error("{message}")]
    Syntax { line: usize, message: String },
    #[error("there is more than one document")]
    SeveralDocuments { line: usize },
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    TooDeep { line: usize },
}

impl ParseError {
    /// The line of the text where it went wrong, from 1.
    pub(in crate::package) fn line(&self) -> usize {
        match self {
            Self::Syntax { line, .. } | Self::SeveralDocuments { line } | Self::TooDeep { line } => *line,
        }
    }
}

// === impl Node ===

impl Node {
    /// A node that stands in no text yet.
    fn new(body: Body) -> Self {
        Self { span: 0..0, body, tag: None, anchor: 0 }
    }

    /// A string, quoted where it has to be.
    pub(in crate::package) fn string(text: impl Into<String>) -> Self {
        Self::new(Body::Scalar(Scalar { text: text.into(), style: Style::DoubleQuoted }))
    }

    /// A string in single quotes.
    pub(in crate::package) fn quoted(text: impl Into<String>) -> Self {
        Self::new(Body::Scalar(Scalar { text: text.into(), style: Style::SingleQuoted }))
    }

    /// A block mapping.
    pub(in crate::package) fn mapping(entries: Vec<Entry>) -> Self {
        Self::new(Body::Mapping { entries, flow: false })
    }

    /// The scalar here, if it is one.
    pub(in crate::package) fn scalar(&self) -> Option<&Scalar> {
        if let Body::Scalar(scalar) = &self.body { Some(scalar) } else { None }
    }

    /// The text of a scalar that is not null.
    pub(in crate::package) fn text(&self) -> Option<&str> {
        self.scalar().filter(|_| !self.is_null()).map(|scalar| scalar.text.as_str())
    }

    pub(in crate::package) fn is_null(&self) -> bool {
        self.tag.is_none() && self.scalar().is_some_and(Scalar::is_null)
    }

    /// The entries of a mapping, if it is one.
    pub(in crate::package) fn entries(&self) -> Option<&[Entry]> {
        if let Body::Mapping { entries, .. } = &self.body { Some(entries) } else { None }
    }

    /// The value of `key` in a mapping.
    pub(in crate::package) fn get(&self, key: &str) -> Option<&Node> {
        self.entries()?.iter().find(|(k, _)| k.text() == Some(key)).map(|(_, value)| value)
    }
}

// === parsing ===

/// The tree of `text`, which is at most one document. `None`: there is none, or it is null.
pub(in crate::package) fn parse(text: &str) -> Result<Option<Node>, ParseError> {
    let offsets = Offsets::new(text);
    let mut builder = Builder::default();
    let mut documents = 0;
    for event in Parser::new_from_str(text) {
        // The parser repeats an error for ever, so the first one ends the loop.
        let (event, span) = event.map_err(|error| ParseError::Syntax {
            line: error.marker().line(),
            message: error.info().to_owned(),
        })?;
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
            if documents > 1 {
                return Err(ParseError::SeveralDocuments { line: span.start.line() });
            }
        }
        builder.event(event, span, text, &offsets)?;
    }
    Ok(builder.root.filter(|root| !root.is_null()))
}

/// Byte offset of each 64th character; the parser counts characters.
struct Offsets<'a> {
    text: &'a str,
    marks: Vec<usize>,
}

impl<'a> Offsets<'a> {
    const STEP: usize = 64;

    fn new(text: &'a str) -> Self {
        let marks = if text.is_ascii() {
            Vec::new()
        } else {
            text.char_indices().step_by(Self::STEP).map(|(byte, _)| byte).collect()
        };
        Self { text, marks }
    }

    fn byte(&self, character: usize) -> usize {
        if self.marks.is_empty() {
            return character.min(self.text.len());
        }
        let Some(&mark) = self.marks.get(character / Self::STEP) else {
            return self.text.len();
        };
        let rest = &self.text[mark..];
        mark + rest.char_indices().nth(character % Self::STEP).map_or(rest.len(), |(byte, _)| byte)
    }
}

#[derive(Default)]
struct Builder {
    /// Collections that are still open, each with the key that waits for its value.
    open: Vec<(Node, Option<Node>)>,
    root: Option<Node>,
}

impl Builder {
    fn event(
        &mut self,
        event: Event<'_>,
        span: Span,
        text: &str,
        offsets: &Offsets<'_>,
    ) -> Result<(), ParseError> {
        let start = offsets.byte(span.start.index());
        let end = offsets.byte(span.end.index()).max(start);
        let node = |body, tag: Option<Cow<'_, Tag>>, anchor, end| Node {
            span: start..end,
            body,
            // `!!merge` says nothing that its key `<<` does not; Go's YAML library adds it to each.
            tag: tag.map(|tag| format!("{}{}", tag.handle, tag.suffix)).filter(|tag| tag != MERGE_TAG),
            anchor,
        };
        match event {
            Event::Scalar(content, style, anchor, tag) => {
                let (style, end) = match style {
                    ScalarStyle::Plain => (Style::Plain, if content.is_empty() { start } else { end }),
                    ScalarStyle::SingleQuoted => (Style::SingleQuoted, quote_end(text, start..end, '\'')),
                    ScalarStyle::DoubleQuoted => (Style::DoubleQuoted, quote_end(text, start..end, '"')),
                    ScalarStyle::Literal | ScalarStyle::Folded => {
                        (Style::Block, block_end(text, end).max(start))
                    }
                };
                let body = Body::Scalar(Scalar { text: content.into_owned(), style });
                self.add(node(body, tag, anchor, end));
            }
            Event::Alias(anchor) => self.add(node(Body::Alias(anchor), None, 0, end)),
            Event::SequenceStart(anchor, tag) => {
                let body = Body::Sequence { items: Vec::new(), flow: is_flow(text, start..end, '[') };
                self.open(node(body, tag, anchor, end), span)?;
            }
            Event::MappingStart(anchor, tag) => {
                let body = Body::Mapping { entries: Vec::new(), flow: is_flow(text, start..end, '{') };
                self.open(node(body, tag, anchor, end), span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(text, end),
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn open(&mut self, node: Node, span: Span) -> Result<(), ParseError> {
        if self.open.len() >= MAX_DEPTH {
            return Err(ParseError::TooDeep { line: span.start.line() });
        }
        self.open.push((node, None));
        Ok(())
    }

    /// A block collection has no closing character: the parser puts its end at the next token, past comments
    /// that do not belong to it. So its last child says where it ends.
    fn close(&mut self, text: &str, end: usize) {
        let Some((mut node, _)) = self.open.pop() else { return };
        let (flow, last) = match &node.body {
            Body::Sequence { items, flow } => (*flow, items.last().map(|item| item.span.end)),
            Body::Mapping { entries, flow } => {
                (*flow, entries.last().map(|(key, value)| key.span.end.max(value.span.end)))
            }
            Body::Scalar(_) | Body::Alias(_) => (false, None),
        };
        let last = last.unwrap_or(node.span.end);
        node.span.end = if flow { flow_end(text, last, end) } else { last }.max(node.span.start);
        self.add(node);
    }

    fn add(&mut self, node: Node) {
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some((Node { body: Body::Sequence { items, .. }, .. }, _)) => items.push(node),
            Some((Node { body: Body::Mapping { entries, .. }, .. }, key)) => match key.take() {
                None => *key = Some(node),
                Some(key) => entries.push((key, node)),
            },
            // Only collections are opened.
            Some(_) => {}
        }
    }
}

/// True when a collection opens with its bracket, after an anchor or a tag. Block collections have no text of
/// their own.
fn is_flow(text: &str, span: Range<usize>, bracket: char) -> bool {
    let mut rest = &text[span];
    while let Some((_, after)) = rest.split_once(char::is_whitespace).filter(|_| rest.starts_with(['&', '!'])) {
        rest = after.trim_start();
    }
    rest.starts_with(bracket)
}

/// Where a flow collection ends whose last child ends at `from`. With a trailing comma the parser takes the
/// comma, and the comment behind it, for the end of a mapping. `end`, what the parser says, is the last resort.
fn flow_end(text: &str, from: usize, end: usize) -> usize {
    let is_filling = |c: char| c.is_whitespace() || matches!(c, ',' | ':' | '?');
    let mut rest = text[from..].trim_start_matches(is_filling);
    while let Some((_, below)) = rest.strip_prefix('#').and_then(|comment| comment.split_once('\n')) {
        rest = below.trim_start_matches(is_filling);
    }
    rest.strip_prefix(['}', ']']).map_or(end, |rest| text.len() - rest.len())
}

/// The parser counts the comment behind a quoted scalar in; the closing quote ends it.
fn quote_end(text: &str, span: Range<usize>, quote: char) -> usize {
    let quoted = &text[span.clone()];
    let mut characters = quoted.char_indices().skip_while(|(_, c)| *c != quote).skip(1).peekable();
    while let Some((at, c)) = characters.next() {
        let is_escape = match quote {
            '"' => c == '\\',
            _ => c == quote && characters.peek().is_some_and(|(_, next)| *next == quote),
        };
        if is_escape {
            characters.next();
        } else if c == quote {
            return span.start + at + 1;
        }
    }
    span.end
}

/// The parser ends a block scalar at the next token; its content ends with the line before that.
fn block_end(text: &str, end: usize) -> usize {
    let line = text[..end].rfind('\n').map_or(0, |newline| newline + 1);
    if text[line..end].trim().is_empty() { line } else { end }
}

// === comparing ===

/// True when both trees hold the same values in the same order. Places, comments and needless quotes do not
/// count, nor do the numbers of anchors, as long as each alias means the same node.
pub(in crate::package) fn same(a: &Node, b: &Node) -> bool {
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
                && a.iter().zip(b).all(|((ka, va), (kb, vb))| {
                    same_node(ka, kb, anchors) && same_node(va, vb, anchors)
                })
        }
        _ => false,
    }
}

// === aliases ===

/// `node` with every alias written out and no anchors; `root` is the document that sets the anchors. `None`:
/// an alias contains itself, or the result would be too large.
pub(in crate::package) fn expand(root: &Node, node: &Node) -> Option<Node> {
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
