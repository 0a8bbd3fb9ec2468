//! The structured results of a function, for printing.
//!
//! Parsing is lenient. A result that breaks the specification is displayed as far as possible,
//! since it may explain a failure.

use crate::yaml::{Body, Node};

/// The results under `node`, in kpt's format: `[severity] apiVersion/Kind/namespace/name field:
/// message`. They are a list, or a mapping with the list in `items`, which older SDKs write.
pub(super) fn results(node: Option<&Node>) -> Vec<String> {
    let list = node.and_then(|node| node.get("items").or(Some(node)));
    match list.map(|list| &list.body) {
        Some(Body::Sequence { items, .. }) => items.iter().map(line).collect(),
        _ => Vec::new(),
    }
}

fn line(result: &Node) -> String {
    let text = |path: &[&str]| {
        let found = path.iter().try_fold(result, |node, key| node.get(key));
        found.and_then(Node::text).filter(|text| !text.is_empty())
    };
    // A missing or unknown severity counts as an error.
    let severity = text(&["severity"]).filter(|severity| ["warning", "info"].contains(severity));
    let resource = ["apiVersion", "kind", "namespace", "name"].map(|key| text(&["resourceRef", key]));
    let resource = resource.into_iter().flatten().collect::<Vec<_>>().join("/");
    let mut line = format!("[{}]", severity.unwrap_or("error"));
    for part in [resource.as_str(), text(&["field", "path"]).unwrap_or_default()] {
        line.extend([" ", part].into_iter().filter(|_| !part.is_empty()));
    }
    line + ": " + text(&["message"]).unwrap_or_default()
}
