//! The structured results of a function, as far as the error text shows them.
//!
//! The text is that of Porch's Go SDK. It ends up in a gRPC trailer, so it is bounded.

use std::fmt::{self, Write as _};

use super::Invalid;
use super::events::{Events, Node, Value};

/// How long all kept results may be as text, in bytes. Those past it are counted only.
pub const TEXT_LIMIT: usize = 64 * 1024;

/// How long one result's message may be, in bytes. The rest is cut off.
pub const MESSAGE_LIMIT: usize = 16 * 1024;

/// How long any other part of a result may be, in bytes. The rest is cut off.
pub const PART_LIMIT: usize = 1024;

/// The results of a `ResourceList`, in order. The text is empty if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Results {
    /// As many as fit into [`TEXT_LIMIT`].
    pub entries: Vec<Entry>,
    /// How many were left out.
    pub left_out: usize,
    /// Whether any, left out or not, has the severity `error`.
    pub has_error: bool,
}

/// One result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// Its severity; an empty one counts and prints as `info`.
    pub severity: String,
    /// What is wrong.
    pub message: String,
    /// The resource that it is about; all empty if it is about none.
    pub resource: ResourceRef,
    /// The path of the field that it is about.
    pub field: Option<String>,
}

/// Names a resource, in the order of the text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceRef {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace, empty for a resource without one.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Results {
    /// Reads the value of the key `results`, which may be a list or a mapping with the list under `items`.
    pub(super) fn read<'a>(events: &mut Events<'a>, node: &Node<'a>) -> Result<Self, Invalid> {
        let mut results = Self::default();
        let mut room = TEXT_LIMIT;
        let mut read_list = |events: &mut Events<'a>, list: &Node<'a>| {
            list.must_be_a_list("results")?;
            events.each_element(|events, entry| {
                results.push(Entry::read(events, &entry)?, &mut room);
                Ok(())
            })
        };
        match node.value {
            Value::List => read_list(events, node)?,
            Value::Mapping => {
                let mut found = false;
                events.each_entry(|events, key, node| {
                    if key == "items" && !std::mem::replace(&mut found, true) {
                        read_list(events, &node)
                    } else {
                        events.skip(&node)
                    }
                })?;
            }
            Value::Null | Value::Text(_) => {}
            Value::Alias => return Err(node.not_a("list", "results")),
        }
        Ok(results)
    }

    fn push(&mut self, entry: Entry, room: &mut usize) {
        self.has_error |= entry.severity == "error";
        let needed = entry.to_string().len() + SEPARATOR.len();
        if needed <= *room {
            *room -= needed;
            self.entries.push(entry);
        } else {
            // What comes next would be out of place.
            *room = 0;
            self.left_out += 1;
        }
    }
}

const SEPARATOR: &str = "\n\n";

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, entry) in self.entries.iter().enumerate() {
            let separator = if i == 0 { "" } else { SEPARATOR };
            write!(f, "{separator}{entry}")?;
        }
        if self.left_out > 0 {
            write!(f, "{SEPARATOR}[... {} more results left out ...]", self.left_out)?;
        }
        Ok(())
    }
}

impl Entry {
    fn read<'a>(events: &mut Events<'a>, node: &Node<'a>) -> Result<Self, Invalid> {
        let mut entry = Self::default();
        if matches!(node.value, Value::Alias) {
            // A repeat of an earlier result, which is not kept for this.
            entry.message.push_str("(YAML alias)");
            return Ok(entry);
        }
        node.must_be_a_mapping("each of results")?;
        events.each_entry(|events, key, node| match key {
            "severity" => text(&node, "severity of a result", PART_LIMIT).map(|text| entry.severity = text),
            "message" => text(&node, "message of a result", MESSAGE_LIMIT).map(|text| entry.message = text),
            "resourceRef" => entry.resource.read(events, &node),
            "field" => {
                if is_absent(&node) {
                    return Ok(());
                }
                node.must_be_a_mapping("field of a result")?;
                let path = entry.field.insert(String::new());
                events.each_entry(|events, key, node| match key {
                    "path" => text(&node, "field.path of a result", PART_LIMIT).map(|text| *path = text),
                    _ => events.skip(&node),
                })
            }
            _ => events.skip(&node),
        })?;
        Ok(entry)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = if self.severity.is_empty() { "info" } else { &self.severity };
        write!(f, "[{severity}]")?;
        let resource = &self.resource;
        let parts = [&resource.api_version, &resource.kind, &resource.namespace, &resource.name];
        for (i, part) in parts.into_iter().filter(|part| !part.is_empty()).enumerate() {
            f.write_char(if i == 0 { ' ' } else { '/' })?;
            f.write_str(part)?;
        }
        if let Some(path) = &self.field {
            write!(f, " {path}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl ResourceRef {
    fn read<'a>(&mut self, events: &mut Events<'a>, node: &Node<'a>) -> Result<(), Invalid> {
        if is_absent(node) {
            return Ok(());
        }
        node.must_be_a_mapping("resourceRef of a result")?;
        events.each_entry(|events, key, node| {
            let part = match key {
                "apiVersion" => &mut self.api_version,
                "kind" => &mut self.kind,
                "namespace" => &mut self.namespace,
                "name" => &mut self.name,
                _ => return events.skip(&node),
            };
            *part = text(&node, "resourceRef of a result", PART_LIMIT)?;
            Ok(())
        })
    }
}

fn is_absent(node: &Node<'_>) -> bool {
    matches!(node.value, Value::Null | Value::Alias)
}

/// The text of a scalar, empty for null and for an alias.
fn text(node: &Node<'_>, part: &'static str, limit: usize) -> Result<String, Invalid> {
    match &node.value {
        Value::Text(text) => Ok(cut(text, limit)),
        Value::Null | Value::Alias => Ok(String::new()),
        Value::List | Value::Mapping => Err(node.not_a("scalar", part)),
    }
}

/// `text` in `limit` bytes at most, with an ellipsis in the place of what is cut off.
pub(crate) fn cut(text: &str, limit: usize) -> String {
    const ELLIPSIS: &str = "...";
    if text.len() <= limit {
        return text.to_owned();
    }
    let kept = text.floor_char_boundary(limit.saturating_sub(ELLIPSIS.len()));
    format!("{}{ELLIPSIS}", &text[..kept])
}
