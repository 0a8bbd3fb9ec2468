//! What the runners told, folded together answer by answer: bounded, however many there are. Pure.

use std::collections::{BTreeSet, HashMap};

use porch_fn_proto::shard::{DescribeResponse, Failure, ImagePods};

/// Images remembered of all runners together.
const MAX_IMAGES: usize = 10_000;
/// Images, failures and members of one answer that count. Runners tell no more.
const MAX_OF_ONE: usize = 1000;
/// Failures remembered, the latest ones.
pub(super) const MAX_FAILURES: usize = 200;
/// Longest name and text, in bytes.
const MAX_TEXT: usize = 600;

/// What came of asking one runner.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Told {
    /// It answered.
    Answer(Box<DescribeResponse>),
    /// It does not know the question.
    Older,
    /// No answer, or not in time.
    Silent,
}

/// What a runner said of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Shard {
    pub(super) version: String,
    pub(super) exec_hash: String,
    /// The members of the ring as it sees them, if it looks.
    pub(super) ring: Option<BTreeSet<String>>,
}

/// An image's pods and calls, on all runners together.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Image {
    /// By where they live, as an index into `scopes`.
    pods: HashMap<usize, Pods>,
    pub(super) in_flight: u64,
    pub(super) waiting: u64,
}

/// Pods by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pods {
    pub(super) ready: u64,
    pub(super) starting: u64,
    pub(super) terminating: u64,
}

/// All answers of one round.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// By address. `None` are those that do not know the question.
    pub(super) shards: HashMap<String, Option<Shard>>,
    pub(super) images: HashMap<String, Image>,
    /// With the runner that told.
    pub(super) failures: Vec<(String, Failure)>,
    /// There are images that are not told.
    pub(super) truncated: bool,
    scopes: Vec<String>,
}

impl Gathered {
    /// Adds what the runner at `address` told.
    pub(crate) fn add(&mut self, address: &str, told: Told) {
        let told = match told {
            Told::Answer(told) => *told,
            Told::Older => {
                self.shards.insert(address.to_owned(), None);
                return;
            }
            Told::Silent => return,
        };
        let ring = told.ring.into_iter().take(MAX_OF_ONE).map(cut).collect();
        let shard = Shard {
            version: cut(told.version),
            exec_hash: cut(told.exec_hash),
            ring: told.has_peers.then_some(ring),
        };
        self.shards.insert(address.to_owned(), Some(shard));
        self.truncated |= told.truncated;
        // Who names no place has pods of its own.
        let scope = if told.pods_scope.is_empty() { address.to_owned() } else { cut(told.pods_scope) };
        let scope = self.scopes.iter().position(|known| *known == scope).unwrap_or_else(|| {
            self.scopes.push(scope);
            self.scopes.len() - 1
        });
        for image in told.images.into_iter().take(MAX_OF_ONE) {
            self.add_image(scope, image);
        }
        let failures = told.failures.into_iter().take(MAX_OF_ONE).map(|failure| Failure {
            image: cut(failure.image),
            code: cut(failure.code),
            text: cut(failure.text),
            ..failure
        });
        self.failures.extend(failures.map(|failure| (address.to_owned(), failure)));
        if self.failures.len() > MAX_FAILURES {
            self.failures.sort_by_key(|(_, failure)| std::cmp::Reverse(failure.at_ms));
            self.failures.truncate(MAX_FAILURES);
        }
    }

    fn add_image(&mut self, scope: usize, told: ImagePods) {
        let name = cut(told.image);
        if self.images.len() >= MAX_IMAGES && !self.images.contains_key(&name) {
            self.truncated = true;
            return;
        }
        let image = self.images.entry(name).or_default();
        image.in_flight += u64::from(told.in_flight);
        image.waiting += u64::from(told.waiting);
        let seen = Pods {
            ready: told.ready.into(),
            starting: told.starting.into(),
            terminating: told.terminating.into(),
        };
        // Those who share pods see the same ones, but whether a pod serves only who uses it: who knows of most counts.
        let pods = image.pods.entry(scope).or_default();
        *pods = seen.max(*pods);
    }
}

impl Image {
    /// Its pods, wherever they are.
    pub(super) fn pods(&self) -> Pods {
        self.pods.values().fold(Pods::default(), |all, pods| Pods {
            ready: all.ready + pods.ready,
            starting: all.starting + pods.starting,
            terminating: all.terminating + pods.terminating,
        })
    }
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, ready: u32, starting: u32) -> ImagePods {
        ImagePods { image: name.to_owned(), ready, starting, terminating: 0, in_flight: 2, waiting: 1 }
    }

    fn answer(scope: &str, images: Vec<ImagePods>) -> Told {
        let pods_scope = scope.to_owned();
        Told::Answer(Box::new(DescribeResponse { pods_scope, images, has_pods: true, ..Default::default() }))
    }

    #[test]
    fn shared_pods_count_once_and_others_add_up() {
        let mut gathered = Gathered::default();
        // Whoever does not use a pod does not know whether it is ready.
        gathered.add("a", answer("cluster", vec![image("f", 0, 3)]));
        gathered.add("b", answer("cluster", vec![image("f", 2, 1)]));
        gathered.add("c", answer("other", vec![image("f", 1, 0)]));
        gathered.add("d", answer("", vec![image("f", 1, 0)]));
        gathered.add("e", answer("", vec![image("f", 1, 0)]));
        let found = &gathered.images["f"];
        assert_eq!(found.pods(), Pods { ready: 5, starting: 1, terminating: 0 });
        assert_eq!((found.in_flight, found.waiting), (10, 5));
    }

    #[test]
    fn who_is_older_is_known_and_who_is_silent_is_not() {
        let mut gathered = Gathered::default();
        gathered.add("old", Told::Older);
        gathered.add("silent", Told::Silent);
        gathered.add("new", answer("x", Vec::new()));
        assert_eq!(gathered.shards.get("old"), Some(&None));
        assert_eq!(gathered.shards.get("silent"), None);
        assert!(gathered.shards["new"].as_ref().is_some_and(|shard| shard.ring.is_none()));
    }

    #[test]
    fn all_is_bounded() {
        let mut gathered = Gathered::default();
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
            gathered.add(&runner.to_string(), Told::Answer(Box::new(told)));
        }
        assert_eq!((gathered.images.len(), gathered.truncated), (MAX_IMAGES, true));
        assert!(gathered.images.keys().all(|name| name.len() == MAX_TEXT));
        assert_eq!(gathered.failures.len(), MAX_FAILURES);
        // The latest of each runner.
        assert!(
            gathered
                .failures
                .iter()
                .all(|(_, failure)| failure.at_ms >= 490 && failure.text.len() == MAX_TEXT)
        );
        assert_eq!(gathered.shards["3"].as_ref().unwrap().ring.as_ref().unwrap().len(), MAX_OF_ONE);
    }
}
