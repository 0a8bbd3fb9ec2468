//! The structured results of a function, as far as the error text contains them.
//!
//! The text is that of Porch's Go SDK. It is sent in a gRPC trailer, so it is bounded.

use std::fmt;

use porch_fn_text::cut;

use super::events::{Events, Node, Value};

/// Largest text of all kept results, in bytes. Further results are only counted.
pub const TEXT_LIMIT: usize = 64 * 1024;

/// Largest message of one result, in bytes. The rest is cut off.
pub const MESSAGE_LIMIT: usize = 16 * 1024;

/// Largest size of any other part of a result, in bytes. The rest is cut off.
pub const PART_LIMIT: usize = 1024;

/// The results of a `ResourceList`. `Display` writes the text of all results, in order, or nothing
/// if there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Results {
    /// As many results as fit into [`TEXT_LIMIT`].
    pub text: String,
    /// Number of results that exceed [`TEXT_LIMIT`] and are left out.
    pub left_out: usize,
    /// Whether any result has the severity `error`, including results that are left out.
    pub has_error: bool,
}

/// One result.
#[derive(Default)]
struct Entry {
    severity: String,
    message: String,
    /// The resource of the result: the values of [`RESOURCE_KEYS`].
    resource: [String; 4],
    /// The path of the field that the result refers to.
    field: Option<String>,
}

/// The keys of `resourceRef`, in their order in the text.
const RESOURCE_KEYS: [&str; 4] = ["apiVersion", "kind", "namespace", "name"];

const SEPARATOR: &str = "\n\n";

impl Results {
    /// Reads the value of the key `results`, which may be a list or a mapping with the list under
    /// `items`.
    pub(super) fn read<'a>(events: &mut Events<'a>, node: &Node<'a>) -> Result<Self, String> {
        let mut results = Self::default();
        let mut read_list = |events: &mut Events<'a>, list: &Node<'a>| {
            list.must_be("list", "results")?;
            events.each_element(|events, entry| {
                results.push(&Entry::read(events, &entry)?);
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
            Value::Alias => node.must_be("list", "results")?,
        }
        Ok(results)
    }

    fn push(&mut self, entry: &Entry) {
        self.has_error |= entry.severity == "error";
        let text = entry.text();
        // After one result is left out, all later ones are left out too, to keep the order.
        if self.left_out > 0 || self.text.len() + SEPARATOR.len() + text.len() > TEXT_LIMIT {
            self.left_out += 1;
            return;
        }
        if !self.text.is_empty() {
            self.text.push_str(SEPARATOR);
        }
        self.text.push_str(&text);
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.left_out > 0 {
            write!(f, "{SEPARATOR}[... {} more results left out ...]", self.left_out)?;
        }
        Ok(())
    }
}

impl Entry {
    fn read<'a>(events: &mut Events<'a>, node: &Node<'a>) -> Result<Self, String> {
        let mut entry = Self::default();
        if matches!(node.value, Value::Alias) {
            // An alias repeats an earlier result. This reader has no access to that result.
            entry.message.push_str("(YAML alias)");
            return Ok(entry);
        }
        node.must_be("mapping", "each of results")?;
        let is_absent = |node: &Node<'_>| matches!(node.value, Value::Null | Value::Alias);
        events.each_entry(|events, key, node| match key {
            "severity" => text(&node, "severity of a result", PART_LIMIT).map(|text| entry.severity = text),
            "message" => text(&node, "message of a result", MESSAGE_LIMIT).map(|text| entry.message = text),
            "resourceRef" if !is_absent(&node) => {
                node.must_be("mapping", "resourceRef of a result")?;
                events.each_entry(|events, key, node| {
                    let Some(at) = RESOURCE_KEYS.iter().position(|known| *known == key) else {
                        return events.skip(&node);
                    };
                    entry.resource[at] = text(&node, "resourceRef of a result", PART_LIMIT)?;
                    Ok(())
                })
            }
            "field" if !is_absent(&node) => {
                node.must_be("mapping", "field of a result")?;
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

    fn text(&self) -> String {
        let severity = if self.severity.is_empty() { "info" } else { &self.severity };
        let resource: Vec<_> =
            self.resource.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        let space = if resource.is_empty() { "" } else { " " };
        let field = self.field.as_ref().map(|path| format!(" {path}")).unwrap_or_default();
        format!("[{severity}]{space}{}{field}: {}", resource.join("/"), self.message)
    }
}

/// Cuts `text` to at most `limit` bytes.
pub(crate) fn bounded(text: &str, limit: usize) -> String {
    cut(text, limit, "...").into_owned()
}

/// The text of a scalar, empty for null and for an alias.
fn text(node: &Node<'_>, part: &'static str, limit: usize) -> Result<String, String> {
    match &node.value {
        Value::Text(text) => Ok(bounded(text, limit)),
        Value::Null | Value::Alias => Ok(String::new()),
        Value::List | Value::Mapping => node.must_be("scalar", part).map(|()| String::new()),
    }
}
