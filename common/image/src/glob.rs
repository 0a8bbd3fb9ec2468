//! Texts with wildcards: `*` matches any text without a `/`, `**` any text.

/// Whether all of `text` matches `glob`. For a text of n bytes and a glob of m bytes, the time is
/// O(n² · m) at most.
pub fn glob_matches(glob: &str, text: &str) -> bool {
    // Callers test a text against a long list of patterns. This quick test rejects nearly all.
    let (_, suffix) = glob.rsplit_once('*').unwrap_or(("", glob));
    text.ends_with(suffix) && find_match(glob.as_bytes(), text.as_bytes())
}

/// Each wildcard matches as little as possible. On a mismatch, the last `*` matches one byte more;
/// if it cannot, the last `**` does. Earlier wildcards need not be extended.
fn find_match(mut glob: &[u8], mut text: &[u8]) -> bool {
    // For the last `*` and the last `**`: the glob after the wildcard, and the text after the part
    // that the wildcard matches so far.
    let (mut last_star, mut last_double) = (None, None);
    loop {
        if let [b'*', b'*', rest @ ..] = glob {
            (glob, last_star, last_double) = (rest, None, Some((rest, text)));
        } else if let [b'*', rest @ ..] = glob {
            (glob, last_star) = (rest, Some((rest, text)));
        } else if glob.is_empty() && text.is_empty() {
            return true;
        } else if !glob.is_empty() && glob.first() == text.first() {
            (glob, text) = (&glob[1..], &text[1..]);
        } else if let Some((after, [byte, rest @ ..])) = last_star
            && *byte != b'/'
        {
            (glob, text, last_star) = (after, rest, Some((after, rest)));
        } else if let Some((after, [_, rest @ ..])) = last_double {
            (glob, text, last_star, last_double) = (after, rest, None, Some((after, rest)));
        } else {
            return false;
        }
    }
}
