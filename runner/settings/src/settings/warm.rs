//! The images that get pods before their first call. A FunctionConfig may name an image by a
//! version constraint. Then the caller of this module must ask a registry for the image.

use std::collections::{HashMap, HashSet};

use porch_fn_image::Image;

use super::Settings;
use crate::function_config::FunctionConfig;

/// Stands for one image: the repository with its highest tag that satisfies the constraint. Only a
/// registry can tell which tag that is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Range {
    /// The tag of this image is ignored.
    pub repository: Image,
    /// A constraint that [`porch_fn_image::Constraint::parse`] accepts.
    pub constraint: String,
}

/// The images that registries have found for ranges.
pub type Resolved = HashMap<Range, Image>;

impl Settings {
    /// The images that get a pod before their first call. They come from `--pod-cache-config`, from
    /// the tags of FunctionConfigs, and from their resolved [ranges](Self::ranges). Each image
    /// occurs once, in the order of the file and then by age of the objects. Images that
    /// `--allowed-images` does not allow are left out.
    pub fn warm(&self, resolved: &Resolved) -> Vec<Image> {
        let mut seen = HashSet::new();
        let listed = self.cache.entries.iter().map(|entry| entry.image.clone());
        let named = self.functions.iter().flat_map(|config| {
            let range = range(config).and_then(|range| resolved.get(&range).cloned());
            named_images(config).chain(range)
        });
        let allowed = listed.chain(named).filter(|image| self.flags.allowed_images.allows(image));
        allowed.filter(|image| seen.insert(image.clone())).collect()
    }

    /// The ranges of FunctionConfigs. Without `warm_up`, returns only ranges of objects that keep
    /// pods ([`MIN_REPLICAS`](crate::MIN_REPLICAS)).
    pub fn ranges(&self, warm_up: bool) -> Vec<Range> {
        let allowed = |range: &Range| {
            self.flags.allowed_images.check(range.repository.as_str(), &range.constraint).is_ok()
        };
        let configs = self.functions.iter();
        let wanted = configs.filter(|config| warm_up || config.min_replicas.is_some_and(|pods| pods > 0));
        wanted.filter_map(range).filter(allowed).collect()
    }

    /// The images of [`warm`](Self::warm) with a minimum number of pods. Images of objects for all
    /// tags are missing, because they are known only after their first call.
    pub fn kept(&self, resolved: &Resolved) -> Vec<Image> {
        let is_kept = |image: &Image| self.of(image).min_pods.value > 0;
        self.warm(resolved).into_iter().filter(is_kept).collect()
    }
}

/// The images that an object's podExecutor names by literal tags.
fn named_images(config: &FunctionConfig) -> impl Iterator<Item = Image> {
    let pods = config.pod.iter();
    pods.flat_map(|pod| {
        let repositories = config.repositories.iter();
        repositories.flat_map(|repository| {
            pod.tags.literal().filter_map(move |tag| Image::parse(&format!("{repository}:{tag}"), "").ok())
        })
    })
}

/// The range that an object names for pods. Like in Porch, only the object's first repository and
/// the first constraint in the podExecutor's tags count.
fn range(config: &FunctionConfig) -> Option<Range> {
    let constraint = config.pod.as_ref()?.tags.first_constraint()?.to_owned();
    let repository = Image::parse(config.repositories.first()?, "").ok()?;
    Some(Range { repository, constraint })
}
