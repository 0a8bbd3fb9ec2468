//! The numbers of a bounded number of images.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::{Recorded, Series};

/// Maximum number of images with numbers of their own.
pub const MAX_IMAGES: usize = 100;
/// Longest name of an image with numbers of its own, in bytes.
pub const MAX_IMAGE_BYTES: usize = 600;

/// Records calls by image.
///
/// A new image takes the place of the image with the fewest calls in the last ten minutes; between
/// equals, of the one whose last call is older. The replaced image's calls move to the rest. If it
/// is called again, its numbers begin at zero. So many images with one call each replace one
/// another, and not the images in use.
#[derive(Debug, Default)]
pub struct Recorder {
    images: HashMap<Arc<str>, Series>,
    rest: Series,
}

impl Recorder {
    /// Records a call of `image` that ended at `now`. A call without an image, or with a name
    /// longer than [`MAX_IMAGE_BYTES`], counts among the rest. Allocates only for a new image.
    pub fn record(&mut self, image: &str, now: Duration, took: Duration, failed: bool) {
        if image.is_empty() || image.len() > MAX_IMAGE_BYTES {
            self.rest.record(now, took, failed);
        } else if let Some(series) = self.images.get_mut(image) {
            series.record(now, took, failed);
        } else {
            let mut series = self.place(now);
            series.record(now, took, failed);
            self.images.insert(image.into(), series);
        }
    }

    /// The numbers of each image at `now`, and those of the rest under the empty name. The sum of
    /// all is the number of recorded calls.
    pub fn recorded(&self, now: Duration) -> BTreeMap<Arc<str>, Recorded> {
        let images = self.images.iter().map(|(image, series)| (Arc::clone(image), series.recorded(now)));
        let rest = Some(self.rest.recorded(now)).filter(|rest| rest.calls > 0);
        images.chain(rest.map(|rest| ("".into(), rest))).collect()
    }

    /// An empty series for a new image.
    fn place(&mut self, now: Duration) -> Series {
        if self.images.len() < MAX_IMAGES {
            return Series::default();
        }
        let least = self.images.iter().min_by_key(|(_, series)| series.use_at(now));
        let least = least.map(|(image, _)| Arc::clone(image));
        let mut series = least.and_then(|image| self.images.remove(&image)).unwrap_or_default();
        self.rest.take(&mut series);
        series
    }
}
