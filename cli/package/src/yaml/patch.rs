//! Edits new values into an existing text.
//!
//! Functions parse YAML and serialize it again. Their libraries drop comments, blank lines and
//! quotes, which the functions do not intend. So an unchanged value keeps its old text, and a
//! changed scalar is replaced in place. A changed, added or removed entry of a block mapping
//! replaces, adds or removes whole lines. New lines are copied from the new text. An entry that
//! this program created, or an entry of a flow mapping, has no lines in the new text: [`emit`]
//! serializes it.

use std::ops::Range;

use super::lines::{column, dedent, indent, line_end, line_start};
use super::parse::entry_end;
use super::{Body, Entry, Node, Scalar, Style, Yaml, emit, same};

/// Returns `old` with the values of `new`. The spans of `new` are byte ranges in `new_text`.
/// `None`: replacing values and whole entries of block mappings is not enough for this change.
pub(crate) fn patch(old: &Yaml, new_text: &str, new: &Node) -> Option<Yaml> {
    let mut patch = Patch { old: &old.text, new: new_text, edits: Vec::new() };
    patch.value(&old.root, new, false)?;
    let text = patch.apply()?;
    Yaml::valid(text).filter(|patched| same(&patched.root, new))
}

/// Returns `document` with the values of `wanted`, a changed copy of its tree. If the text cannot
/// be edited, `wanted` is serialized without comments. `None`: `wanted` cannot be serialized.
pub(crate) fn rewrite(document: &Yaml, wanted: &Node) -> Option<Yaml> {
    patch(document, &document.text, wanted).or_else(|| emit::document(wanted))
}

struct Patch<'a> {
    old: &'a str,
    new: &'a str,
    /// Byte ranges of the old text, and their replacements.
    edits: Vec<(Range<usize>, String)>,
}

impl Patch<'_> {
    /// Returns the old text with all edits. `None`: edits overlap or cut a character.
    fn apply(mut self) -> Option<String> {
        self.edits.sort_by_key(|(range, _)| (range.start, range.end));
        let mut out = String::with_capacity(self.old.len());
        let mut done = 0;
        for (range, text) in &self.edits {
            out.push_str(self.old.get(done..range.start)?);
            out.push_str(text);
            done = range.end;
        }
        out.push_str(self.old.get(done..)?);
        Some(out)
    }

    fn value(&mut self, old: &Node, new: &Node, in_flow: bool) -> Option<()> {
        if same(old, new) {
            return Some(());
        }
        // An alias has no text of its own to edit: the text of its value is at the anchor.
        if old.is_alias || new.is_alias || old.tag != new.tag {
            return None;
        }
        match (&old.body, &new.body) {
            (Body::Scalar(was), Body::Scalar(is)) => {
                let text = self.scalar(was, is, new, in_flow).filter(|_| !old.span.is_empty())?;
                self.edits.push((old.span.clone(), text));
                Some(())
            }
            (Body::Sequence { items: was, flow }, Body::Sequence { items: is, .. })
                if was.len() == is.len() =>
            {
                was.iter().zip(is).try_for_each(|(old, new)| self.value(old, new, in_flow || *flow))
            }
            (Body::Mapping { entries: was, flow }, Body::Mapping { entries: is, flow: new_flow }) => {
                self.mapping(was, is, in_flow || *flow, *new_flow)
            }
            _ => None,
        }
    }

    /// Returns the new scalar on one line, in the old quotes. `None`: it does not fit on one line.
    fn scalar(&self, was: &Scalar, is: &Scalar, new: &Node, in_flow: bool) -> Option<String> {
        let needs_care = |c: char| c.is_control() || "'\"\\\u{2028}\u{2029}\u{feff}".contains(c);
        match was.style {
            Style::Block => None,
            Style::Quoted(quote) if is.is_string() && !is.text.contains(needs_care) => {
                Some(format!("{quote}{}{quote}", is.text))
            }
            _ => {
                let text = self.new.get(new.span.clone()).filter(|text| !text.is_empty())?;
                let breaks_flow =
                    in_flow && is.style == Style::Plain && text.contains([',', '[', ']', '{', '}']);
                (is.style != Style::Block && !text.contains('\n') && !breaks_flow).then(|| text.to_owned())
            }
        }
    }

    fn mapping(&mut self, was: &[Entry], is: &[Entry], in_flow: bool, new_flow: bool) -> Option<()> {
        // A mapping without entries needs braces, which an edit of lines cannot add.
        is.first()?;
        let mut next = 0;
        for entry @ (key, new) in is {
            let is_same = |(other, _): &Entry| same(other, key);
            if let Some(skipped) = was[next..].iter().position(is_same) {
                let at = next + skipped;
                self.remove(&was[next..at], in_flow)?;
                next = at + 1;
                let edits = self.edits.len();
                if self.value(&was[at].1, new, in_flow).is_none() {
                    self.edits.truncate(edits);
                    let text = self.lines(entry, new_flow).filter(|_| !in_flow)?;
                    let (start, end) = (was[at].0.span.start, line_end(self.old, entry_end(&was[at])));
                    let text = indent(&text, column(self.old, start));
                    self.edits.push((start..end, text.trim_start().to_owned()));
                }
            } else if was[..next].iter().any(is_same) {
                // The order of the entries has changed.
                return None;
            } else {
                let text = self.lines(entry, new_flow).filter(|_| !in_flow)?;
                let above = &was[next.checked_sub(1)?];
                let at = line_end(self.old, entry_end(above));
                self.edits.push((at..at, indent(&text, column(self.old, above.0.span.start))));
            }
        }
        self.remove(&was[next..], in_flow)
    }

    fn remove(&mut self, entries: &[Entry], in_flow: bool) -> Option<()> {
        for entry in entries {
            let start = line_start(self.old, entry.0.span.start);
            let stands_alone = self.old[start..entry.0.span.start].bytes().all(|byte| byte == b' ');
            if in_flow || !stands_alone {
                return None;
            }
            self.edits.push((start..line_end(self.old, entry_end(entry)), String::new()));
        }
        Some(())
    }

    /// Returns the lines of a new entry, at column 0.
    fn lines(&self, entry: &Entry, in_flow: bool) -> Option<String> {
        let start = entry.0.span.start;
        let line = line_start(self.new, start);
        let starts_line = self.new[line..start].bytes().all(|byte| matches!(byte, b' ' | b'-'));
        if entry.0.span.is_empty() || in_flow || !starts_line {
            return emit::entry(entry);
        }
        let (first, rest) = self.new[start..line_end(self.new, entry_end(entry))].split_once('\n')?;
        Some(format!("{first}\n{}", dedent(rest, start - line)))
    }
}
