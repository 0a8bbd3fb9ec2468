//! Parses a text into a tree, with the byte range of each node and of each comment.

use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StructureStyle};
use thiserror::Error;

use super::lines::line_start;
use super::{Body, Node, Scalar, Style};

/// The tag of a merge key `<<`. It is redundant; Go's YAML library adds it to each merge key.
const MERGE_TAG: &str = "tag:yaml.org,2002:merge";
/// Maximum number of nodes that aliases copy, against the "billion laughs" attack.
const MAX_COPIED_NODES: usize = 100_000;

/// Reason why a text is not a single document.
#[derive(Debug, Error)]
#[error("line {line}: {message}")]
pub(crate) struct ParseError {
    /// Line of the text, from 1.
    pub(crate) line: usize,
    pub(crate) message: String,
}

/// A document that is not null, as text and as a tree.
#[derive(Debug, Clone)]
pub(crate) struct Yaml {
    pub(crate) text: String,
    pub(crate) root: Node,
    /// The byte range of each comment in order, from its `#`.
    comments: Vec<Range<usize>>,
}

impl Yaml {
    /// Parses the document in `text`. `None`: there is no document, or it is null.
    ///
    /// # Errors
    ///
    /// [`ParseError`] when the text is not YAML, holds several documents, nests deeper than 255
    /// levels, or has an alias that contains itself, or aliases that copy too many nodes.
    pub(crate) fn parse(text: impl Into<String>) -> Result<Option<Self>, ParseError> {
        let text = text.into();
        let mut options = Options::default();
        options.max_buffered_comment_events = usize::MAX;
        let mut builder = Builder::default();
        let mut documents = 0;
        for event in Parser::new_from_str_with_options(&text, options) {
            let (event, span) = event.map_err(|error: ScanError| ParseError {
                line: error.marker().line(),
                message: error.info(),
            })?;
            let refused = |message: &str| ParseError { line: span.start.line(), message: message.to_owned() };
            if matches!(event, Event::DocumentStart(..)) {
                documents += 1;
                if documents > 1 {
                    return Err(refused("there is more than one document"));
                }
            }
            builder
                .event(event, span, &text)
                .ok_or_else(|| refused("an alias contains itself, or aliases copy more than 100000 nodes"))?;
        }
        let Builder { root, comments, .. } = builder;
        Ok(root.filter(|root| !root.is_null()).map(|root| Self { text, root, comments }))
    }

    /// Parses the document in `text`. `None` also for invalid YAML.
    pub(crate) fn valid(text: impl Into<String>) -> Option<Self> {
        Self::parse(text).ok().flatten()
    }

    /// Returns whether this document has each comment of `other`.
    pub(crate) fn has_comments_of(&self, other: &Self) -> bool {
        let mut ours = self.sorted_comments().into_iter();
        other.sorted_comments().into_iter().all(|comment| ours.any(|our| our == comment))
    }

    fn sorted_comments(&self) -> Vec<&str> {
        let comments = self.comments.iter().map(|range| self.text[range.clone()].trim_end());
        let mut comments: Vec<_> = comments.collect();
        comments.sort_unstable();
        comments
    }
}

#[derive(Default)]
struct Builder {
    /// Collections without an end so far, each with its anchor and the key that has no value yet.
    open: Vec<(Node, usize, Option<Node>)>,
    root: Option<Node>,
    anchors: HashMap<usize, Node>,
    copied: usize,
    comments: Vec<Range<usize>>,
}

impl Builder {
    /// Processes an event. `None`: an alias contains itself, or aliases copy too many nodes.
    fn event(&mut self, event: Event<'_>, span: Span, text: &str) -> Option<()> {
        let span = span.byte_range()?;
        let tag = event.tag().map(|tag| format!("{}{}", tag.handle(), tag.suffix()));
        let tag = tag.filter(|tag| tag != MERGE_TAG);
        let node = |span, body| Node { span, body, tag, is_alias: false };
        match event {
            Event::Comment(..) => self.comments.push(span),
            Event::Scalar(content, style, anchor, _) => {
                let style = match style {
                    ScalarStyle::Plain => Style::Plain,
                    ScalarStyle::SingleQuoted => Style::Quoted('\''),
                    ScalarStyle::DoubleQuoted => Style::Quoted('"'),
                    ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
                };
                let is_absent = style == Style::Plain && span.is_empty();
                let content = if is_absent { String::new() } else { content.into_owned() };
                // The span of a block scalar extends to the next token. Its content ends with the
                // line before that token.
                let line = line_start(text, span.end);
                let is_indented = style == Style::Block && text[line..span.end].trim().is_empty();
                let end = if is_indented { line.max(span.start) } else { span.end };
                let body = Body::Scalar(Scalar { text: content, style });
                self.add(node(span.start..end, body), anchor);
            }
            Event::Alias(anchor) => {
                let target = self.anchors.get(&anchor)?.clone();
                self.copied += size(&target);
                if self.copied > MAX_COPIED_NODES {
                    return None;
                }
                self.add(Node { span, is_alias: true, ..target }, 0);
            }
            Event::SequenceStart(style, anchor, _) => {
                let body = Body::Sequence { items: Vec::new(), flow: style == StructureStyle::Flow };
                self.open.push((node(span, body), anchor, None));
            }
            Event::MappingStart(style, anchor, _) => {
                let body = Body::Mapping { entries: Vec::new(), flow: style == StructureStyle::Flow };
                self.open.push((node(span, body), anchor, None));
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(span.end),
            _ => {}
        }
        Some(())
    }

    /// Closes a collection. A block collection has no closing character, so it ends with its last
    /// child.
    fn close(&mut self, end: usize) {
        let Some((mut node, anchor, _)) = self.open.pop() else { return };
        node.span.end = match &node.body {
            Body::Sequence { items, flow: false } => items.last().map_or(end, |item| item.span.end),
            Body::Mapping { entries, flow: false } => entries.last().map_or(end, entry_end),
            _ => end,
        };
        self.add(node, anchor);
    }

    fn add(&mut self, node: Node, anchor: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some((Node { body: Body::Sequence { items, .. }, .. }, ..)) => items.push(node),
            Some((Node { body: Body::Mapping { entries, .. }, .. }, _, key)) => match key.take() {
                None => *key = Some(node),
                Some(key) => entries.push((key, node)),
            },
            // Cannot happen: `open` contains only collections.
            Some(_) => {}
        }
    }
}

/// Returns the end of an entry.
pub(super) fn entry_end((key, value): &(Node, Node)) -> usize {
    key.span.end.max(value.span.end)
}

fn size(node: &Node) -> usize {
    1 + match &node.body {
        Body::Scalar(_) => 0,
        Body::Sequence { items, .. } => items.iter().map(size).sum(),
        Body::Mapping { entries, .. } => {
            entries.iter().map(|(key, value)| size(key) + size(value)).sum::<usize>()
        }
    }
}
