//! Booleans, lists, and quoted texts for errors.

use std::{convert::Infallible, ops::Deref, str::FromStr};

use porch_fn_text::cut;

/// Maximum length of the user's text in an error, in bytes.
pub(super) const QUOTE_LIMIT: usize = 64;

/// Returns `text` in double quotes, on one line, cut to [`QUOTE_LIMIT`].
pub(super) fn quote(text: &str) -> String {
    format!("{:?}", cut(text, QUOTE_LIMIT, "\u{2026}"))
}

/// Returns `text` without control characters, cut to `limit` bytes.
pub(super) fn one_line(text: &str, limit: usize) -> String {
    cut(text, limit, "\u{2026}").chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Parses a boolean like Go's `strconv.ParseBool`.
///
/// # Errors
/// When `text` is not one of `1 t T TRUE true True 0 f F FALSE false False`.
pub fn parse_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(format!("{} is not a boolean; use true or false", quote(text))),
    }
}

/// A comma-separated list. Empty items and spaces around items are removed. So the empty text is an
/// empty list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommaList(pub Vec<String>);

impl FromStr for CommaList {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        Ok(Self(items.map(str::to_owned).collect()))
    }
}

impl Deref for CommaList {
    type Target = [String];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
