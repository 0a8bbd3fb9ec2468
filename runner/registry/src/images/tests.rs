//! What is remembered of images and for how long, in front of a registry whose answers tests
//! choose; time is paused.

mod constraints;
mod questions;

use std::collections::{BTreeMap, HashMap};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::{Instant, advance, sleep};

use super::*;

const TTL: Duration = Duration::from_mins(5);
const NEGATIVE_TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);
const SHA256: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// How long a client waits.
const GIVES_UP: Duration = Duration::from_secs(20);

/// A registry whose answers a test sets, and which counts what it is asked.
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
    fn stands_for(&self, image: &str, digest: &str) {
        self.says(image, Ok(metadata(digest)));
    }

    fn says(&self, image: &str, answer: Result<Metadata, RegistryError>) {
        self.0.lock().images.insert(image.to_owned(), answer);
    }

    fn has_tags(&self, repository: &str, tags: Result<&[&str], RegistryError>) {
        let tags = tags.map(|tags| tags.iter().map(|&tag| tag.to_owned()).collect());
        self.0.lock().tags.insert(repository.to_owned(), tags);
    }

    fn takes(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    /// Since it was asked for last, as `2 metadata a.b/fn:v1`.
    fn requests(&self) -> Vec<String> {
        let requests = std::mem::take(&mut self.0.lock().requests);
        requests.into_iter().map(|(request, count)| format!("{count} {request}")).collect()
    }

    async fn request<T>(&self, what: &str, of: &str, answer: impl FnOnce(&State) -> T) -> T {
        let delay = {
            let mut state = self.0.lock();
            assert!(!state.panics, "as the test wants");
            *state.requests.entry(format!("{what} {of}")).or_default() += 1;
            state.at_once += 1;
            state.most_at_once = state.most_at_once.max(state.at_once);
            let hangs = state.hanging.iter().any(|registry| of.split('/').next() == Some(registry));
            // As the client has it: it gives up.
            if hangs { GIVES_UP } else { state.delay }
        };
        sleep(delay).await;
        let mut state = self.0.lock();
        state.at_once -= 1;
        answer(&state)
    }
}

impl Registry for Fake {
    fn metadata<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        let of = image.as_str();
        let answer = |state: &State| state.images.get(of).cloned().unwrap_or_else(|| state.nothing(of));
        self.request("metadata", of, answer).boxed()
    }

    fn digest<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        let of = image.as_str();
        let answer = |state: &State| state.images.get(of).cloned().unwrap_or_else(|| state.nothing(of));
        self.request("digest", of, answer).map(|answer| answer.map(|metadata| metadata.digest)).boxed()
    }

    fn tags<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        let of = image.repository();
        let answer = |state: &State| state.tags.get(of).cloned().unwrap_or_else(|| state.nothing(of));
        self.request("tags", of, answer).boxed()
    }
}

impl State {
    fn nothing<T>(&self, of: &str) -> Result<T, RegistryError> {
        let hangs = self.hanging.iter().any(|registry| of.split('/').next() == Some(registry));
        Err(if hangs { RegistryError::Unreachable } else { RegistryError::NotFound })
    }
}

fn metadata(digest: &str) -> Metadata {
    Metadata { digest: digest.into(), command: vec![format!("/{digest}")] }
}

fn options() -> ImagesOptions {
    ImagesOptions { ttl: TTL, negative_ttl: NEGATIVE_TTL, max_entries: NonZeroUsize::new(10_000).unwrap() }
}

fn images() -> (Arc<Fake>, Images) {
    images_with(options())
}

fn images_with(options: ImagesOptions) -> (Arc<Fake>, Images) {
    let fake = Arc::new(Fake::default());
    let images = Images::new(Arc::clone(&fake) as Arc<dyn Registry>, options);
    (fake, images)
}

fn image(text: &str) -> Image {
    Image::parse(text, "").unwrap()
}

fn constraint(text: &str) -> Constraint {
    Constraint::parse(text).unwrap()
}

/// Lets tasks run until all of them wait, without time passing.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_is_asked_for_again_by_its_digest() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    fake.stands_for("a.b/fn:v1", "one");
    assert_eq!(images.known(&fn_v1), None);
    assert_eq!(fake.requests(), [""; 0]);

    let known = images.metadata(&fn_v1).await.unwrap();
    assert_eq!((&*known.digest, &*known.command), ("one", &["/one".to_owned()][..]));
    assert_eq!(fake.requests(), ["1 metadata a.b/fn:v1"]);

    fake.stands_for("a.b/fn:v1", "two");
    advance(TTL.saturating_sub(SECOND)).await;
    assert!(Arc::ptr_eq(&images.metadata(&fn_v1).await.unwrap(), &known), "fresh");
    assert_eq!(fake.requests(), [""; 0]);

    fake.stands_for("a.b/fn:v1", "one");
    advance(SECOND).await;
    assert!(Arc::ptr_eq(&images.metadata(&fn_v1).await.unwrap(), &known), "not moved");
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1"]);
    assert!(Arc::ptr_eq(&images.metadata(&fn_v1).await.unwrap(), &known), "fresh again");
    assert_eq!(fake.requests(), [""; 0]);

    fake.stands_for("a.b/fn:v1", "two");
    advance(TTL).await;
    assert!(Arc::ptr_eq(&images.known(&fn_v1).unwrap(), &known), "nobody was asked");
    let moved = images.metadata(&fn_v1).await.unwrap();
    assert_eq!((&*moved.digest, &*moved.command), ("two", &["/two".to_owned()][..]));
    assert!(moved.since > known.since);
    assert!(Arc::ptr_eq(&images.known(&fn_v1).unwrap(), &moved));
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1", "1 metadata a.b/fn:v1"]);
}

#[tokio::test(start_paused = true)]
async fn a_digest_is_known_for_good() {
    let (fake, images) = images();
    for text in [format!("a.b/fn@{SHA256}"), format!("a.b/fn:v1@{SHA256}")] {
        fake.stands_for(&text, SHA256);
        let known = images.metadata(&image(&text)).await.unwrap();
        assert_eq!(fake.requests(), [format!("1 metadata {text}")]);
        fake.says(&text, Err(RegistryError::NotFound));
        advance(TTL * 10_000).await;
        assert!(Arc::ptr_eq(&images.metadata(&image(&text)).await.unwrap(), &known));
        assert_eq!(fake.requests(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn images_that_change_are_named() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    let mut changes = images.changes();
    let mut changed = || changes.try_recv().ok();
    images.metadata(&fn_v1).await.unwrap_err();
    assert_eq!(changed(), None);
    for (digest, changes) in [("one", true), ("one", false), ("two", true), ("two", false), ("one", true)] {
        fake.stands_for("a.b/fn:v1", digest);
        advance(TTL).await;
        images.metadata(&fn_v1).await.unwrap();
        assert_eq!(changed(), changes.then(|| fn_v1.clone()), "{digest}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_known_outlives_a_registry_that_fails() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    fake.stands_for("a.b/fn:v1", "one");
    let known = images.metadata(&fn_v1).await.unwrap();
    advance(TTL).await;
    fake.requests();
    for error in [RegistryError::Unreachable, RegistryError::Unauthorized, RegistryError::NotFound] {
        fake.says("a.b/fn:v1", Err(error));
        for _ in 0..100 {
            assert!(Arc::ptr_eq(&images.metadata(&fn_v1).await.unwrap(), &known));
        }
        assert_eq!(fake.requests(), ["1 digest a.b/fn:v1"]);
        advance(NEGATIVE_TTL.saturating_sub(SECOND)).await;
        images.metadata(&fn_v1).await.unwrap();
        assert_eq!(fake.requests(), [""; 0]);
        advance(SECOND).await;
    }
    fake.stands_for("a.b/fn:v1", "two");
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "two");
}

#[tokio::test(start_paused = true)]
async fn what_is_known_does_not_wait_for_a_slow_registry() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    fake.stands_for("a.b/fn:v1", "one");
    let known = images.metadata(&fn_v1).await.unwrap();
    advance(TTL).await;
    fake.takes(PATIENCE + SECOND);
    fake.stands_for("a.b/fn:v1", "two");
    fake.requests();

    let asked = Instant::now();
    assert!(Arc::ptr_eq(&images.metadata(&fn_v1).await.unwrap(), &known));
    assert_eq!(asked.elapsed(), PATIENCE);
    // The answer comes all the same.
    let mut changes = images.changes();
    assert_eq!(changes.recv().await.unwrap(), fn_v1);
    assert_eq!(&*images.known(&fn_v1).unwrap().digest, "two");
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1", "1 metadata a.b/fn:v1"]);
}

#[tokio::test(start_paused = true)]
async fn failures_are_remembered_for_a_while() {
    for (error, remembered) in [
        (RegistryError::NotFound, NEGATIVE_TTL),
        (RegistryError::TooLarge { what: "manifest", limit: 1 }, NEGATIVE_TTL),
        (RegistryError::Untrusted, NEGATIVE_TTL),
        (RegistryError::Credentials("no file".into()), SECOND),
        (RegistryError::Unreachable, SECOND),
        (RegistryError::Busy { status: 429 }, SECOND),
    ] {
        let (fake, images) = images();
        let fn_v1 = image("a.b/fn:v1");
        fake.says("a.b/fn:v1", Err(error.clone()));
        fake.has_tags("a.b/fn", Err(error.clone()));
        let asked = ["1 metadata a.b/fn:v1", "1 tags a.b/fn"];
        for _ in 0..100 {
            assert_eq!(images.metadata(&fn_v1).await, Err(error.clone()));
            let resolved = images.resolve(&fn_v1, &constraint("*")).await;
            assert_eq!(resolved, Err(ResolveError::Registry(error.clone())));
        }
        assert_eq!(fake.requests(), asked, "{error}");

        fake.stands_for("a.b/fn:v1", "one");
        fake.has_tags("a.b/fn", Ok(&["v1"]));
        advance(remembered.saturating_sub(MOMENT)).await;
        assert_eq!(images.metadata(&fn_v1).await, Err(error.clone()));
        assert_eq!(images.resolve(&fn_v1, &constraint("*")).await, Err(error.clone().into()));
        assert_eq!(fake.requests(), [""; 0], "{error}");
        advance(MOMENT).await;
        images.metadata(&fn_v1).await.unwrap();
        images.resolve(&fn_v1, &constraint("*")).await.unwrap();
        assert_eq!(fake.requests(), asked, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_least_recently_wanted_is_forgotten() {
    let (fake, images) =
        images_with(ImagesOptions { max_entries: NonZeroUsize::new(2).unwrap(), ..options() });
    let [a, b, c, d] = ["a.b/a:v1", "a.b/b:v1", "a.b/c:v1", "a.b/d:v1"].map(image);
    for image in [&a, &b, &c] {
        fake.stands_for(image.as_str(), "one");
    }
    images.metadata(&a).await.unwrap();
    images.metadata(&b).await.unwrap();
    images.metadata(&a).await.unwrap();
    images.metadata(&c).await.unwrap();
    assert_eq!([&a, &b, &c].map(|image| images.known(image).is_some()), [true, false, true]);
    // Failures count.
    images.metadata(&d).await.unwrap_err();
    assert_eq!([&a, &b, &c].map(|image| images.known(image).is_some()), [false, false, true]);
}

#[tokio::test(start_paused = true)]
async fn bytes_are_bounded() {
    const MIB: usize = 1024 * 1024;
    let (fake, images) = images();
    let all: Vec<Image> = (0..100).map(|index| image(&format!("a.b/fn-{index}:v1"))).collect();
    for round in 0..2 {
        for image in &all {
            let digest = format!("{round}");
            let command = vec!["x".repeat(MIB)];
            fake.says(image.as_str(), Ok(Metadata { digest: digest.as_str().into(), command }));
            images.metadata(image).await.unwrap();
        }
        let kept: Vec<bool> = all.iter().map(|image| images.known(image).is_some()).collect();
        // 64 MiB, less what the keys take.
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 63);
        assert!(kept[37..].iter().all(|kept| *kept));
        advance(TTL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_did_not_prove_true_is_asked_for_again() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    images.distrust(&fn_v1);
    assert_eq!((images.known(&fn_v1), fake.requests()), (None, vec![]), "nobody asks for nothing");
    fake.stands_for("a.b/fn:v1", "one");
    let known = images.metadata(&fn_v1).await.unwrap();
    fake.requests();

    // The tag has moved on, and what it stood for was removed.
    fake.stands_for("a.b/fn:v1", "two");
    images.distrust(&fn_v1);
    assert_eq!(fake.requests(), [""; 0], "until somebody wants it");
    assert_eq!(images.known(&fn_v1).unwrap(), known);
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "two");
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1", "1 metadata a.b/fn:v1"]);

    // It stands for the same still: then that holds as before.
    images.distrust(&fn_v1);
    for _ in 0..100 {
        images.metadata(&fn_v1).await.unwrap();
    }
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1"]);

    // A registry that fails leaves what was known, and the doubt.
    fake.says("a.b/fn:v1", Err(RegistryError::Unreachable));
    images.distrust(&fn_v1);
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "two");
    fake.stands_for("a.b/fn:v1", "three");
    advance(NEGATIVE_TTL).await;
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "three");
}

#[tokio::test(start_paused = true)]
async fn what_others_found_out_counts_as_an_answer_of_now() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    let found = |digest: &str, age: u64| Known {
        digest: digest.into(),
        command: vec!["f".to_owned()],
        since: SystemTime::now() - SECOND * u32::try_from(age).unwrap(),
    };
    let mut changes = images.changes();
    images.learn(&fn_v1, found("two", 100));
    images.learn(&fn_v1, found("one", 200));
    assert_eq!(changes.try_recv().unwrap(), fn_v1);
    assert!(changes.try_recv().is_err(), "the older one is nothing new");
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "two");
    assert_eq!(fake.requests(), [""; 0]);
    fake.stands_for("a.b/fn:v1", "three");
    advance(TTL).await;
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "three");
    images.learn(&fn_v1, found("two", 100));
    assert_eq!(&*images.known(&fn_v1).unwrap().digest, "three", "a registry said so since");
}
