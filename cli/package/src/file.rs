//! One file of a package: its documents, each with the item that a function gets to see.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::annotations::{self, AnnotateError, Place, alone, realise};
use super::yaml::{Body, Edit, Node, Section, Style, document, expand, indent, parse, sections};

/// Kustomize's own files name neither kind nor apiVersion; kpt lets them pass.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// A package as it was read.
#[derive(Debug, Clone, Default)]
pub struct Package {
    /// In the order of their paths.
    pub(super) files: Vec<File>,
    pub(super) skipped_links: Vec<PathBuf>,
}

/// A file and the documents in it; what stands between them is only here, in `text`.
#[derive(Debug, Clone)]
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
    /// The item of a ResourceList: `- ` and the annotated text.
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

    /// Symbolic links that would have been read had they been files. They are never followed.
    pub fn skipped_links(&self) -> &[PathBuf] {
        &self.skipped_links
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
        for section in sections(&text) {
            let index = documents.len();
            let item = item(&text, &section, name, index).map_err(|error| (index + 1, error))?;
            if let Some(item) = item {
                documents.push(Document { range: section.body, item });
            }
        }
        Ok(Self { path, text, documents })
    }
}

/// The item for one document; `None` when it is empty.
fn item(file: &str, section: &Section, path: &str, index: usize) -> Result<Option<String>, DocumentError> {
    let text = unix_lines(&file[section.body.clone()]);
    let syntax = |line: usize, message: String| DocumentError::Syntax {
        line: file[..section.body.start].matches('\n').count() + line,
        message,
    };
    if let Some(at) = text.find('\r') {
        let line = text[..at].matches('\n').count() + 1;
        return Err(syntax(line, "a carriage return without a newline".to_owned()));
    }
    let text = match parse(&text) {
        Ok(None) => return Ok(None),
        Ok(Some(_)) => text,
        Err(error) => without_tag_directives(&text, &file[section.directives.clone()])
            .map(Cow::Owned)
            .ok_or_else(|| syntax(error.line(), error.to_string()))?,
    };
    let sequence_indent = sequence_indent(&text);
    let (mut text, mut root) = ends_with_newline(text).ok_or(DocumentError::Unsupported)?;
    if let Some(missing) = missing_krm_field(&root)
        && !is_kustomization(path)
    {
        return Err(DocumentError::NotKrm(missing));
    }
    if let Some(change) = annotations::remove(&text, &root) {
        text = realise(&text, &change, alone).ok_or(DocumentError::Unsupported)?;
        root = alone(&text).ok_or(DocumentError::Unsupported)?;
    }
    let change = annotations::add(&text, &root, Place { path, index, sequence_indent })?;
    let text = realise(&text, &change, |text| embedded(&embed(text))).ok_or(DocumentError::Unsupported)?;
    Ok(Some(embed(&text)))
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

fn unix_lines(text: &str) -> Cow<'_, str> {
    if text.contains("\r\n") { Cow::Owned(text.replace("\r\n", "\n")) } else { Cow::Borrowed(text) }
}

/// A document whose tags need a `%TAG` directive, written anew with the tags in full: inside a ResourceList
/// there can be no directive.
fn without_tag_directives(text: &str, directives: &str) -> Option<String> {
    if !directives.contains("%TAG") {
        return None;
    }
    let root = parse(&format!("{directives}---\n{text}")).ok().flatten()?;
    document(&expand(&root, &root)?).ok()
}

/// The text with a newline at its end, and its tree. A literal block at the end of a file without a final
/// newline has none in its value either, and must not gain one: its header says so then (`|-`).
pub(super) fn ends_with_newline(text: Cow<'_, str>) -> Option<(String, Node)> {
    let mut text = text.into_owned();
    if text.ends_with('\n') {
        let root = alone(&text)?;
        return Some((text, root));
    }
    text.push('\n');
    let mut root = alone(&text)?;
    let end = text.len();
    let Some(block) = last_scalar(&mut root).filter(|node| {
        node.span.end == end && node.scalar().is_some_and(|scalar| scalar.style == Style::Block)
    }) else {
        return Some((text, root));
    };
    let start = block.span.start;
    let Body::Scalar(scalar) = &mut block.body else { return None };
    if scalar.text.ends_with('\n') {
        scalar.text.pop();
        let edits = chomp_header(&text, start).map(|edit| vec![edit]);
        let change = annotations::Change { expected: root, edits };
        text = realise(&text, &change, alone)?;
        root = alone(&text)?;
    }
    Some((text, root))
}

fn last_scalar(node: &mut Node) -> Option<&mut Node> {
    if node.scalar().is_some() {
        return Some(node);
    }
    match &mut node.body {
        Body::Sequence { items, .. } => last_scalar(items.last_mut()?),
        Body::Mapping { entries, .. } => last_scalar(&mut entries.last_mut()?.1),
        Body::Scalar(_) | Body::Alias(_) => None,
    }
}

/// The edit that makes the block whose content starts at `content` end without a newline.
fn chomp_header(text: &str, content: usize) -> Option<Edit> {
    let above = text[..content].trim_end();
    let line = above.rfind('\n').map_or(0, |newline| newline + 1);
    let header = above[line..].split(" #").next()?;
    let after = header.rfind(['|', '>'])? + 1;
    let keep = header[after..].find('+').map_or(after..after, |plus| after + plus..after + plus + 1);
    let range = line + keep.start..line + keep.end;
    Some(Edit { range, text: "-".to_owned() })
}

/// `text` as an item of a block sequence. The first line follows the dash even when it is a comment: Go's
/// YAML library moves comments elsewhere when the dash stands alone.
fn embed(text: &str) -> String {
    let mut item = indent(text, 2);
    item.replace_range(..2, "- ");
    item
}

/// The tree of an item out of [`embed`].
fn embedded(item: &str) -> Option<Node> {
    let root = alone(item)?;
    match root.body {
        Body::Sequence { mut items, .. } if items.len() == 1 => items.pop(),
        _ => None,
    }
}

/// How sequences stand below their key, as kyaml derives it: from the first sequence that it recognises.
fn sequence_indent(text: &str) -> &'static str {
    let lines: Vec<&str> = text.split('\n').collect();
    let leading = |line: &str| line.len() - line.trim_start_matches(' ').len();
    for (at, line) in lines.iter().enumerate() {
        let dash = leading(line);
        if !line[dash..].starts_with("- ") {
            continue;
        }
        let Some(above) = lines[..at].iter().rev().find(|line| !line.trim_matches(' ').starts_with('#'))
        else {
            continue;
        };
        let key_line = above.split('#').next().unwrap_or(above);
        let key = key_line.trim_matches(' ');
        if key.matches(':').count() != 1 || !key.ends_with(':') {
            continue;
        }
        match dash.checked_sub(leading(key_line)) {
            Some(0) => return "compact",
            Some(2) => return "wide",
            _ => {}
        }
    }
    "compact"
}

impl From<AnnotateError> for DocumentError {
    fn from(error: AnnotateError) -> Self {
        match error {
            AnnotateError::NotAMapping(what) => Self::NotAMapping(what),
            AnnotateError::Aliases => Self::Unsupported,
        }
    }
}
