//! Scalars, and how to write a string so that it stays one.

use super::resolve::{canonical, may_be_special};

/// How a scalar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Without quotes: the text decides whether it is a string, a number, a boolean or null.
    Plain,
    /// In single quotes, and to be kept so.
    SingleQuoted,
    /// In double quotes, or in none where that makes no difference.
    DoubleQuoted,
    /// A literal or folded block.
    Block,
}

/// A scalar as its text says it; nothing is resolved to a number or a boolean.
#[derive(Debug, Clone)]
pub(crate) struct Scalar {
    /// The content, after folding and unescaping.
    pub(crate) text: String,
    /// How it was written.
    pub(crate) style: Style,
}

impl Scalar {
    /// True for an absent value, `~` and `null`.
    pub(crate) fn is_null(&self) -> bool {
        self.style == Style::Plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }

    /// True when every YAML version reads this scalar as a string. False means "perhaps not".
    pub(crate) fn is_string(&self) -> bool {
        self.style != Style::Plain || self.text.contains('\n') || !may_be_special(&self.text)
    }

    /// True when both stand for the same value: neither quotes that change nothing count, nor how a number is
    /// written. Libraries that go by JSON's types write `0644` as 420.
    pub(crate) fn same(&self, other: &Self) -> bool {
        if self.text == other.text {
            return self.style == other.style || self.is_string() == other.is_string();
        }
        let is_plain = self.style == Style::Plain && other.style == Style::Plain;
        is_plain && canonical(&self.text).is_some_and(|value| Some(value) == canonical(&other.text))
    }
}

/// True when `text` is a string without quotes wherever it stands. Careful on purpose: it starts with a
/// letter, `_` or `/`, and holds only characters that mean nothing to YAML.
pub(super) fn is_plain_string(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '/');
    starts_well
        && !text.ends_with(' ')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ' '))
        && !may_be_special(text)
}

/// `text` in single quotes where it can be, else in double quotes with escapes.
pub(super) fn single_quoted(text: &str) -> String {
    if text.chars().any(needs_escape) {
        return double_quoted(text);
    }
    format!("'{}'", text.replace('\'', "''"))
}

/// `text` in double quotes: valid in YAML and in JSON.
pub(super) fn double_quoted(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            // All such characters lie in the basic plane, so four digits are enough.
            c if needs_escape(c) => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Control characters, byte order marks and the line breaks that only some YAML versions know.
pub(super) fn needs_escape(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}
