//! Tests of the cache: which answers it keeps, and how long. Each test sets the answers of a fake
//! registry. Time is paused.

mod lookups;

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio::time::{Instant, advance, sleep};

use super::*;

const TTL: Duration = Duration::from_mins(5);
const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);
const SHA256: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The client's timeout.
const GIVES_UP: Duration = Duration::from_secs(20);

/// A registry whose answers a test sets, and which counts its requests.
#[derive(Debug, Default)]
struct Fake(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    images: HashMap<String, Result<Metadata, RegistryError>>,
    tags: HashMap<String, Result<Vec<String>, RegistryError>>,
    /// How long an answer takes.
    delay: Duration,
    /// Registries that never answer.
    hanging: Vec<String>,
    panics: bool,
    requests: BTreeMap<String, usize>,
    at_once: usize,
    most_at_once: usize,
}

impl Fake {
    fn set_digest(&self, image: &str, digest: &str) {
        self.set(image, Ok(metadata(digest, format!("/{digest}"))));
    }

    fn set(&self, image: &str, answer: Result<Metadata, RegistryError>) {
        self.0.lock().images.insert(image.to_owned(), answer);
    }

    fn set_tags(&self, repository: &str, tags: Result<&[&str], RegistryError>) {
        let tags = tags.map(|tags| tags.iter().map(|&tag| tag.to_owned()).collect());
        self.0.lock().tags.insert(repository.to_owned(), tags);
    }

    /// Takes the requests since the last call, such as `2 metadata a.b/fn:v1`.
    fn requests(&self) -> Vec<String> {
        let requests = std::mem::take(&mut self.0.lock().requests);
        requests.into_iter().map(|(request, count)| format!("{count} {request}")).collect()
    }

    async fn answer<T: Clone>(
        &self,
        what: &str,
        of: &str,
        answers: fn(&State) -> &HashMap<String, Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        let hangs;
        let delay = {
            let mut state = self.0.lock();
            assert!(!state.panics, "the test wants it");
            *state.requests.entry(format!("{what} {of}")).or_default() += 1;
            state.at_once += 1;
            state.most_at_once = state.most_at_once.max(state.at_once);
            hangs = state.hanging.iter().any(|registry| of.split('/').next() == Some(registry));
            // A hanging request fails after the client's timeout.
            if hangs { GIVES_UP } else { state.delay }
        };
        sleep(delay).await;
        let mut state = self.0.lock();
        state.at_once -= 1;
        let nothing = if hangs { RegistryError::Unreachable } else { RegistryError::NotFound };
        answers(&state).get(of).cloned().unwrap_or(Err(nothing))
    }
}

impl Registry for Fake {
    fn metadata<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        self.answer("metadata", image.as_str(), |state| &state.images).boxed()
    }

    fn digest<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        let answer = self.answer("digest", image.as_str(), |state| &state.images);
        answer.map(|answer| answer.map(|metadata| metadata.digest)).boxed()
    }

    fn tags<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        self.answer("tags", image.repository(), |state| &state.tags).boxed()
    }
}

fn images() -> (Arc<Fake>, Images) {
    let fake = Arc::new(Fake::default());
    let images = Images::new(Arc::clone(&fake) as Arc<dyn Registry>, TTL);
    (fake, images)
}

fn metadata(digest: &str, command: String) -> Metadata {
    Metadata { digest: digest.into(), command: vec![command], since: SystemTime::now() }
}

fn image(text: &str) -> Image {
    Image::parse(text, "").unwrap()
}

fn constraint(text: &str) -> Constraint {
    Constraint::parse(text).unwrap()
}

/// Lets all tasks run until they wait. No time passes.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_expired_tag_is_refreshed_by_its_digest() {
    let (fake, images) = images();
    let (fn_v1, mut changes) = (image("a.b/fn:v1"), images.changes());
    assert_eq!((images.known(&fn_v1), fake.requests()), (None, vec![]));
    let mut before = None;
    for (after, digest, requests, is_new) in [
        (Duration::ZERO, "one", &["1 metadata a.b/fn:v1"][..], true),
        (TTL.saturating_sub(SECOND), "two", &[], false),
        (SECOND, "one", &["1 digest a.b/fn:v1"], false),
        (Duration::ZERO, "two", &[], false),
        (TTL, "two", &["1 digest a.b/fn:v1", "1 metadata a.b/fn:v1"], true),
    ] {
        fake.set_digest("a.b/fn:v1", digest);
        advance(after).await;
        assert_eq!(images.known(&fn_v1), before, "no lookup has started");
        let known = images.metadata(&fn_v1).await.unwrap();
        assert_eq!(fake.requests(), requests);
        assert_eq!(changes.try_recv().ok(), is_new.then(|| fn_v1.clone()));
        match before {
            Some(before) if !is_new => assert!(Arc::ptr_eq(&before, &known)),
            before => {
                assert_eq!((&*known.digest, &*known.command), (digest, &[format!("/{digest}")][..]));
                assert!(before.is_none_or(|before| before.since < known.since));
            }
        }
        before = Some(known);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_with_a_digest_never_expires() {
    let (fake, images) = images();
    for text in [format!("a.b/fn@{SHA256}"), format!("a.b/fn:v1@{SHA256}")] {
        fake.set_digest(&text, SHA256);
        let known = images.metadata(&image(&text)).await.unwrap();
        assert_eq!(fake.requests(), [format!("1 metadata {text}")]);
        fake.set(&text, Err(RegistryError::NotFound));
        advance(TTL * 10_000).await;
        assert!(Arc::ptr_eq(&images.metadata(&image(&text)).await.unwrap(), &known));
        assert_eq!(fake.requests(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failing_registry_does_not_remove_cached_metadata() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    fake.set_digest("a.b/fn:v1", "one");
    let known = images.metadata(&fn_v1).await.unwrap();
    advance(TTL).await;
    fake.requests();
    for error in [RegistryError::Unreachable, RegistryError::Unauthorized, RegistryError::NotFound] {
        fake.set("a.b/fn:v1", Err(error));
        for _ in 0..100 {
            assert!(Arc::ptr_eq(&images.metadata(&fn_v1).await.unwrap(), &known));
        }
        assert_eq!(fake.requests(), ["1 digest a.b/fn:v1"]);
        advance(NEGATIVE_TTL.saturating_sub(SECOND)).await;
        images.metadata(&fn_v1).await.unwrap();
        assert_eq!(fake.requests(), [""; 0]);
        advance(SECOND).await;
    }
    fake.set_digest("a.b/fn:v1", "two");
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "two");
}

#[tokio::test(start_paused = true)]
async fn cached_metadata_is_returned_while_the_registry_is_slow() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    fake.set_digest("a.b/fn:v1", "one");
    let known = images.metadata(&fn_v1).await.unwrap();
    advance(TTL).await;
    fake.0.lock().delay = PATIENCE + SECOND;
    fake.set_digest("a.b/fn:v1", "two");
    fake.requests();

    let asked = Instant::now();
    assert!(Arc::ptr_eq(&images.metadata(&fn_v1).await.unwrap(), &known));
    assert_eq!(asked.elapsed(), PATIENCE);
    // The lookup continues in the background.
    let mut changes = images.changes();
    assert_eq!(changes.recv().await.unwrap(), fn_v1);
    assert_eq!(&*images.known(&fn_v1).unwrap().digest, "two");
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1", "1 metadata a.b/fn:v1"]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_cached_for_a_while() {
    let two = constraint("2");
    for (error, remembered, tags) in [
        (RegistryError::NotFound, NEGATIVE_TTL, None),
        (RegistryError::NoCommand, NEGATIVE_TTL, None),
        (RegistryError::Untrusted, NEGATIVE_TTL, None),
        (RegistryError::Credentials("no file".into()), SECOND, None),
        (RegistryError::Unreachable, SECOND, None),
        // A list without a match.
        (RegistryError::NotFound, NEGATIVE_TTL, Some(&["v1"][..])),
    ] {
        let (fake, images) = images();
        let fn_v1 = image("a.b/fn:v1");
        let unresolved = Err(if tags.is_some() { RegistryError::NoMatch } else { error.clone() });
        fake.set("a.b/fn:v1", Err(error.clone()));
        fake.set_tags("a.b/fn", tags.ok_or(error.clone()));
        let asked = ["1 metadata a.b/fn:v1", "1 tags a.b/fn"];
        for _ in 0..100 {
            assert_eq!(images.metadata(&fn_v1).await, Err(error.clone()));
            assert_eq!(images.resolve(&fn_v1, &two).await, unresolved);
        }
        assert_eq!(fake.requests(), asked, "{error}");

        fake.set_digest("a.b/fn:v1", "one");
        fake.set_tags("a.b/fn", Ok(&["v1", "v2"]));
        advance(remembered.saturating_sub(MOMENT)).await;
        assert_eq!(images.metadata(&fn_v1).await, Err(error.clone()));
        assert_eq!(images.resolve(&fn_v1, &two).await, unresolved);
        assert_eq!(fake.requests(), [""; 0], "{error}");
        advance(MOMENT).await;
        images.metadata(&fn_v1).await.unwrap();
        assert_eq!(images.resolve(&fn_v1, &two).await.unwrap().tag(), Some("v2"));
        assert_eq!(fake.requests(), asked, "{error}");
    }
}

/// A registry that is busy may serve the next request. Callers that wait for the same lookup share it.
#[tokio::test(start_paused = true)]
async fn an_overload_of_a_registry_fails_no_later_call() {
    let (fake, images) = images();
    let (busy, fn_v1) = (RegistryError::Busy(503), image("a.b/fn:v1"));
    fake.set("a.b/fn:v1", Err(busy.clone()));
    let [one, other] = [images.metadata(&fn_v1), images.metadata(&fn_v1)];
    assert_eq!(tokio::join!(one, other), (Err(busy.clone()), Err(busy)));
    assert_eq!(fake.requests(), ["1 metadata a.b/fn:v1"]);
    fake.set_digest("a.b/fn:v1", "one");
    images.metadata(&fn_v1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_size_of_the_cache_is_limited() {
    let (fake, images) = images();
    let all: Vec<Image> = (0..100).map(|index| image(&format!("a.b/fn-{index}:v1"))).collect();
    for round in ["0", "1"] {
        for image in &all {
            fake.set(image.as_str(), Ok(metadata(round, "x".repeat(1 << 20))));
            images.metadata(image).await.unwrap();
        }
        let kept: Vec<bool> = all.iter().map(|image| images.known(image).is_some()).collect();
        // The cache holds 64 MiB, keys included. The least recently used entries are evicted.
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 63);
        assert!(kept[37..].iter().all(|kept| *kept));
        advance(TTL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn distrusted_metadata_is_looked_up_again() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    images.distrust(&fn_v1);
    assert_eq!((images.known(&fn_v1), fake.requests()), (None, vec![]), "an unknown image starts no lookup");
    fake.set_digest("a.b/fn:v1", "one");
    let known = images.metadata(&fn_v1).await.unwrap();
    fake.requests();

    // The tag has moved, and its old content was removed.
    fake.set_digest("a.b/fn:v1", "two");
    images.distrust(&fn_v1);
    assert_eq!(fake.requests(), [""; 0], "no lookup before the next question");
    assert_eq!(images.known(&fn_v1).unwrap(), known);
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "two");
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1", "1 metadata a.b/fn:v1"]);

    // The digest has not changed, so one lookup makes the metadata fresh again.
    images.distrust(&fn_v1);
    for _ in 0..100 {
        images.metadata(&fn_v1).await.unwrap();
    }
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1"]);

    // If the registry fails, the cached metadata is returned. It stays distrusted.
    fake.set("a.b/fn:v1", Err(RegistryError::Unreachable));
    images.distrust(&fn_v1);
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "two");
    fake.set_digest("a.b/fn:v1", "three");
    advance(NEGATIVE_TTL).await;
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "three");
}

#[tokio::test(start_paused = true)]
async fn metadata_learned_from_other_runners_counts_as_fresh() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    let found = |digest: &str, age: u32| {
        let found = metadata(digest, "f".to_owned());
        Metadata { since: found.since - SECOND * age, ..found }
    };
    let mut changes = images.changes();
    images.learn(&fn_v1, found("two", 100));
    images.learn(&fn_v1, found("one", 200));
    assert_eq!(changes.try_recv().unwrap(), fn_v1);
    assert!(changes.try_recv().is_err(), "older metadata is ignored");
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "two");
    assert_eq!(fake.requests(), [""; 0]);
    fake.set_digest("a.b/fn:v1", "three");
    advance(TTL).await;
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "three");
    images.learn(&fn_v1, found("two", 100));
    assert_eq!(&*images.known(&fn_v1).unwrap().digest, "three", "the registry has reported newer metadata");
}

#[tokio::test(start_paused = true)]
async fn constraints_of_one_repository_share_its_list() {
    let (fake, images) = images();
    fake.0.lock().delay = SECOND;
    fake.set_tags("a.b/fn", Ok(&["v0.4.1", "v0.4.3", "latest", "v0.5.0", "v0.4.9-git-abc", "1.0.0+x", "v1"]));
    let resolve = async |of: &str, text: &str| {
        let resolved = images.resolve(&image(of), &constraint(text)).await;
        resolved.map_or_else(|error| error.to_string(), |image| image.to_string())
    };
    let (no_match, digest) = (RegistryError::NoMatch.to_string(), format!("a.b/fn@{SHA256}"));
    let resolved = tokio::join!(
        resolve("a.b/fn:v1", "~0.4"),
        resolve(&digest, "<1"),
        resolve("a.b/fn", ">0"),
        resolve("a.b/fn", "~0.4"),
        resolve("a.b/fn", "2"),
    );
    let expected = ["a.b/fn:v0.4.3", "a.b/fn:v0.5.0", "a.b/fn:v1", "a.b/fn:v0.4.3", &no_match];
    assert_eq!(<[String; 5]>::from(resolved), expected);
    assert_eq!(fake.requests(), ["1 tags a.b/fn"]);
}

#[tokio::test(start_paused = true)]
async fn an_old_list_serves_while_one_lookup_refreshes_it() {
    let (fake, images) = images();
    let (fn_, all) = (image("a.b/fn"), constraint("*"));
    fake.set_tags("a.b/fn", Ok(&["v1"]));
    images.resolve(&fn_, &all).await.unwrap();
    fake.requests();
    fake.set_tags("a.b/fn", Ok(&["v1", "v2"]));
    fake.0.lock().delay = SECOND;
    advance(TTL.saturating_sub(SECOND)).await;
    for (tag, requests) in [("v1", &[][..]), ("v1", &["1 tags a.b/fn"]), ("v2", &[])] {
        for _ in 0..100 {
            let resolved = images.resolve(&fn_, &all).now_or_never().expect("nobody waits");
            assert_eq!(resolved.unwrap().tag(), Some(tag));
        }
        settle().await;
        assert_eq!(fake.requests(), requests);
        sleep(SECOND).await;
        settle().await;
    }
}
