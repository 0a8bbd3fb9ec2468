//! Tests of registry requests for images to warm up: when they are sent, and the effect of the
//! answers.

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use porch_fn_registry::RegistryError;
use porch_fn_settings::{
    CacheConfig, FunctionConfig, FunctionConfigs, Setting, Settings, Source, TagSemantics,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::*;

/// A registry that gives the answers in `tags` and counts requests.
#[derive(Debug, Default)]
struct Registry {
    /// Tags by constraint. A missing constraint gives a failure; an empty tag gives no answer.
    tags: Mutex<HashMap<&'static str, &'static str>>,
    requests: Mutex<usize>,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Resolve for Registry {
    async fn resolve(&self, image: &Image, constraint: &Constraint) -> Result<Image, RegistryError> {
        *self.requests.lock() += 1;
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most_open.fetch_max(open, Ordering::Relaxed);
        sleep(Duration::from_millis(1)).await;
        let known = |(text, _): &(&&str, &&str)| Constraint::parse(text).unwrap() == *constraint;
        let known = self.tags.lock().iter().find(known).map(|(_, tag)| *tag);
        if known == Some("") {
            pending::<()>().await;
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
        known.map(|tag| image.with_tag(tag).unwrap()).ok_or(RegistryError::NoMatch)
    }
}

/// Settings with FunctionConfigs of these names and tags. Only the first has `min-replicas`.
fn current(objects: &[(&str, &str)]) -> CurrentSettings {
    let object = |(place, &(name, tag)): (usize, &(&str, &str))| {
        let annotations = if place == 0 { json!({"fn.kpt.dev/min-replicas": "1"}) } else { Value::Null };
        let spec = json!({"image": name, "podExecutor": {"tags": [tag]}});
        let object = json!({"metadata": {"name": name, "annotations": annotations}, "spec": spec});
        FunctionConfig::parse(&object, "example.com", TagSemantics::Constraint).unwrap()
    };
    let configs = objects.iter().enumerate().map(object).collect();
    let semantics = Setting::new(TagSemantics::Constraint, Source::Schema);
    let functions = Arc::new(FunctionConfigs::new(configs, semantics, None));
    let current = crate::settings::tests::current(CacheConfig::default(), true);
    let flags = current.settings.flags.clone();
    let settings = Settings::new(flags, Arc::default(), Arc::default(), functions, |_| true);
    CurrentSettings { settings: Arc::new(settings), ..current }
}

struct Setup {
    registry: Arc<Registry>,
    current: watch::Sender<CurrentSettings>,
    resolved: watch::Receiver<Resolved>,
}

impl Setup {
    fn start(objects: &[(&str, &str)], tags: &[(&'static str, &'static str)], warm_up: bool) -> Self {
        let registry = Arc::new(Registry::default());
        registry.tags.lock().extend(tags.iter().copied());
        let (current, receiver) = watch::channel(current(objects));
        let (sender, resolved) = watch::channel(Resolved::default());
        tokio::spawn(follow(receiver, Arc::clone(&registry), warm_up, sender));
        Self { registry, current, resolved }
    }

    fn requests(&self) -> usize {
        *self.registry.requests.lock()
    }

    fn known(&mut self) -> Vec<String> {
        let mut known: Vec<_> = self.resolved.borrow_and_update().values().map(ToString::to_string).collect();
        known.sort_unstable();
        known
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_are_resolved_and_literal_tags_are_not() {
    let mut setup = Setup::start(
        &[("a", "~0.1"), ("b", "*"), ("c", "v0.2")],
        &[("~0.1", "v0.1.5"), ("*", "v3.0.0")],
        true,
    );
    setup.resolved.wait_for(|known| known.len() == 2).await.unwrap();
    assert_eq!(setup.known(), ["example.com/a:v0.1.5", "example.com/b:v3.0.0"]);
    assert_eq!(setup.requests(), 2);

    // A newer version is pushed to the registry.
    setup.registry.tags.lock().insert("~0.1", "v0.1.6");
    setup.resolved.changed().await.unwrap();
    assert_eq!(setup.known(), ["example.com/a:v0.1.6", "example.com/b:v3.0.0"]);

    setup.current.send_replace(current(&[("b", "*")]));
    setup.resolved.changed().await.unwrap();
    assert_eq!(setup.known(), ["example.com/b:v3.0.0"]);

    // Without warm-up, only ranges of FunctionConfigs with `min-replicas` are resolved.
    let mut setup = Setup::start(&[("a", "~0.1"), ("b", "~0.1")], &[("~0.1", "v0.1.5")], false);
    setup.resolved.changed().await.unwrap();
    sleep(REQUEST_TIMEOUT).await;
    assert_eq!((setup.known(), setup.requests()), (vec!["example.com/a:v0.1.5".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_is_repeated_after_a_pause_and_keeps_the_known_image() {
    let mut setup = Setup::start(&[("a", "~0.1")], &[], true);
    sleep(FIRST_PAUSE / 2).await;
    assert_eq!(setup.requests(), 1);
    sleep(FIRST_PAUSE * 8 / 10).await;
    assert_eq!(setup.requests(), 2);
    sleep(LAST_PAUSE * 10).await;
    let requests = setup.requests();
    assert!((12..=22).contains(&requests), "the pauses grow: {requests}");
    setup.registry.tags.lock().insert("~0.1", "v0.1.5");
    setup.resolved.changed().await.unwrap();
    setup.registry.tags.lock().clear();
    sleep(VALID_FOR * 12 / 10 + FIRST_PAUSE * 4).await;
    assert!(setup.requests() > requests + 2);
    assert_eq!(setup.known(), ["example.com/a:v0.1.5"]);
}

#[tokio::test(start_paused = true)]
async fn requests_are_limited_in_number_and_time() {
    let names: Vec<_> = (0..10).map(|number| format!("f{number}")).collect();
    let mut objects: Vec<_> = names.iter().map(|name| (name.as_str(), "~0.1")).collect();
    objects.push(("hangs", "~9"));
    let mut setup = Setup::start(&objects, &[("~0.1", "v0.1.5"), ("~9", "")], true);
    let begin = Instant::now();
    setup.resolved.wait_for(|known| known.len() == 10).await.unwrap();
    assert!(begin.elapsed() < REQUEST_TIMEOUT, "a hanging request delays no other");
    assert_eq!(setup.registry.most_open.load(Ordering::Relaxed), MAX_REQUESTS);
    let requests = setup.requests();
    sleep(REQUEST_TIMEOUT + FIRST_PAUSE * 12 / 10 + Duration::from_secs(1)).await;
    assert_eq!(setup.requests(), requests + 1, "the hanging request was repeated");
    assert_eq!(setup.known().len(), 10);
}
