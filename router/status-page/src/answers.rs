//! Merges the runners' reports one by one. The numbers of images and failures are limited for all
//! runners together; other data is limited for each runner. No I/O.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use porch_fn_admin::failures::Failure;
use porch_fn_numbers::Counts;
use porch_fn_proto::shard::{self, DescribeResponse, ImagePods, QueueWaits};
use porch_fn_text::cut;
use serde::{Deserialize, Serialize};

/// Maximum number of images of all runners together.
pub(crate) const MAX_IMAGES: usize = 10_000;
/// Maximum number of images, failures and members read from one answer. Runners report no more.
pub(crate) const MAX_OF_ONE: usize = 1000;
/// Maximum number of images whose waits are kept. Further images count together.
const MAX_WAITS: usize = 1000;
/// Maximum number of failures. The latest are kept.
pub(crate) const MAX_FAILURES: usize = 200;
/// Longest name and text, in bytes.
pub(crate) const MAX_TEXT: usize = 600;
/// Longest text of a start error, in bytes. Runners report no more.
const MAX_START_ERROR: usize = 1000;

/// A failed start of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartError {
    /// Time in milliseconds since 1970, by the runner's clock.
    pub at_ms: u64,
    /// Which pod failed, and why.
    pub text: String,
}

/// An image's pods and calls, on all runners together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ImageReport {
    /// Numbers of ready, starting and terminating pods, by pods scope: the name of a set of pods
    /// that several runners may share.
    pods: HashMap<Arc<str>, [u64; 3]>,
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
    /// The newest failed start that a runner reports.
    failed: Option<StartError>,
    /// When a pod last became ready, in milliseconds since 1970, on the runner that started it. 0
    /// if that is not known.
    started_at_ms: u64,
}

/// The answers of all runners.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The reports by address, without images and failures. `None` means that the runner's version
    /// is too old to report.
    pub(crate) runners: HashMap<String, Option<DescribeResponse>>,
    pub(crate) images: HashMap<String, ImageReport>,
    pub(crate) failures: Vec<Failure>,
    /// How long the calls of each image waited; the empty name has those of all other images.
    pub(crate) waits: HashMap<String, Counts>,
    /// How long the calls of each runner waited.
    pub(crate) waits_by_runner: HashMap<String, Counts>,
    /// Whether this module or a runner left out some images.
    pub(crate) truncated: bool,
}

impl Answers {
    /// Adds the answer of the runner at `address`. A runner of an older version has no report.
    pub(crate) fn add(&mut self, address: &str, answer: Option<DescribeResponse>) {
        let Some(mut answer) = answer else {
            self.runners.insert(address.to_owned(), None);
            return;
        };
        let (images, failures) = (std::mem::take(&mut answer.images), std::mem::take(&mut answer.failures));
        for waits in std::mem::take(&mut answer.queue_waits).iter().take(MAX_OF_ONE) {
            self.add_waits(address, waits);
        }
        answer.ring.truncate(MAX_OF_ONE);
        let texts = [&mut answer.version, &mut answer.exec_hash, &mut answer.pods_scope, &mut answer.name];
        for text in texts.into_iter().chain(&mut answer.ring) {
            *text = bounded(text);
        }
        self.truncated |= answer.truncated;
        // A runner without a pods scope shares its pods with no other runner.
        let scope = if answer.pods_scope.is_empty() { address } else { &answer.pods_scope };
        let scope: Arc<str> = scope.into();
        self.runners.insert(address.to_owned(), Some(answer));
        for image in images.iter().take(MAX_OF_ONE) {
            self.add_image(&scope, image);
        }
        self.failures.extend(failures.into_iter().take(MAX_OF_ONE).map(|failure| Failure {
            at_ms: failure.at_ms,
            count: failure.count,
            by: "runner".to_owned(),
            router: String::new(),
            shard: address.to_owned(),
            image: bounded(&failure.image),
            code: bounded(&failure.code),
            text: bounded(&failure.text),
        }));
        if self.failures.len() > MAX_FAILURES {
            self.failures.sort_by_key(|failure| Reverse(failure.at_ms));
            self.failures.truncate(MAX_FAILURES);
        }
    }

    fn add_waits(&mut self, address: &str, reported: &QueueWaits) {
        let mut counts = Counts::default();
        for (bucket, count) in reported.buckets.iter().zip(&reported.counts) {
            counts.add(*bucket as usize, *count);
        }
        self.waits_by_runner.entry(address.to_owned()).or_default().merge(&counts);
        let mut image = bounded(&reported.image);
        if self.waits.len() >= MAX_WAITS && !self.waits.contains_key(&image) {
            image.clear();
        }
        self.waits.entry(image).or_default().merge(&counts);
    }

    fn add_image(&mut self, scope: &Arc<str>, reported: &ImagePods) {
        let name = bounded(&reported.image);
        if self.images.len() >= MAX_IMAGES && !self.images.contains_key(&name) {
            self.truncated = true;
            return;
        }
        let image = self.images.entry(name).or_default();
        image.in_flight += u64::from(reported.in_flight);
        image.waiting += u64::from(reported.waiting);
        // Runners with the same scope report the same pods. Only the report with the most ready
        // pods is counted: a runner that does not use a pod does not know that the pod is ready.
        let pods = image.pods.entry(Arc::clone(scope)).or_default();
        *pods = (*pods).max([reported.ready, reported.starting, reported.terminating].map(u64::from));
        image.started_at_ms = image.started_at_ms.max(reported.started_at_ms);
        if let Some(shard::StartError { at_ms, text }) = &reported.start_error
            && image.failed.as_ref().is_none_or(|known| known.at_ms < *at_ms)
        {
            image.failed =
                Some(StartError { at_ms: *at_ms, text: cut(text, MAX_START_ERROR, "").into_owned() });
        }
    }
}

impl ImageReport {
    /// The image's ready, starting and terminating pods in all scopes.
    pub(crate) fn pods(&self) -> [u64; 3] {
        self.pods.values().fold([0; 3], |sum, pods| std::array::from_fn(|state| sum[state] + pods[state]))
    }

    /// The newest start, if it failed. Each start is reported by the runner that created the pod.
    pub(crate) fn start_error(&self) -> Option<StartError> {
        self.failed.clone().filter(|failed| failed.at_ms > self.started_at_ms)
    }

    /// Whether the image has pods, calls or a start error. A runner also reports an image without
    /// pods if its last start succeeded.
    pub(crate) fn is_current(&self) -> bool {
        self.in_flight + self.waiting > 0 || self.pods() != [0; 3] || self.start_error().is_some()
    }
}

/// Cuts a text of another server to [`MAX_TEXT`].
pub(crate) fn bounded(text: &str) -> String {
    cut(text, MAX_TEXT, "").into_owned()
}
