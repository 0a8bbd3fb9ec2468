//! What the runners report, folded together answer by answer: bounded, however many there are. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use porch_fn_proto::shard::{DescribeResponse, ImagePods};
use porch_fn_text::cut;
use serde::{Deserialize, Serialize};

/// Images remembered of all runners together.
const MAX_IMAGES: usize = 10_000;
/// Images, failures and members of one answer that count. Runners report no more.
const MAX_OF_ONE: usize = 1000;
/// Failures remembered, the latest ones.
pub(crate) const MAX_FAILURES: usize = 200;
/// Longest name and text, in bytes.
const MAX_TEXT: usize = 600;

/// Calls that failed in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureInfo {
    /// The last time, in milliseconds since 1970, by the clock of the reporting process.
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

/// What came of asking one runner.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Report(Box<DescribeResponse>),
    /// A version that does not know the question.
    Older,
    /// No answer, or not in time.
    Silent,
}

/// What a runner reports of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) version: String,
    pub(crate) exec_hash: String,
    /// The members of the ring, sorted, if it follows its peers.
    pub(crate) ring: Option<Vec<String>>,
}

/// An image's pods and calls, on all runners together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ImageReport {
    /// Pods that are ready, starting and terminating, by the place where they live.
    pods: HashMap<Arc<str>, [u64; 3]>,
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
}

/// All answers of one round.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// By address. `None` is an older version.
    pub(crate) runners: HashMap<String, Option<Report>>,
    pub(crate) images: HashMap<String, ImageReport>,
    pub(crate) failures: Vec<FailureInfo>,
    /// Some images were left out.
    pub(crate) truncated: bool,
}

// === impl Answers ===

impl Answers {
    /// Adds the answer of the runner at `address`.
    pub(crate) fn add(&mut self, address: &str, answer: Answer) {
        let answer = match answer {
            Answer::Report(answer) => *answer,
            Answer::Older => {
                self.runners.insert(address.to_owned(), None);
                return;
            }
            Answer::Silent => return,
        };
        let ring = answer.ring.into_iter().take(MAX_OF_ONE).map(|one| bounded(&one)).collect();
        let report = Report {
            version: bounded(&answer.version),
            exec_hash: bounded(&answer.exec_hash),
            ring: answer.has_peers.then_some(ring),
        };
        self.runners.insert(address.to_owned(), Some(report));
        self.truncated |= answer.truncated;
        // A runner that names no place has pods of its own.
        let place =
            if answer.pods_scope.is_empty() { address.to_owned() } else { bounded(&answer.pods_scope) };
        let place: Arc<str> = place.into();
        for image in answer.images.iter().take(MAX_OF_ONE) {
            self.add_image(&place, image);
        }
        self.failures.extend(answer.failures.into_iter().take(MAX_OF_ONE).map(|failure| FailureInfo {
            at_ms: failure.at_ms,
            count: failure.count,
            by: "runner".to_owned(),
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

    fn add_image(&mut self, place: &Arc<str>, reported: &ImagePods) {
        let name = bounded(&reported.image);
        if self.images.len() >= MAX_IMAGES && !self.images.contains_key(&name) {
            self.truncated = true;
            return;
        }
        let image = self.images.entry(name).or_default();
        image.in_flight += u64::from(reported.in_flight);
        image.waiting += u64::from(reported.waiting);
        // Runners that share a namespace report the same pods. Only the report with the most ready pods is counted: a
        // runner that does not use a pod does not know that it is ready.
        let pods = image.pods.entry(Arc::clone(place)).or_default();
        *pods = (*pods).max([reported.ready, reported.starting, reported.terminating].map(u64::from));
    }
}

// === impl ImageReport ===

impl ImageReport {
    /// Its ready, starting and terminating pods in all places.
    pub(crate) fn pods(&self) -> [u64; 3] {
        self.pods.values().fold([0; 3], |sum, pods| std::array::from_fn(|state| sum[state] + pods[state]))
    }
}

fn bounded(text: &str) -> String {
    cut(text, MAX_TEXT, "").into_owned()
}

#[cfg(test)]
mod tests {
    use porch_fn_proto::shard::Failure;

    use super::*;

    fn image(name: &str, ready: u32, starting: u32) -> ImagePods {
        ImagePods { image: name.to_owned(), ready, starting, terminating: 0, in_flight: 2, waiting: 1 }
    }

    fn answer(scope: &str, images: Vec<ImagePods>) -> Answer {
        let pods_scope = scope.to_owned();
        Answer::Report(Box::new(DescribeResponse {
            pods_scope,
            images,
            has_pods: true,
            ..Default::default()
        }))
    }

    #[test]
    fn shared_pods_count_once_and_others_add_up() {
        let mut answers = Answers::default();
        // A runner that does not use a pod does not know whether it is ready.
        answers.add("a", answer("cluster", vec![image("f", 0, 3)]));
        answers.add("b", answer("cluster", vec![image("f", 2, 1)]));
        answers.add("c", answer("other", vec![image("f", 1, 0)]));
        answers.add("d", answer("", vec![image("f", 1, 0)]));
        answers.add("e", answer("", vec![image("f", 1, 0)]));
        let found = &answers.images["f"];
        assert_eq!(found.pods(), [5, 1, 0]);
        assert_eq!((found.in_flight, found.waiting), (10, 5));
    }

    #[test]
    fn an_older_runner_is_known_and_a_silent_one_is_not() {
        let mut answers = Answers::default();
        answers.add("old", Answer::Older);
        answers.add("silent", Answer::Silent);
        answers.add("new", answer("x", Vec::new()));
        assert_eq!(answers.runners.get("old"), Some(&None));
        assert_eq!(answers.runners.get("silent"), None);
        assert!(answers.runners["new"].as_ref().is_some_and(|report| report.ring.is_none()));
    }

    #[test]
    fn all_is_bounded() {
        let mut answers = Answers::default();
        for runner in 0..20 {
            let images =
                (0..2 * MAX_OF_ONE).map(|n| image(&format!("{runner}-{n}{}", "x".repeat(1000)), 1, 0));
            let failure =
                |n: usize| Failure { at_ms: n as u64, text: "y".repeat(5000), ..Default::default() };
            let told = DescribeResponse {
                images: images.collect(),
                failures: (0..500).map(failure).collect(),
                ring: (0..5000).map(|n| n.to_string()).collect(),
                has_peers: true,
                ..Default::default()
            };
            answers.add(&runner.to_string(), Answer::Report(Box::new(told)));
        }
        assert_eq!((answers.images.len(), answers.truncated), (MAX_IMAGES, true));
        assert!(answers.images.keys().all(|name| name.len() == MAX_TEXT));
        assert_eq!(answers.failures.len(), MAX_FAILURES);
        // The latest of each runner.
        assert!(
            answers.failures.iter().all(|failure| failure.at_ms >= 490 && failure.text.len() == MAX_TEXT)
        );
        assert_eq!(answers.runners["3"].as_ref().unwrap().ring.as_ref().unwrap().len(), MAX_OF_ONE);
    }
}
