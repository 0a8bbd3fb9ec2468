//! The structured results of a function, for printing.
//!
//! Read leniently: a result that breaks the specification is shown as far as it can be, since hiding it would
//! hide the reason of a failure.

use std::fmt;

use super::yaml::{Body, Node};

/// How bad a result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Severity {
    /// The function refuses the package. Also what a missing or unknown severity means.
    #[default]
    Error,
    /// Worth a look.
    Warning,
    /// For information.
    Info,
}

/// One entry of a ResourceList's `results`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResultItem {
    /// How bad it is.
    pub severity: Severity,
    /// For people.
    pub message: String,
    /// The resource that it is about.
    pub resource_ref: Option<ResourceRef>,
    /// The field that it is about.
    pub field: Option<FieldRef>,
    /// Where the resource stands.
    pub file: Option<FileRef>,
}

/// The resource of a [`ResultItem`]; what is unknown is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResourceRef {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for none.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The field of a [`ResultItem`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldRef {
    /// Such as `spec.template.spec.containers[0].image`.
    pub path: String,
    /// Its value, when it is a scalar.
    pub current_value: Option<String>,
    /// What the function would have there, when it is a scalar.
    pub proposed_value: Option<String>,
}

/// The place of a [`ResultItem`]'s resource.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileRef {
    /// Relative to the package.
    pub path: String,
    /// Position among the documents of the file, from 0.
    pub index: usize,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        })
    }
}

/// The line that kpt prints: `[severity] apiVersion/Kind/namespace/name field: message`.
impl fmt::Display for ResultItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]", self.severity)?;
        if let Some(resource) = &self.resource_ref {
            let parts = [&resource.api_version, &resource.kind, &resource.namespace, &resource.name];
            let known: Vec<&str> = parts.into_iter().map(String::as_str).filter(|p| !p.is_empty()).collect();
            if !known.is_empty() {
                write!(f, " {}", known.join("/"))?;
            }
        }
        if let Some(field) = &self.field {
            write!(f, " {}", field.path)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// The results under `node`: a list, or a mapping with the list in `items` as older SDKs have it.
pub(super) fn parse(node: Option<&Node>) -> Vec<ResultItem> {
    let list = node.and_then(|node| node.get("items").or(Some(node)));
    match list.map(|list| &list.body) {
        Some(Body::Sequence { items, .. }) => items.iter().map(item).collect(),
        _ => Vec::new(),
    }
}

fn item(node: &Node) -> ResultItem {
    ResultItem {
        severity: match node.get("severity").and_then(Node::text) {
            Some("warning") => Severity::Warning,
            Some("info") => Severity::Info,
            _ => Severity::Error,
        },
        message: text(node, "message"),
        resource_ref: node.get("resourceRef").map(|resource| ResourceRef {
            api_version: text(resource, "apiVersion"),
            kind: text(resource, "kind"),
            namespace: text(resource, "namespace"),
            name: text(resource, "name"),
        }),
        field: node.get("field").map(|field| FieldRef {
            path: text(field, "path"),
            current_value: field.get("currentValue").and_then(Node::text).map(str::to_owned),
            proposed_value: field.get("proposedValue").and_then(Node::text).map(str::to_owned),
        }),
        file: node.get("file").map(|file| FileRef {
            path: text(file, "path"),
            index: file.get("index").and_then(Node::text).and_then(|index| index.parse().ok()).unwrap_or(0),
        }),
    }
}

fn text(node: &Node, key: &str) -> String {
    node.get(key).and_then(Node::text).unwrap_or_default().to_owned()
}
