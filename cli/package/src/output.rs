//! Takes a function's answer apart: which text goes into which file, and what the function had to say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use thiserror::Error;

use super::annotations::{self, INDEX, LEGACY_INDEX, LEGACY_PATH, PATH, SEQINDENT, alone, realise};
use super::cut::items;
use super::file::{is_kustomization, missing_krm_field};
use super::results::{self, ResultItem};
use super::yaml::{Node, ParseError, apply, document, expand, parse, same, widen};

/// A function's answer, sorted by file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// The items of each file in the order of their indices. Paths are relative to the package and cleaned of
    /// `.` and empty parts; whether they stay inside it is for [`write()`](super::write()) to check.
    pub files: BTreeMap<PathBuf, Vec<Item>>,
    /// What the function reports.
    pub results: Vec<ResultItem>,
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

/// Takes the ResourceList in `output` apart. Each item keeps the text that the function gave it, with its
/// comments; items of a list written as JSON are written anew as YAML. An item without a path gets kyaml's:
/// `<namespace>/<kind>_<name>.yaml`; one without an index goes to the end of its file.
pub fn split(output: &[u8]) -> Result<Output, SplitError> {
    let text = std::str::from_utf8(output).map_err(|_| SplitError::NotUtf8)?.replace("\r\n", "\n");
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let root = parse(text)
        .map_err(|error: ParseError| SplitError::Syntax { line: error.line(), message: error.to_string() })?
        .filter(|root| root.get("kind").and_then(Node::text) == Some("ResourceList"))
        .ok_or(SplitError::NotAResourceList)?;
    let mut placed = Vec::new();
    for (at, (item, cut)) in items(text, &root).ok_or(SplitError::NotAList)?.into_iter().enumerate() {
        placed.push(placed_item(at, &root, item, cut)?);
    }
    Ok(Output { files: by_file(placed)?, results: results::parse(root.get("results")) })
}

// === placing ===

struct Placed {
    path: String,
    index: Option<usize>,
    text: String,
}

/// `cut` is the item's text, if it stands alone; else the item is written anew.
fn placed_item(at: usize, root: &Node, item: &Node, cut: Option<String>) -> Result<Placed, SplitError> {
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
        .map(|index| index.parse().map_err(|_| SplitError::BadIndex { item: at, index: index.to_owned() }))
        .transpose()?;
    // A carriage return breaks lines for YAML alone; files must not have it.
    let stands_alone =
        |text: &String| !text.contains('\r') && alone(text).is_some_and(|node| same(&node, item));
    let text = cut
        .filter(stands_alone)
        .or_else(|| document(&expand(root, item)?).ok())
        .and_then(without_annotations)
        .map(|text| if annotations::get(item, SEQINDENT) == Some("wide") { widened(text) } else { text })
        .ok_or(SplitError::Unsupported { item: at })?;
    Ok(Placed { path, index, text })
}

fn without_annotations(text: String) -> Option<String> {
    match annotations::remove(&text, &alone(&text)?) {
        None => Some(text),
        Some(change) => realise(&text, &change, alone),
    }
}

fn widened(text: String) -> String {
    let Some(root) = alone(&text) else { return text };
    let edited = widen(&text, &root).and_then(|edits| apply(&text, &edits));
    edited.filter(|edited| alone(edited).is_some_and(|node| same(&node, &root))).unwrap_or(text)
}

/// Where kyaml puts a resource that a function made.
fn default_path(item: &Node) -> String {
    let metadata = |key| item.get("metadata")?.get(key)?.text();
    let kind = item.get("kind").and_then(Node::text).unwrap_or_default().to_lowercase();
    let name = metadata("name").unwrap_or_default();
    clean(&format!("{}/{kind}_{name}.yaml", metadata("namespace").unwrap_or(".")))
}

/// The path without `.`, empty parts and `..` after a name, so that one file has one path. A leading `/` or
/// `..` stays, and is refused when it comes to writing.
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
    let mut taken: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for Placed { path, index, .. } in &placed {
        if let Some(index) = *index
            && !taken.entry(path).or_default().insert(index)
        {
            return Err(SplitError::SamePlace { path: path.clone(), index });
        }
    }
    let mut next: BTreeMap<String, usize> = taken
        .into_iter()
        .map(|(path, indices)| (path.to_owned(), indices.last().map_or(0, |last| last.saturating_add(1))))
        .collect();
    let mut files: BTreeMap<PathBuf, Vec<Item>> = BTreeMap::new();
    for Placed { path, index, text } in placed {
        let index = index.unwrap_or_else(|| {
            let next = next.entry(path.clone()).or_default();
            let index = *next;
            *next = next.saturating_add(1);
            index
        });
        files.entry(PathBuf::from(path)).or_default().push(Item { index, text });
    }
    for items in files.values_mut() {
        items.sort_by_key(|item| item.index);
    }
    Ok(files)
}
