//! One file of a package: its documents, each with the item that a function gets to see.

use std::ops::Range;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::annotations;
use super::yaml::{Body, Node, ParseError, Style, Yaml, document_ranges, indent, same};

/// Kustomize's own files name neither kind nor apiVersion; kpt lets them pass.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// A package as it was read.
#[derive(Debug, Clone, Default)]
pub struct Package {
    /// In the order of their paths.
    pub(super) files: Vec<File>,
}

/// A file and the documents in it; what stands between them is only here, in `text`.
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
    /// Its place in the file's text.
    pub(super) range: Range<usize>,
    /// The user's text with Unix line ends, without annotations left over from an earlier call.
    pub(super) text: String,
    /// The item of a ResourceList: `- ` and the text with annotations.
    pub(super) item: String,
}

/// What is wrong with one document.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DocumentError {
    /// It is not YAML.
    #[error("line {line}: {message}; correct the YAML")]
    Syntax {
        /// Line of the file, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// It is YAML, but not a Kubernetes resource.
    #[error("it has no {0}, so it is not a KRM resource; complete it, or list the file in .krmignore")]
    NotKrm(&'static str),
    /// `metadata` or its annotations hold something other than a mapping.
    #[error("{0} is not a mapping, so no annotation can be added; correct it")]
    NotAMapping(&'static str),
    /// YAML that can neither be annotated in place nor be written anew.
    #[error(
        "it uses YAML that cannot be put into a ResourceList (such as a mapping as a key, or aliases \
         without end); write it in plainer YAML"
    )]
    Unsupported,
}

/// The number of a bad document in its file, from 1, and what is wrong with it.
pub(super) type BadDocument = (usize, DocumentError);

// === impl Package ===

impl Package {
    /// The number of items that a function gets to see.
    pub fn item_count(&self) -> usize {
        self.files.iter().map(|file| file.documents.len()).sum()
    }

    /// The files that were read, in order, relative to the package.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    pub(super) fn file(&self, path: &Path) -> Option<&File> {
        let at = self.files.binary_search_by(|file| file.path.as_path().cmp(path)).ok()?;
        self.files.get(at)
    }
}

// === impl File ===

impl File {
    /// `path` is relative to the package and `name` is the same with slashes.
    pub(super) fn parse(path: PathBuf, name: &str, text: String) -> Result<Self, BadDocument> {
        let mut documents: Vec<Document> = Vec::new();
        for range in document_ranges(&text) {
            let index = documents.len();
            let document = document(&text, range, name, index).map_err(|error| (index + 1, error))?;
            documents.extend(document);
        }
        Ok(Self { path, text, documents })
    }
}

/// The document in `range`; `None` when it is empty.
fn document(
    file: &str,
    range: Range<usize>,
    path: &str,
    index: usize,
) -> Result<Option<Document>, DocumentError> {
    let text = file[range.clone()].replace("\r\n", "\n");
    let syntax = |ParseError { line, message }: ParseError| DocumentError::Syntax {
        line: file[..range.start].matches('\n').count() + line,
        message,
    };
    if let Some(at) = text.find('\r') {
        let line = text[..at].matches('\n').count() + 1;
        return Err(syntax(ParseError { line, message: "a carriage return without a newline".to_owned() }));
    }
    let Some(document) = ending_with_newline(text).map_err(syntax)? else { return Ok(None) };
    if let Some(missing) = missing_krm_field(&document.root)
        && !is_kustomization(path)
    {
        return Err(DocumentError::NotKrm(missing));
    }
    let document = annotations::remove(document).ok_or(DocumentError::Unsupported)?;
    let annotated = annotations::add(&document, path, index)
        .map_err(DocumentError::NotAMapping)?
        .ok_or(DocumentError::Unsupported)?;
    let item = embedded(&annotated.text);
    // In the list, it must still mean the same.
    let list = Yaml::valid(item.as_str()).map(|list| list.root.body);
    match list {
        Some(Body::Sequence { items, .. }) if matches!(&items[..], [item] if same(item, &annotated.root)) => {
            Ok(Some(Document { range, text: document.text, item }))
        }
        _ => Err(DocumentError::Unsupported),
    }
}

/// The field without which a document is not a KRM resource.
pub(super) fn missing_krm_field(root: &Node) -> Option<&'static str> {
    ["apiVersion", "kind"].into_iter().find(|field| {
        // Whatever its type: `apiVersion: 1` is for the function to complain about.
        root.get(field).and_then(Node::text).is_none_or(str::is_empty)
    })
}

pub(super) fn is_kustomization(path: &str) -> bool {
    KUSTOMIZATIONS.contains(&path.rsplit('/').next().unwrap_or(path))
}

/// The document in `text` with a newline at its end. A literal block at the end of a file without a
/// final newline has none in its value either, and must not gain one: its header says so then
/// (`|-`).
pub(super) fn ending_with_newline(text: String) -> Result<Option<Yaml>, ParseError> {
    if text.ends_with('\n') {
        return Yaml::parse(text);
    }
    let document = Yaml::parse(text + "\n")?;
    Ok(document.map(|document| without_last_newline(&document).unwrap_or(document)))
}

/// `document` with a newline less in the block at its end. `None`: no block with a newline ends it.
fn without_last_newline(document: &Yaml) -> Option<Yaml> {
    let (block, scalar) = document.root.last_scalar()?;
    let is_block = scalar.style == Style::Block && block.span.end == document.text.len();
    let shortened = scalar.text.strip_suffix('\n').filter(|_| is_block)?;
    let above = document.text[..block.span.start].trim_end();
    let header_line = &above[above.rfind('\n').map_or(0, |newline| newline + 1)..];
    let header = header_line.split(" #").next()?;
    let indicators = above.len() - header_line.len() + header.rfind(['|', '>'])? + 1;
    let rest = above.len() - header_line.len() + header.len();
    let mut text = document.text.clone();
    text.replace_range(indicators..rest, &format!("-{}", text[indicators..rest].replace('+', "")));
    Yaml::valid(text).filter(|document| document.root.last_scalar().is_some_and(|(_, s)| s.text == shortened))
}

/// `text` as an item of a block sequence. The first line follows the dash even when it is a
/// comment: Go's YAML library moves comments elsewhere when the dash stands alone.
fn embedded(text: &str) -> String {
    let mut item = indent(text, 2);
    item.replace_range(..2, "- ");
    item
}
