//! Indents sequences below their key.
//!
//! Go's YAML library, and so most functions, writes every sequence level with its key. kpt remembers in an
//! annotation that a document indents them (`wide`) and writes it back so; without that each call of a
//! function would reformat half a package.

use super::edit::{Edit, line_end};
use super::{Body, Node};

/// Two spaces before each line of each sequence that is level with its key. `None` when the document has none
/// or indents some already: then the function kept the user's layout.
pub(crate) fn widen(text: &str, root: &Node) -> Option<Vec<Edit>> {
    let mut lines = Vec::new();
    collect(text, root, &mut lines)?;
    lines.sort_unstable();
    let edits = lines.into_iter().map(|at| Edit { range: at..at, text: "  ".to_owned() }).collect::<Vec<_>>();
    (!edits.is_empty()).then_some(edits)
}

/// Adds the start of each line to move, once for each sequence around it.
fn collect(text: &str, node: &Node, lines: &mut Vec<usize>) -> Option<()> {
    match &node.body {
        Body::Scalar(_) | Body::Alias(_) => {}
        Body::Sequence { items, .. } => {
            for item in items {
                collect(text, item, lines)?;
            }
        }
        Body::Mapping { entries, .. } => {
            for (key, value) in entries {
                if let Body::Sequence { items, flow: false } = &value.body {
                    let start = line_end(text, key.span.end);
                    let dash = first_dash(text, start, items.first()?.span.start)?;
                    if dash != column(text, key.span.start) {
                        return None;
                    }
                    let mut at = start;
                    for line in text.get(start..line_end(text, value.span.end))?.split_inclusive('\n') {
                        if line != "\n" {
                            lines.push(at);
                        }
                        at += line.len();
                    }
                }
                collect(text, value, lines)?;
            }
        }
    }
    Some(())
}

/// The column of the first dash between `start`, where a line starts, and `end`.
fn first_dash(text: &str, start: usize, end: usize) -> Option<usize> {
    text.get(start..end)?.split_inclusive('\n').find_map(|line| {
        let content = line.trim_start_matches(' ');
        content.starts_with('-').then(|| line.len() - content.len())
    })
}

fn column(text: &str, position: usize) -> usize {
    position - text[..position].rfind('\n').map_or(0, |newline| newline + 1)
}
