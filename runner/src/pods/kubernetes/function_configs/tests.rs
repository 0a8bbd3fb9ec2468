//! Tests the watch of FunctionConfigs, with an API server that gives fixed answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Uri;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::metrics::tests::metrics;
use crate::pods::kubernetes::fake::{self, Answer};

/// The current answers of the API server.
#[derive(Debug, Clone, Copy)]
struct Answers {
    list: u16,
    /// Whether discovery knows the kind.
    kind: bool,
    /// How the schema describes podExecutor's tags; `Err`: the status of a refused request.
    tags: Result<&'static str, u16>,
    /// How many of the first requests for the schema fail.
    unpublished: usize,
    /// Whether a watch stays open. No watch reports an event.
    watch: bool,
}

/// A fake API server, and a runner that watches its FunctionConfigs.
struct Setup {
    answers: Arc<Mutex<Answers>>,
    /// The number of requested lists.
    lists: watched::Receiver<usize>,
    /// The number of requests for the schema.
    schemas: Arc<AtomicUsize>,
    state: watched::Receiver<Option<Arc<FunctionConfigs>>>,
    _task: JoinHandle<()>,
}

// === impl Setup ===

impl Setup {
    /// Starts with these answers, and with `semantics` for `--functionconfig-tags`.
    fn start(first: Answers, semantics: Option<TagSemantics>) -> Self {
        let (answers, schemas) = (Arc::new(Mutex::new(first)), Arc::new(AtomicUsize::new(0)));
        let (listed, lists) = watched::channel(0);
        let (now, asked) = (Arc::clone(&answers), Arc::clone(&schemas));
        let options = Options {
            client: fake::client(move |_, uri, _| answer(*now.lock(), uri, &listed, &asked)),
            namespace: "ns".to_owned(),
            default_prefix: "example.com".to_owned(),
            semantics,
            retry_every: Duration::from_millis(1),
        };
        let (state, receiver) = watched::channel(None);
        let owned = watched::channel(OwnedShards::None).1;
        let task = tokio::spawn(follow(options, owned, state, metrics().0));
        Self { answers, lists, schemas, state: receiver, _task: task }
    }

    /// Changes the API server's answers, and waits until the runner has processed two lists.
    async fn set_answers(&mut self, answers: Answers) {
        *self.answers.lock() = answers;
        let asked = *self.lists.borrow();
        // The third new request shows that the runner has processed the second answer.
        self.lists.wait_for(|lists| *lists >= asked + 3).await.unwrap();
    }

    /// Waits until the runner gives tags this meaning, from this source.
    async fn wait_for(&mut self, semantics: TagSemantics, source: Source) {
        let expected = Setting::new(semantics, source);
        let is_so = |state: &Option<Arc<FunctionConfigs>>| {
            state.as_ref().is_some_and(|configs| configs.semantics.as_ref() == Some(&expected))
        };
        self.state.wait_for(is_so).await.unwrap();
    }

    /// The number of objects in effect; `None` if it is not known yet.
    fn objects(&self) -> Option<usize> {
        self.state.borrow().as_ref().map(|configs| configs.iter().count())
    }
}

fn answer(answers: Answers, uri: &Uri, listed: &watched::Sender<usize>, schemas: &AtomicUsize) -> Answer {
    let Answers { list, kind, tags, unpublished, watch } = answers;
    let refusal = |code| fake::failure(code, "x", "x");
    if uri.query().is_some_and(|query| query.contains("watch=")) {
        return if watch { None } else { refusal(500) };
    }
    let version = format!("{GROUP}/{VERSION}");
    let object = if uri.path() == format!("/openapi/v3/apis/{version}") {
        let before = schemas.fetch_add(1, Ordering::Relaxed);
        match if before < unpublished { Err(404) } else { tags } {
            Ok(tags) => json!({"components": {"schemas": {"f": {
                "properties": {"spec": {"properties": {"podExecutor": {"properties": {
                    "tags": {"type": "array", "description": tags}}}}}},
                "x-kubernetes-group-version-kind": [{"group": GROUP, "version": VERSION, "kind": "FunctionConfig"}],
            }}}}),
            Err(code) => return refusal(code),
        }
    } else if uri.path().contains("/functionconfigs") {
        listed.send_modify(|lists| *lists += 1);
        if list != 200 {
            return refusal(list);
        }
        let item = json!({
            "apiVersion": version, "kind": "FunctionConfig",
            "metadata": {"name": "f", "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 1},
            "spec": {"image": "f", "podExecutor": {}},
        });
        json!({"apiVersion": version, "kind": "FunctionConfigList", "metadata": {"resourceVersion": "1"}, "items": [item]})
    } else if kind {
        let kind = json!({"name": PLURAL, "singularName": "", "namespaced": true, "kind": "FunctionConfig", "verbs": []});
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": [kind]})
    } else {
        return refusal(404);
    };
    Some((200, object.to_string()))
}

const OLD: &str = "Image tags which the configuration will be applied to.";
const NEW: &str = "Semver constraints that determine which versions it applies to.";
const LISTED: Answers = Answers { list: 200, kind: true, tags: Ok(OLD), unpublished: 0, watch: false };
const UNKNOWN: Answers = Answers { list: 404, kind: false, ..LISTED };

#[tokio::test(start_paused = true)]
async fn a_single_answer_removes_no_object() {
    let mut setup = Setup::start(Answers { list: 500, ..LISTED }, None);
    setup.set_answers(Answers { list: 404, ..LISTED }).await;
    assert_eq!(setup.objects(), None, "nothing is known before an answer");
    setup.set_answers(LISTED).await;
    assert_eq!(setup.objects(), Some(1));
    setup.set_answers(Answers { list: 404, ..LISTED }).await;
    assert_eq!(setup.objects(), Some(1), "discovery still has the kind");
    setup.set_answers(Answers { list: 403, ..LISTED }).await;
    assert_eq!(setup.objects(), Some(1), "a refusal removes no object");
    setup.set_answers(UNKNOWN).await;
    assert_eq!(setup.objects(), Some(0), "the kind was deleted");

    let mut setup = Setup::start(Answers { list: 403, ..LISTED }, None);
    setup.state.wait_for(Option::is_some).await.unwrap();
    assert_eq!(setup.objects(), Some(0), "a runner without permission has none");
}

#[tokio::test(start_paused = true)]
async fn a_changed_schema_changes_the_meaning_of_tags() {
    let mut setup = Setup::start(Answers { watch: true, ..LISTED }, None);
    setup.wait_for(TagSemantics::Exact, Source::Schema).await;
    setup.answers.lock().tags = Ok(NEW);
    setup.wait_for(TagSemantics::Constraint, Source::Schema).await;
    assert_eq!(setup.objects(), Some(1));
    // If the schema cannot be read any more, the meaning that was read last stays in effect.
    setup.answers.lock().tags = Err(403);
    let asked = setup.schemas.load(Ordering::Relaxed);
    while setup.schemas.load(Ordering::Relaxed) < asked + 3 {
        sleep(Duration::from_millis(1)).await;
    }
    setup.wait_for(TagSemantics::Constraint, Source::Schema).await;
}

#[tokio::test(start_paused = true)]
async fn tags_are_exact_while_the_schema_cannot_be_read() {
    // For 403 the runner does not wait for the schema. For 503 it repeats the request for a while.
    for code in [403, 503] {
        let mut setup = Setup::start(Answers { watch: true, tags: Err(code), ..LISTED }, None);
        setup.wait_for(TagSemantics::Exact, Source::NoSchema).await;
        assert_eq!(setup.objects(), Some(1), "objects are in effect anyway");
        assert_eq!(setup.schemas.load(Ordering::Relaxed) == 1, code == 403);
        setup.answers.lock().tags = Ok(NEW);
        setup.wait_for(TagSemantics::Constraint, Source::Schema).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_flag_replaces_the_schema() {
    let mut setup = Setup::start(LISTED, Some(TagSemantics::Constraint));
    setup.wait_for(TagSemantics::Constraint, Source::Flag("functionconfig-tags")).await;
    setup.set_answers(LISTED).await;
    assert_eq!(setup.schemas.load(Ordering::Relaxed), 0);
}

/// The API server publishes the schema of a new kind some seconds after the kind.
#[tokio::test(start_paused = true)]
async fn a_new_runner_waits_for_a_schema_that_is_not_published_yet() {
    let answers = Answers { watch: true, tags: Ok(NEW), unpublished: 2, ..LISTED };
    let mut setup = Setup::start(answers, None);
    setup.state.wait_for(Option::is_some).await.unwrap();
    // The first configuration already has the right meaning.
    let expected = Setting::new(TagSemantics::Constraint, Source::Schema);
    assert_eq!(setup.state.borrow().as_ref().unwrap().semantics.as_ref(), Some(&expected));
    assert_eq!(setup.schemas.load(Ordering::Relaxed), 3);
}
