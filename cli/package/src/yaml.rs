//! YAML as a text and a tree.
//!
//! People write and review the text of a kpt package: comments, quotes and line breaks must stay.
//! Serde would drop them, so documents are changed by editing their text. [`mod@parse`] records the
//! bytes of each node, [`mod@patch`] edits new values into the text, and [`emit`] serializes only
//! nodes that have no text.
//!
//! Rule: an edited text is accepted only if it parses to the intended tree. So unexpected YAML
//! syntax can cost a comment, but never a value.

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
