//! The version tags of one repository. The list is sorted once, because every call with a tag
//! constraint searches it, even if a pod is ready.

use std::sync::Arc;

use porch_fn_image::{Constraint, Image, Version, sorted_versions};

use super::answers::{Answer, Question};
use crate::Registry;

/// The tags of one repository that are versions, the highest first.
#[derive(Debug)]
pub(super) struct TagList(Vec<(Version, String)>);

impl TagList {
    /// The image with the highest tag that the constraint allows.
    pub(super) fn highest(&self, image: &Image, constraint: &Constraint) -> Option<Image> {
        image.with_tag(constraint.first_match(&self.0)?).ok()
    }
}

impl Question for TagList {
    fn key(image: &Image) -> &str {
        image.repository()
    }

    async fn ask(registry: Arc<dyn Registry>, image: &Image, _: Option<Arc<Self>>) -> Answer<Self> {
        let mut tags = registry.tags(image).await?;
        tags.retain(|tag| image.with_tag(tag).is_ok());
        Ok(Arc::new(Self(sorted_versions(tags))))
    }

    fn bytes(&self) -> usize {
        // Counts each tag twice: the parsed version may copy the tag's prerelease or build.
        let tags: usize = self.0.iter().map(|(_, tag)| 2 * tag.len()).sum();
        tags + size_of_val(&*self.0)
    }
}
