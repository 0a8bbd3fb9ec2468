//! Splits a function's output into the texts of files and the function's results.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::annotations::{self, INDEX, LEGACY_INDEX, LEGACY_PATH, PATH, SEQINDENT};
use crate::documents::{is_kustomization, require_krm_fields};
use crate::list_items::list_items;
use crate::yaml::{Body, Node, ParseError, Yaml, document, same, widen};

/// A function's output, grouped by file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Output {
    /// The documents of each file by index. A document ends with a newline, and has no annotations
    /// that record its path and index. Paths are relative to the package, without `.` and empty
    /// parts. [`write()`](crate::write()) checks that they stay inside the package.
    pub files: BTreeMap<PathBuf, BTreeMap<usize, String>>,
    /// The function's results, each formatted like kpt prints it.
    pub results: Vec<String>,
}

/// An item's file, its index in that file if the function gave one, and its text.
type Placed = (PathBuf, Option<usize>, String);

/// The resources that the function did not get.
#[derive(Debug, Clone, Default)]
pub struct Unselected(pub(super) Vec<Placed>);

/// Splits the ResourceList in `output`. Each item keeps the function's text and comments, but items
/// of a JSON list become YAML. An item without a path gets kyaml's default:
/// `<namespace>/<kind>_<name>.yaml`. An item without an index goes to the end of its file.
///
/// # Errors
///
/// When `output` is not a ResourceList of KRM resources, or two items have the same path and index.
pub fn split(output: &[u8]) -> Result<Output, String> {
    split_with(output, Unselected::default())
}

/// Like [`split`], but also returns the resources that the function did not get, unchanged.
///
/// # Errors
///
/// Like [`split`].
pub fn split_with(output: &[u8], unselected: Unselected) -> Result<Output, String> {
    let wrong = |what: &str| format!("the function's output is not {what}");
    let authors = "report it to the function's authors";
    let text = std::str::from_utf8(output).map_err(|_| wrong(&format!("UTF-8; {authors}")))?;
    let list = resource_list(&text.replace("\r\n", "\n"))
        .map_err(|error| wrong(&format!("one YAML document: {error}; check its stderr")))?
        .ok_or_else(|| wrong("a ResourceList; check that the image is a KRM function"))?;
    let items = list_items(&list)
        .ok_or_else(|| format!("items in the function's output is not a list; {authors}"))?;
    let placed = items.into_iter().enumerate().map(|(at, (item, cut))| {
        placed(item, cut).map_err(|error| format!("item {at} of the function's output {error}"))
    });
    let mut placed: Vec<_> = placed.collect::<Result<_, _>>()?;
    placed.extend(unselected.0);
    Ok(Output { files: by_file(placed)?, results: results(list.root.get("results")) })
}

/// Returns whether `text` is one document, a ResourceList.
pub fn is_resource_list(text: &str) -> bool {
    resource_list(&text.replace("\r\n", "\n")).is_ok_and(|list| list.is_some())
}

/// Returns the results in the ResourceList in `output`, as the function wrote them: a YAML list.
/// `None`: there are none, or they are not valid.
pub fn results_yaml(output: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(output).ok()?;
    let list = resource_list(&text.replace("\r\n", "\n")).ok()??;
    let results = list.root.get("results")?;
    let results = results.get("items").unwrap_or(results);
    document(results).map(|results| results.text)
}

impl Output {
    /// Returns all items as YAML documents, in the order of their files' paths.
    pub fn documents(&self) -> String {
        let documents: Vec<_> = self.files.values().flat_map(BTreeMap::values).map(String::as_str).collect();
        documents.join("---\n")
    }
}

/// Parses the ResourceList in `text`; `None` if the document has another kind.
pub(super) fn resource_list(text: &str) -> Result<Option<Yaml>, ParseError> {
    let list = Yaml::parse(text.strip_prefix('\u{feff}').unwrap_or(text))?;
    Ok(list.filter(|list| list.root.get("kind").and_then(Node::text) == Some("ResourceList")))
}

/// Returns the path, index and text of an item. `cut` is the item's text in the output. The
/// item is serialized if `cut` is missing or does not parse to `item`.
fn placed(item: &Node, cut: Option<String>) -> Result<Placed, String> {
    let annotation = |keys: [&str; 2]| {
        keys.into_iter().find_map(|key| annotations::get(item, key)).filter(|value| !value.is_empty())
    };
    let path = annotation([PATH, LEGACY_PATH]).map_or_else(|| default_path(item), clean);
    if !is_kustomization(&path) {
        require_krm_fields(item)
            .map_err(|missing| format!("has no {missing}; report it to the function's authors"))?;
    }
    let index = annotation([INDEX, LEGACY_INDEX]).map(|index| {
        let number = index.parse::<u32>().map(|index| index as usize);
        number.map_err(|_| format!("has the index {index:?}; it must be a whole number"))
    });
    // YAML reads a carriage return as a line break, but `read` refuses it in a file.
    let cut = cut.filter(|text| !text.contains('\r')).and_then(Yaml::valid);
    let yaml = cut
        .filter(|cut| same(&cut.root, item))
        .or_else(|| document(item))
        .and_then(annotations::remove)
        .ok_or("uses YAML that cannot stand alone; use simpler YAML")?;
    let is_wide = annotations::get(item, SEQINDENT) == Some("wide");
    let text = if is_wide { widen(yaml).text } else { yaml.text };
    Ok((path, index.transpose()?, text))
}

/// Returns kyaml's default path for a resource that a function created.
fn default_path(item: &Node) -> PathBuf {
    let metadata = |key| item.get("metadata")?.get(key)?.text();
    let kind = item.get("kind").and_then(Node::text).unwrap_or_default().to_lowercase();
    let name = metadata("name").unwrap_or_default();
    clean(&format!("{}/{kind}_{name}.yaml", metadata("namespace").unwrap_or(".")))
}

/// Removes `.`, empty parts and each `NAME/..`, so that one file has one path. A leading `/` or
/// `..` stays; `write` refuses it.
fn clean(path: &str) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if clean.file_name().is_some() => _ = clean.pop(),
            part => clean.push(part),
        }
    }
    clean
}

fn by_file(placed: Vec<Placed>) -> Result<BTreeMap<PathBuf, BTreeMap<usize, String>>, String> {
    let mut files: BTreeMap<PathBuf, BTreeMap<usize, String>> = BTreeMap::new();
    let (at_index, at_end): (Vec<_>, Vec<_>) = placed.into_iter().partition(|(_, index, _)| index.is_some());
    for (path, index, text) in at_index.into_iter().chain(at_end) {
        let file = files.entry(path.clone()).or_default();
        let index = index.unwrap_or_else(|| file.last_key_value().map_or(0, |(last, _)| last + 1));
        // If two items had the same path and index, one would be lost.
        if file.insert(index, text).is_some() {
            return Err(format!(
                "the function's output has two items at {}, index {index}; each item needs its own {PATH} or {INDEX}",
                path.display()
            ));
        }
    }
    Ok(files)
}

/// Returns the results in `node` in kpt's format: `[severity] apiVersion/Kind/namespace/name field:
/// message`. `node` is a list, or, from older SDKs, a mapping with the list in `items`. An invalid
/// result is formatted as far as possible, since it may explain a failure.
fn results(node: Option<&Node>) -> Vec<String> {
    let list = node.and_then(|node| node.get("items").or(Some(node)));
    match list.map(|list| &list.body) {
        Some(Body::Sequence { items, .. }) => items.iter().map(result_line).collect(),
        _ => Vec::new(),
    }
}

fn result_line(result: &Node) -> String {
    let text = |path: &[&str]| {
        let found = path.iter().try_fold(result, |node, key| node.get(key));
        found.and_then(Node::text).filter(|text| !text.is_empty())
    };
    // kpt and its SDK count a missing severity as information.
    let severity = text(&["severity"]).unwrap_or("info");
    let resource = ["apiVersion", "kind", "namespace", "name"].map(|key| text(&["resourceRef", key]));
    let resource = resource.into_iter().flatten().collect::<Vec<_>>().join("/");
    let mut line = format!("[{severity}]");
    for part in [resource.as_str(), text(&["field", "path"]).unwrap_or_default()] {
        line.extend([" ", part].into_iter().filter(|_| !part.is_empty()));
    }
    line + ": " + text(&["message"]).unwrap_or_default()
}
