//! One file of a package: its documents, each with the item that is sent to a function.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::annotations;
use crate::documents::{ending_with_newline, is_kustomization, require_krm_fields};
use crate::function_config::FunctionConfig;
use crate::yaml::{Body, ParseError, Yaml, document_ranges, indent, same};

const NOT_PLAIN: &str = "it uses YAML that cannot be put into a ResourceList (such as a mapping as a key, or aliases \
                         that grow too large); use simpler YAML";

/// A package as it was read.
#[derive(Debug, Clone, Default)]
pub struct Package {
    /// Sorted by path, for a binary search.
    pub(super) files: Vec<File>,
}

/// A file and its documents. Only `text` contains the text between the documents.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    /// Relative to the package.
    pub(super) path: PathBuf,
    pub(super) text: String,
    pub(super) documents: Vec<Document>,
}

/// A document that is not empty. Its index is its position in [`File::documents`].
#[derive(Debug, Clone)]
pub(super) struct Document {
    /// Byte range in the file's text.
    pub(super) range: Range<usize>,
    /// The user's text with Unix line ends, without annotations of an earlier call.
    pub(super) text: String,
    /// The item of a ResourceList: `- ` and the text with annotations.
    pub(super) item: String,
}

// === impl Package ===

impl Package {
    /// Returns the number of items that are sent to a function.
    pub fn item_count(&self) -> usize {
        self.files.iter().map(|file| file.documents.len()).sum()
    }

    /// Returns the paths of the files, relative to the package, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Returns the package as a ResourceList in YAML. Items are in the order of their files' paths.
    /// An item is its document's text, with annotations that record its path and index.
    pub fn to_resource_list(&self, function_config: Option<&FunctionConfig>) -> String {
        let items = self.files.iter().flat_map(|file| &file.documents).map(|document| document.item.as_str());
        let mut list = String::from("apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:");
        list.push_str(if self.item_count() == 0 { " []\n" } else { "\n" });
        list.extend(items);
        list.extend(function_config.map(FunctionConfig::field));
        list
    }

    pub(super) fn file(&self, path: &Path) -> Option<&File> {
        let at = self.files.binary_search_by(|file| file.path.as_path().cmp(path)).ok()?;
        self.files.get(at)
    }
}

// === impl File ===

impl File {
    /// Parses the documents of a file. `path` is relative to the package, with slashes.
    pub(super) fn parse(path: &str, text: String) -> Result<Self, String> {
        let mut documents: Vec<Document> = Vec::new();
        for range in document_ranges(&text) {
            let index = documents.len();
            documents.extend(
                document(&text, range, path, index)
                    .map_err(|error| format!("{path}, document {}: {error}", index + 1))?,
            );
        }
        Ok(Self { path: PathBuf::from(path), text, documents })
    }
}

/// Parses the document in `range`. `None`: it is empty.
fn document(file: &str, range: Range<usize>, path: &str, index: usize) -> Result<Option<Document>, String> {
    let text = file[range.clone()].replace("\r\n", "\n");
    let syntax = |ParseError { line, message }: ParseError| {
        let line = file[..range.start].matches('\n').count() + line;
        format!("{}; correct the YAML", ParseError { line, message })
    };
    if let Some(at) = text.find('\r') {
        let line = text[..at].matches('\n').count() + 1;
        return Err(syntax(ParseError { line, message: "a carriage return without a newline".to_owned() }));
    }
    let Some(document) = ending_with_newline(text).map_err(syntax)? else { return Ok(None) };
    if !is_kustomization(Path::new(path)) {
        require_krm_fields(&document.root).map_err(|missing| {
            let fix = "complete it, or list the file in .krmignore";
            format!("it has no {missing}, so it is not a KRM resource; {fix}")
        })?;
    }
    let document = annotations::remove(document).ok_or(NOT_PLAIN)?;
    let annotated = annotations::add(&document, path, index)
        .map_err(|what| format!("{what} is not a mapping, so no annotation can be added; correct it"))?
        .ok_or(NOT_PLAIN)?;
    let item = embedded(&annotated.text);
    // The text must parse to the same values when it is a list item.
    let list = Yaml::valid(item.as_str()).map(|list| list.root.body);
    match list {
        Some(Body::Sequence { items, .. }) if matches!(&items[..], [item] if same(item, &annotated.root)) => {
            Ok(Some(Document { range, text: document.text, item }))
        }
        _ => Err(NOT_PLAIN.to_owned()),
    }
}

/// Returns `text` as an item of a block sequence. The first line follows the dash, even if it is a
/// comment: after a lone dash, Go's YAML library moves comments.
fn embedded(text: &str) -> String {
    let mut item = indent(text, 2);
    item.replace_range(..2, "- ");
    item
}
