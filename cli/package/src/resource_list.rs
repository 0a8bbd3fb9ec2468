//! The ResourceList that a function reads on stdin.

use thiserror::Error;

use super::file::Package;
use super::function_config::{FUNCTION_CONFIG, FunctionConfig};
use super::yaml::{Node, ParseError, Yaml, rewrite};

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
    /// The package as a ResourceList in YAML: items in the order of their paths, each as its text
    /// with the annotations for path and index added.
    pub fn to_resource_list(&self, function_config: Option<&FunctionConfig>) -> String {
        let items = self.files.iter().flat_map(|file| &file.documents).map(|document| document.item.as_str());
        let mut list = String::from("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:");
        list.push_str(if self.item_count() == 0 { " []\n" } else { "\n" });
        list.extend(items);
        if let Some(config) = function_config {
            list.push_str(&config.field());
        }
        list
    }
}

/// `list`, a ResourceList in YAML or JSON, with `config` in place of its functionConfig. The rest
/// of a list in YAML keeps its text; a list in JSON becomes YAML.
///
/// # Errors
///
/// [`ResourceListError`] when `list` is no ResourceList.
pub fn set_function_config(list: &[u8], config: &FunctionConfig) -> Result<String, ResourceListError> {
    let text = std::str::from_utf8(list).map_err(|_| ResourceListError::NotUtf8)?;
    let mut text = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let list = Yaml::parse(text)
        .map_err(|ParseError { line, message }| ResourceListError::Syntax { line, message })?
        .filter(|list| list.root.get("kind").and_then(Node::text) == Some("ResourceList"))
        .ok_or(ResourceListError::NotAResourceList)?;
    let mut wanted = list.root.clone();
    let entries = wanted.entries_mut().ok_or(ResourceListError::NotAResourceList)?;
    let entry = (Node::string(FUNCTION_CONFIG), config.root().clone());
    match entries.iter_mut().find(|(key, _)| key.text() == Some(FUNCTION_CONFIG)) {
        Some(old) => *old = entry,
        None => entries.push(entry),
    }
    rewrite(&list, &wanted).map(|list| list.text).ok_or(ResourceListError::Unsupported)
}
