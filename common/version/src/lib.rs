//! The version of the programs, with the commit from which they were built.

/// The text of `--version` after the program's name, such as `0.2.0 (3f2a1b0c9d8e, 2026-11-25)`.
/// Commit and date are `unknown` if the build had no git repository and no variables
/// `PORCH_FN_COMMIT` and `SOURCE_DATE_EPOCH`. The date is the commit's.
pub const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("PORCH_FN_COMMIT"), ", ", env!("PORCH_FN_DATE"), ")");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_has_the_commit_and_its_date() {
        let (version, built) = VERSION.split_once(" (").expect("a parenthesis");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let (commit, date) = built.trim_end_matches(')').split_once(", ").expect("two values");
        let is_hex = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_hex || commit == "unknown", "{commit}");
        let is_date = date.len() == 10 && date.split('-').all(|part| part.parse::<u16>().is_ok());
        assert!(is_date || date == "unknown", "{date}");
    }
}
