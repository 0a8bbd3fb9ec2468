//! The functionConfig of a call: from `key=value` arguments, or from a file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::file::{ending_with_newline, missing_krm_field};
use super::yaml::{Node, Yaml, document, document_ranges, indent, same};

pub(super) const FUNCTION_CONFIG: &str = "functionConfig";

/// One KRM resource in YAML, ready to go under `functionConfig:`.
#[derive(Debug, Clone)]
pub struct FunctionConfig(Yaml);

/// Why there is no functionConfig.
#[derive(Debug, Error)]
pub enum FunctionConfigError {
    /// An argument is not `key=value`.
    #[error("{0:?} is not key=value; write the function's arguments as key=value after --")]
    NotAPair(String),
    /// The file cannot be read.
    #[error("cannot read the function config {}: {error}; check the path given to --fn-config", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file is not UTF-8.
    #[error("the function config is not UTF-8; convert the file given to --fn-config")]
    NotUtf8,
    /// The file is not YAML.
    #[error("the function config is not YAML: line {line}: {message}; correct the file given to --fn-config")]
    Syntax {
        /// Line of the document, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// The file holds no document, or several.
    #[error("the function config holds {0} documents; the file given to --fn-config must hold exactly one")]
    NotOneDocument(usize),
    /// The document is not a KRM resource.
    #[error("the function config has no {0}; complete the file given to --fn-config")]
    NotKrm(&'static str),
    /// The text cannot be put into a ResourceList.
    #[error("the function config uses YAML that cannot be put into a ResourceList; write it in plainer YAML")]
    Unsupported,
}

impl FunctionConfig {
    /// A ConfigMap named `function-input` with one entry of `data` for each `key=value`, as kpt
    /// makes it. All values are strings. A key that comes twice has its last value.
    pub fn from_pairs<S: AsRef<str>>(pairs: &[S]) -> Result<Self, FunctionConfigError> {
        let mut data: Vec<(Node, Node)> = Vec::new();
        for pair in pairs {
            let pair = pair.as_ref();
            let (key, value) = pair
                .split_once('=')
                .filter(|(key, _)| !key.is_empty())
                .ok_or_else(|| FunctionConfigError::NotAPair(pair.to_owned()))?;
            data.retain(|(known, _)| known.text() != Some(key));
            data.push((Node::string(key), Node::string(value)));
        }
        let name = Node::mapping(vec![(Node::string("name"), Node::string("function-input"))]);
        let config = Node::mapping(vec![
            (Node::string("apiVersion"), Node::string("v1")),
            (Node::string("kind"), Node::string("ConfigMap")),
            (Node::string("metadata"), name),
            (Node::string("data"), Node::mapping(data)),
        ]);
        document(&config).map(Self).ok_or(FunctionConfigError::Unsupported)
    }

    /// The one resource in the file at `path`, with its comments.
    pub fn from_file(path: &Path) -> Result<Self, FunctionConfigError> {
        let bytes =
            fs::read(path).map_err(|error| FunctionConfigError::Read { path: path.to_owned(), error })?;
        Self::parse(&String::from_utf8(bytes).map_err(|_| FunctionConfigError::NotUtf8)?)
    }

    /// The one resource in `text`.
    pub fn parse(text: &str) -> Result<Self, FunctionConfigError> {
        let text = text.replace("\r\n", "\n");
        let mut found = Vec::new();
        for range in document_ranges(&text) {
            let document = ending_with_newline(text[range].to_owned());
            found.extend(
                document.map_err(|error| FunctionConfigError::Syntax {
                    line: error.line,
                    message: error.message,
                })?,
            );
        }
        let count = found.len();
        let (Some(document), 1) = (found.pop(), count) else {
            return Err(FunctionConfigError::NotOneDocument(count));
        };
        if let Some(missing) = missing_krm_field(&document.root) {
            return Err(FunctionConfigError::NotKrm(missing));
        }
        let config = Self(document);
        // Below its key, it must still mean the same.
        match Yaml::valid(config.field()).and_then(|list| list.root.get(FUNCTION_CONFIG).cloned()) {
            Some(node) if same(&node, config.root()) => Ok(config),
            _ => Err(FunctionConfigError::Unsupported),
        }
    }

    /// The resource as YAML, with a newline at its end.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    pub(super) fn root(&self) -> &Node {
        &self.0.root
    }

    /// The field of a ResourceList.
    pub(super) fn field(&self) -> String {
        format!("{FUNCTION_CONFIG}:\n{}", indent(self.as_str(), 2))
    }
}
