//! The functionConfig of a call: from `key=value` arguments, or from a file.

use std::fs;
use std::path::Path;

use serde_json::{Map, json};

use crate::documents::{ending_with_newline, require_krm_fields};
use crate::output::resource_list;
use crate::yaml::{Node, Yaml, document_ranges, indent, rewrite, same};

const FUNCTION_CONFIG: &str = "functionConfig";
const NOT_PLAIN: &str =
    "the function config uses YAML that cannot be put into a ResourceList; use simpler YAML";

/// One KRM resource in YAML that can be put under `functionConfig:`.
#[derive(Debug, Clone)]
pub struct FunctionConfig(Yaml);

impl FunctionConfig {
    /// Creates a ConfigMap named `function-input` with one entry of `data` for each `key=value`,
    /// like kpt. All values are strings. If a key is repeated, its last value wins.
    ///
    /// # Errors
    ///
    /// When an argument is not `key=value`.
    pub fn from_pairs<S: AsRef<str>>(pairs: &[S]) -> Result<Self, String> {
        let mut data = Map::new();
        for pair in pairs {
            let pair = pair.as_ref();
            let (key, value) = pair.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or_else(|| {
                format!("{pair:?} is not key=value; write the function's arguments as key=value after --")
            })?;
            data.shift_remove(key);
            data.insert(key.to_owned(), value.into());
        }
        let metadata = json!({"name": "function-input"});
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        Self::parse(&serde_saphyr::to_string(&config).map_err(|error| error.to_string())?)
    }

    /// Reads the only resource in the file at `path`, with its comments.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or does not hold exactly one KRM resource.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(path).map_err(|error| {
            let fix = "check the file given to --fn-config";
            format!("cannot read the function config {}: {error}; {fix}", path.display())
        })?;
        Self::parse(&text)
    }

    /// Parses the only resource in `text`.
    ///
    /// # Errors
    ///
    /// When `text` is not exactly one KRM resource.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.replace("\r\n", "\n");
        let mut found = Vec::new();
        for range in document_ranges(&text) {
            found.extend(ending_with_newline(text[range].to_owned()).map_err(|error| {
                let fix = "correct the file given to --fn-config";
                format!("the function config is not YAML: {error}; {fix}")
            })?);
        }
        let count = found.len();
        let (Some(document), 1) = (found.pop(), count) else {
            return Err(format!(
                "the function config holds {count} documents; the file given to --fn-config must hold exactly one"
            ));
        };
        require_krm_fields(&document.root).map_err(|missing| {
            format!("the function config has no {missing}; complete the file given to --fn-config")
        })?;
        let config = Self(document);
        // The text must parse to the same values when it is indented below `functionConfig:`.
        match Yaml::valid(config.field()).and_then(|list| list.root.get(FUNCTION_CONFIG).cloned()) {
            Some(node) if same(&node, &config.0.root) => Ok(config),
            _ => Err(NOT_PLAIN.to_owned()),
        }
    }

    /// Replaces the functionConfig of `list`, a ResourceList in YAML or JSON, by this config. The
    /// rest of a list in block style keeps its text. A list in JSON becomes YAML.
    ///
    /// # Errors
    ///
    /// When `list` is not a ResourceList, or this config cannot be set in it.
    pub fn set_in(&self, list: &[u8]) -> Result<String, String> {
        let text = std::str::from_utf8(list).map_err(|_| "the input is not UTF-8; convert it")?;
        let mut text = text.to_owned();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let list = resource_list(&text)
            .map_err(|error| {
                let fix = "pass a single ResourceList";
                format!("the input is not one YAML document: {error}; {fix}")
            })?
            .ok_or("the input is not a ResourceList; use a package directory instead, or put the input into a ResourceList")?;
        let mut wanted = list.root.clone();
        if let Some(entries) = wanted.entries_mut() {
            let entry = (Node::string(FUNCTION_CONFIG), self.0.root.clone());
            match entries.iter_mut().find(|(key, _)| key.text() == Some(FUNCTION_CONFIG)) {
                Some(old) => *old = entry,
                None => entries.push(entry),
            }
        }
        let list = rewrite(&list, &wanted).ok_or(
            "cannot set the functionConfig in this ResourceList; add it to the list, and give none here",
        )?;
        Ok(list.text)
    }

    /// Returns the `functionConfig` field of a ResourceList.
    pub(super) fn field(&self) -> String {
        format!("{FUNCTION_CONFIG}:\n{}", indent(&self.0.text, 2))
    }
}
