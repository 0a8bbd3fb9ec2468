//! The `tags` of a FunctionConfig's executor: they select images of its repositories.
//!
//! Porch versions give these lists two meanings, and an object does not name its meaning. So the
//! caller passes one meaning ([`TagSemantics`]) for all objects of a cluster.
//!
//! [`TagSemantics::Exact`], Porch 1.6:
//! - `podExecutor`: the list does not select images. The object is for every tag and digest, and
//!   every entry is valid. The list only names the tags to warm up.
//! - `binaryExecutor`: an entry matches only an image's tag of the same text. A request's tag field
//!   is a version constraint: it selects the highest listed version that the constraint allows.
//!   An entry that cannot be a tag has no effect, so it is reported.
//! - `goExecutor`: ignored; only Porch itself uses it.
//!
//! [`TagSemantics::Constraint`], Porch since its pull request 1186: in all three lists an entry is
//! a version constraint of Masterminds/semver.
//! - An empty list matches nothing, and `*` everything, digests included.
//! - A tag that is no version matches only `*` and an entry of the same text. The empty entry
//!   matches an image without a tag, which here is the same as `latest`.
//! - A plain version is a constraint as well: `v0.2` matches any `0.2.x`, and `v0.4.5` also matches
//!   `0.4.5`.
//! - A request may itself be a constraint. An executable then matches if an entry has the same
//!   text, or if a listed version satisfies the request. The same text wins, then the highest
//!   version.
//! - `podExecutor` may also list the empty text and `latest`, the other two only `latest`. Any
//!   other text that is not a constraint makes the whole object invalid.
//!
//! An executable never replaces an image with a digest, even if the executable's list has `*`. This
//! differs from Porch. Earlier versions of this project had a third meaning: an empty list matched
//! all images, lists for pods had constraints, and the more specific object won. `Exact` keeps only
//! one part of that meaning: the warm-up of every literal tag.

mod schema;
#[cfg(test)]
mod tests;

use std::fmt;

use porch_fn_image::{Constraint, Image, Version, is_tag, parse_version};
use serde::Deserialize;

use crate::field::quoted;

/// Maximum number of tags in one list.
const MAX_TAGS: usize = 1000;
/// The entry for every tag and digest.
const ALL: &str = "*";
/// The tag of an image without a tag.
const LATEST: &str = "latest";

/// The meaning of `tags` in FunctionConfigs. The documentation of this module describes both
/// meanings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TagSemantics {
    /// As in Porch 1.6.
    #[default]
    Exact,
    /// As in Porch since its pull request 1186.
    Constraint,
}

/// The list of one executor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<String>")]
pub struct Tags {
    list: Vec<Tag>,
    rule: Rule,
}

/// How a list is matched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Rule {
    /// Matches everything, whatever is listed.
    All,
    Text,
    #[default]
    Constraint,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag {
    text: String,
    version: Option<Version>,
    constraint: Option<Constraint>,
    /// Whether an image can have this tag, and the text is not a constraint like `1.x`.
    literal: bool,
}

/// The tag that a list is matched with.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    /// `None`: the image has a digest and no tag.
    tag: Option<&'a str>,
    version: Option<Version>,
    /// Whether this is the tag field of a request, and not the tag of its image.
    field: bool,
}

/// How well a list matches; the greater, the better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Match<'a> {
    /// This listed version satisfies the request's constraint.
    Version(&'a Version),
    /// An entry matches the tag itself.
    Entry,
}

// === impl TagSemantics ===

/// The value of `--functionconfig-tags`.
impl fmt::Display for TagSemantics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Constraint => "constraint",
        })
    }
}

// === impl Asked ===

impl<'a> Asked<'a> {
    pub(crate) fn of(image: &'a Image) -> Self {
        let tag = image.tag();
        Self { tag, version: tag.and_then(parse_version), field: false }
    }

    /// The tag field of a request, which is a constraint.
    pub(crate) fn of_field(tag: &'a str) -> Self {
        Self { tag: Some(tag), version: parse_version(tag), field: true }
    }
}

// === impl Tags ===

impl From<Vec<String>> for Tags {
    fn from(texts: Vec<String>) -> Self {
        let read = |text: String| {
            let (version, constraint) = (parse_version(&text), Constraint::parse(&text));
            let literal = is_tag(&text) && (version.is_some() || constraint.is_none());
            Tag { text, version, constraint, literal }
        };
        Self { list: texts.into_iter().map(read).collect(), rule: Rule::default() }
    }
}

impl Tags {
    /// Checks this as the list of a podExecutor. The error contains the index of the wrong entry.
    pub(crate) fn of_pods(self, semantics: TagSemantics) -> Result<Self, (usize, String)> {
        let rule = if semantics == TagSemantics::Exact { Rule::All } else { Rule::Constraint };
        self.checked(rule, &[ALL, "", LATEST])
    }

    /// Checks this as the list of a binaryExecutor or goExecutor.
    pub(crate) fn of_binaries(self, semantics: TagSemantics) -> Result<Self, (usize, String)> {
        let rule = if semantics == TagSemantics::Exact { Rule::Text } else { Rule::Constraint };
        self.checked(rule, &[LATEST])
    }

    /// Checks the list for `rule`. `words` are valid entries although they are no constraints.
    fn checked(self, rule: Rule, words: &[&str]) -> Result<Self, (usize, String)> {
        if self.list.len() > MAX_TAGS {
            return Err((MAX_TAGS, format!("write at most {MAX_TAGS} tags")));
        }
        let is_wrong = |tag: &Tag| tag.constraint.is_none() && !words.contains(&tag.text.as_str());
        if let Some(index) = self.list.iter().position(|tag| rule == Rule::Constraint && is_wrong(tag)) {
            let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
            let reason = format!(
                "{} is no version constraint: write one such as v0.1.1, v0.2, ~0.2.1, >=1.2 <2 or 1.x, or {}",
                quoted(&self.list[index].text),
                words.join(", ")
            );
            return Err((index, reason));
        }
        Ok(Self { rule, ..self })
    }

    /// Whether the list matches every tag and digest.
    pub fn is_all(&self) -> bool {
        match self.rule {
            Rule::All => true,
            Rule::Text => false,
            Rule::Constraint => self.list.iter().any(|tag| tag.text == ALL),
        }
    }

    /// Whether the list matches nothing because it is empty.
    pub(crate) fn is_none(&self) -> bool {
        self.rule == Rule::Constraint && self.list.is_empty()
    }

    /// The texts as written.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|tag| tag.text.as_str())
    }

    /// The tags that the list names literally. Constraints are left out.
    pub(crate) fn literal(&self) -> impl Iterator<Item = &str> {
        let named = self.list.iter().filter(|tag| tag.literal || tag.text.is_empty());
        named.map(|tag| if tag.text.is_empty() { LATEST } else { tag.text.as_str() })
    }

    /// The first entry that is a constraint and not a tag, such as `~0.2` or `*`.
    pub(crate) fn first_constraint(&self) -> Option<&str> {
        let found = self.list.iter().find(|tag| tag.constraint.is_some() && !tag.literal);
        found.map(|tag| tag.text.as_str())
    }

    /// The first entry that never matches: it is compared as a tag, but no image can have this tag.
    pub(crate) fn first_impossible(&self) -> Option<(usize, &str)> {
        let found = self.list.iter().position(|tag| self.rule == Rule::Text && !is_tag(&tag.text));
        found.and_then(|index| Some((index, self.list.get(index)?.text.as_str())))
    }

    pub(crate) fn matches(&self, asked: &Asked<'_>) -> bool {
        match self.rule {
            Rule::All => true,
            _ => self.list.iter().any(|tag| tag.holds(asked.tag, asked.version.as_ref(), self.rule)),
        }
    }

    /// How well this list of an executable matches; `None` if it does not match.
    pub(crate) fn match_executable(&self, asked: &Asked<'_>) -> Option<Match<'_>> {
        let by_version = self.rule == Rule::Constraint || asked.field;
        let by_entry = self.rule == Rule::Constraint || !asked.field;
        if by_entry && self.matches(asked) {
            return Some(Match::Entry);
        }
        let constraint = asked.tag.filter(|_| by_version).and_then(Constraint::parse)?;
        let versions = self.list.iter().filter_map(|tag| tag.version.as_ref());
        versions.filter(|version| constraint.matches(version)).max().map(Match::Version)
    }

    /// Returns an entry of one list that the other list matches. Tries this list's entries first.
    /// Two constraints are compared only by their texts. Stops when `budget` comparisons are used
    /// up.
    pub(crate) fn overlap<'a>(&'a self, other: &'a Self, budget: &mut u64) -> Option<&'a str> {
        let mut common = |these: &'a Self, those: &Self| {
            these.list.iter().find(|this| {
                those.list.iter().any(|that| {
                    *budget = budget.saturating_sub(1);
                    *budget > 0 && that.holds(Some(&this.text), this.version.as_ref(), those.rule)
                })
            })
        };
        common(self, other).or_else(|| common(other, self)).map(|tag| tag.text.as_str())
    }
}

impl Tag {
    fn holds(&self, tag: Option<&str>, version: Option<&Version>, rule: Rule) -> bool {
        if tag == Some(self.text.as_str()) {
            return true;
        }
        let constrained =
            |constraint: &Constraint| version.is_some_and(|version| constraint.matches(version));
        rule == Rule::Constraint
            && match self.text.as_str() {
                ALL => true,
                "" => tag.is_none_or(|tag| tag == LATEST),
                _ => self.constraint.as_ref().is_some_and(constrained),
            }
    }
}
