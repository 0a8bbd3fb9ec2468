//! Reads single values from a `/metrics` page.

/// The values of metric `name`, each with its labels as they stand.
pub(super) fn values<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        Some((labels, value.trim()))
    })
}

/// The value of a metric without labels.
pub(super) fn value<'a>(page: &'a str, name: &'a str) -> Option<&'a str> {
    values(page, name).next().map(|(_, value)| value)
}

/// The value of one label.
pub(super) fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let start = labels.find(&format!("{name}=\""))? + name.len() + 2;
    labels[start..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP a_b what\n# TYPE a_b gauge\na_b 12\na_b_c 3\nd{source=\"x\",e=\"} 7\"} 1\nd{source=\"y\"} 0\n# EOF\n";

    #[test]
    fn values_are_found_by_their_whole_names() {
        assert_eq!(value(PAGE, "a_b"), Some("12"));
        assert_eq!(value(PAGE, "a"), None);
        let found: Vec<_> =
            values(PAGE, "d").map(|(labels, value)| (label(labels, "source").unwrap(), value)).collect();
        assert_eq!(found, [("x", "1"), ("y", "0")]);
    }
}
