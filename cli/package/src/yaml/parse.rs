//! From text to tree, with the byte range of each node.
//!
//! The parser reports where its tokens end, which is not always where a node does. The corrections are here,
//! so that everybody else can trust a span.

use std::borrow::Cow;
use std::ops::Range;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};
use thiserror::Error;

use super::tree::MAX_DEPTH;
use super::{Body, Node, Scalar, Style};

const MERGE_TAG: &str = "tag:yaml.org,2002:merge";

/// Why a text is not one document.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum ParseError {
    #[error("{message}")]
    Syntax { line: usize, message: String },
    #[error("there is more than one document")]
    SeveralDocuments { line: usize },
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    TooDeep { line: usize },
}

impl ParseError {
    /// The line of the text where it went wrong, from 1.
    pub(crate) fn line(&self) -> usize {
        match self {
            Self::Syntax { line, .. } | Self::SeveralDocuments { line } | Self::TooDeep { line } => *line,
        }
    }
}

/// The tree of `text`, which is at most one document. `None`: there is none, or it is null.
pub(crate) fn parse(text: &str) -> Result<Option<Node>, ParseError> {
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
                let is_absent = content.is_empty() && anchor == 0 && tag.is_none();
                let (style, end) = match style {
                    ScalarStyle::Plain => (Style::Plain, if is_absent { start } else { end }),
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

// === where nodes end ===

/// True when a collection opens with its bracket, after an anchor or a tag. Block collections have no text of
/// their own.
fn is_flow(text: &str, span: Range<usize>, bracket: char) -> bool {
    let mut rest = &text[span];
    while let Some((_, after)) = rest.split_once(char::is_whitespace).filter(|_| rest.starts_with(['&', '!']))
    {
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
