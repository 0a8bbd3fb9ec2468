//! Cuts the items of a ResourceList out of its text, comments included.
//!
//! A comment line between two items belongs to the one above when it is indented as far as that item's keys,
//! else to the one below: that is how both kpt's libraries and people place them.

use std::ops::Range;

use super::yaml::{Body, Node, line_end};

/// Each item of the list `root` with its text, where it stands in lines of its own. `None`: `items` is there
/// but no list.
pub(super) fn items<'a>(text: &str, root: &'a Node) -> Option<Vec<(&'a Node, Option<String>)>> {
    let entry = root.entries()?.iter().find(|(key, _)| key.text() == Some("items"));
    let Some((key, list)) = entry else { return Some(Vec::new()) };
    match &list.body {
        Body::Sequence { items, flow: true } => Some(items.iter().map(|item| (item, None)).collect()),
        Body::Sequence { items, flow: false } => {
            let regions = regions(text, line_end(text, key.span.end), items);
            Some(items.iter().zip(regions.iter().map(|region| region.as_ref()?.cut(text))).collect())
        }
        _ => list.is_null().then(Vec::new),
    }
}

/// The lines of one item.
struct Region {
    /// Comment lines above the dash.
    head: Range<usize>,
    /// Where the dash is.
    dash: usize,
    /// Where the last line ends.
    end: usize,
    /// How far the item's keys are indented.
    column: usize,
}

/// The region of each item, the first of which starts at or after `start`. `None` for one that has no dash
/// of its own.
fn regions(text: &str, start: usize, items: &[Node]) -> Vec<Option<Region>> {
    let mut from = start;
    let next = |item| {
        let region = region(text, from, item);
        from = region.as_ref().map_or_else(|| line_end(text, item.span.end), |region| region.end);
        region
    };
    items.iter().map(next).collect()
}

fn region(text: &str, from: usize, item: &Node) -> Option<Region> {
    let mut line = from;
    for candidate in text.get(from..item.span.start)?.split_inclusive('\n') {
        let content = candidate.trim_start_matches(' ');
        if content.strip_prefix('-').is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\n'])) {
            let dash = line + candidate.len() - content.len();
            let column =
                item.span.start - text[..item.span.start].rfind('\n').map_or(0, |newline| newline + 1);
            let end = tail(text, line_end(text, item.span.end), column);
            return Some(Region { head: from..line, dash, end, column });
        }
        line += candidate.len();
    }
    None
}

/// The end of the blank and the indented comment lines from `from` on.
fn tail(text: &str, from: usize, column: usize) -> usize {
    let belongs = |line: &&str| {
        let content = line.trim_start_matches(' ');
        content == "\n" || (content.starts_with('#') && line.len() - content.len() >= column)
    };
    from + text[from..].split_inclusive('\n').take_while(belongs).map(str::len).sum::<usize>()
}

impl Region {
    fn cut(&self, text: &str) -> Option<String> {
        let first_end = line_end(text, self.dash + 1);
        let indentation = self.dash - text[..self.dash].rfind('\n').map_or(0, |newline| newline + 1);
        let mut out = String::with_capacity(self.end - self.head.start + 1);
        dedent(&mut out, text.get(self.head.clone())?, indentation);
        let first = text.get(self.dash + 1..first_end)?;
        if !first.trim().is_empty() {
            dedent(&mut out, first, self.column.saturating_sub(indentation + 1));
        }
        dedent(&mut out, text.get(first_end..self.end)?, self.column);
        if !out.ends_with('\n') {
            out.push('\n');
        }
        Some(out)
    }
}

/// Each line of `text` without its first `spaces` spaces, as far as it has them.
fn dedent(out: &mut String, text: &str, spaces: usize) {
    for line in text.split_inclusive('\n') {
        let leading = line.bytes().take(spaces).take_while(|byte| *byte == b' ').count();
        out.push_str(&line[leading..]);
    }
}
