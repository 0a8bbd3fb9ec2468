//! Tests which template the runner uses with the flags of newer Porch, above all if the objects
//! with templates are missing.

use std::collections::HashMap;

use parking_lot::Mutex;
use porch_fn_settings::yaml;
use serde_json::Value;

use super::*;
use crate::metrics::tests::metrics;
use crate::pods::kubernetes::fake;

/// The unchanged objects that newer Porch installs.
const BASE: &str = include_str!("../../../../config/src/template/base-templates.yaml");
const POD: &str = "/api/v1/namespaces/functions/podtemplates";
const SERVICE: &str = "/apis/config.porch.kpt.dev/v1alpha1/namespaces/functions/servicetemplates";
const WAIT: Duration = Duration::from_mins(2);

fn objects() -> (PodTemplate, DynamicObject) {
    let (pod, service) = BASE.split_once("\n---\n").unwrap();
    (yaml::parse(pod).unwrap(), yaml::parse(service).unwrap())
}

/// An API server with these objects, by their paths.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<HashMap<String, Value>>>);

impl Server {
    /// A server with Porch's own objects under these names.
    fn with(pod: Option<&str>, service: Option<&str>) -> Self {
        let server = Self::default();
        server.put(pod, service);
        server
    }

    fn put(&self, pod: Option<&str>, service: Option<&str>) {
        let (pod_template, service_template) = objects();
        let pod_template = serde_json::to_value(pod_template).unwrap();
        let service_template = serde_json::to_value(service_template).unwrap();
        let mut objects = self.0.lock();
        for (collection, name, object) in [(POD, pod, pod_template), (SERVICE, service, service_template)] {
            objects.extend(name.map(|name| (format!("{collection}/{name}"), object)));
        }
    }

    fn source(&self, names: [&str; 2], has_built_in: bool, wait: Duration) -> TemplateSource {
        let objects = Arc::clone(&self.0);
        let client = fake::client(move |_, uri, _| match objects.lock().get(uri.path()) {
            Some(object) => Some((200, object.to_string())),
            None => fake::failure(404, "NotFound", ""),
        });
        let [pod, service] = names.map(str::to_owned);
        let built_in = has_built_in.then(|| "w:v1".to_owned());
        let templates = Templates::Objects { pod, service, built_in, wait };
        TemplateSource { client, namespace: "functions".to_owned(), templates, started: Instant::now() }
    }
}

const DEFAULTS: [&str; 2] = ["base-pod-template", "base-service-template"];
const OWN: [&str; 2] = ["mine", "my-service"];

async fn read(source: &TemplateSource) -> Result<(Source, bool, usize), String> {
    let read = source.read(None).await.map_err(|error| error.to_string());
    read.map(|template| (template.source, template.service_of_object, template.warnings.len()))
}

#[tokio::test(start_paused = true)]
async fn the_flags_select_the_objects() {
    let server = Server::with(Some(OWN[0]), Some(OWN[1]));
    let wait = Duration::ZERO;
    let found = |service| Ok((Source::PodTemplate, service, 0));
    assert_eq!(read(&server.source(OWN, true, wait)).await, found(true));
    let built_in = Ok((Source::Inline, false, 0));
    assert_eq!(read(&server.source(DEFAULTS, true, wait)).await, built_in);
    let named = Ok((Source::Inline, false, 1));
    assert_eq!(read(&server.source(["other", OWN[1]], true, wait)).await, named, "with a warning");
    assert_eq!(read(&server.source([OWN[0], "other"], true, wait)).await, found(false));
}

#[tokio::test(start_paused = true)]
async fn skip_template_creation_allows_no_other_template() {
    let server = Server::with(Some(OWN[0]), Some(OWN[1]));
    assert!(read(&server.source(OWN, false, WAIT)).await.is_ok());
    for (names, missing) in [
        (DEFAULTS, "there is no PodTemplate base-pod-template in the function namespace"),
        ([OWN[0], "other"], "there is no ServiceTemplate other in the function namespace"),
    ] {
        let source = server.source(names, false, WAIT);
        assert_eq!(read(&source).await, Err(format!("{missing} yet")));
        sleep(WAIT).await;
        let error = read(&source).await.unwrap_err();
        assert!(error.starts_with(&format!("{missing}, and with --skip-template-creation")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn template_wait_timeout_delays_the_built_in_template() {
    for is_late in [true, false] {
        let server = Server::default();
        let source = server.source(DEFAULTS, true, WAIT);
        let (state, mut templates) = watch::channel(Err(NoTemplate::Unread));
        let started = Instant::now();
        let follow = tokio::spawn(source.follow(Duration::from_mins(1), state, metrics().0));
        templates.wait_for(|state| *state == Err(NoTemplate::Awaited)).await.unwrap();
        if is_late {
            sleep(WAIT / 2).await;
            server.put(Some(DEFAULTS[0]), Some(DEFAULTS[1]));
        }
        let state = templates.wait_for(Result::is_ok).await.unwrap().clone().unwrap();
        let expected = if is_late { Source::PodTemplate } else { Source::Inline };
        assert_eq!(state.source, expected);
        assert_eq!(started.elapsed() >= WAIT, !is_late, "{:?}", started.elapsed());
        follow.abort();
    }
}
