//! What is known of an image before a pod is made of it: the command that its pod runs, and the
//! digest that its tag stands for. It comes from registries, or from the file of `--image-metadata`
//! for images that the runner cannot or should not ask registries for.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{ImageContent, ImageKey, Time};
use porch_fn_registry::{Images, Known, RegistryError, ResolveError};
use tokio::sync::broadcast;

use crate::clock::time;
use crate::pods::backend::Catalog;
use crate::pods::commands::ImageCommands;

/// An image as a pod needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageMetadata {
    /// What the image runs: ENTRYPOINT and CMD.
    pub(crate) entrypoint: Vec<String>,
    /// What its tag stands for; see [`ImageSource::content`].
    pub(crate) content: Option<ImageContent>,
}

/// Where metadata comes from. Asked when a pod is to be created or a tag to be found, never on the
/// path of a warm call.
#[derive(Debug)]
pub(crate) struct ImageSource {
    file: ImageCommands,
    images: Images,
}

// === impl ImageSource ===

impl ImageSource {
    /// The images of `file`, and all others as registries say.
    pub(crate) fn new(file: ImageCommands, images: Images) -> Self {
        Self { file, images }
    }

    /// What is known of `image`.
    pub(crate) async fn metadata(&self, image: &ImageKey) -> Result<ImageMetadata, RegistryError> {
        if let Some(entrypoint) = self.file.command(image) {
            return Ok(ImageMetadata { entrypoint: entrypoint.to_vec(), content: None });
        }
        // What is no reference is in no registry.
        let parsed = parse(image).ok_or(RegistryError::NotFound)?;
        let known = self.images.metadata(&parsed).await?;
        Ok(ImageMetadata { content: content(&parsed, &known), entrypoint: known.command.clone() })
    }

    /// What the tag of `image` stands for, as far as it is known without asking. `None` also if the
    /// reference has a digest, or if the node finds out.
    pub(crate) fn content(&self, image: &ImageKey) -> Option<ImageContent> {
        let parsed = self.tagged(image)?;
        content(&parsed, self.images.known(&parsed)?.as_ref())
    }

    /// Asks again what the tag of `image` stands for, unless that is known well enough.
    pub(crate) async fn revalidate(&self, image: &ImageKey) {
        if let Some(parsed) = self.tagged(image) {
            // A failure leaves what was known, and is remembered.
            let _ = self.images.metadata(&parsed).await;
        }
    }

    /// A pod runs that was made of this, as another runner found out.
    pub(crate) fn learn(&self, image: &ImageKey, content: Option<&ImageContent>, entrypoint: Vec<String>) {
        let Some(parsed) = parse(image) else { return };
        if self.file.command(image).is_some() || entrypoint.is_empty() {
            return;
        }
        let (digest, resolved) = match (parsed.digest(), content) {
            (Some(digest), _) => (digest.into(), None),
            (None, Some(content)) => (content.digest.as_str().into(), content.resolved),
            (None, None) => return,
        };
        let since = UNIX_EPOCH + resolved.unwrap_or_default().since(Time::default());
        self.images.learn(&parsed, Known { digest, command: entrypoint, since });
    }

    /// A pod of `image` found no such image in its registry: the registry is asked again for the
    /// next pod.
    pub(crate) fn distrust(&self, image: &ImageKey) {
        if let Some(parsed) = parse(image) {
            self.images.distrust(&parsed);
        }
    }

    /// The image, if its registry decides what it stands for.
    fn tagged(&self, image: &ImageKey) -> Option<Image> {
        let parsed = parse(image).filter(|parsed| parsed.digest().is_none());
        parsed.filter(|_| self.file.command(image).is_none())
    }

    /// The images whose [`content`](Self::content) changes.
    pub(crate) fn changes(&self) -> broadcast::Receiver<Image> {
        self.images.changes()
    }
}

/// Any image may have pods: whether it exists shows when one is made.
impl Catalog for ImageSource {
    fn knows(&self, _: &Image) -> bool {
        true
    }

    fn resolve<'a>(
        &'a self,
        image: &'a Image,
        constraint: &'a Constraint,
    ) -> BoxFuture<'a, Result<Image, ResolveError>> {
        match self.file.highest(image, constraint) {
            Some(listed) => std::future::ready(Ok(listed)).boxed(),
            None => self.images.resolve(image, constraint).boxed(),
        }
    }
}

/// Keys of the pool are canonical: there is no prefix to add.
fn parse(image: &ImageKey) -> Option<Image> {
    Image::parse(image.as_str(), "").ok()
}

fn content(image: &Image, known: &Known) -> Option<ImageContent> {
    let resolved = Some(time(known.since).unwrap_or_default());
    image.digest().is_none().then(|| ImageContent { digest: Arc::clone(&known.digest).into(), resolved })
}
