//! Version constraints as Porch's callers write them in the `tag` field.
//!
//! kpt reads them with Go's Masterminds/semver v3. The `semver` crate does not support that syntax
//! (`||`, hyphen ranges, `!=`, a leading `v`, `=1.2` for `1.2.x`). So this module parses it, and
//! takes only the type `Version` from the crate. It matches v3.5.0 in all corner cases but two,
//! which the library misreads: `!=1.3 1.2 - 1.4` and `<1||1.2 - 1.4`.

use semver::{BuildMetadata, Prerelease, Version};

/// Longest constraint, in bytes, as in the Go library.
const MAX_LEN: usize = 512;

/// A set of versions, such as `>=1.2 <2`, `~1.2.3`, `^0.4`, `1.x || 3.1 - 3.4`.
///
/// A plain version is a constraint too: `v0.4.1` is that version, `v0.4` any `0.4.x`. But kpt
/// takes a text literally, as a tag, if [`parse_version`] accepts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// A version matches if all comparisons of at least one of these lists hold.
    alternatives: Vec<Vec<Comparison>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Comparison {
    /// One of [`OPERATORS`].
    operator: &'static str,
    /// The version in the text. Numbers that the text leaves out are 0.
    version: Version,
    /// How many numbers the text has before a wildcard or its end.
    written: usize,
}

/// The operators before a version. No operator means `=`. Longer operators come first.
const OPERATORS: [&str; 12] = ["!=", ">=", "=>", "<=", "=<", "~>", "=", ">", "<", "~", "^", ""];

impl Constraint {
    /// Parses a constraint of at most 512 bytes. `None`: the text is not a constraint.
    pub fn parse(constraint: &str) -> Option<Self> {
        if constraint.len() > MAX_LEN {
            return None;
        }
        Some(Self { alternatives: constraint.split("||").map(parse_all).collect::<Option<_>>()? })
    }

    /// Whether `version` is in the set. An alternative without a prerelease matches no prerelease.
    pub fn matches(&self, version: &Version) -> bool {
        self.alternatives.iter().any(|all| {
            let prereleases = all.iter().any(|comparison| !comparison.version.pre.is_empty());
            (prereleases || version.pre.is_empty()) && all.iter().all(|comparison| comparison.holds(version))
        })
    }

    /// The tag with the highest version in the set; see [`sorted_versions`].
    pub fn highest<'a>(&self, tags: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        self.first_match(&sorted_versions(tags)).copied()
    }

    /// The first tag in the set. `versions` are in the order of [`sorted_versions`].
    pub fn first_match<'a, T>(&self, versions: &'a [(Version, T)]) -> Option<&'a T> {
        versions.iter().find(|(version, _)| self.matches(version)).map(|(_, tag)| tag)
    }
}

/// The tags that are versions, the highest first. Builds of a commit, `…-git-…`, are left out, as
/// in kpt. Of several tags for one version (`v1.2`, `v1.2.0`), the last in byte order comes first.
pub fn sorted_versions<T: AsRef<str>>(tags: impl IntoIterator<Item = T>) -> Vec<(Version, T)> {
    let tags = tags.into_iter().filter(|tag| !tag.as_ref().contains("-git-"));
    let mut versions: Vec<_> = tags.filter_map(|tag| Some((parse_version(tag.as_ref())?, tag))).collect();
    versions.sort_unstable_by(|(a, a_tag), (b, b_tag)| {
        b.cmp_precedence(a).then_with(|| b_tag.as_ref().cmp(a_tag.as_ref()))
    });
    versions
}

/// Parses a version leniently: `v1.2.3`, `1.2` and `v1` are versions, and leading zeros do not
/// matter.
pub fn parse_version(text: &str) -> Option<Version> {
    let (version, written, has_wildcard) = parse_partial(text)?;
    (written > 0 && !has_wildcard).then_some(version)
}

/// Comparisons separated by spaces or commas.
fn parse_all(text: &str) -> Option<Vec<Comparison>> {
    let mut all = Vec::new();
    let mut rest = text.trim_ascii();
    loop {
        let operator = OPERATORS.into_iter().find(|operator| rest.starts_with(operator))?;
        let (operand, after) = split_word(rest[operator.len()..].trim_ascii());
        rest = after.trim_ascii();
        let range = rest.strip_prefix('-').filter(|upper| upper.trim_ascii_start() != *upper);
        if let ("", Some(upper)) = (operator, range) {
            let (upper, after) = split_word(upper.trim_ascii());
            all.push(Comparison::new(">=", operand)?);
            all.push(Comparison::new("<=", upper)?);
            rest = after.trim_ascii();
        } else {
            all.push(Comparison::new(operator, operand)?);
        }
        match rest.strip_prefix(',') {
            Some(next) => rest = next.trim_ascii(),
            None if rest.is_empty() => return Some(all),
            None => {}
        }
    }
}

/// Parses `v1.2.3-pre+build`, whose parts may be missing or `x`. Returns the version, how many
/// numbers the text has, and whether it has an `x`.
fn parse_partial(text: &str) -> Option<(Version, usize, bool)> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
    // `Prerelease` and `BuildMetadata` check the rest, but accept an empty text as "none".
    if pre == Some("") || build == Some("") {
        return None;
    }

    let mut numbers = [0; 3];
    let mut written = 0;
    let mut has_wildcard = false;
    for (index, part) in core.split('.').enumerate() {
        let number = numbers.get_mut(index)?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'x' | b'X' | b'*')) {
            return None;
        }
        // Numbers after a wildcard are ignored.
        has_wildcard |= matches!(part, "x" | "X" | "*");
        if !has_wildcard {
            *number = part.parse().ok()?;
            written = index + 1;
        }
    }
    let [major, minor, patch] = numbers;
    let pre = Prerelease::new(pre.unwrap_or_default()).ok()?;
    let build = BuildMetadata::new(build.unwrap_or_default()).ok()?;
    Some((Version { major, minor, patch, pre, build }, written, has_wildcard))
}

fn split_word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_ascii_whitespace() || c == ',').unwrap_or(text.len());
    text.split_at(end)
}

impl Comparison {
    fn new(operator: &'static str, operand: &str) -> Option<Self> {
        let (version, written, _) = parse_partial(operand)?;
        Some(Self { operator, version, written })
    }

    fn holds(&self, version: &Version) -> bool {
        let own = &self.version;
        let order = version.cmp_precedence(own);
        // Compares only the first `count` numbers.
        let first = |count: usize| {
            let numbers = |version: &Version| [version.major, version.minor, version.patch];
            numbers(version)[..count].cmp(&numbers(own)[..count])
        };
        match (self.operator, self.written) {
            ("" | "=", 3) => order.is_eq(),
            // `~0.0.0` matches every version, like `*`.
            ("~" | "~>", 3) if (own.major, own.minor, own.patch) == (0, 0, 0) => order.is_ge(),
            ("" | "=" | "~" | "~>", written) => order.is_ge() && first(written.min(2)).is_eq(),
            ("!=", 1) => first(1).is_ne(),
            ("!=", 2) => first(2).is_ne() || version.pre != own.pre,
            ("!=", _) => order.is_ne(),
            (">", written @ 1..=2) => first(written).is_gt(),
            (">", _) => order.is_gt(),
            (">=" | "=>", _) => order.is_ge(),
            ("<", _) => order.is_lt(),
            ("<=" | "=<", 3) => order.is_le(),
            ("<=" | "=<", 1) => first(1).is_le(),
            ("<=" | "=<", _) => first(2).is_le(),
            // `^`: the leftmost number that is not 0 may not change. `^*` matches only 0.0.0: a
            // corner case of the original.
            (_, written) => {
                let kept = match (own.major, own.minor, written) {
                    (1.., ..) | (.., 1) => 1,
                    (_, 1.., _) | (.., 2) => 2,
                    _ => 3,
                };
                order.is_ge() && first(kept).is_eq()
            }
        }
    }
}
