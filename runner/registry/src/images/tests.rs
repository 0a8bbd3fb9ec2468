use std::collections::{BTreeMap, HashMap};
use std::sync::Weak;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::time::{Instant, advance, sleep};

use super::*;

const TTL: Duration = Duration::from_mins(5);
const NEGATIVE_TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);
const SHA256: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// A registry whose answers a test sets, and which counts what it is asked.
#[derive(Debug, Default)]
struct Fake(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    images: HashMap<String, Result<Metadata, RegistryError>>,
    tags: HashMap<String, Result<Vec<String>, RegistryError>>,
    /// How long an answer takes.
    delay: Duration,
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
            state.delay
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
        let answer = |state: &State| state.images.get(of).cloned().unwrap_or(Err(RegistryError::NotFound));
        self.request("metadata", of, answer).boxed()
    }

    fn digest<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        let of = image.as_str();
        let answer = |state: &State| state.images.get(of).cloned().unwrap_or(Err(RegistryError::NotFound));
        self.request("digest", of, answer).map(|answer| answer.map(|metadata| metadata.digest)).boxed()
    }

    fn tags<'a>(&'a self, image: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        let of = image.repository();
        let answer = |state: &State| state.tags.get(of).cloned().unwrap_or(Err(RegistryError::NotFound));
        self.request("tags", of, answer).boxed()
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
async fn changes_are_counted() {
    let (fake, images) = images();
    let fn_v1 = image("a.b/fn:v1");
    let mut changes = images.changes();
    let mut changed = || {
        let changed = changes.has_changed().unwrap();
        (changed, *changes.borrow_and_update())
    };
    images.metadata(&fn_v1).await.unwrap_err();
    assert_eq!(changed(), (false, 0));
    for (digest, expected) in
        [("one", (true, 1)), ("one", (false, 1)), ("two", (true, 2)), ("two", (false, 2)), ("one", (true, 3))]
    {
        fake.stands_for("a.b/fn:v1", digest);
        advance(TTL).await;
        images.metadata(&fn_v1).await.unwrap();
        assert_eq!(changed(), expected, "{digest}");
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
    changes.changed().await.unwrap();
    assert_eq!(&*images.known(&fn_v1).unwrap().digest, "two");
    assert_eq!(fake.requests(), ["1 digest a.b/fn:v1", "1 metadata a.b/fn:v1"]);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_never_answers_is_unreachable() {
    let (fake, images) = images();
    fake.takes(LONGEST * 2);
    let asked = Instant::now();
    assert_eq!(images.metadata(&image("a.b/fn:v1")).await, Err(RegistryError::Unreachable));
    assert_eq!(asked.elapsed(), LONGEST);
    let resolved = images.resolve(&image("a.b/fn"), &constraint("*")).await;
    assert_eq!(resolved, Err(RegistryError::Unreachable.into()));
}

#[tokio::test(start_paused = true)]
async fn failures_are_remembered_for_a_while() {
    let malformed = RegistryError::Malformed { what: "manifest", reason: "no config".into() };
    for (error, remembered) in [
        (RegistryError::NotFound, NEGATIVE_TTL),
        (RegistryError::Unauthorized, NEGATIVE_TTL),
        (malformed, NEGATIVE_TTL),
        (RegistryError::TooLarge { what: "manifest", limit: 1 }, NEGATIVE_TTL),
        (RegistryError::Platform { platform: "linux/arm".into() }, NEGATIVE_TTL),
        (RegistryError::NoCommand, NEGATIVE_TTL),
        (RegistryError::Untrusted, NEGATIVE_TTL),
        (RegistryError::Credentials("no file".into()), NEGATIVE_TTL),
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
async fn a_short_negative_ttl_is_for_all_failures() {
    let (fake, images) = images_with(ImagesOptions { negative_ttl: SECOND / 2, ..options() });
    fake.says("a.b/fn:v1", Err(RegistryError::Unreachable));
    images.metadata(&image("a.b/fn:v1")).await.unwrap_err();
    advance(SECOND / 2).await;
    images.metadata(&image("a.b/fn:v1")).await.unwrap_err();
    assert_eq!(fake.requests(), ["2 metadata a.b/fn:v1"]);
}

#[tokio::test(start_paused = true)]
async fn many_first_calls_ask_once_for_each_image() {
    let (fake, images) = images();
    fake.takes(SECOND);
    let all: Vec<Image> = (0..50).map(|index| image(&format!("a.b/fn-{index:02}:v1"))).collect();
    for image in &all {
        fake.stands_for(image.as_str(), image.name());
        fake.has_tags(image.repository(), Ok(&["v1"]));
    }
    let calls = (0..1000).map(|call| {
        let (images, image) = (&images, &all[call % all.len()]);
        async move {
            let resolved = images.resolve(image, &constraint(["v1", "*"][call % 2])).await.unwrap();
            assert_eq!(resolved, *image);
            assert_eq!(&*images.metadata(image).await.unwrap().digest, image.name());
        }
    });
    join_all(calls).await;
    let expected: Vec<_> = ["metadata", "tags"]
        .iter()
        .flat_map(|what| {
            let of = if *what == "tags" { Image::repository } else { Image::as_str };
            all.iter().map(move |image| format!("1 {what} {}", of(image)))
        })
        .collect();
    assert_eq!(fake.requests(), expected);
}

#[tokio::test(start_paused = true)]
async fn only_so_many_questions_at_once() {
    let (fake, images) = images();
    fake.takes(SECOND);
    let all: Vec<Image> = (0..MAX_AT_ONCE * 2).map(|index| image(&format!("a.b/fn-{index}:v1"))).collect();
    // Twice each, so that some find their turn taken.
    let answers = join_all(all.iter().chain(&all).map(|image| images.metadata(image))).await;
    assert!(answers.iter().all(|answer| *answer == Err(RegistryError::NotFound)));
    assert_eq!(fake.0.lock().most_at_once, MAX_AT_ONCE);
    assert_eq!(fake.requests().len(), all.len());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_leaves_its_question() {
    let (fake, images) = images();
    fake.stands_for("a.b/fn:v1", "one");
    fake.takes(SECOND);
    let fn_v1 = image("a.b/fn:v1");
    assert!(timeout(SECOND / 2, images.metadata(&fn_v1)).await.is_err());
    let asked = Instant::now();
    assert_eq!(&*images.metadata(&fn_v1).await.unwrap().digest, "one");
    assert_eq!(asked.elapsed(), SECOND / 2);
    assert_eq!(fake.requests(), ["1 metadata a.b/fn:v1"]);
}

#[tokio::test(start_paused = true)]
async fn questions_end_with_the_memory() {
    let (fake, images) = images();
    fake.takes(SECOND);
    assert!(timeout(SECOND / 2, images.metadata(&image("a.b/fn:v1"))).await.is_err());
    assert!(timeout(SECOND / 4, images.resolve(&image("a.b/fn"), &constraint("*"))).await.is_err());
    let memory: Weak<_> = Arc::downgrade(&images.known);
    assert_eq!(Arc::strong_count(&fake), 4, "test, memory and two tasks");
    drop(images);
    settle().await;
    assert_eq!((Arc::strong_count(&fake), memory.strong_count()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_question_that_panics_can_be_asked_again() {
    let (fake, images) = images();
    fake.stands_for("a.b/fn:v1", "one");
    fake.0.lock().panics = true;
    assert_eq!(images.metadata(&image("a.b/fn:v1")).await, Err(RegistryError::Unreachable));
    fake.0.lock().panics = false;
    images.metadata(&image("a.b/fn:v1")).await.unwrap();
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
        // 64 MiB, less what there is besides.
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 63);
        assert!(kept[37..].iter().all(|kept| *kept));
        advance(TTL).await;
    }
    // One alone may be of any size, and drives out the others.
    let huge = vec!["x".repeat(70 * MIB)];
    fake.says("a.b/huge:v1", Ok(Metadata { digest: "huge".into(), command: huge }));
    images.metadata(&image("a.b/huge:v1")).await.unwrap();
    assert!(images.known(&image("a.b/huge:v1")).is_some());
    assert!(all.iter().all(|image| images.known(image).is_none()));
}

#[tokio::test(start_paused = true)]
async fn constraints_of_one_repository_share_its_list() {
    let (fake, images) = images();
    fake.takes(SECOND);
    fake.has_tags("a.b/fn", Ok(&["v0.4.1", "v0.4.3", "latest", "v0.5.0", "v0.4.9-git-abc", "1.0.0+x", "v1"]));
    let resolve = async |of: &str, text: &str| {
        let resolved = images.resolve(&image(of), &constraint(text)).await;
        resolved.map_or_else(|error| error.to_string(), |image| image.to_string())
    };
    let no_match = ResolveError::NoMatch.to_string();
    let digest = format!("a.b/fn@{SHA256}");
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
    // More than are kept, so that some are chosen anew.
    for _ in 0..2 {
        for minor in 0..=MAX_CHOSEN {
            let resolved = resolve("a.b/fn", &format!("0.{minor}.*")).await;
            let expected = match minor {
                4 => "a.b/fn:v0.4.3",
                5 => "a.b/fn:v0.5.0",
                _ => &no_match,
            };
            assert_eq!(resolved, expected, "{minor}");
        }
    }
    assert_eq!(fake.requests(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn an_old_list_serves_while_one_question_refreshes_it() {
    let (fake, images) = images();
    let (fn_, all) = (image("a.b/fn"), constraint("*"));
    fake.has_tags("a.b/fn", Ok(&["v1"]));
    images.resolve(&fn_, &all).await.unwrap();
    fake.requests();
    fake.has_tags("a.b/fn", Ok(&["v1", "v2"]));
    fake.takes(SECOND);
    advance(TTL.saturating_sub(SECOND)).await;
    images.resolve(&fn_, &all).await.unwrap();
    settle().await;
    assert_eq!(fake.requests(), [""; 0], "fresh");

    advance(SECOND).await;
    for _ in 0..100 {
        let resolved = images.resolve(&fn_, &all).now_or_never().expect("nobody waits");
        assert_eq!(resolved.unwrap().tag(), Some("v1"));
    }
    settle().await;
    assert_eq!(fake.requests(), ["1 tags a.b/fn"]);
    sleep(SECOND).await;
    settle().await;
    for _ in 0..100 {
        let resolved = images.resolve(&fn_, &all).now_or_never().expect("nobody waits");
        assert_eq!(resolved.unwrap().tag(), Some("v2"));
    }
    settle().await;
    assert_eq!(fake.requests(), [""; 0], "fresh again");
}

#[tokio::test(start_paused = true)]
async fn an_old_list_outlives_a_registry_that_fails() {
    let (fake, images) = images();
    let (fn_, all) = (image("a.b/fn"), constraint("*"));
    fake.has_tags("a.b/fn", Ok(&["v1"]));
    images.resolve(&fn_, &all).await.unwrap();
    fake.requests();
    fake.has_tags("a.b/fn", Err(RegistryError::Unreachable));
    advance(TTL).await;
    for _ in 0..60 {
        let resolved = images.resolve(&fn_, &all).now_or_never().expect("nobody waits");
        assert_eq!(resolved.unwrap().tag(), Some("v1"));
        settle().await;
        advance(SECOND).await;
    }
    assert_eq!(fake.requests(), ["6 tags a.b/fn"], "every ten seconds");
    let other = images.resolve(&fn_, &constraint("2")).await;
    assert_eq!(other, Err(RegistryError::Unreachable.into()), "such a tag may be there by now");
}

#[tokio::test(start_paused = true)]
async fn no_match_is_remembered_for_a_while() {
    let (fake, images) = images();
    let (fn_, two) = (image("a.b/fn"), constraint("2"));
    fake.has_tags("a.b/fn", Ok(&["v1"]));
    for _ in 0..100 {
        assert_eq!(images.resolve(&fn_, &two).await, Err(ResolveError::NoMatch));
    }
    assert_eq!(fake.requests(), ["1 tags a.b/fn"]);
    fake.has_tags("a.b/fn", Ok(&["v1", "v2"]));
    advance(NEGATIVE_TTL.saturating_sub(SECOND)).await;
    assert_eq!(images.resolve(&fn_, &two).await, Err(ResolveError::NoMatch));
    assert_eq!(fake.requests(), [""; 0]);
    advance(SECOND).await;
    assert_eq!(images.resolve(&fn_, &two).await.unwrap().tag(), Some("v2"));
    assert_eq!(fake.requests(), ["1 tags a.b/fn"]);
}
