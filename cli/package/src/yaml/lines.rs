//! Lines and their indentation.

/// Returns the start of the line that contains `position`.
pub(crate) fn line_start(text: &str, position: usize) -> usize {
    text[..position].rfind('\n').map_or(0, |newline| newline + 1)
}

/// Returns the start of the line after `position`, or `position` itself if a line starts there.
pub(crate) fn line_end(text: &str, position: usize) -> usize {
    if position == line_start(text, position) {
        return position;
    }
    text[position..].find('\n').map_or(text.len(), |newline| position + newline + 1)
}

/// Returns the number of bytes between the start of the line and `position`.
pub(crate) fn column(text: &str, position: usize) -> usize {
    position - line_start(text, position)
}

/// Inserts `spaces` spaces before each line of `text` that is not empty.
pub(crate) fn indent(text: &str, spaces: usize) -> String {
    let pad = " ".repeat(spaces);
    let mut out = String::with_capacity(text.len() + text.len() / 8 + spaces);
    for line in text.split_inclusive('\n') {
        // A line of spaces can be content of a block scalar, so it is indented as well.
        if line != "\n" {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    out
}

/// Removes up to `spaces` spaces from the start of each line of `text`.
pub(crate) fn dedent(text: &str, spaces: usize) -> String {
    let without = |line: &str| {
        let leading = line.bytes().take(spaces).take_while(|byte| *byte == b' ').count();
        line[leading..].to_owned()
    };
    text.split_inclusive('\n').map(without).collect()
}
