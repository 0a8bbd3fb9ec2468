//! Writes a tree as text: block style with two spaces, sequences level with their key.
//!
//! This is for documents that no text edit fits and for items that a function returned as JSON. Values keep
//! their type, since a scalar that was plain stays plain, to the letter; comments are lost.

use std::fmt::Write as _;

use serde_json::{Map, Number, Value};
use thiserror::Error;

use super::scalar::{double_quoted, is_plain_string, needs_escape, single_quoted};
use super::{Body, Entry, Node, Scalar, Style, parse, same};

/// The tree has no text that gives it back: a mapping as a key, or an alias without its anchor.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("it uses YAML that cannot be written again, such as a mapping as a key")]
pub(crate) struct EmitError;

/// The text of a document. It has been parsed again and is known to give `root`.
pub(crate) fn document(root: &Node) -> Result<String, EmitError> {
    let mut out = String::new();
    value(&mut out, root, 0, Place::Document)?;
    let is_root = |read: &Node| same(read, root);
    if parse(&out).ok().flatten().as_ref().is_some_and(is_root) { Ok(out) } else { Err(EmitError) }
}

/// The entries of a mapping as lines, each indented by `indent` spaces.
pub(super) fn block_entries(out: &mut String, entries: &[Entry], indent: usize) -> Result<(), EmitError> {
    for (key, item) in entries {
        push_spaces(out, indent);
        entry(out, key, item, indent)?;
    }
    Ok(())
}

/// The entries of a mapping on one line, as JSON has them, without the braces.
pub(super) fn flow_entries(entries: &[Entry]) -> Result<String, EmitError> {
    let pairs: Result<Vec<_>, _> = entries
        .iter()
        .map(|(key, item)| Ok(format!("{}: {}", double_quoted(key.text().ok_or(EmitError)?), flow(item)?)))
        .collect();
    Ok(pairs?.join(", "))
}

fn flow(node: &Node) -> Result<String, EmitError> {
    if node.anchor != 0 || node.tag.is_some() {
        return Err(EmitError);
    }
    Ok(match &node.body {
        Body::Alias(_) => return Err(EmitError),
        Body::Scalar(scalar) if scalar.is_null() => "null".to_owned(),
        Body::Scalar(scalar) if scalar.is_string() => double_quoted(&scalar.text),
        Body::Scalar(scalar) => scalar.text.clone(),
        Body::Sequence { items, .. } => {
            let items: Result<Vec<_>, _> = items.iter().map(flow).collect();
            format!("[{}]", items?.join(", "))
        }
        Body::Mapping { entries, .. } => format!("{{{}}}", flow_entries(entries)?),
    })
}

/// Where a value is written, which decides what comes between it and the text before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Document,
    AfterKey,
    AfterDash,
}

fn entry(out: &mut String, key: &Node, item: &Node, indent: usize) -> Result<(), EmitError> {
    let scalar = key.scalar().ok_or(EmitError)?;
    push_tag(out, key)?;
    out.push_str(&inline(scalar));
    out.push(':');
    value(out, item, indent, Place::AfterKey)
}

fn value(out: &mut String, node: &Node, indent: usize, place: Place) -> Result<(), EmitError> {
    if node.anchor != 0 {
        return Err(EmitError);
    }
    if place == Place::AfterKey {
        out.push(' ');
    }
    push_tag(out, node)?;
    let first_on_line = place == Place::Document && node.tag.is_none();
    match &node.body {
        Body::Alias(_) => return Err(EmitError),
        Body::Scalar(scalar) if is_literal(scalar) => {
            literal(out, &scalar.text, indent + 2);
            return Ok(());
        }
        Body::Scalar(scalar) => out.push_str(&inline(scalar)),
        Body::Sequence { items, .. } if items.is_empty() => out.push_str("[]"),
        Body::Mapping { entries, .. } if entries.is_empty() => out.push_str("{}"),
        Body::Sequence { items, .. } => {
            // Level with a key, but below a dash one step in.
            let indent = if place == Place::AfterDash { indent + 2 } else { indent };
            if !first_on_line {
                end_line(out);
            }
            for item in items {
                push_spaces(out, indent);
                out.push_str("- ");
                value(out, item, indent, Place::AfterDash)?;
            }
            return Ok(());
        }
        Body::Mapping { entries, .. } => {
            let inner = if place == Place::Document { indent } else { indent + 2 };
            if place == Place::AfterDash && node.tag.is_none() {
                // The first key follows its dash.
                if let [(key, item), rest @ ..] = entries.as_slice() {
                    entry(out, key, item, inner)?;
                    return block_entries(out, rest, inner);
                }
            }
            if !first_on_line {
                end_line(out);
            }
            return block_entries(out, entries, inner);
        }
    }
    end_line(out);
    Ok(())
}

/// Ends a line, without the space that an absent value leaves.
fn end_line(out: &mut String) {
    if out.ends_with(' ') && !out.ends_with("  ") {
        out.pop();
    }
    out.push('\n');
}

fn push_spaces(out: &mut String, count: usize) {
    out.extend(std::iter::repeat_n(' ', count));
}

fn push_tag(out: &mut String, node: &Node) -> Result<(), EmitError> {
    let Some(tag) = &node.tag else { return Ok(()) };
    if tag.contains(['>', '\n']) {
        return Err(EmitError);
    }
    match tag.strip_prefix("tag:yaml.org,2002:") {
        Some(core) => _ = write!(out, "!!{core} "),
        None if tag.starts_with('!') => _ = write!(out, "{tag} "),
        None => _ = write!(out, "!<{tag}> "),
    }
    Ok(())
}

/// A scalar on one line.
fn inline(scalar: &Scalar) -> String {
    let text = scalar.text.as_str();
    match scalar.style {
        // A plain scalar over several lines is a string; quotes keep its line breaks.
        Style::Plain if text.contains('\n') => double_quoted(text),
        Style::Plain => text.to_owned(),
        Style::DoubleQuoted | Style::Block if is_plain_string(text) => text.to_owned(),
        Style::SingleQuoted | Style::DoubleQuoted | Style::Block => single_quoted(text),
    }
}

/// A scalar on one line that keeps the quotes of the one it replaces. `None`: it takes several lines.
pub(super) fn scalar_like(scalar: &Scalar, style: Style) -> Option<String> {
    let text = scalar.text.as_str();
    Some(match style {
        _ if text.is_empty() && !scalar.is_string() => return None,
        _ if text.contains('\n') => return None,
        Style::SingleQuoted if scalar.is_string() => single_quoted(text),
        Style::DoubleQuoted if scalar.is_string() => double_quoted(text),
        _ => inline(scalar),
    })
}

/// True for a text of several lines that a literal block shows as it is.
fn is_literal(scalar: &Scalar) -> bool {
    let text = scalar.text.as_str();
    scalar.style != Style::Plain
        && text.trim_end_matches('\n').contains('\n')
        && !text.starts_with([' ', '\t', '\n'])
        && !text.chars().any(|c| needs_escape(c) && c != '\n')
}

fn literal(out: &mut String, text: &str, indent: usize) {
    let content = text.trim_end_matches('\n');
    out.push_str(match text.len() - content.len() {
        0 => "|-\n",
        1 => "|\n",
        _ => "|+\n",
    });
    let blank_lines = (text.len() - content.len()).saturating_sub(1);
    for line in content.split('\n') {
        if !line.is_empty() {
            push_spaces(out, indent);
            out.push_str(line);
        }
        out.push('\n');
    }
    out.extend(std::iter::repeat_n('\n', blank_lines));
}

/// The tree as JSON, for files named `.json`. Plain scalars mean what YAML 1.2 says, which is what JSON
/// says. `None`: a tag, an alias or a key that is no string.
pub(crate) fn json(node: &Node) -> Option<Value> {
    if node.tag.is_some() || node.anchor != 0 {
        return None;
    }
    Some(match &node.body {
        Body::Alias(_) => return None,
        Body::Scalar(scalar) if scalar.is_null() => Value::Null,
        Body::Scalar(scalar) if scalar.is_string() => Value::String(scalar.text.clone()),
        Body::Scalar(scalar) => match scalar.text.as_str() {
            "true" | "True" | "TRUE" => Value::Bool(true),
            "false" | "False" | "FALSE" => Value::Bool(false),
            text => text.parse::<Number>().map_or_else(|_| Value::String(text.to_owned()), Value::Number),
        },
        Body::Sequence { items, .. } => Value::Array(items.iter().map(json).collect::<Option<_>>()?),
        Body::Mapping { entries, .. } => Value::Object(
            entries
                .iter()
                .map(|(key, value)| Some((key.text()?.to_owned(), json(value)?)))
                .collect::<Option<Map<_, _>>>()?,
        ),
    })
}
