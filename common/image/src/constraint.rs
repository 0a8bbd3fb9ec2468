//! Version constraints as Porch's callers write them in the `tag` field.
//!
//! kpt reads them with Go's Masterminds/semver v3. The `semver` crate does not have its language
//! (`||`, hyphen ranges, `!=`, a `v` in front, `=1.2` for `1.2.x`), so this module parses it. The
//! versions are those of the crate. The meaning is that of v3.5.0 in all corner cases. One
//! difference: a hyphen range may follow a space or a bare `||`, which the library misreads.

use semver::{BuildMetadata, Prerelease, Version};

/// Longest constraint, in bytes, as in the Go library.
const MAX_LEN: usize = 512;

/// The text is not a version constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a version constraint: write one such as v1.2, >=1.2 <2, ~0.4, 1.x or 1.2 - 1.4")]
pub struct ConstraintError;

/// A set of versions, such as `>=1.2 <2`, `~1.2.3`, `^0.4`, `1.x || 3.1 - 3.4`.
///
/// A plain version is a constraint too: `v0.4.1` is that version, `v0.4` any `0.4.x`. For kpt, a
/// tag that [`parse_version`] accepts is a literal tag, and kpt looks nothing up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    /// All comparisons of one of these lists must hold.
    alternatives: Vec<Vec<Comparison>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Comparison {
    operator: Operator,
    /// Numbers that are not written are 0.
    version: Version,
    /// How many numbers are written before a wildcard or the end.
    written: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    GreaterEqual,
    Less,
    LessEqual,
    Tilde,
    Caret,
}

/// Longer signs first.
const OPERATORS: [(&str, Operator); 11] = [
    ("!=", Operator::NotEqual),
    (">=", Operator::GreaterEqual),
    ("=>", Operator::GreaterEqual),
    ("<=", Operator::LessEqual),
    ("=<", Operator::LessEqual),
    ("~>", Operator::Tilde),
    ("=", Operator::Equal),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("~", Operator::Tilde),
    ("^", Operator::Caret),
];

impl Constraint {
    /// Parses a constraint of at most 512 bytes.
    ///
    /// # Errors
    /// [`ConstraintError`]
    pub fn parse(constraint: &str) -> Result<Self, ConstraintError> {
        let is_short = constraint.len() <= MAX_LEN;
        let alternatives = is_short.then(|| constraint.split("||").map(parse_all).collect()).flatten();
        Ok(Self { alternatives: alternatives.ok_or(ConstraintError)? })
    }

    /// Whether `version` is in the set. A prerelease is only if the alternative contains a
    /// prerelease too.
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
    let mut rest = trim(text);
    loop {
        let sign = OPERATORS.iter().find_map(|(sign, operator)| Some((*operator, rest.strip_prefix(sign)?)));
        let (operand, after) = split_word(sign.map_or(rest, |(_, operand)| trim(operand)));
        let range = trim(after).strip_prefix('-').filter(|upper| upper.starts_with(is_space));
        rest = trim(match (sign, range) {
            (None, Some(upper)) => {
                let (upper, after) = split_word(trim(upper));
                all.push(Comparison::new(Operator::GreaterEqual, operand)?);
                all.push(Comparison::new(Operator::LessEqual, upper)?);
                after
            }
            (sign, _) => {
                let operator = sign.map_or(Operator::Equal, |(operator, _)| operator);
                all.push(Comparison::new(operator, operand)?);
                after
            }
        });
        match rest.strip_prefix(',') {
            Some(next) => rest = trim(next),
            None if rest.is_empty() => return Some(all),
            None => {}
        }
    }
}

/// `v1.2.3-pre+build` with parts left out or `x`: the version, how many of its numbers are written,
/// and whether there is an `x`.
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
        // After a wildcard, nothing counts.
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

fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

fn is_space(c: char) -> bool {
    c.is_ascii_whitespace()
}

fn split_word(text: &str) -> (&str, &str) {
    let end = text.find(|c| is_space(c) || c == ',').unwrap_or(text.len());
    text.split_at(end)
}

impl Comparison {
    fn new(operator: Operator, operand: &str) -> Option<Self> {
        let (version, written, _) = parse_partial(operand)?;
        Some(Self { operator, version, written })
    }

    fn holds(&self, version: &Version) -> bool {
        let own = &self.version;
        let order = version.cmp_precedence(own);
        // The order of the first `count` numbers alone.
        let first = |count: usize| {
            let numbers = |version: &Version| [version.major, version.minor, version.patch];
            numbers(version)[..count].cmp(&numbers(own)[..count])
        };
        match (self.operator, self.written) {
            (Operator::Equal, 3) => order.is_eq(),
            // `~0.0.0` is everything, like `*`.
            (Operator::Tilde, 3) if (own.major, own.minor, own.patch) == (0, 0, 0) => order.is_ge(),
            (Operator::Equal | Operator::Tilde, written) => order.is_ge() && first(written.min(2)).is_eq(),
            (Operator::NotEqual, 1) => first(1).is_ne(),
            (Operator::NotEqual, 2) => first(2).is_ne() || version.pre != own.pre,
            (Operator::NotEqual, _) => order.is_ne(),
            (Operator::Greater, written @ 1..=2) => first(written).is_gt(),
            (Operator::Greater, _) => order.is_gt(),
            (Operator::GreaterEqual, _) => order.is_ge(),
            (Operator::Less, _) => order.is_lt(),
            (Operator::LessEqual, 3) => order.is_le(),
            (Operator::LessEqual, 1) => first(1).is_le(),
            (Operator::LessEqual, _) => first(2).is_le(),
            // Up to the next change of the leftmost number that is not 0. `^*` is 0.0.0 alone: a
            // corner case of the original.
            (Operator::Caret, written) => {
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
