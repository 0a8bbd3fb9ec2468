//! A naive model of which FunctionConfig wins. [`Settings`] must agree with it.

use porch_fn_image::{Constraint, Version};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{PREFIX, executable as executable_of, flags, image, settings};
use super::*;
use crate::tags::TagSemantics;

const REPOSITORIES: [&str; 3] = ["f", "g", "quay.io/x/f"];
const TAGS: [&str; 8] = ["v1.0.0", "v1.0", "1.0.0", "v1.0.1", "v2.0.0-rc1", "latest", "v1.x", "odd"];
const TEXTS: [&str; 9] = ["v1.0.0", "v1.0", "1", "latest", ">=1 <2", "~1.0.1", "1.x", "v1.x", "*"];

/// Tags, `maxParallelExecutions` and `preferredMaxQueueLength`.
type Pod = (Vec<&'static str>, Option<u32>, Option<u32>);

/// An object as the model sees it.
#[derive(Debug, Clone)]
struct Wish {
    created: Option<i64>,
    images: Vec<&'static str>,
    pod: Option<Pod>,
    binary: Option<Vec<&'static str>>,
}

fn wish() -> impl Strategy<Value = Wish> {
    let count = || proptest::option::of(1..4_u32);
    let texts = |least| proptest::sample::subsequence(&TEXTS[..], least..3);
    let pod = proptest::option::of((texts(0), count(), count()));
    let images = proptest::sample::subsequence(&["", "quay.io/x"][..], 1..=2);
    (proptest::option::of(0..3_i64), images, pod, proptest::option::of(texts(1)))
        .prop_map(|(created, images, pod, binary)| Wish { created, images, pod, binary })
        .prop_filter("an object needs an executor", |wish| wish.pod.is_some() || wish.binary.is_some())
}

fn object_of(name: &str, wish: &Wish, semantics: TagSemantics) -> FunctionConfig {
    let created = wish.created.map(|second| format!("2026-01-01T00:00:0{second}Z"));
    let pod = wish.pod.as_ref().map(|(tags, max, queue)| {
        json!({"tags": tags, "maxParallelExecutions": max, "preferredMaxQueueLength": queue})
    });
    let binary = wish.binary.as_ref().map(|tags| json!({"tags": tags, "path": name}));
    let spec = json!({"image": "f", "prefixes": wish.images, "podExecutor": pod, "binaryExecutor": binary});
    let metadata = json!({"name": name, "creationTimestamp": created});
    FunctionConfig::parse(&json!({"metadata": metadata, "spec": spec}), PREFIX, semantics).unwrap()
}

/// The object that counts for `image`, by going through all and comparing.
fn model(wishes: &[Wish], image: &Image, of_pods: bool, exact: bool) -> Option<usize> {
    let tag = image.tag();
    let version: Option<Version> = tag.and_then(parse_version);
    let all = |tags: &[&str]| if exact { of_pods } else { tags.contains(&"*") };
    let holds = |text: &str| {
        let constraint = Constraint::parse(text).ok().filter(|_| !exact);
        Some(text) == tag || constraint.zip(version.as_ref()).is_some_and(|(all, one)| all.matches(one))
    };
    // The highest listed version that the tag, as a constraint, allows.
    let listed = |tags: &[&str]| {
        let constraint = tag.and_then(|tag| Constraint::parse(tag).ok()).filter(|_| !exact && !of_pods)?;
        tags.iter().filter_map(|text| parse_version(text)).filter(|version| constraint.matches(version)).max()
    };
    let candidates = wishes.iter().enumerate().filter_map(|(place, wish)| {
        let tags = if of_pods { &wish.pod.as_ref()?.0 } else { wish.binary.as_ref()? };
        let under = |prefix: &&str| {
            let prefix = if prefix.is_empty() { PREFIX } else { prefix };
            image.repository() == format!("{prefix}/f")
        };
        if !wish.images.iter().any(under) {
            return None;
        }
        let general = all(tags);
        let by_version =
            if general || tags.iter().any(|text| holds(text)) { None } else { Some(listed(tags)?) };
        // Entries come before versions, and the highest of those first.
        let rank = (by_version.is_some(), std::cmp::Reverse(by_version));
        Some((general, rank, wish.created.is_none(), wish.created, place))
    });
    candidates.min().map(|(.., place)| place)
}

proptest! {
    #[test]
    fn a_naive_model_agrees(
        wishes in proptest::collection::vec(wish(), 0..8),
        entries in proptest::collection::vec((0..3_usize, 0..8_usize, 0..4_u32, 0..4_u32), 0..4),
        shuffle in any::<prop::sample::Index>(),
        repository in 0..3_usize,
        tag in 0..8_usize,
        exact in any::<bool>(),
    ) {
        let semantics = if exact { TagSemantics::Exact } else { TagSemantics::Constraint };
        let asked = image(&format!("{}:{}", REPOSITORIES[repository], TAGS[tag]));
        let mut configs: Vec<_> =
            wishes.iter().enumerate().map(|(place, wish)| object_of(&format!("c{place}"), wish, semantics)).collect();
        let at = if configs.is_empty() { 0 } else { shuffle.index(configs.len()) };
        configs.rotate_left(at);
        let cache: Vec<_> = entries.iter().map(|&(repository, tag, max, queue)| json!({
            "name": format!("{}:{}", REPOSITORIES[repository], TAGS[tag]),
            "maxParallelPodsPerFunction": max,
            "maxWaitlistLength": queue,
        })).collect();
        let settings = settings(flags(), &Value::from(cache).to_string(), "", configs);
        let effective = settings.of(&asked);

        let entry = entries.iter().find(|&&(repository, tag, ..)| image(&format!("{}:{}", REPOSITORIES[repository], TAGS[tag])) == asked);
        let name = |place| Source::FunctionConfig { name: format!("c{place}") };
        let counts = model(&wishes, &asked, true, exact);
        let layers = |of_pod: fn(&Pod) -> Option<u32>, of_entry: u32, default: u32, flag| {
            let pod = counts.and_then(|place| Some(Setting::new(of_pod(wishes[place].pod.as_ref()?)?, name(place))));
            let written = format!("{}:{}", REPOSITORIES[entry.map_or(0, |entry| entry.0)], TAGS[entry.map_or(0, |entry| entry.1)]);
            let cached = (of_entry > 0).then(|| Setting::new(of_entry, Source::CacheConfig { entry: written }));
            pod.or(cached).unwrap_or(Setting::new(default, Source::Default(flag)))
        };
        let max = layers(|pod| pod.1, entry.map_or(0, |entry| entry.2), 1, "max-parallel-pods-per-function");
        let waitlist = layers(|pod| pod.2, entry.map_or(0, |entry| entry.3), 2, "max-waitlist-length");
        prop_assert_eq!(&effective.max_pods, &max);
        prop_assert_eq!(&effective.waitlist, &waitlist);
        let runs = model(&wishes, &asked, false, exact);
        let executable = runs.map(|place| Setting::new(PathBuf::from(format!("/functions/c{place}")), name(place)));
        prop_assert_eq!(&effective.executable, &executable);
        prop_assert_eq!(&executable_of(&settings, asked.as_str(), ""), &executable);
    }
}
