//! Parses the user's YAML files so that a mistake is one line, with its line and column: it ends up in a log.

use serde::de::DeserializeOwned;

/// Parses `text`. The error is one line.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| error.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_mistake_is_one_line_with_its_place() {
        for text in ["- a\n- 3", "a: b: c", "a: [", "a: \"\n\n"] {
            let error = super::parse::<Vec<u32>>(text).unwrap_err();
            assert!(!error.contains('\n') && error.contains("line "), "{error}");
        }
    }
}
