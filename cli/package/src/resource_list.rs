//! The ResourceList that a function reads on stdin.

use thiserror::Error;

use super::file::Package;
use super::function_config::FunctionConfig;
use super::yaml::{Node, ParseError, append_entries, apply, indent, parse, remove_entries, same};

const FUNCTION_CONFIG: &str = "functionConfig";

/// Why a functionConfig cannot be put into a ResourceList.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ResourceListError {
    /// The input is not UTF-8.
    #[error("the input is not UTF-8; convert it")]
    NotUtf8,
    /// The input is not one YAML document.
    #[error("the input is not one YAML document: line {line}: {message}; pass a single ResourceList")]
    Syntax {
        /// Line of the input, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// The input is YAML of another kind.
    #[error("the input is not a ResourceList; name a package directory instead, or wrap it in one")]
    NotAResourceList,
    /// The list's layout allows no edit.
    #[error("cannot set the functionConfig in this ResourceList; put it there yourself and pass none here")]
    Unsupported,
}

impl Package {
    /// The package as a ResourceList in YAML: items in the order of their paths, each as its text with the
    /// annotations for path and index added.
    pub fn to_resource_list(&self, function_config: Option<&FunctionConfig>) -> String {
        let items = self.files.iter().flat_map(|file| &file.documents).map(|document| document.item.as_str());
        let mut list = String::from("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:");
        list.push_str(if self.item_count() == 0 { " []\n" } else { "\n" });
        list.extend(items);
        if let Some(config) = function_config {
            list.push_str(&field(config));
        }
        list
    }
}

/// `list`, a ResourceList in YAML or JSON, with `config` in place of its functionConfig. All else stays as it
/// is, to the byte.
pub fn set_function_config(list: &[u8], config: &FunctionConfig) -> Result<String, ResourceListError> {
    let text = std::str::from_utf8(list).map_err(|_| ResourceListError::NotUtf8)?;
    let mut text = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
    let mut root = resource_list(&text)?;
    let old =
        root.entries().and_then(|all| all.iter().position(|(key, _)| key.text() == Some(FUNCTION_CONFIG)));
    if let Some(old) = old {
        let edits = remove_entries(&text, &root, &[old]).ok_or(ResourceListError::Unsupported)?;
        text = apply(&text, &edits).ok_or(ResourceListError::Unsupported)?;
        root = resource_list(&text)?;
    }
    let node = config.node().ok_or(ResourceListError::Unsupported)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let is_flow = matches!(root.body, super::yaml::Body::Mapping { flow: true, .. });
    let edited = if is_flow {
        let entry = (Node::string(FUNCTION_CONFIG), node.clone());
        append_entries(&text, &root, &[entry]).and_then(|edit| apply(&text, &[edit]))
    } else {
        let at = super::yaml::line_end(&text, root.span.end);
        Some(format!("{}{}{}", &text[..at], field(config), &text[at..]))
    };
    let is_set = |list: &Node| list.get(FUNCTION_CONFIG).is_some_and(|set| same(set, &node));
    edited
        .filter(|text| parse(text).ok().flatten().as_ref().is_some_and(is_set))
        .ok_or(ResourceListError::Unsupported)
}

fn field(config: &FunctionConfig) -> String {
    format!("{FUNCTION_CONFIG}:\n{}", indent(config.as_str(), 2))
}

fn resource_list(text: &str) -> Result<Node, ResourceListError> {
    let syntax =
        |error: ParseError| ResourceListError::Syntax { line: error.line(), message: error.to_string() };
    parse(text)
        .map_err(syntax)?
        .filter(|root| root.get("kind").and_then(Node::text) == Some("ResourceList"))
        .ok_or(ResourceListError::NotAResourceList)
}
