//! Cuts the items of a ResourceList out of its text, comments included.
//!
//! A comment line between two items belongs to the item above if it is indented at least as far as
//! that item's keys, else to the item below. kpt's libraries and people place comments like this.

use crate::yaml::{Body, Node, Yaml, column, dedent, line_end};

/// Returns each item of `list`, and its text. An item of a list in flow style has no text of its
/// own. `None`: `items` is not a list.
pub(super) fn list_items(list: &Yaml) -> Option<Vec<(&Node, Option<String>)>> {
    let entry = list.root.entries()?.iter().find(|(key, _)| key.text() == Some("items"));
    let Some((key, value)) = entry else { return Some(Vec::new()) };
    let Body::Sequence { items, flow } = &value.body else { return value.is_null().then(Vec::new) };
    let mut from = line_end(&list.text, key.span.end);
    let with_text = |item| {
        let cut = if *flow { None } else { cut(&list.text, from, item) };
        let (end, text) = cut.map_or((item_end(&list.text, item), None), |(end, text)| (end, Some(text)));
        from = end;
        (item, text)
    };
    Some(items.iter().map(with_text).collect())
}

fn item_end(text: &str, item: &Node) -> usize {
    line_end(text, item.span.end)
}

/// Returns the end of `item`, and its text. `from` is the end of the item above, or of the key
/// `items`. `None`: the item has no dash.
fn cut(text: &str, from: usize, item: &Node) -> Option<(usize, String)> {
    let keys = column(text, item.span.start);
    let has_dash =
        |line: &&str| matches!(line.trim_start_matches(' ').as_bytes(), [b'-', b' ' | b'\n', ..] | [b'-']);
    let head = text.get(from..item.span.start)?;
    let above: usize = head.split_inclusive('\n').take_while(|line| !has_dash(line)).map(str::len).sum();
    let dash = above + head[above..].find('-')?;
    let first_end = line_end(text, from + dash + 1);
    let end = end_with_comments(text, item_end(text, item), keys);
    let mut lines = text.get(from..end)?.to_owned();
    if text.get(from + dash + 1..first_end)?.trim().is_empty() {
        lines.replace_range(above..first_end - from, "");
    } else {
        lines.replace_range(dash..=dash, " ");
    }
    let mut out = dedent(&lines, keys);
    if !out.ends_with('\n') {
        out.push('\n');
    }
    Some((end, out))
}

/// Skips the lines at `from` that are blank or are comments with an indentation of at least `keys`
/// spaces. Returns the position after them.
fn end_with_comments(text: &str, from: usize, keys: usize) -> usize {
    let belongs = |line: &&str| {
        let content = line.trim_start_matches(' ');
        content == "\n" || (content.starts_with('#') && line.len() - content.len() >= keys)
    };
    from + text[from..].split_inclusive('\n').take_while(belongs).map(str::len).sum::<usize>()
}
