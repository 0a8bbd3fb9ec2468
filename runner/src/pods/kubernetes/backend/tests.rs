//! A create has one bound for all that it waits for, or callers wait longer than they were promised.

use std::convert::Infallible;
use std::future::{Pending, pending};
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use porch_fn_image::Image;
use porch_fn_registry::{Images, Metadata, Registry};
use porch_fn_settings::CacheConfig;
use tokio::sync::mpsc;
use tonic::codegen::Service;

use super::*;
use crate::pods::kubernetes::blueprint::{NoTemplate, PodFlags, TemplateState};
use crate::pods::kubernetes::store::Connect;
use crate::pods::kubernetes::template::Template;

/// Knows every image, after this many seconds.
#[derive(Debug)]
struct Slow(u64);

impl Registry for Slow {
    fn metadata<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        let answer = async {
            sleep(Duration::from_secs(self.0)).await;
            Ok(Metadata { digest: "sha256:00".into(), command: vec!["f".to_owned()] })
        };
        answer.boxed()
    }

    fn digest<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        pending().boxed()
    }

    fn tags<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        pending().boxed()
    }
}

/// An API server that never answers.
#[derive(Clone)]
struct Silent;

impl Service<Request<Body>> for Silent {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pending<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        pending()
    }
}

/// What a create comes to, and after how many seconds, with that API server.
async fn create(registry: u64, template: TemplateState) -> (Creation, u64) {
    let cluster = Cluster::new(kube::Client::new(Silent, "functions"), "functions");
    let flags = PodFlags { max_message: 1024, pull_secret: None };
    let settings = Arc::new(crate::settings::tests::settings(CacheConfig::default()));
    let blueprint = Blueprint::new(template, flags, settings, Time::default(), None);
    let images = Images::new(Arc::new(Slow(registry)), Duration::from_mins(1));
    let (events, _received) = mpsc::unbounded_channel();
    let (_blueprints, blueprint) = watch::channel(Arc::new(blueprint));
    let backend = KubernetesBackend::new(
        cluster,
        Store::new(Connect::PodIp, events),
        blueprint,
        Arc::new(ImageSource::new(Arc::default(), images)),
        None,
    );
    let name = PodName { image: "example.com/f:v1".into(), slot: 0, past: None };
    let began = Instant::now();
    let created = backend.shared().create(&name, &"key".into(), Time::default()).await;
    (created, began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_create_has_one_bound_whatever_it_waits_for() {
    let template = || Ok(Arc::new(Template::inline("w:v1")));
    let unreachable = refused("registry", RegistryError::Unreachable.to_string());
    let unread = refused("template", NoTemplate::Unread.to_string());
    let bound = CREATE_TIMEOUT.as_secs();
    assert!(CREATE_TIMEOUT < Duration::from_mins(1), "the pool gives up then");
    assert_eq!(create(3600, template()).await, (unreachable, bound));
    assert_eq!(create(45, template()).await, (Creation::Unknown, bound));
    assert_eq!(create(45, Err(NoTemplate::Unread)).await, (unread.clone(), bound));
    assert_eq!(create(0, Err(NoTemplate::Unread)).await, (unread, TEMPLATE_TIMEOUT.as_secs()));
}
