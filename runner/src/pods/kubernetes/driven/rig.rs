//! The pod runtime with its driver and the Kubernetes backend, over an API server and pods of this
//! process.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use porch_fn_grpc::serve;
use porch_fn_grpc::{Call, Charge, Evaluate, Hop, Inflight, Options, Reply, Server, message_of};
use porch_fn_image::Image;
use porch_fn_lifecycle::drain;
use porch_fn_lifecycle::health::Health;
use porch_fn_pool::{Config, Event, ImageKey, Override, Overrides};
use porch_fn_proto::evaluator::EvaluateFunctionRequest;
use porch_fn_proto::{Chunks, encode_request, frame};
use porch_fn_registry::{Images, Metadata, Registry, RegistryError};
use porch_fn_settings::{CacheConfig, Settings};
use porch_fn_telemetry::span::Span;
use prometheus_client::registry::Registry as Metered;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::cluster::FakeCluster;
use crate::metrics::Metrics;
use crate::pods::PodRuntime;
use crate::pods::kubernetes::backend::KubernetesBackend;
use crate::pods::kubernetes::blueprint::{Blueprint, PodFlags};
use crate::pods::kubernetes::client::Cluster;
use crate::pods::kubernetes::metadata::ImageSource;
use crate::pods::kubernetes::names;
use crate::pods::kubernetes::store::{Connect, Store};
use crate::pods::kubernetes::template::Template;

pub(super) struct Rig {
    pub(super) runtime: Arc<PodRuntime>,
    pub(super) cluster: FakeCluster,
    config: Config,
    settings: Arc<Settings>,
    images: Arc<ImageSource>,
    blueprint: watch::Sender<Arc<Blueprint>>,
    events: mpsc::UnboundedSender<Event>,
    over: AtomicBool,
    _drain: drain::Signal,
}

impl Rig {
    /// A runner with this configuration and no pods, whose pods are made by a template with this
    /// wrapper.
    pub(super) async fn new(config: Config, wrapper: &str) -> Self {
        let (signal, drained) = drain::channel();
        let ip = IpAddr::from([127, fastrand::u8(1..), fastrand::u8(..), fastrand::u8(1..255)]);
        serve_pods(ip, drained).await;
        let cluster = FakeCluster::new(ip);
        let images = Images::new(Arc::new(Everything), Duration::from_hours(24));
        let images = Arc::new(ImageSource::new(Arc::default(), images));
        let settings = Arc::new(crate::settings::tests::settings(CacheConfig::default()));
        let blueprint = watch::Sender::new(blueprint(&settings, wrapper));
        let (events, received) = mpsc::unbounded_channel();
        let backend = KubernetesBackend::new(
            Cluster::new(kube::Client::new(cluster.clone(), "functions"), "functions"),
            Store::new(Connect::PodIp, events.clone()),
            blueprint.subscribe(),
            Arc::clone(&images),
            None,
        );
        cluster.watched_by(backend.shared());
        backend.shared().store.pods_listed(&[]);
        let metrics = Arc::new(Metrics::new(&mut Metered::default(), &Inflight::new(0, Hop::Runner)));
        let (runtime, driver) = PodRuntime::new(
            config.clone(),
            backend,
            received,
            Arc::clone(&images) as Arc<_>,
            "example.com".to_owned(),
            1 << 20,
            metrics,
        );
        tokio::spawn(driver);
        let runtime = Arc::new(runtime);
        let rig = Self {
            runtime,
            cluster,
            config,
            settings,
            images,
            blueprint,
            events,
            over: false.into(),
            _drain: signal,
        };
        rig.configure();
        rig
    }

    /// Callers stop.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Pods are made by a template with another wrapper from now on.
    pub(super) fn template(&self, wrapper: &str) {
        self.blueprint.send_replace(blueprint(&self.settings, wrapper));
        self.configure();
    }

    fn configure(&self) {
        let (blueprint, images) = (self.blueprint.borrow().clone(), Arc::clone(&self.images));
        let made_from = move |image: &ImageKey| {
            let recipe = Some(blueprint.made_from(image, &images.content(image)));
            Override { recipe, ..Override::default() }
        };
        let config = Config { overrides: Overrides::by(made_from), ..self.config.clone() };
        self.events.send(Event::Configure(config)).unwrap();
    }

    /// One call; an error is what its caller reads.
    pub(super) async fn call(&self, image: &str) -> Result<(), String> {
        let message = encode_request(Bytes::from_static(b"kind: ResourceList\n").into(), image, "");
        let call = Call {
            headers: HeaderMap::new(),
            framed: frame(message.clone()),
            message,
            deadline: Instant::now() + Duration::from_secs(20),
            charge: Charge::default(),
            span: Span::default(),
            place: None,
        };
        let reply =
            self.runtime.evaluate(image, Image::parse(image, "example.com"), "", &call).await.unwrap();
        match reply.code() {
            tonic::Code::Ok => Ok(()),
            code => Err(format!("{code:?}: {}", message_of(reply.status_headers()))),
        }
    }
}

/// The recipe of a pod says when its configuration was made: each is newer than those before.
fn blueprint(settings: &Arc<Settings>, wrapper: &str) -> Arc<Blueprint> {
    let template = Ok(Arc::new(Template::inline(wrapper)));
    let flags = PodFlags { max_message: 1 << 20, pull_secret: None };
    let now = crate::clock::now();
    Arc::new(Blueprint::new(template, flags, Arc::clone(settings), now, None))
}

/// Every image is there.
#[derive(Debug)]
struct Everything;

impl Registry for Everything {
    fn metadata<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Metadata, RegistryError>> {
        let metadata = Metadata { digest: "sha256:00".into(), command: vec!["f".to_owned()] };
        std::future::ready(Ok(metadata)).boxed()
    }

    fn digest<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Arc<str>, RegistryError>> {
        std::future::ready(Ok("sha256:00".into())).boxed()
    }

    fn tags<'a>(&'a self, _: &'a Image) -> BoxFuture<'a, Result<Vec<String>, RegistryError>> {
        std::future::ready(Err(RegistryError::NotFound)).boxed()
    }
}

/// A function that takes a second.
struct Echo;

impl Evaluate for Echo {
    async fn evaluate(&self, call: Call) -> Reply {
        sleep(Duration::from_secs(1)).await;
        let request = EvaluateFunctionRequest::decode(call.message.contiguous()).unwrap();
        Reply::evaluated(Chunks::from(request.resource_list), Bytes::new())
    }
}

async fn serve_pods(ip: IpAddr, drain: drain::Watch) {
    let listener = TcpListener::bind((ip, names::PORT)).await.unwrap();
    let health = Health::new();
    health.set("", true);
    let options = Options {
        max_message: 1 << 20,
        default_timeout: Duration::from_mins(1),
        max_timeout: Duration::MAX,
        inflight: None,
        places: None,
        tell_load: false,
        observer: None,
        tracer: None,
    };
    let server = Server::new(Arc::new(Echo), &health, options);
    let handler = move |request| {
        let server = Arc::clone(&server);
        async move { server.handle(request).await }
    };
    let options = serve::Options { max_age: None, max_connections: 1000 };
    tokio::spawn(serve::serve(listener, None, options, handler, drain));
}
