//! Cuts texts from outside to a limit, for logs, errors, statuses and pages.

use std::borrow::Cow;

/// Cuts `text` between two characters and appends `ellipsis`, so that the result has at most
/// `limit` bytes. Returns a text within the limit unchanged.
pub fn cut<'a>(text: &'a str, limit: usize, ellipsis: &str) -> Cow<'a, str> {
    if text.len() <= limit {
        return text.into();
    }
    let kept = &text[..text.floor_char_boundary(limit.saturating_sub(ellipsis.len()))];
    if ellipsis.is_empty() { kept.into() } else { format!("{kept}{ellipsis}").into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        for (text, limit, ellipsis, expected) in [
            ("", 0, "", ""),
            ("abcde", 5, "...", "abcde"),
            ("abcdef", 5, "...", "ab..."),
            ("aääää", 6, "…", "aä…"),
            ("aäää", 4, "", "aä"),
            ("äää", 1, "", ""),
        ] {
            assert_eq!(cut(text, limit, ellipsis), expected, "{text} {limit}");
        }
    }
}
