//! Builds the status page's data from the router's data and the runners' reports. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use porch_fn_admin::failures::Failure;
use porch_fn_grpc::code_name;
use porch_fn_image::Image;
use porch_fn_numbers::{Numbers, Recorded};
use porch_fn_ring::Ring;
use serde::{Deserialize, Serialize};
use tonic::Code;

use crate::answers::{Answers, MAX_FAILURES, StartError};
use crate::notes::notes;
use crate::picture::{shares, slices};
use crate::shards::{ImageInfo, MAX_IMAGES, RingInfo, ShardInfo};
use crate::{Known, Recordings, Shards};

/// The page's data. Fields are never removed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// This router's version.
    pub version: String,
    /// This router's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// The name of this router's pod or host.
    #[serde(default)]
    pub router: String,
    /// A random name of this router's process.
    #[serde(default)]
    pub instance: String,
    /// All routers, this one first. Empty if they are not known, because there is no
    /// `--router-peers`.
    #[serde(default)]
    pub routers: Vec<RouterStatus>,
    /// How images are hashed, and how the ring is drawn.
    pub ring: RingStatus,
    /// All known runners.
    pub shards: Vec<ShardStatus>,
    /// Images of recent calls through this router, and images of the runners' pods; busiest first.
    /// The last entry may have the empty name: the calls of all images without numbers of their own.
    pub images: Vec<ImageStatus>,
    /// Whether there are more images.
    pub truncated: bool,
    /// Pods and calls of all images, including images beyond the limit of `images`.
    pub totals: Totals,
    /// Recent failures, the latest first.
    pub failures: Vec<Failure>,
    /// Problems that an operator should look into, as text.
    pub notes: Vec<String>,
    /// Discovery's last error. Discovery keeps the last known runners until it recovers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery_error: Option<String>,
    /// The router's calls in a form that another router can add to its own. Only in `?own`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recordings>,
}

/// One router.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterStatus {
    /// The name of its pod or host; empty if it did not answer.
    pub name: String,
    /// The address of its admin port.
    pub address: String,
    /// Its version; empty if it did not answer.
    pub version: String,
    /// `included`, `unreachable`, or `older`: a version that cannot report its own calls.
    pub state: String,
}

/// The ring.
#[derive(Debug, Serialize, Deserialize)]
pub struct RingStatus {
    /// How images are hashed.
    #[serde(flatten)]
    pub info: RingInfo,
    /// The owners of the slices around the ring. Each entry is the index of a runner, and the
    /// number of consecutive slices that this runner owns.
    pub slices: Vec<(u16, u16)>,
}

/// One runner.
#[derive(Debug, Serialize, Deserialize)]
pub struct ShardStatus {
    /// What this router knows about the runner.
    #[serde(flatten)]
    pub info: ShardInfo,
    /// The share of all keys that the runner owns, from 0 to 1.
    pub share: f64,
    /// Ready pods of the images that the runner owns.
    pub pods: u64,
    /// Whether the runner sent a report: `yes`, `older` (a version that cannot report) or `no`.
    pub told: String,
    /// The runner's version; empty if it sent no report.
    pub version: String,
    /// A hash of the exec runtime's map from image to executable. Empty if the exec runtime is off
    /// or the runner sent no report.
    pub exec_hash: String,
    /// The name of the runner's pod or host. Empty if the runner is older or sent no report.
    #[serde(default)]
    pub name: String,
    /// When the runner started, in milliseconds since 1970. 0 if the runner is older or sent no
    /// report.
    #[serde(default)]
    pub started_ms: u64,
    /// Calls that the runner served, as the included routers saw them. A call whose connection was
    /// lost counts as failed; a call that the runner refused does not count.
    #[serde(default)]
    pub numbers: Numbers,
}

/// One image.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ImageStatus {
    /// What this router knows about the image.
    #[serde(flatten)]
    pub info: ImageInfo,
    /// Pods that serve.
    pub ready: u64,
    /// Pods that start.
    pub starting: u64,
    /// Pods that terminate.
    pub terminating: u64,
    /// Calls in pods, including other routers' calls.
    pub in_pods: u64,
    /// Calls that wait for a pod, including other routers' calls.
    pub waiting: u64,
    /// The newest start of a pod of the image, if it failed. Absent if a later start succeeded, and
    /// one hour after the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_error: Option<StartError>,
    /// The image's calls through the included routers. All zero if the image has no numbers of its
    /// own.
    #[serde(default)]
    pub numbers: Numbers,
}

/// Sums over all images.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// All known images.
    pub images: usize,
    /// Pods that serve.
    pub ready: u64,
    /// Pods that start.
    pub starting: u64,
    /// Pods that terminate.
    pub terminating: u64,
    /// Calls that wait for a pod.
    pub waiting: u64,
    /// All calls through the included routers, including calls without an image.
    #[serde(default)]
    pub numbers: Numbers,
}

impl Status {
    pub(crate) fn of(known: Known, answers: &Answers, at_ms: u64) -> Self {
        let points = known.ring.points();
        let shares = shares(points, known.ring.nodes().len());
        let Shards { ring: info, shards, images, discovery_error } = known.shards;
        let notes = notes(&shards, answers);
        // If the router's list has the maximum length, the router may have left out images.
        let truncated = answers.truncated || images.len() >= MAX_IMAGES;
        let (mut numbers, all) = numbers(known.recorded.by_image, answers);
        let rest = numbers.remove("");
        let mut images = all_images(images, &known.ring, answers, numbers);
        let mut pods: HashMap<String, u64> = HashMap::new();
        let mut totals = Totals { images: images.len(), numbers: all, ..Totals::default() };
        for image in &images {
            *pods.entry(image.info.owner.clone()).or_default() += image.ready;
            totals.ready += image.ready;
            totals.starting += image.starting;
            totals.terminating += image.terminating;
            totals.waiting += image.waiting;
        }
        let truncated = truncated || images.len() > MAX_IMAGES;
        images.truncate(MAX_IMAGES);
        images.extend(rest.map(|numbers| ImageStatus { numbers, ..ImageStatus::default() }));
        let shards = shards.into_iter().enumerate().map(|(node, info)| {
            let answer = answers.runners.get(&info.address);
            let report = answer.cloned().flatten().unwrap_or_default();
            let mut recorded = known.recorded.by_runner.get(&info.address).cloned().unwrap_or_default();
            recorded.queue = answers.waits_by_runner.get(&info.address).cloned().unwrap_or_default();
            ShardStatus {
                numbers: recorded.numbers(),
                share: shares.get(node).copied().unwrap_or_default(),
                pods: pods.get(&info.address).copied().unwrap_or_default(),
                info,
                told: answer.map_or("no", |answer| if answer.is_some() { "yes" } else { "older" }).to_owned(),
                version: report.version,
                exec_hash: report.exec_hash,
                name: report.name,
                started_ms: report.started_ms,
            }
        });
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            at_ms,
            failures: all_failures(known.failures, &known.router.name, answers),
            router: known.router.name,
            instance: String::new(),
            routers: Vec::new(),
            ring: RingStatus { info, slices: slices(points) },
            shards: shards.collect(),
            images,
            truncated,
            totals,
            notes,
            discovery_error,
            recorded: None,
        }
    }
}

/// The numbers of each image, and those of all calls. Waits that runners report are added.
fn numbers(
    mut by_image: BTreeMap<Arc<str>, Recorded>,
    answers: &Answers,
) -> (HashMap<String, Numbers>, Numbers) {
    let mut all = Recorded::default();
    for recorded in by_image.values() {
        all.merge(recorded);
    }
    for (image, waits) in &answers.waits {
        all.queue.merge(waits);
        let image = if by_image.contains_key(image.as_str()) { image.as_str() } else { "" };
        if let Some(recorded) = by_image.get_mut(image) {
            recorded.queue.merge(waits);
        }
    }
    let numbers = by_image.into_iter().map(|(image, recorded)| (image.to_string(), recorded.numbers()));
    (numbers.collect(), all.numbers())
}

/// The images that the router knows and the images that only runners know; busiest first.
fn all_images(
    known: Vec<ImageInfo>,
    ring: &Ring,
    answers: &Answers,
    mut numbers: HashMap<String, Numbers>,
) -> Vec<ImageStatus> {
    let keys: HashSet<String> = known.iter().map(|image| image.image.clone()).collect();
    let reported = answers.images.iter().filter(|(_, report)| report.is_current()).map(|(name, _)| name);
    let others: BTreeSet<_> =
        reported.chain(numbers.keys()).filter(|name| !keys.contains(*name)).cloned().collect();
    let others = others.into_iter().map(|image| ImageInfo {
        owner: owner(&image, |key| keys.contains(key), ring).unwrap_or_default(),
        image,
        in_flight: 0,
    });
    let with_pods = |info: ImageInfo| {
        let reported = answers.images.get(&info.image).cloned().unwrap_or_default();
        let [ready, starting, terminating] = reported.pods();
        let (in_pods, waiting) = (reported.in_flight, reported.waiting);
        let start_error = reported.start_error();
        let numbers = numbers.remove(&info.image).unwrap_or_default();
        ImageStatus { info, ready, starting, terminating, in_pods, waiting, start_error, numbers }
    };
    let mut images: Vec<_> = known.into_iter().chain(others).map(with_pods).collect();
    let calls = |image: &ImageStatus| (image.info.in_flight as u64).max(image.in_pods + image.waiting);
    images.sort_by(|a, b| {
        // An image with calls comes before images that only have pods, so it is never cut off.
        let weight = |image: &ImageStatus| {
            let called = (image.numbers.minute.calls, image.numbers.calls);
            (calls(image), called, image.start_error.is_some(), image.ready + image.starting)
        };
        weight(b).cmp(&weight(a)).then_with(|| a.info.image.cmp(&b.info.image))
    });
    images
}

/// The owner of an image of which this router has no recent calls. If calls select it by a tag
/// constraint, the ring hashes the repository instead of the image. `is_called` returns whether
/// there are recent calls with this shard key.
pub(crate) fn owner(image: &str, is_called: impl Fn(&str) -> bool, ring: &Ring) -> Option<String> {
    let parsed = Image::parse(image, "").ok();
    let repository = parsed.as_ref().map(Image::repository).filter(|repository| is_called(repository));
    ring.owner(repository.unwrap_or(image)).map(ToString::to_string)
}

/// The failures of all routers and runners, the latest first. `router` is this router's name.
fn all_failures(own: Vec<Failure>, router: &str, answers: &Answers) -> Vec<Failure> {
    let mut all = answers.failures.clone();
    let time_up = code_name(Code::DeadlineExceeded);
    // If a call timed out at a runner, the runner's entry has more detail than the router's.
    let reported = |own: &Failure| {
        let same = |known: &Failure| known.shard == own.shard && known.image == own.image;
        own.code == time_up && answers.failures.iter().any(|known| known.code == time_up && same(known))
    };
    let own = own.into_iter().filter(|own| !reported(own));
    all.extend(own.map(|failure| {
        let router = if failure.router.is_empty() { router.to_owned() } else { failure.router };
        Failure { by: "router".to_owned(), router, ..failure }
    }));
    all.sort_by(|a, b| b.at_ms.cmp(&a.at_ms).then_with(|| a.image.cmp(&b.image)));
    all.truncate(MAX_FAILURES);
    all
}
