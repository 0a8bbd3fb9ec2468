//! What is known of an image before a pod is made of it: the command that its pod runs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use porch_fn_image::Image;
use porch_fn_pool::ImageKey;
use serde::Deserialize;

use crate::yaml;

/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// An image as a pod needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageMetadata {
    /// What the image runs: ENTRYPOINT and CMD.
    pub(crate) entrypoint: Vec<String>,
}

/// Why nothing is known. The text reaches callers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MetadataError {
    /// The file does not have the image.
    #[error("the entrypoint of the image is not known: add the image to the file of --image-metadata")]
    Unlisted,
}

/// Where metadata comes from. Asked when a pod is to be created, never on the path of a warm call.
pub(crate) trait MetadataSource: std::fmt::Debug + Send + Sync + 'static {
    /// What is known of `image`.
    fn metadata(&self, image: &ImageKey) -> BoxFuture<'_, Result<Arc<ImageMetadata>, MetadataError>>;
}

/// Why `--image-metadata` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MetadataFileError {
    /// It cannot be read.
    #[error("--image-metadata {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is not what was expected.
    #[error(
        "--image-metadata {path}: {reason}; expected images: [{{image: IMAGE, entrypoint: [PROGRAM, ARG, ...]}}]"
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// The file's images.
#[derive(Debug, Default)]
pub(crate) struct MetadataFile {
    images: HashMap<ImageKey, Arc<ImageMetadata>>,
}

#[derive(Deserialize, Default)]
struct File {
    #[serde(default)]
    images: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    image: String,
    entrypoint: Vec<String>,
}

impl MetadataFile {
    /// Reads the file.
    pub(crate) fn read(path: &Path, prefix: &str) -> Result<Self, MetadataFileError> {
        let failed = |source| MetadataFileError::Read { path: path.to_owned(), source };
        if std::fs::metadata(path).map_err(failed)?.len() > MAX_BYTES {
            return Err(failed(std::io::Error::from(std::io::ErrorKind::FileTooLarge)));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        Self::parse(&text, prefix)
            .map_err(|reason| MetadataFileError::Parse { path: path.to_owned(), reason })
    }

    fn parse(text: &str, prefix: &str) -> Result<Self, String> {
        let file: Option<File> = yaml::parse(text)?;
        let mut images = HashMap::new();
        for Entry { image, entrypoint } in file.unwrap_or_default().images {
            let parsed = Image::parse(&image, prefix).map_err(|error| format!("image {image:?}: {error}"))?;
            if entrypoint.first().is_none_or(String::is_empty) {
                return Err(format!("image {image:?} has no entrypoint"));
            }
            images.insert(ImageKey::from(parsed.as_str()), Arc::new(ImageMetadata { entrypoint }));
        }
        Ok(Self { images })
    }
}

impl MetadataSource for MetadataFile {
    fn metadata(&self, image: &ImageKey) -> BoxFuture<'_, Result<Arc<ImageMetadata>, MetadataError>> {
        let found = self.images.get(image).cloned().ok_or(MetadataError::Unlisted);
        std::future::ready(found).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn listed_images_are_known_by_their_whole_reference() {
        let text = "images:\n- image: set-namespace:v0.4.1\n  entrypoint: [function]\n";
        let file = MetadataFile::parse(text, "example.com/catalog").unwrap();
        let known = file.metadata(&"example.com/catalog/set-namespace:v0.4.1".into()).await.unwrap();
        assert_eq!(known.entrypoint, ["function"]);
        let other = file.metadata(&"example.com/other/set-namespace:v0.4.1".into()).await;
        assert_eq!(other, Err(MetadataError::Unlisted));
    }

    #[test]
    fn broken_entries_are_named() {
        for (text, part) in [
            ("images: [{image: a:v1, entrypoint: []}]", "\"a:v1\" has no entrypoint"),
            ("images: [{image: 'A/b', entrypoint: [x]}]", "\"A/b\""),
            ("images:\n- image: a\n", "line"),
        ] {
            let error = MetadataFile::parse(text, "example.com").unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
