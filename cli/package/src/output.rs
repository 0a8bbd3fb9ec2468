//! Takes a function's answer apart: which text goes into which file, and what the function had to
//! say.

use std::collections::BTreeMap;
use std::path::PathBuf;

use thiserror::Error;

use super::annotations::{self, INDEX, LEGACY_INDEX, LEGACY_PATH, PATH, SEQINDENT};
use super::file::{is_kustomization, missing_krm_field};
use super::list_items::list_items;
use super::results::results;
use super::yaml::{Node, ParseError, Yaml, document, same, widen};

/// A function's answer, sorted by file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// The items of each file in the order of their indices. Paths are relative to the package and
    /// cleaned of `.` and empty parts; whether they stay inside it is for
    /// [`write()`](super::write()) to check.
    pub files: BTreeMap<PathBuf, Vec<Item>>,
    /// What the function reports, one text for each result, like kpt prints it.
    pub results: Vec<String>,
}

/// An item that a function returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Position among the documents of its file.
    pub index: usize,
    /// The document, without the annotations for path and index, with a newline at its end.
    pub text: String,
}

/// Why a function's output cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SplitError {
    /// It is not UTF-8.
    #[error("the function's output is not UTF-8; report it to the function's authors")]
    NotUtf8,
    /// It is not one YAML document.
    #[error("the function's output is not one YAML document: line {line}: {message}; look at its stderr")]
    Syntax {
        /// Line of the output, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// It is empty or of another kind.
    #[error("the function's output is not a ResourceList; check that the image is a KRM function")]
    NotAResourceList,
    /// `items` is not a list.
    #[error("items in the function's output is not a list; report it to the function's authors")]
    NotAList,
    /// An item is not a KRM resource.
    #[error("item {item} of the function's output has no {missing}; report it to the function's authors")]
    NotKrm {
        /// Position in the output, from 0.
        item: usize,
        /// The field.
        missing: &'static str,
    },
    /// An item's index annotation is not a number.
    #[error("item {item} of the function's output has the index {index:?}; it must be a whole number")]
    BadIndex {
        /// Position in the output, from 0.
        item: usize,
        /// The annotation's value.
        index: String,
    },
    /// Two items claim one place, so one of them would be lost.
    #[error(
        "the function's output has two items at {path}, index {index}; it has to give each its own \
         {PATH} or {INDEX}"
    )]
    SamePlace {
        /// The file.
        path: String,
        /// The index in it.
        index: usize,
    },
    /// An item cannot be written as a document of its own.
    #[error("item {item} of the function's output uses YAML that cannot stand alone; use plainer YAML")]
    Unsupported {
        /// Position in the output, from 0.
        item: usize,
    },
}

/// Takes the ResourceList in `output` apart. Each item keeps the text that the function gave it,
/// with its comments; items of a list written as JSON are written anew as YAML. An item without a
/// path gets kyaml's: `<namespace>/<kind>_<name>.yaml`; one without an index goes to the end of its
/// file.
pub fn split(output: &[u8]) -> Result<Output, SplitError> {
    let text = std::str::from_utf8(output).map_err(|_| SplitError::NotUtf8)?.replace("\r\n", "\n");
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let list = Yaml::parse(text)
        .map_err(|ParseError { line, message }| SplitError::Syntax { line, message })?
        .filter(|list| list.root.get("kind").and_then(Node::text) == Some("ResourceList"))
        .ok_or(SplitError::NotAResourceList)?;
    let items = list_items(&list).ok_or(SplitError::NotAList)?.into_iter().enumerate();
    let placed: Vec<Placed> =
        items.map(|(at, (item, cut))| placed_item(at, item, cut)).collect::<Result<_, _>>()?;
    Ok(Output { files: by_file(placed)?, results: results(list.root.get("results")) })
}

// === placing ===

struct Placed {
    path: String,
    index: Option<usize>,
    text: String,
}

/// `cut` is the item's text, if it stands alone; else the item is written anew.
fn placed_item(at: usize, item: &Node, cut: Option<String>) -> Result<Placed, SplitError> {
    let annotation = |keys: [&str; 2]| {
        keys.into_iter().find_map(|key| annotations::get(item, key)).filter(|value| !value.is_empty())
    };
    let path = annotation([PATH, LEGACY_PATH]).map_or_else(|| default_path(item), clean);
    if let Some(missing) = missing_krm_field(item)
        && !is_kustomization(&path)
    {
        return Err(SplitError::NotKrm { item: at, missing });
    }
    let index = annotation([INDEX, LEGACY_INDEX])
        .map(|index| match index.parse::<u32>() {
            Ok(index) => Ok(index as usize),
            Err(_) => Err(SplitError::BadIndex { item: at, index: index.to_owned() }),
        })
        .transpose()?;
    // A carriage return breaks lines for YAML alone; files must not have it.
    let cut = cut.filter(|text| !text.contains('\r')).and_then(Yaml::valid);
    let text = cut
        .filter(|cut| same(&cut.root, item))
        .or_else(|| document(item))
        .and_then(annotations::remove)
        .map(|yaml| if annotations::get(item, SEQINDENT) == Some("wide") { widen(yaml) } else { yaml })
        .map(|yaml| yaml.text)
        .ok_or(SplitError::Unsupported { item: at })?;
    Ok(Placed { path, index, text })
}

/// Where kyaml puts a resource that a function made.
fn default_path(item: &Node) -> String {
    let metadata = |key| item.get("metadata")?.get(key)?.text();
    let kind = item.get("kind").and_then(Node::text).unwrap_or_default().to_lowercase();
    let name = metadata("name").unwrap_or_default();
    clean(&format!("{}/{kind}_{name}.yaml", metadata("namespace").unwrap_or(".")))
}

/// The path without `.`, empty parts and `..` after a name, so that one file has one path. A
/// leading `/` or `..` stays, and is refused when it comes to writing.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

fn by_file(placed: Vec<Placed>) -> Result<BTreeMap<PathBuf, Vec<Item>>, SplitError> {
    let mut files: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
    let (at_index, at_end): (Vec<_>, Vec<_>) = placed.into_iter().partition(|placed| placed.index.is_some());
    for Placed { path, index, text } in at_index.into_iter().chain(at_end) {
        let file = files.entry(path.clone()).or_default();
        let index = index.unwrap_or_else(|| file.last_key_value().map_or(0, |(last, _)| last + 1));
        if file.insert(index, text).is_some() {
            return Err(SplitError::SamePlace { path, index });
        }
    }
    let items =
        |file: BTreeMap<usize, String>| file.into_iter().map(|(index, text)| Item { index, text }).collect();
    Ok(files.into_iter().map(|(path, file)| (PathBuf::from(path), items(file))).collect())
}
