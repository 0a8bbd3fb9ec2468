//! Wires the pod runtime: where pods live, what they are made from, who owns them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_discovery::{HostPort, Target};
use porch_fn_kubernetes::connect;
use porch_fn_lifecycle::drain;
use porch_fn_pool::{Config, Event, OwnedShards};
use porch_fn_settings::Resolved;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::{AppError, Pods, Wiring};
use crate::config::{Flags, PodBackend, PodConnect};
use crate::metrics::Metrics;
use crate::ownership::Ownership;
use crate::pods::configure::{Desired, Origins, ranges};
use crate::pods::kubernetes::function_configs;
use crate::pods::kubernetes::pull_secret::PullSecret;
use crate::pods::kubernetes::{self, Connect, Surroundings, Templates};
use crate::pods::local::{LocalBackend, LocalCluster, LocalFunctions, LocalOptions};
use crate::pods::{Backend, Catalog, Driver, Handle, PodRuntime};
use crate::settings::{CurrentSettings, Sources};

/// All local pods and runners are on one clock.
const LOCAL_SKEW: Duration = Duration::from_secs(1);
/// How long the start waits for the FunctionConfigs: with them, the first configuration of the pool
/// is the right one.
const FIRST_FUNCTIONS_WITHIN: Duration = Duration::from_secs(5);
/// How often the pool is counted, which is a walk over all functions.
const COUNT_POOL_EVERY: Duration = Duration::from_secs(3);

/// The pod runtime, if there is one, and what belongs to it.
pub(super) struct PodParts {
    /// The settings that it goes by, FunctionConfigs included.
    pub(super) current: watch::Receiver<CurrentSettings>,
    pub(super) runtime: Option<PodRuntime>,
    /// Where its pods live: runners with the same text see the same pods.
    pub(super) scope: String,
    /// Turns true when the pods are known; `None`: they are from the start.
    pub(super) synced: Option<watch::Receiver<bool>>,
    /// Local pods of its own, ended last.
    pub(super) local: Option<LocalCluster>,
}

/// The two ends of the channel to a pool.
type Events = (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>);
/// Which images this runner owns.
type Owned = watch::Receiver<OwnedShards>;
/// The runners on the ring.
type RingMembers = watch::Receiver<Arc<[Arc<str>]>>;

impl Wiring<'_> {
    /// Follows which images are this runner's, and with `--peers` who is on the ring. Without
    /// `--peers` it owns all.
    pub(super) async fn join_peers(
        &mut self,
        drain: drain::Watch,
    ) -> Result<(Owned, Option<RingMembers>), AppError> {
        let flags = self.flags;
        if flags.peers.is_empty() {
            return Ok((watch::channel(OwnedShards::All).1, None));
        }
        let target = Target::parse(&flags.peers, flags.port);
        let target = target.map_err(|error| AppError::of_flag("peers", error))?;
        if flags.shard_address.is_empty() {
            let text =
                "--peers needs --shard-address, this runner's own address among them (POD_IP in a pod)";
            return Err(AppError::Flags(text.to_owned()));
        }
        let own = HostPort::parse(&flags.shard_address, flags.port);
        let own = own.map_err(|error| AppError::of_flag("shard-address", error))?;
        let kubeconfig = flags.kubeconfig.as_deref();
        let watched = porch_fn_discovery::watch(target, kubeconfig, "porch-fn-runner").await;
        let (discover, snapshots) = watched.map_err(|error| AppError::of_flag("peers", error))?;
        self.tasks.keep(tracing::info_span!("peers"), discover);
        let ownership = Ownership::new(own.to_string(), Arc::clone(&self.metrics));
        let (owned, ring) = (ownership.owned.subscribe(), ownership.ring.subscribe());
        self.tasks.keep(tracing::info_span!("ownership"), ownership.run(snapshots, drain));
        Ok((owned, Some(ring)))
    }

    /// Starts the pod runtime that the flags ask for, which goes by `sources`; none without `pods`.
    pub(super) async fn pods(
        &mut self,
        pods: Option<Pods>,
        sources: Sources,
        owned: Owned,
    ) -> Result<PodParts, AppError> {
        match (pods, backend(self.flags)) {
            (Some(Pods::Shared(cluster)), _) => Ok(self.local_pods(&cluster, sources, owned)),
            (Some(Pods::Flags), PodBackend::Local) => {
                let cluster = local_cluster(self.flags)?;
                let parts = self.local_pods(&cluster, sources, owned);
                Ok(PodParts { local: Some(cluster), ..parts })
            }
            (Some(Pods::Flags), PodBackend::Kubernetes) => self.kubernetes_pods(sources, owned).await,
            _ => {
                let current = self.follow_settings(sources);
                Ok(PodParts { current, runtime: None, scope: String::new(), synced: None, local: None })
            }
        }
    }

    fn local_pods(&mut self, cluster: &LocalCluster, sources: Sources, owned: Owned) -> PodParts {
        let (events, functions) = (events(), cluster.functions().clone());
        let backend = LocalBackend::attach(cluster.clone(), events.0.clone());
        let catalog = Arc::new(functions.clone());
        let mut desired = desired(self.flags, functions, catalog, owned);
        desired.base.skew = LOCAL_SKEW;
        self.runtime(desired, backend, events, sources, cluster.scope())
    }

    async fn kubernetes_pods(&mut self, mut sources: Sources, owned: Owned) -> Result<PodParts, AppError> {
        let flags = self.flags;
        let (templates, connect_pods) = (templates(flags)?, connect_pods(flags)?);
        let (images, credentials) = self.registries()?;
        let client = connect(flags.kubeconfig.as_deref(), "porch-fn-runner").await?;

        let (sender, mut functions) = watch::channel(None);
        sources.functions = functions.clone();
        let options = function_configs::Options {
            client: client.clone(),
            namespace: flags.pod_namespace.clone(),
            default_prefix: flags.default_image_prefix.clone(),
            semantics: flags.functionconfig_tags.semantics(),
            retry_every: flags.scan_interval.into(),
        };
        let follow = function_configs::follow(options, owned.clone(), sender, Arc::clone(&self.metrics));
        self.tasks.keep(tracing::info_span!("functionconfigs"), follow);

        let pull_secret = flags.enable_private_registries.then(|| flags.registry_auth_secret_name.clone());
        let secret_written = pull_secret.clone().map(|name| {
            let (client, namespace) = (client.clone(), flags.pod_namespace.clone());
            let (sender, written) = watch::channel(false);
            let secret = PullSecret { client, namespace, name };
            let content = credentials.subscribe();
            let follow = secret.follow(content, owned.clone(), flags.scan_interval.into(), sender);
            self.tasks.keep(tracing::info_span!("pull secret"), follow);
            written
        });

        let events = events();
        let surroundings = Surroundings {
            flags,
            templates,
            connect: connect_pods,
            pull_secret,
            images: Arc::clone(&images),
            settings: sources.current().settings,
            owned: owned.clone(),
            secret_written,
            events: events.0.clone(),
            metrics: Arc::clone(&self.metrics),
        };
        let (kubernetes, _) =
            tokio::join!(kubernetes::start(&client, surroundings, &mut self.tasks), async {
                timeout(FIRST_FUNCTIONS_WITHIN, functions.wait_for(Option::is_some)).await.is_ok()
            },);
        let desired = desired(flags, kubernetes.blueprints, images, owned);
        let scope = format!("kubernetes/{}", flags.pod_namespace);
        let parts = self.runtime(desired, kubernetes.backend, events, sources, scope);
        Ok(PodParts { synced: Some(kubernetes.synced), ..parts })
    }

    /// The runtime over `backend`, with the tasks that drive it and keep its configuration up to
    /// date. Its pods live in `scope`.
    fn runtime(
        &mut self,
        mut desired: Desired<impl Origins>,
        backend: impl Backend,
        (events, received): Events,
        sources: Sources,
        scope: String,
    ) -> PodParts {
        let flags = self.flags;
        let current = self.follow_settings(sources);
        let catalog = Arc::clone(&desired.catalog);
        let (sender, resolved) = watch::channel(Resolved::default());
        let find = ranges::follow(current.clone(), Arc::clone(&catalog), desired.warm_up, sender);
        self.tasks.keep(tracing::info_span!("warm-up"), find);
        let config = desired.config(&current.borrow(), &Resolved::default());
        let (driver, pool) = Driver::new(config, backend, received, Arc::clone(&self.metrics));
        self.tasks.keep(tracing::info_span!("pool"), driver.run());
        let count = count_pool(pool.clone(), Arc::clone(&self.metrics));
        self.tasks.keep(tracing::info_span!("pool metrics"), count);
        let follow = desired.follow(current.clone(), resolved, events);
        self.tasks.keep(tracing::info_span!("configuration"), follow);
        let runtime = PodRuntime {
            pool,
            catalog,
            default_prefix: flags.default_image_prefix.clone(),
            max_message: flags.max_request_body_size,
            max_retries: flags.max_grpc_retries,
            metrics: Arc::clone(&self.metrics),
        };
        PodParts { current, runtime: Some(runtime), scope, synced: None, local: None }
    }

    fn follow_settings(&mut self, sources: Sources) -> watch::Receiver<CurrentSettings> {
        let (follow, current) = sources.follow();
        self.tasks.keep(tracing::info_span!("settings"), follow);
        current
    }
}

/// The first event is that nothing is owned, before the pool knows any pod.
fn events() -> Events {
    let (sender, receiver) = mpsc::unbounded_channel();
    // Cannot fail: the receiver is here.
    let _ = sender.send(Event::Own(OwnedShards::None));
    (sender, receiver)
}

/// Keeps the metrics in step with the pool, for ever.
async fn count_pool(pool: Handle, metrics: Arc<Metrics>) {
    let mut ticks = interval(COUNT_POOL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        metrics.pool(&pool.stats().await);
    }
}

/// Where pods are to run.
fn backend(flags: &Flags) -> PodBackend {
    let in_cluster = || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    match flags.pod_backend {
        PodBackend::Auto if flags.kubeconfig.is_some() || in_cluster() => PodBackend::Kubernetes,
        chosen => chosen,
    }
}

/// What pods are made from.
fn templates(flags: &Flags) -> Result<Templates, AppError> {
    if let Some(name) = given(&flags.function_pod_template) {
        return Ok(Templates::ConfigMap(name));
    }
    let Some(wrapper_image) = given(&flags.wrapper_server_image) else {
        let text = "function pods need WRAPPER_SERVER_IMAGE, the image with the wrapper-server, or a template of \
                    their own with --function-pod-template; --disable-runtimes=pod runs without pods";
        return Err(AppError::Flags(text.to_owned()));
    };
    Ok(Templates::Objects {
        pod: flags.base_pod_template_name.clone(),
        service: flags.base_service_template_name.clone(),
        built_in: (!flags.skip_template_creation).then_some(wrapper_image),
        wait: flags.template_wait_timeout.into(),
    })
}

/// How pods are reached. The domain is checked here, since it is part of every Service's name.
fn connect_pods(flags: &Flags) -> Result<Connect, AppError> {
    if flags.pod_connect == PodConnect::PodIp {
        return Ok(Connect::PodIp);
    }
    let (namespace, domain) = (&flags.pod_namespace, &flags.cluster_domain);
    let suffix = format!("{namespace}.svc.{domain}");
    let name = format!("pod.{suffix}");
    if HostPort::parse(&name, 1).is_ok_and(|host| host.host == name) {
        return Ok(Connect::Service { suffix });
    }
    let text = format!("--cluster-domain {domain:?} or --pod-namespace {namespace:?} is no DNS name");
    Err(AppError::Flags(text))
}

fn given(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn local_cluster(flags: &Flags) -> Result<LocalCluster, AppError> {
    let Some(path) = &flags.local_functions else {
        return Err(AppError::Flags("--pod-backend=local needs --local-functions FILE".to_owned()));
    };
    Ok(LocalCluster::new(LocalOptions {
        wrapper: vec![flags.wrapper_server.clone().into_os_string()],
        max_message: flags.max_request_body_size,
        log_level: flags.log_level,
        functions: LocalFunctions::read(path, &flags.default_image_prefix)?,
    }))
}

/// The pool's configuration as the flags have it.
fn desired<O>(flags: &Flags, origins: O, catalog: Arc<dyn Catalog>, owned: Owned) -> Desired<O> {
    let base = Config {
        capacity: Some(flags.max_pods).filter(|&pods| pods > 0),
        scan_interval: flags.scan_interval.into(),
        ready_timeout: flags.pod_ready_timeout.into(),
        pending_timeout: flags.pod_pending_timeout.into(),
        ..Config::default()
    };
    Desired { base, origins, owned, catalog, warm_up: flags.warm_up_pod_cache, warmed_up: HashSet::new() }
}
