//! YAML as text with a tree beside it.
//!
//! A kpt package is text that people write and review: comments, quotes and line breaks are theirs.
//! Serde would drop them, so documents change by edits of their text: [`mod@parse`] remembers the
//! bytes of each node, [`mod@patch`] brings new values into the text, and [`emit`] writes only what
//! has no text yet.
//!
//! Rule: an edited text counts only once it has been parsed again and gives the intended tree. An
//! unforeseen piece of YAML syntax can cost a comment, never a value.

mod documents;
mod emit;
mod lines;
mod parse;
mod patch;
mod scalar;
mod sequences;
mod tree;

#[cfg(test)]
mod tests;

pub(super) use documents::document_ranges;
pub(super) use emit::document;
pub(super) use lines::{column, dedent, indent, line_end};
pub(super) use parse::{ParseError, Yaml};
pub(super) use patch::{patch, rewrite};
pub(super) use scalar::{Scalar, Style};
pub(super) use sequences::{sequence_indent, widen};
pub(super) use tree::{Body, Entry, Node, same};
