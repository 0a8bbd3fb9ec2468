//! Requirements for each document of a package: the fields of a KRM resource, and a newline at its
//! end.

use std::path::Path;

use crate::yaml::{Node, ParseError, Style, Yaml};

/// Files that may lack kind and apiVersion, like in kpt.
const KUSTOMIZATIONS: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// Fails with the name of the first required field of a KRM resource that is missing.
pub(super) fn require_krm_fields(root: &Node) -> Result<(), &'static str> {
    // The types of the values are not checked: a function itself must reject the number in
    // `apiVersion: 1`.
    let is_missing = |field: &&str| root.get(field).and_then(Node::text).is_none_or(str::is_empty);
    ["apiVersion", "kind"].into_iter().find(is_missing).map_or(Ok(()), Err)
}

pub(super) fn is_kustomization(path: &Path) -> bool {
    KUSTOMIZATIONS.iter().any(|name| path.ends_with(name))
}

/// Parses `text`. Adds a newline at its end if it has none. If `text` ends in a block scalar, the
/// added newline must not change the value, so the block's header becomes `|-` or `>-`.
pub(super) fn ending_with_newline(text: String) -> Result<Option<Yaml>, ParseError> {
    if text.ends_with('\n') {
        return Yaml::parse(text);
    }
    let document = Yaml::parse(text + "\n")?;
    Ok(document.map(|document| without_last_newline(&document).unwrap_or(document)))
}

/// Removes the last newline from the value of the block scalar at the end of `document`. `None`: no
/// block scalar is there.
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
