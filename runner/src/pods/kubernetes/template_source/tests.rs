//! Which template is used where the user's objects are missing, under the flags that newer Porch
//! has.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::{Request, Response};
use kube::client::Body;
use parking_lot::Mutex;
use porch_fn_settings::yaml;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tonic::codegen::Service;

use super::*;
use porch_fn_grpc::{Hop, Inflight};

const POD: &str = "/api/v1/namespaces/functions/podtemplates";
const SERVICE: &str = "/apis/config.porch.kpt.dev/v1alpha1/namespaces/functions/servicetemplates";
const WAIT: Duration = Duration::from_mins(2);

/// An API server with these objects, by their paths.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<HashMap<String, Value>>>);

impl Server {
    /// Porch's own objects under these names.
    fn with(pod: Option<&str>, service: Option<&str>) -> Self {
        let server = Self::default();
        server.put(pod, service);
        server
    }

    fn put(&self, pod: Option<&str>, service: Option<&str>) {
        let (pod_template, service_template) =
            include_str!("../template/base-templates.yaml").split_once("\n---\n").unwrap();
        let mut objects = self.0.lock();
        for (collection, name, text) in [(POD, pod, pod_template), (SERVICE, service, service_template)] {
            let object = name.map(|name| (format!("{collection}/{name}"), yaml::parse(text).unwrap()));
            objects.extend(object);
        }
    }

    fn origin(&self, names: [&str; 2], has_built_in: bool, wait: Duration) -> Origin {
        Origin::Objects {
            client: Client::new(self.clone(), "default"),
            namespace: "functions".to_owned(),
            names: ObjectNames { pod: names[0].to_owned(), service: names[1].to_owned() },
            built_in: has_built_in.then(|| Arc::new(Template::inline("w:v1"))),
            awaited_until: Instant::now() + wait,
        }
    }
}

impl Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let found = self.0.lock().get(request.uri().path()).cloned();
        let missing = || json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
        let status = if found.is_some() { 200 } else { 404 };
        let body = Body::from(found.unwrap_or_else(missing).to_string().into_bytes());
        ready(Ok(Response::builder().status(status).body(body).unwrap()))
    }
}

const DEFAULTS: [&str; 2] = ["base-pod-template", "base-service-template"];
const OWN: [&str; 2] = ["mine", "my-service"];

async fn source(origin: &Origin) -> Result<(Source, bool, usize), String> {
    let read = read(origin, None).await.map_err(|error| error.to_string());
    read.map(|template| (template.source, template.service_of_object, template.warnings.len()))
}

#[tokio::test(start_paused = true)]
async fn the_objects_that_the_flags_name_are_read() {
    let server = Server::with(Some(OWN[0]), Some(OWN[1]));
    let wait = Duration::ZERO;
    let (template, service, _) = source(&server.origin(OWN, true, wait)).await.unwrap();
    assert_eq!((template, service), (Source::PodTemplate, true));
    let built_in = Ok((Source::Inline, false, 0));
    assert_eq!(source(&server.origin(DEFAULTS, true, wait)).await, built_in);
    let named = Ok((Source::Inline, false, 1));
    assert_eq!(source(&server.origin(["other", OWN[1]], true, wait)).await, named, "with a warning");
    let (template, service, _) = source(&server.origin([OWN[0], "other"], true, wait)).await.unwrap();
    assert_eq!((template, service), (Source::PodTemplate, false));
}

#[tokio::test(start_paused = true)]
async fn skip_template_creation_allows_no_other_template() {
    let skip = Duration::ZERO;
    let server = Server::with(Some(OWN[0]), Some(OWN[1]));
    assert!(source(&server.origin(OWN, false, skip)).await.is_ok());
    for (names, missing) in [
        (DEFAULTS, "there is no PodTemplate base-pod-template in the function namespace, and --skip-"),
        ([OWN[0], "other"], "there is no ServiceTemplate other in the function namespace, and --skip-"),
    ] {
        let error = source(&server.origin(names, false, skip)).await.unwrap_err();
        assert!(error.starts_with(missing), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn template_wait_timeout_holds_the_built_in_template_back() {
    for (there, comes_late) in [(Server::default(), true), (Server::default(), false)] {
        let origin = there.origin(DEFAULTS, true, WAIT);
        let (state, mut templates) = watch::channel(Err(NoTemplate::Unread));
        let metrics = Arc::new(Metrics::new(&mut Registry::default(), &Inflight::new(0, Hop::Runner)));
        let started = Instant::now();
        let follow = tokio::spawn(follow(origin, Duration::from_mins(1), state, metrics));
        templates.wait_for(|state| *state == Err(NoTemplate::Awaited)).await.unwrap();
        if comes_late {
            sleep(WAIT / 2).await;
            there.put(Some(DEFAULTS[0]), Some(DEFAULTS[1]));
        }
        let state = templates.wait_for(Result::is_ok).await.unwrap().clone().unwrap();
        let expected = if comes_late { Source::PodTemplate } else { Source::Inline };
        assert_eq!(state.source, expected);
        assert_eq!(started.elapsed() >= WAIT, !comes_late, "{:?}", started.elapsed());
        follow.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn after_the_wait_a_missing_object_is_an_error_without_the_built_in_template() {
    let server = Server::with(Some(DEFAULTS[0]), None);
    let origin = server.origin(DEFAULTS, false, WAIT);
    let text = "there is no ServiceTemplate base-service-template in the function namespace";
    assert_eq!(source(&origin).await, Err(format!("{text} yet")));
    sleep(WAIT).await;
    let error = source(&origin).await.unwrap_err();
    assert!(error.starts_with(text) && error.contains("--skip-template-creation"), "{error}");
}
