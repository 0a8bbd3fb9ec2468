//! The images that can have pods, and the metadata that a pod of an image needs: the command to run,
//! and the digest of the image's tag. The source is a registry, or a file: `--image-metadata` for
//! registries that the runner cannot or should not query, `--local-functions` for images that run as
//! processes of this machine.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use porch_fn_image::{Constraint, Image};
use porch_fn_pool::{ImageContent, ImageKey, Time};
use porch_fn_registry::{Images, Metadata, RegistryError};
use tokio::sync::broadcast;

use crate::clock::time;
use crate::pods::commands::ImageCommands;

/// The metadata of an image for a new pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageMetadata {
    /// The image's command: ENTRYPOINT and CMD.
    pub(crate) entrypoint: Vec<String>,
    /// The content that the tag refers to; see [`ImageSource::content`].
    pub(crate) content: Option<ImageContent>,
}

/// The source of metadata.
#[derive(Debug)]
pub(crate) struct ImageSource {
    /// Takes precedence over registries.
    pub(crate) file: ImageCommands,
    /// All other images; `None` if there are no others.
    pub(crate) registries: Option<Arc<Images>>,
}

/// Knows which image a tag constraint selects.
pub(crate) trait Resolve: Send + Sync {
    /// Returns the image of this repository with the highest tag that `constraint` allows. The tag
    /// of `image` itself is ignored.
    ///
    /// # Errors
    /// [`RegistryError`], if no tag matches or the tags cannot be read.
    fn resolve(
        &self,
        image: &Image,
        constraint: &Constraint,
    ) -> impl Future<Output = Result<Image, RegistryError>> + Send;
}

// === impl ImageSource ===

impl ImageSource {
    /// Whether pods of `image` can be created. If not, the caller gets `NOT_FOUND`. With registries,
    /// only the creation of a pod shows whether an image exists.
    pub(crate) fn knows(&self, image: &Image) -> bool {
        self.registries.is_some() || self.file.knows(image)
    }

    /// The images that can have pods, if only those of the file can.
    pub(crate) fn listed(&self) -> Option<Vec<&str>> {
        self.registries.is_none().then(|| self.file.images())
    }

    /// Returns the metadata of `image`.
    pub(crate) async fn metadata(&self, image: &ImageKey) -> Result<ImageMetadata, RegistryError> {
        if let Some(entrypoint) = self.file.command(image) {
            return Ok(ImageMetadata { entrypoint: entrypoint.to_vec(), content: None });
        }
        // No registry has an image whose reference is invalid.
        let (registries, parsed) = self.registry(image).ok_or(RegistryError::NotFound)?;
        let known = registries.metadata(&parsed).await?;
        Ok(ImageMetadata { content: content(&parsed, &known), entrypoint: known.command.clone() })
    }

    /// Returns the content that the tag of `image` refers to, if it is known without a query.
    /// Returns `None` also if the reference has a digest, or if the command comes from the file.
    /// With the file, only the node resolves the tag.
    pub(crate) fn content(&self, image: &ImageKey) -> Option<ImageContent> {
        let (registries, parsed) = self.tagged(image)?;
        content(&parsed, registries.known(&parsed)?.as_ref())
    }

    /// Queries the registry for the tag of `image`, unless the known answer is recent enough.
    pub(crate) async fn revalidate(&self, image: ImageKey) {
        if let Some((registries, parsed)) = self.tagged(&image) {
            // After a failure the known answer stays, and the failure is cached.
            let _ = registries.metadata(&parsed).await;
        }
    }

    /// Receives each image whose [`content`](Self::content) is new.
    pub(crate) fn changes(&self) -> Option<broadcast::Receiver<Image>> {
        self.registries.as_ref().map(|registries| registries.changes())
    }

    /// Learns metadata from a running pod, which another runner may have created.
    pub(crate) fn learn(&self, image: &ImageKey, content: Option<&ImageContent>, entrypoint: Vec<String>) {
        let Some((registries, parsed)) = self.registry(image).filter(|_| !entrypoint.is_empty()) else {
            return;
        };
        let (digest, resolved) = match (parsed.digest(), content) {
            (Some(digest), _) => (digest.into(), None),
            (None, Some(content)) => (content.digest.as_str().into(), content.resolved),
            (None, None) => return,
        };
        let since = UNIX_EPOCH + resolved.unwrap_or_default().since(Time::default());
        registries.learn(&parsed, Metadata { digest, command: entrypoint, since });
    }

    /// Records that a node could not pull `image`. The registry is queried again for the next pod.
    pub(crate) fn distrust(&self, image: &ImageKey) {
        if let Some((registries, parsed)) = self.registry(image) {
            registries.distrust(&parsed);
        }
    }

    /// Returns the image if it has a tag that its registry resolves.
    fn tagged(&self, image: &ImageKey) -> Option<(&Images, Image)> {
        self.registry(image).filter(|(_, parsed)| parsed.digest().is_none())
    }

    /// Returns the image if it is a registry's. The pool's keys already contain the registry, so no
    /// prefix is added.
    fn registry(&self, image: &ImageKey) -> Option<(&Images, Image)> {
        let registries = self.registries.as_deref().filter(|_| self.file.command(image).is_none())?;
        Some((registries, Image::parse(image.as_str(), "").ok()?))
    }
}

impl Resolve for ImageSource {
    async fn resolve(&self, image: &Image, constraint: &Constraint) -> Result<Image, RegistryError> {
        match (self.file.highest(image, constraint), &self.registries) {
            (Some(listed), _) => Ok(listed),
            (None, Some(registries)) => registries.resolve(image, constraint).await,
            (None, None) => Err(RegistryError::NoMatch),
        }
    }
}

fn content(image: &Image, known: &Metadata) -> Option<ImageContent> {
    let resolved = Some(time(known.since).unwrap_or_default());
    image.digest().is_none().then(|| ImageContent { digest: Arc::clone(&known.digest).into(), resolved })
}
