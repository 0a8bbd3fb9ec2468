//! The comments of a document, which the parser skips.

use std::collections::HashMap;
use std::ops::Range;

use super::{Body, Node};

/// True when `new` has no comment that `old` has not, each with its tree.
pub(crate) fn no_new_comments(new: (&str, &Node), old: (&str, &Node)) -> bool {
    let mut known: HashMap<&str, usize> = HashMap::new();
    for comment in comments(old) {
        *known.entry(comment).or_default() += 1;
    }
    comments(new).iter().all(|comment| match known.get_mut(comment) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    })
}

/// All comments in order, from their `#`.
pub(super) fn comments<'a>((text, root): (&'a str, &Node)) -> Vec<&'a str> {
    let mut scalars = Vec::new();
    collect_scalars(root, &mut scalars);
    scalars.push(text.len()..text.len());
    let mut found = Vec::new();
    let mut from = 0;
    for scalar in scalars {
        // Outside scalars only a comment holds a `#` after white space.
        for line in text.get(from..scalar.start).unwrap_or_default().split_inclusive('\n') {
            let starts_comment = |at: &usize| {
                text[..from + at].bytes().next_back().is_none_or(|byte| byte.is_ascii_whitespace())
            };
            if let Some(at) = line.match_indices('#').map(|(at, _)| at).find(starts_comment) {
                found.push(line[at..].trim_end());
            }
            from += line.len();
        }
        from = from.max(scalar.end);
    }
    found
}

fn collect_scalars(node: &Node, scalars: &mut Vec<Range<usize>>) {
    match &node.body {
        Body::Scalar(_) | Body::Alias(_) => scalars.push(node.span.clone()),
        Body::Sequence { items, .. } => items.iter().for_each(|item| collect_scalars(item, scalars)),
        Body::Mapping { entries, .. } => entries.iter().for_each(|(key, value)| {
            collect_scalars(key, scalars);
            collect_scalars(value, scalars);
        }),
    }
}
