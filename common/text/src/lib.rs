//! Texts that others wrote, in logs, errors, statuses and pages: each is cut to a limit.

use std::borrow::Cow;

/// The beginning of `text`, with `ellipsis` in place of the rest: `limit` bytes at most, cut
/// between characters. A shorter text stays as it is.
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
