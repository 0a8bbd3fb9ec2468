//! Tests with an API server that gives a few fixed answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::Uri;
use parking_lot::Mutex;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::*;
use crate::pods::kubernetes::fake::{self, Answer};

/// The current answers of the API server.
#[derive(Debug, Clone, Copy)]
struct Answers {
    list: u16,
    /// Whether discovery knows the kind.
    kind: bool,
    /// How the schema describes the tags of podExecutor, or how its request is refused.
    tags: Result<&'static str, u16>,
    /// How many of the first requests for the schema fail.
    unpublished: usize,
    /// Whether a watch stays open. No watch reports an event.
    watch: bool,
}

/// An API server, and a runner that follows its objects.
struct Rig {
    answers: Arc<Mutex<Answers>>,
    /// How many lists were asked for.
    lists: watched::Receiver<usize>,
    /// How often the schema was requested.
    schemas: Arc<AtomicUsize>,
    state: watched::Receiver<Option<Arc<FunctionConfigs>>>,
    _task: JoinHandle<()>,
}

// === impl Rig ===

impl Rig {
    fn start(first: Answers) -> Self {
        Self::with(first, None)
    }

    /// With `--functionconfig-tags`.
    fn with(first: Answers, semantics: Option<TagSemantics>) -> Self {
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
        let task = tokio::spawn(follow(options, owned, state, fake::metrics()));
        Self { answers, lists, schemas, state: receiver, _task: task }
    }

    /// Changes the API server's answers, and waits until two more lists were answered.
    async fn say(&mut self, answers: Answers) {
        *self.answers.lock() = answers;
        let asked = *self.lists.borrow();
        // One list may already have been requested, but not answered.
        self.lists.wait_for(|lists| *lists >= asked + 3).await.unwrap();
    }

    /// Waits until tags mean this.
    async fn until(&mut self, semantics: TagSemantics, source: Source) {
        let expected = Setting::new(semantics, source);
        let is_so = |state: &Option<Arc<FunctionConfigs>>| {
            state.as_ref().is_some_and(|configs| configs.semantics.as_ref() == Some(&expected))
        };
        self.state.wait_for(is_so).await.unwrap();
    }

    /// How many objects are in effect; `None` if that is not known.
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
async fn one_answer_alone_takes_no_object_away() {
    let mut rig = Rig::start(Answers { list: 500, ..LISTED });
    rig.say(Answers { list: 404, ..LISTED }).await;
    assert_eq!(rig.objects(), None, "nothing is known before an answer");
    rig.say(LISTED).await;
    assert_eq!(rig.objects(), Some(1));
    rig.say(Answers { list: 404, ..LISTED }).await;
    assert_eq!(rig.objects(), Some(1), "discovery knows better");
    rig.say(Answers { list: 403, ..LISTED }).await;
    assert_eq!(rig.objects(), Some(1), "they are there, if out of sight");
    rig.say(UNKNOWN).await;
    assert_eq!(rig.objects(), Some(0), "they went with their kind");

    let mut rig = Rig::start(Answers { list: 403, ..LISTED });
    rig.state.wait_for(Option::is_some).await.unwrap();
    assert_eq!(rig.objects(), Some(0), "a runner without the right has none");
}

#[tokio::test(start_paused = true)]
async fn the_schema_says_what_tags_mean_and_may_change_while_nothing_else_does() {
    let mut rig = Rig::start(Answers { watch: true, ..LISTED });
    rig.until(TagSemantics::Exact, Source::Schema).await;
    rig.answers.lock().tags = Ok(NEW);
    rig.until(TagSemantics::Constraint, Source::Schema).await;
    assert_eq!(rig.objects(), Some(1));
    // The last answer stays in effect.
    rig.answers.lock().tags = Err(403);
    let asked = rig.schemas.load(Ordering::Relaxed);
    while rig.schemas.load(Ordering::Relaxed) < asked + 3 {
        sleep(Duration::from_millis(1)).await;
    }
    rig.until(TagSemantics::Constraint, Source::Schema).await;
}

#[tokio::test(start_paused = true)]
async fn tags_are_exact_while_the_schema_cannot_be_read() {
    // The result comes at once for 403, else after a timeout.
    for code in [403, 503] {
        let mut rig = Rig::start(Answers { watch: true, tags: Err(code), ..LISTED });
        rig.until(TagSemantics::Exact, Source::NoSchema).await;
        assert_eq!(rig.objects(), Some(1), "objects count all the same");
        assert_eq!(rig.schemas.load(Ordering::Relaxed) == 1, code == 403);
        rig.answers.lock().tags = Ok(NEW);
        rig.until(TagSemantics::Constraint, Source::Schema).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_flag_asks_for_no_schema() {
    let mut rig = Rig::with(LISTED, Some(TagSemantics::Constraint));
    rig.until(TagSemantics::Constraint, Source::Flag("functionconfig-tags")).await;
    rig.say(LISTED).await;
    assert_eq!(rig.schemas.load(Ordering::Relaxed), 0);
}

/// The API server publishes the schema of a new kind some seconds after the kind.
#[tokio::test(start_paused = true)]
async fn a_schema_that_is_not_there_yet_is_waited_for() {
    let answers = Answers { watch: true, tags: Ok(NEW), unpublished: 2, ..LISTED };
    let mut rig = Rig::start(answers);
    rig.state.wait_for(Option::is_some).await.unwrap();
    // The first answer is the right one.
    let expected = Setting::new(TagSemantics::Constraint, Source::Schema);
    assert_eq!(rig.state.borrow().as_ref().unwrap().semantics.as_ref(), Some(&expected));
    assert_eq!(rig.schemas.load(Ordering::Relaxed), 3);
}
