//! The versions among the tags of one repository, and which of them constraints choose. Read once: a constraint is in
//! the way of warm calls.

use std::cmp::Ordering;

use parking_lot::Mutex;
use porch_fn_image::{Constraint, Image, Version, parse_version};

use super::memory::Weigh;

/// Constraints of one repository whose tag is remembered.
pub(super) const MAX_CHOSEN: usize = 64;
/// What one of them takes in memory, unless somebody goes to lengths.
const CHOSEN_BYTES: usize = 512;

/// The tags of one repository that are versions, and what constraints made of them.
#[derive(Debug)]
pub(super) struct TagList {
    /// The highest first; of one version the tag that is last in byte order.
    versions: Box<[(Version, Box<str>)]>,
    /// The one used last first.
    chosen: Mutex<Vec<(Constraint, Option<Image>)>>,
}

impl TagList {
    /// Of the image's repository.
    pub(super) fn new(image: &Image, tags: &[String]) -> Self {
        let mut versions: Vec<(Version, Box<str>)> = tags
            .iter()
            // Builds of a commit, which no constraint allows.
            .filter(|tag| !tag.contains("-git-") && image.with_tag(tag).is_ok())
            .filter_map(|tag| Some((parse_version(tag)?, tag.as_str().into())))
            .collect();
        versions.sort_unstable_by(higher_first);
        Self { versions: versions.into(), chosen: Mutex::default() }
    }

    /// The image with the highest tag that the constraint allows: what [`Constraint::highest`] says of all tags.
    pub(super) fn highest(&self, image: &Image, constraint: &Constraint) -> Option<Image> {
        {
            let mut chosen = self.chosen.lock();
            if let Some(at) = chosen.iter().position(|(known, _)| known == constraint) {
                chosen[..=at].rotate_right(1);
                return chosen[0].1.clone();
            }
        }
        // Without the lock: there may be many tags.
        let tag = self.versions.iter().find(|(version, _)| constraint.matches(version));
        let image = tag.and_then(|(_, tag)| image.with_tag(tag).ok());
        let mut chosen = self.chosen.lock();
        if !chosen.iter().any(|(known, _)| known == constraint) {
            chosen.truncate(MAX_CHOSEN - 1);
            chosen.insert(0, (constraint.clone(), image.clone()));
        }
        image
    }
}

fn higher_first((a, a_tag): &(Version, Box<str>), (b, b_tag): &(Version, Box<str>)) -> Ordering {
    b.cmp_precedence(a).then_with(|| b_tag.cmp(a_tag))
}

impl Weigh for TagList {
    fn bytes(&self) -> usize {
        // A prerelease or build is kept beside the tag.
        let tags: usize = self.versions.iter().map(|(_, tag)| 2 * tag.len()).sum();
        // What is chosen changes.
        tags + size_of_val(&*self.versions) + MAX_CHOSEN * CHOSEN_BYTES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn image() -> Image {
        Image::parse("a.b/fn", "").unwrap()
    }

    fn constraint(text: &str) -> Constraint {
        Constraint::parse(text).unwrap()
    }

    fn known(list: &TagList) -> Vec<Constraint> {
        list.chosen.lock().iter().map(|(known, _)| known.clone()).collect()
    }

    #[test]
    fn the_constraint_used_least_recently_is_forgotten() {
        let list = TagList::new(&image(), &["v1".to_owned()]);
        let all: Vec<_> = (0..=MAX_CHOSEN).map(|major| constraint(&format!("{major}.x"))).collect();
        for constraint in &all[..MAX_CHOSEN] {
            list.highest(&image(), constraint);
        }
        // The eldest is used again, so that the second goes.
        assert_eq!(list.highest(&image(), &all[0]), None);
        assert_eq!(known(&list)[0], all[0]);
        list.highest(&image(), &all[MAX_CHOSEN]);
        let known = known(&list);
        assert_eq!(known.len(), MAX_CHOSEN);
        assert_eq!(known[..2], [all[MAX_CHOSEN].clone(), all[0].clone()]);
        assert!(!known.contains(&all[1]) && known.contains(&all[2]));
        // And what is remembered is right.
        assert_eq!(list.highest(&image(), &all[1]).unwrap().tag(), Some("v1"));
        assert_eq!(list.highest(&image(), &all[1]).unwrap().tag(), Some("v1"));
    }

    proptest! {
        #[test]
        fn it_chooses_as_the_constraint_does(
            tags in prop::collection::vec("v?[0-2](\\.[0-2]){0,2}(-(rc|git-)[0-9])?(\\+[a-c])?|latest|-1", 0..30),
            text in "(=|!=|<|>|<=|>=|~|\\^|)[0-2](\\.[0-2x]){0,2}(-rc1)?( \\|\\| [0-2])?",
        ) {
            let constraint = constraint(&text);
            let list = TagList::new(&image(), &tags);
            let usable = tags.iter().map(String::as_str).filter(|tag| image().with_tag(tag).is_ok());
            let expected = constraint.highest(usable);
            for _ in 0..2 {
                let chosen = list.highest(&image(), &constraint);
                prop_assert_eq!(chosen.as_ref().and_then(Image::tag), expected);
            }
        }
    }
}
