//! Parses the user's YAML files so that an error fits in one line of a log, with line and column.

use serde::de::DeserializeOwned;
use serde_saphyr::Spanned;

/// Parses `text`. The error is one line, with line and column.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let reason = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        // An error about the whole text has no location.
        if error.location().is_some() { reason } else { format!("line 1, column 1: {reason}") }
    })
}

/// Prefixes `reason` with the line and column of `value`.
pub(crate) fn at<T>(value: &Spanned<T>, reason: &str) -> String {
    let place = value.referenced;
    format!("line {}, column {}: {reason}", place.line(), place.column())
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_error_is_one_line_with_its_position() {
        for text in ["- a\n- 3", "a: b: c", "a: [", "a: \"\n\n", "a"] {
            let error = super::parse::<Vec<u32>>(text).unwrap_err();
            assert!(!error.contains('\n') && error.contains("line "), "{error}");
        }
    }
}
