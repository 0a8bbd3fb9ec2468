//! Errors that name the wrong field. They quote the user's text up to a bounded length.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum length in bytes of the user's text in an error: errors go to statuses and logs.
const MAX_QUOTED: usize = 200;

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldError {
    /// Such as `spec.podExecutor.tags[1]`.
    pub(crate) path: String,
    pub(crate) reason: String,
}

impl FieldError {
    pub(crate) fn new(path: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { path: path.into(), reason: reason.into() }
    }
}

/// Reads a value. The error names the field.
pub(crate) fn deserialize<T: DeserializeOwned>(value: &Value) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let reason = error.inner().to_string();
        // `u32` is the only Rust type name in serde's errors here.
        let reason = reason.replace("expected u32", "expected a whole number from 0 to 4294967295");
        FieldError::new(error.path().to_string(), bounded(&reason))
    })
}

/// `text` in quotes, bounded.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", bounded(text))
}

/// `text`, without its middle if it is long. The end stays, because it names the expected value.
pub(crate) fn bounded(text: &str) -> String {
    if text.len() <= MAX_QUOTED {
        return text.to_owned();
    }
    let half = MAX_QUOTED / 2;
    let (start, end) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    format!("{}...{}", &text[..start], &text[end..])
}
