//! YAML as text with a tree beside it.
//!
//! A kpt package is text that people write and review: comments, quoting and line breaks are theirs. Serde
//! would drop them, so documents are edited in place here: [`mod@parse`] remembers where each node stands,
//! [`edit`] and [`mod@patch`] change the text at those places, and [`emit`] writes a tree anew for the few documents
//! that no edit fits.
//!
//! Rule: an edited text counts only once it has been parsed again and gives the tree that was meant. So an
//! unforeseen piece of YAML syntax can cost a comment, never a value.

mod comments;
mod edit;
mod emit;
mod parse;
mod patch;
mod resolve;
mod scalar;
mod sections;
mod tree;
mod widen;

#[cfg(test)]
mod tests;

pub(super) use comments::no_new_comments;
pub(super) use edit::{Edit, append_entries, apply, indent, line_end, remove_entries, replace_null};
pub(super) use emit::{document, json};
pub(super) use parse::{ParseError, parse};
pub(super) use patch::patch;
pub(super) use scalar::{Scalar, Style};
pub(super) use sections::{Section, sections};
pub(super) use tree::{Body, Entry, Node, expand, same};
pub(super) use widen::widen;
