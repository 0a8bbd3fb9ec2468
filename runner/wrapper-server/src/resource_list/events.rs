//! Walks over the nodes of an output with the parser's events. Each node is read or skipped.

use std::borrow::Cow;
use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, StrInput};

use super::EMPTY;

/// The nesting limit of Go's YAML library. (The parser allows only 255 nested flow collections.)
const MAX_DEPTH: usize = 10_000;

/// A position in the function's stdout: line and column in characters, both from 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position {
    line: usize,
    column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Converts an output to a text that the parser can read. Also returns the number of characters
/// that were added before the first line.
pub(super) fn readable(output: &[u8]) -> Result<(Cow<'_, str>, usize), String> {
    let line_of = |end: usize| output[..end].split(|&byte| byte == b'\n').count();
    let text = std::str::from_utf8(output).map_err(|error| {
        let line = line_of(error.valid_up_to());
        format!("invalid UTF-8 in line {line}: the function must write UTF-8 to stdout")
    })?;
    if let Some((at, character)) = control_character(text) {
        let (code, line) = (u32::from(character), line_of(at));
        return Err(format!(
            "control characters are not allowed, U+{code:04X} in line {line}: it must be escaped in double quotes"
        ));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.starts_with('{') {
        Ok((format!("{PREFIX}{text}").into(), PREFIX.len()))
    } else {
        Ok((text.into(), 0))
    }
}

/// Added before a document in flow style. For the parser, a `{` at the beginning of a line may
/// begin a key. Until the parser has found out, it keeps the tokens of the whole document, which
/// take 70 times the document's size. After this prefix, the `{` cannot begin a key.
const PREFIX: &str = "--- ";

/// The first character that YAML does not allow in a document, and its offset. Reads bytes, because
/// decoding the characters of a large output takes milliseconds.
pub(super) fn control_character(text: &str) -> Option<(usize, char)> {
    let bytes = text.as_bytes();
    let first =
        bytes.chunks(BLOCK).position(|block| block.iter().fold(false, |any, &byte| any | may_begin(byte)))?;
    // In UTF-8, one more byte follows 0xc2, and two more bytes follow 0xef.
    let at = (first * BLOCK..bytes.len()).find(|&at| match bytes[at] {
        b'\t' | b'\n' | b'\r' => false,
        ..0x20 | 0x7f => true,
        // U+0080 to U+009F, except the line end U+0085.
        0xc2 => bytes[at + 1] < 0xa0 && bytes[at + 1] != 0x85,
        // U+FFFE and U+FFFF.
        0xef => bytes[at + 1] == 0xbf && bytes[at + 2] >= 0xbe,
        _ => false,
    })?;
    Some((at, text[at..].chars().next()?))
}

/// Number of bytes that are tested at once. The compiler uses vector instructions for them.
const BLOCK: usize = 64;

/// Whether a byte may be the first of a character that YAML does not allow.
#[expect(clippy::needless_bitwise_bool, reason = "branches would prevent vector instructions")]
fn may_begin(byte: u8) -> bool {
    let is_control = (byte < 0x20) & (byte != b'\t') & (byte != b'\n') & (byte != b'\r');
    is_control | (byte == 0x7f) | (byte == 0xc2) | (byte == 0xef)
}

/// The beginning of a node. A list or a mapping continues in the next events.
pub(super) struct Node<'a> {
    pub(super) value: Value<'a>,
    pub(super) at: Position,
}

pub(super) enum Value<'a> {
    Null,
    Text(Cow<'a, str>),
    Alias,
    List,
    Mapping,
}

impl Node<'_> {
    /// Checks that the node, which is `part` of the output, is of the type `expected`.
    pub(super) fn must_be(&self, expected: &'static str, part: &'static str) -> Result<(), String> {
        let found = match self.value {
            Value::Null => "null",
            Value::Text(_) => "scalar",
            Value::Alias => "YAML alias",
            Value::List => "list",
            Value::Mapping => "mapping",
        };
        if found == expected {
            return Ok(());
        }
        Err(format!("{part} must be a {expected}, found a {found} at {}", self.at))
    }
}

/// The events of one document.
pub(super) struct Events<'a> {
    parser: Parser<'a, StrInput<'a>>,
    prefix: usize,
    /// Number of open collections.
    depth: usize,
}

impl<'a> Events<'a> {
    /// The events of a [`readable`] text.
    pub(super) fn new(text: &'a str, prefix: usize) -> Self {
        Self { parser: Parser::new_from_str(text), prefix, depth: 0 }
    }

    /// The root of the first document, if there is a document.
    pub(super) fn document(&mut self) -> Result<Option<Node<'a>>, String> {
        // Skips the start of the stream.
        self.next()?;
        match self.next()? {
            (Event::DocumentStart(_), _) => self.node(),
            _ => Ok(None),
        }
    }

    /// Checks that nothing follows the root.
    pub(super) fn end(&mut self) -> Result<(), String> {
        // Skips the end of the document.
        self.next()?;
        match self.next()? {
            (Event::DocumentStart(_), at) => Err(format!(
                "expected exactly one object, got another at {at}: only the ResourceList may go to stdout"
            )),
            _ => Ok(()),
        }
    }

    /// Skips the rest of `node`, which was just begun.
    pub(super) fn skip(&mut self, node: &Node<'a>) -> Result<(), String> {
        if matches!(node.value, Value::List | Value::Mapping) {
            let outside = self.depth - 1;
            while self.depth > outside {
                self.next()?;
            }
        }
        Ok(())
    }

    /// Calls `element` with each node of the list that was just begun. `element` must read the node
    /// or skip it.
    pub(super) fn each_element(
        &mut self,
        mut element: impl FnMut(&mut Self, Node<'a>) -> Result<(), String>,
    ) -> Result<(), String> {
        while let Some(node) = self.node()? {
            element(self, node)?;
        }
        Ok(())
    }

    /// Calls `entry` with each key and value of the mapping that was just begun. `entry` must read
    /// the value or skip it. It gets an empty text for a key that is not a scalar.
    pub(super) fn each_entry(
        &mut self,
        mut entry: impl FnMut(&mut Self, &str, Node<'a>) -> Result<(), String>,
    ) -> Result<(), String> {
        while let Some(key) = self.node()? {
            self.skip(&key)?;
            let Some(value) = self.node()? else { return Ok(()) };
            entry(self, if let Value::Text(key) = &key.value { key } else { "" }, value)?;
        }
        Ok(())
    }

    /// The beginning of the next node, or nothing at the end of the collection.
    fn node(&mut self) -> Result<Option<Node<'a>>, String> {
        let (event, at) = self.next()?;
        let value = match event {
            Event::Scalar(text, ScalarStyle::Plain, ..)
                if matches!(&*text, "" | "~" | "null" | "Null" | "NULL") =>
            {
                Value::Null
            }
            Event::Scalar(text, ..) => Value::Text(text),
            Event::Alias(_) => Value::Alias,
            Event::SequenceStart(..) => Value::List,
            Event::MappingStart(..) => Value::Mapping,
            _ => return Ok(None),
        };
        Ok(Some(Node { value, at }))
    }

    fn next(&mut self) -> Result<(Event<'a>, Position), String> {
        let (event, span) = match self.parser.next_event() {
            Some(Ok(next)) => next,
            Some(Err(error)) => {
                let (at, problem) = (self.position(error.marker()), error.info());
                return Err(format!(
                    "invalid YAML at {at}: {problem}: only the ResourceList may go to stdout, all else to stderr"
                ));
            }
            // The parser returns `None` only after the end of the stream.
            None => return Err(EMPTY.to_owned()),
        };
        let at = self.position(&span.start);
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => self.depth += 1,
            Event::SequenceEnd | Event::MappingEnd => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        if self.depth > MAX_DEPTH {
            return Err(format!("invalid YAML at {at}: nested more than {MAX_DEPTH} levels deep"));
        }
        Ok((event, at))
    }

    fn position(&self, marker: &Marker) -> Position {
        let prefix = if marker.line() == 1 { self.prefix } else { 0 };
        Position { line: marker.line(), column: 1 + marker.col().saturating_sub(prefix) }
    }
}
