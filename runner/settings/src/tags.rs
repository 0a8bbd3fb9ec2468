//! The tags that an executor of a FunctionConfig is for.

use porch_fn_image::{Constraint, Image, Version, parse_version};

use crate::field::quoted;

/// Most tags in one list.
const MAX_TAGS: usize = 1000;

/// A list of tags and version constraints. An empty one is for all tags, and for images with a digest alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tags(Vec<Tag>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag {
    text: String,
    /// The versions that it stands for, if it is not for itself alone.
    constraint: Option<Constraint>,
    /// As what others' constraints see it.
    version: Option<Version>,
    /// Whether an image can have this tag. A text such as `x` is read as a constraint.
    literal: bool,
}

/// An image's tag, with what it is as a version.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    tag: Option<&'a str>,
    version: Option<Version>,
}

impl<'a> Asked<'a> {
    pub(crate) fn of(image: &'a Image) -> Self {
        let tag = image.tag();
        Self { tag, version: tag.and_then(parse_version) }
    }
}

impl Tags {
    /// For pods: `v0.2` is any `0.2.x`, since what holds for the pods of a version holds for its patches.
    pub(crate) fn of_pods(texts: &[&str]) -> Result<Self, (usize, String)> {
        Self::read(texts, |_| true)
    }

    /// For executables: `v0.2` is that tag alone, since an executable is not another version's.
    pub(crate) fn of_binaries(texts: &[&str]) -> Result<Self, (usize, String)> {
        Self::read(texts, |version| version.is_none())
    }

    /// The error says which of `texts` is wrong.
    fn read(texts: &[&str], constrains: impl Fn(Option<&Version>) -> bool) -> Result<Self, (usize, String)> {
        if texts.len() > MAX_TAGS {
            return Err((MAX_TAGS, format!("more than the {MAX_TAGS} tags that are read")));
        }
        let read = |(index, &text): (usize, &&str)| {
            let version = parse_version(text);
            let constraint = Constraint::parse(text);
            let literal = is_tag(text) && (version.is_some() || constraint.is_err());
            if !literal && constraint.is_err() {
                return Err((
                    index,
                    format!(
                        "{} is neither a tag nor a version constraint: write a tag such as v0.1.1 or latest, or a \
                         constraint such as v0.2, ~0.2.1, >=1.2 <2 or 1.x",
                        quoted(text)
                    ),
                ));
            }
            let constraint = constraint.ok().filter(|_| constrains(version.as_ref()));
            Ok(Tag { text: text.to_owned(), constraint, version, literal })
        };
        texts.iter().enumerate().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Whether it is for all tags, and for images without any.
    pub fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// The texts as written.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|tag| tag.text.as_str())
    }

    /// Those that name an image, as opposed to constraints proper.
    pub(crate) fn literal(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|tag| tag.literal).map(|tag| tag.text.as_str())
    }

    pub(crate) fn matches(&self, asked: &Asked<'_>) -> bool {
        let named = |tag: &Tag| asked.tag.is_some_and(|text| tag.holds(text, asked.version.as_ref()));
        self.is_all() || self.0.iter().any(named)
    }

    /// A tag text of one that the other one holds as well; this one's are looked at first. Two constraints proper are
    /// not compared, nor is anything once `budget` comparisons are spent.
    pub(crate) fn overlap<'a>(&'a self, other: &'a Self, budget: &mut u64) -> Option<&'a str> {
        let mut common = |these: &'a Self, those: &Self| {
            these.0.iter().find(|this| {
                those.0.iter().any(|that| {
                    *budget = budget.saturating_sub(1);
                    *budget > 0 && that.holds(&this.text, this.version.as_ref())
                })
            })
        };
        common(self, other).or_else(|| common(other, self)).map(|tag| tag.text.as_str())
    }
}

impl Tag {
    fn holds(&self, text: &str, version: Option<&Version>) -> bool {
        let constrained =
            |constraint: &Constraint| version.is_some_and(|version| constraint.matches(version));
        self.text == text || self.constraint.as_ref().is_some_and(constrained)
    }
}

/// Whether an image can have this tag.
fn is_tag(text: &str) -> bool {
    let read = |image: Image| image.digest().is_none() && image.tag() == Some(text);
    !text.contains('/') && Image::parse(&format!("localhost/x:{text}"), "").is_ok_and(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(tags: &Tags, image: &str) -> bool {
        let image = Image::parse(image, "ghcr.io/x").unwrap();
        tags.matches(&Asked::of(&image))
    }

    fn digest() -> String {
        format!("@sha256:{}", "0".repeat(64))
    }

    #[test]
    fn pods_are_of_all_versions_that_a_tag_stands_for() {
        for (tag, yes, no) in [
            ("v0.1.1", vec!["f:v0.1.1", "f:0.1.1"], vec!["f:v0.1.2", "f:v0.1", "f", "f:v0.1.1-rc1"]),
            ("v0.2", vec!["f:v0.2", "f:v0.2.0", "f:0.2.17"], vec!["f:v0.3.0", "f:v0.1", "f:v0.2.1-rc1"]),
            (">=1.2 <2", vec!["f:v1.2", "f:v1.9.9"], vec!["f:v2.0.0", "f:v1.1.9", "f:latest"]),
            ("1.x", vec!["f:v1.0.0", "f:1.x"], vec!["f:v2.0.0"]),
            ("latest", vec!["f", "f:latest"], vec!["f:v1", "f:Latest"]),
            ("odd_tag-1", vec!["f:odd_tag-1"], vec!["f:odd_tag"]),
        ] {
            let tags = Tags::of_pods(&[tag]).unwrap();
            assert!(yes.iter().all(|image| matches(&tags, image)), "{tag}");
            assert!(!no.iter().any(|image| matches(&tags, image)), "{tag}");
            assert!(!matches(&tags, &format!("f{}", digest())), "{tag}: a digest alone has no tag");
        }
    }

    #[test]
    fn executables_are_of_the_very_tag() {
        for (tag, yes, no) in [
            ("v0.1.1", vec!["f:v0.1.1"], vec!["f:0.1.1", "f:v0.1.2", "f:v0.1"]),
            ("v0.2", vec!["f:v0.2"], vec!["f:v0.2.0", "f:v0.2.1"]),
            ("1", vec!["f:1"], vec!["f:v1", "f:1.0.0", "f:1.2"]),
            ("~0.2", vec!["f:v0.2", "f:v0.2.1"], vec!["f:v0.3"]),
            ("1.x", vec!["f:1.x", "f:v1.2"], vec!["f:v2"]),
            ("latest", vec!["f"], vec!["f:v1"]),
        ] {
            let tags = Tags::of_binaries(&[tag]).unwrap();
            assert!(yes.iter().all(|image| matches(&tags, image)), "{tag}");
            assert!(!no.iter().any(|image| matches(&tags, image)), "{tag}");
        }
    }

    #[test]
    fn no_tags_are_all_tags() {
        for tags in [Tags::of_pods(&[]).unwrap(), Tags::default()] {
            assert!(
                matches(&tags, "f") && matches(&tags, "f:v1") && matches(&tags, &format!("f{}", digest()))
            );
        }
    }

    #[test]
    fn a_list_matches_by_each_of_its_tags() {
        let tags = Tags::of_pods(&["v1.0.0", "edge", "~3.1"]).unwrap();
        assert!(["f:v1.0.0", "f:edge", "f:v3.1.4"].iter().all(|image| matches(&tags, image)));
        assert!(!["f:v1.0.1", "f:edges", "f:v3.2.0"].iter().any(|image| matches(&tags, image)));
        assert!(matches(&tags, &format!("f:edge{}", digest())), "a tag beside the digest counts");
    }

    #[test]
    fn literal_tags_are_those_that_name_an_image() {
        let texts = ["v1.0.0", "v1", "latest", "1.x", ">=1", "*", "v1.0+build", "odd"];
        let tags = Tags::of_pods(&texts).unwrap();
        assert_eq!(tags.literal().collect::<Vec<_>>(), ["v1.0.0", "v1", "latest", "odd"]);
        assert_eq!(tags.texts().collect::<Vec<_>>(), texts);
    }

    #[test]
    fn what_is_no_tag_is_refused_with_its_place() {
        for wrong in ["", " ", "a b", "-x", "a/b", "a@b", ">=", "1.2.3.4/5", "ä"] {
            let (index, reason) = Tags::of_pods(&["v1", wrong]).unwrap_err();
            assert_eq!(index, 1);
            assert!(reason.starts_with(&format!("{wrong:?} is neither a tag nor")), "{reason}");
            assert!(Tags::of_binaries(&[wrong]).is_err(), "{wrong}");
        }
        assert!(Tags::of_pods(&["v1"; MAX_TAGS]).is_ok());
        let (_, reason) = Tags::of_pods(&["v1"; MAX_TAGS + 1]).unwrap_err();
        assert_eq!(reason, "more than the 1000 tags that are read");
    }

    #[test]
    fn lists_overlap_where_one_holds_a_tag_of_the_other() {
        let overlap = |these: &[&str], those: &[&str], mut budget| {
            let (these, those) = (Tags::of_pods(these).unwrap(), Tags::of_pods(those).unwrap());
            these.overlap(&those, &mut budget).map(str::to_owned)
        };
        assert_eq!(overlap(&["v1.0.0", "a"], &["b", "a"], 100).as_deref(), Some("a"));
        assert_eq!(overlap(&["v0.2"], &["v0.2.3"], 100).as_deref(), Some("v0.2.3"));
        assert_eq!(overlap(&["v0.2.3"], &["v0.2"], 100).as_deref(), Some("v0.2.3"));
        assert_eq!(overlap(&["v0.2.3"], &["v0.3"], 100), None);
        assert_eq!(overlap(&["v1.0.0", "a"], &["b", "a"], 2), None, "the budget is spent");
        let binaries = Tags::of_binaries(&["v0.2"]).unwrap();
        assert_eq!(binaries.overlap(&Tags::of_binaries(&["v0.2.0"]).unwrap(), &mut 100), None);
    }
}
