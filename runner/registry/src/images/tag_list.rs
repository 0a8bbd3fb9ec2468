//! The versions among the tags of one repository, sorted once: constraints are resolved on the path
//! of warm calls.

use porch_fn_image::{Constraint, Image, Version, parse_version};

use super::answers::Weigh;

/// The tags of one repository that are versions.
#[derive(Debug)]
pub(super) struct TagList {
    /// The highest first; of one version the tag that is last in byte order.
    versions: Box<[(Version, Box<str>)]>,
}

impl TagList {
    /// The tags of the image's repository.
    pub(super) fn new(image: &Image, tags: &[String]) -> Self {
        let mut versions: Vec<(Version, Box<str>)> = tags
            .iter()
            // Builds of a commit, which no constraint allows.
            .filter(|tag| !tag.contains("-git-") && image.with_tag(tag).is_ok())
            .filter_map(|tag| Some((parse_version(tag)?, tag.as_str().into())))
            .collect();
        versions
            .sort_unstable_by(|(a, a_tag), (b, b_tag)| b.cmp_precedence(a).then_with(|| b_tag.cmp(a_tag)));
        Self { versions: versions.into() }
    }

    /// The image with the highest tag that the constraint allows: the same as
    /// [`Constraint::highest`] of all tags.
    pub(super) fn highest(&self, image: &Image, constraint: &Constraint) -> Option<Image> {
        let (_, tag) = self.versions.iter().find(|(version, _)| constraint.matches(version))?;
        image.with_tag(tag).ok()
    }
}

impl Weigh for TagList {
    fn bytes(&self) -> usize {
        // A prerelease or build is kept beside the tag.
        let tags: usize = self.versions.iter().map(|(_, tag)| 2 * tag.len()).sum();
        tags + size_of_val(&*self.versions)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_chooses_as_the_constraint_does(
            tags in prop::collection::vec("v?[0-2](\\.[0-2]){0,2}(-(rc|git-)[0-9])?(\\+[a-c])?|latest|-1", 0..30),
            text in "(=|!=|<|>|<=|>=|~|\\^|)[0-2](\\.[0-2x]){0,2}(-rc1)?( \\|\\| [0-2])?",
        ) {
            let (image, constraint) = (Image::parse("a.b/fn", "").unwrap(), Constraint::parse(&text).unwrap());
            let usable = tags.iter().map(String::as_str).filter(|tag| image.with_tag(tag).is_ok());
            let chosen = TagList::new(&image, &tags).highest(&image, &constraint);
            prop_assert_eq!(chosen.as_ref().and_then(Image::tag), constraint.highest(usable));
        }
    }
}
