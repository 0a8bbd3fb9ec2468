//! The status page: what this router and its runners hold, for people. `/status.json` has the data, and shows more than
//! `/shards` does: what the runners say of themselves. They are asked only while somebody looks.

mod ask;
mod gathered;
mod html;
mod notes;
mod picture;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use porch_fn_image::Image;
use porch_fn_ring::Ring;
use porch_fn_service::admin::failures;
use serde::{Deserialize, Serialize};

use self::ask::Asker;
use self::gathered::{Gathered, MAX_FAILURES};
pub(crate) use self::html::{page, policy};
use self::picture::Picture;
use crate::service::Router;
use crate::shards::{ImageInfo, RingInfo, ShardInfo, Shards};
use crate::view::View;

/// Images shown, busiest first.
const MAX_IMAGES: usize = 1000;
/// What the router's own code says of a call that ran out of time at a runner. The runner may say so, too.
pub(crate) const TIME_UP: &str = "DEADLINE_EXCEEDED";

/// The page's data. Fields are only ever added.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// This router's version.
    pub version: String,
    /// This router's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// How images are hashed, and the ring's looks.
    pub ring: RingStatus,
    /// Every runner known.
    pub shards: Vec<ShardStatus>,
    /// Images asked for lately through this router, and those that runners have pods of; busiest first.
    pub images: Vec<ImageStatus>,
    /// Whether there are more images.
    pub truncated: bool,
    /// Pods and calls of all images, shown or not.
    pub totals: Totals,
    /// Recent failures, the latest first.
    pub failures: Vec<FailureInfo>,
    /// What somebody should look into, in words.
    pub notes: Vec<String>,
    /// What is wrong with discovery, which then keeps the runners that it knew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_error: Option<String>,
}

/// The ring.
#[derive(Debug, Serialize, Deserialize)]
pub struct RingStatus {
    /// How images are hashed.
    #[serde(flatten)]
    pub info: RingInfo,
    /// Whose its parts are, all around it: an index into the runners and a length each.
    pub slices: Vec<(u16, u16)>,
}

/// One runner.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShardStatus {
    /// As this router sees it.
    #[serde(flatten)]
    pub info: ShardInfo,
    /// The share of all keys that it owns, of 1.
    pub share: f64,
    /// Ready pods of the images that it owns.
    pub pods: u64,
    /// What came of asking it: `yes`, `older` (a version that cannot tell) or `no`.
    pub told: String,
    /// Its version; empty unless it told.
    pub version: String,
    /// A hash over which image its exec runtime runs by which executable; empty when that is off, or it did not tell.
    pub exec_hash: String,
}

/// One image.
#[derive(Debug, Serialize, Deserialize)]
pub struct ImageStatus {
    /// As this router sees it.
    #[serde(flatten)]
    pub info: ImageInfo,
    /// Pods that serve.
    pub ready: u64,
    /// Pods on their way.
    pub starting: u64,
    /// Pods on their way out.
    pub terminating: u64,
    /// Calls in pods, those of other routers included.
    pub in_pods: u64,
    /// Calls that wait for a pod, those of other routers included.
    pub waiting: u64,
}

/// Sums over all images.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Images known.
    pub images: usize,
    /// Pods that serve.
    pub ready: u64,
    /// Pods on their way.
    pub starting: u64,
    /// Pods on their way out.
    pub terminating: u64,
    /// Calls that wait for a pod.
    pub waiting: u64,
}

/// Calls that failed in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureInfo {
    /// The last time, in milliseconds since 1970, by the clock of who tells.
    pub at_ms: u64,
    /// How many there were.
    pub count: u64,
    /// `router` or `runner`.
    pub by: String,
    /// The runner that it happened at; empty when none is to blame.
    pub shard: String,
    /// The image; empty when it is not known.
    pub image: String,
    /// A gRPC code, or `BROKEN`, `NOT_SENT`, `SHED` for an attempt after which the call moved on.
    pub code: String,
    /// The first line of the message.
    pub text: String,
}

/// Makes the page's data.
#[derive(Debug)]
pub(crate) struct Source {
    view: Arc<ArcSwap<View>>,
    router: Arc<Router>,
    asker: Asker,
    /// Of the view that it was drawn for.
    picture: Mutex<Option<(Arc<View>, Arc<Picture>)>>,
}

/// What a [`Status`] is made of.
struct Parts<'a> {
    at_ms: u64,
    shards: Shards,
    ring: &'a Ring,
    picture: &'a Picture,
    gathered: &'a Gathered,
    failures: Vec<failures::Failure>,
}

// === impl Source ===

impl Source {
    /// The data of `router`, which goes by `view`.
    pub(crate) fn new(view: Arc<ArcSwap<View>>, router: Arc<Router>) -> Self {
        let asker = Asker::new(Arc::clone(&view));
        Self { view, router, asker, picture: Mutex::default() }
    }

    /// The data of this moment, as JSON.
    pub(crate) async fn json(&self, discovery_error: Option<&str>) -> String {
        let gathered = self.asker.ask().await;
        let view = self.view.load_full();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let parts = Parts {
            at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            shards: Shards::now(&view, &self.router, discovery_error),
            ring: view.ring(),
            picture: &self.picture(&view),
            gathered: &gathered,
            failures: self.router.failures(),
        };
        // Strings and numbers only: serialising cannot fail.
        serde_json::to_string(&Status::of(parts)).unwrap_or_default()
    }

    fn picture(&self, view: &Arc<View>) -> Arc<Picture> {
        let mut known = self.picture.lock();
        match &*known {
            Some((of, picture)) if Arc::ptr_eq(of, view) => Arc::clone(picture),
            _ => {
                let picture = Arc::new(Picture::of(view.ring()));
                *known = Some((Arc::clone(view), Arc::clone(&picture)));
                picture
            }
        }
    }
}

// === impl Status ===

impl Status {
    fn of(parts: Parts<'_>) -> Self {
        let Parts { at_ms, shards: Shards { ring: info, shards, images, discovery_error }, .. } = parts;
        let notes = notes::notes(&shards, parts.gathered);
        let known = images.len();
        let all = images_of(images, parts.ring, parts.gathered);
        let mut pods: BTreeMap<&str, u64> = BTreeMap::new();
        let mut totals = Totals { images: all.len(), ..Totals::default() };
        for image in &all {
            *pods.entry(&image.info.owner).or_default() += image.ready;
            totals.ready += image.ready;
            totals.starting += image.starting;
            totals.terminating += image.terminating;
            totals.waiting += image.waiting;
        }
        let shards: Vec<_> = shards
            .into_iter()
            .zip(parts.picture.shares.iter().copied().chain(std::iter::repeat(0.0)))
            .map(|(info, share)| {
                let (told, shard) = match parts.gathered.shards.get(&info.address) {
                    Some(Some(shard)) => ("yes", shard.clone()),
                    Some(None) => ("older", gathered::Shard::default()),
                    None => ("no", gathered::Shard::default()),
                };
                ShardStatus {
                    pods: pods.get(&*info.address).copied().unwrap_or_default(),
                    info,
                    share,
                    told: told.to_owned(),
                    version: shard.version,
                    exec_hash: shard.exec_hash,
                }
            })
            .collect();
        // Of its own, the router has shown as many at most.
        let truncated = parts.gathered.truncated || all.len() > MAX_IMAGES || known == MAX_IMAGES;
        let mut images = all;
        images.truncate(MAX_IMAGES);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            at_ms,
            ring: RingStatus { info, slices: parts.picture.slices.clone() },
            shards,
            images,
            truncated,
            totals,
            failures: failures_of(parts.failures, parts.gathered),
            notes,
            discovery_error,
        }
    }
}

/// Those that the router knows, and those that only runners do; busiest first.
fn images_of(known: Vec<ImageInfo>, ring: &Ring, gathered: &Gathered) -> Vec<ImageStatus> {
    let keys: HashSet<String> = known.iter().map(|image| image.image.clone()).collect();
    let others = gathered.images.keys().filter(|name| !keys.contains(*name)).map(|name| ImageInfo {
        owner: owner(name, &keys, ring),
        image: name.clone(),
        in_flight: 0,
    });
    let mut images: Vec<_> = known
        .into_iter()
        .chain(others)
        .map(|info| {
            let told = gathered.images.get(&info.image);
            let pods = told.map(gathered::Image::pods).unwrap_or_default();
            ImageStatus {
                info,
                ready: pods.ready,
                starting: pods.starting,
                terminating: pods.terminating,
                in_pods: told.map(|image| image.in_flight).unwrap_or_default(),
                waiting: told.map(|image| image.waiting).unwrap_or_default(),
            }
        })
        .collect();
    let busy = |image: &ImageStatus| (image.info.in_flight as u64).max(image.in_pods + image.waiting);
    images.sort_by(|a, b| {
        let by_pods = || (b.ready + b.starting).cmp(&(a.ready + a.starting));
        busy(b).cmp(&busy(a)).then_with(by_pods).then_with(|| a.info.image.cmp(&b.info.image))
    });
    images
}

/// Whose an image is that only runners know. Where calls ask for its repository by a tag constraint, the repository
/// is what the ring hashes.
fn owner(image: &str, keys: &HashSet<String>, ring: &Ring) -> String {
    let parsed = Image::parse(image, "").ok();
    let repository = parsed.as_ref().map(Image::repository).filter(|repository| keys.contains(*repository));
    ring.owner(repository.unwrap_or(image)).map(ToString::to_string).unwrap_or_default()
}

/// The router's own and the runners', the latest first.
fn failures_of(own: Vec<failures::Failure>, gathered: &Gathered) -> Vec<FailureInfo> {
    let runners = gathered.failures.iter().map(|(shard, failure)| FailureInfo {
        at_ms: failure.at_ms,
        count: failure.count,
        by: "runner".to_owned(),
        shard: shard.clone(),
        image: failure.image.clone(),
        code: failure.code.clone(),
        text: failure.text.clone(),
    });
    let mut all: Vec<_> = runners.collect();
    let timed_out: HashSet<(&str, &str)> = gathered
        .failures
        .iter()
        .filter(|(_, failure)| failure.code == TIME_UP)
        .map(|(shard, failure)| (shard.as_str(), failure.image.as_str()))
        .collect();
    // What ran out of time at a runner, the runner knows best.
    let own = own
        .into_iter()
        .filter(|own| own.code != TIME_UP || !timed_out.contains(&(own.shard.as_str(), own.image.as_str())));
    all.extend(own.map(|failure| FailureInfo {
        at_ms: failure.at_ms,
        count: failure.count,
        by: "router".to_owned(),
        shard: failure.shard,
        image: failure.image,
        code: failure.code.to_owned(),
        text: failure.text,
    }));
    all.sort_by(|a, b| b.at_ms.cmp(&a.at_ms).then_with(|| a.image.cmp(&b.image)));
    all.truncate(MAX_FAILURES);
    all
}
