//! Wires the pod runtime: where pods live, what they are made from, who owns them.

use std::sync::Arc;
use std::time::Duration;

use porch_fn_pool::{Config, Event, Limits};
use porch_fn_service::discovery::{self, DnsResolver, HostPort, Target};
use porch_fn_service::flags::SetFlags;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::Instrument;

use super::{AppError, Pods, present};
use crate::config::{Flags, PodBackend, PodConnect};
use crate::metrics::Metrics;
use crate::ownership::{Ownership, Peers};
use crate::pods::cache_config::{self, CacheConfig};
use crate::pods::configure::{self, Making};
use crate::pods::kubernetes::metadata::MetadataFile;
use crate::pods::kubernetes::{self, AllImages, Templates};
use crate::pods::local::{LocalCluster, LocalFunctions, LocalOptions};
use crate::pods::{Backend, Catalog, PodRuntime};

/// All local pods and runners are on one clock.
const LOCAL_SKEW: Duration = Duration::from_secs(1);
/// The longest wait until a changed `--pod-cache-config` is read.
const REREAD_EVERY: Duration = Duration::from_secs(10);

/// The pod runtime, if there is one, and what belongs to it.
#[derive(Default)]
pub(super) struct PodParts {
    pub(super) runtime: Option<PodRuntime>,
    /// Turns true when the pods are known; `None`: they are from the start.
    pub(super) synced: Option<watch::Receiver<bool>>,
    /// Local pods of its own, ended last.
    pub(super) local: Option<LocalCluster>,
}

/// What every kind of pod runtime starts from.
pub(super) struct PodWiring<'a> {
    pub(super) flags: &'a Flags,
    pub(super) set: &'a SetFlags,
    pub(super) metrics: &'a Arc<Metrics>,
    /// Gets the tasks that keep the runtime going.
    pub(super) tasks: &'a mut JoinSet<()>,
}

impl PodWiring<'_> {
    /// Starts the pod runtime that the flags ask for.
    pub(super) async fn start(mut self, pods: Pods) -> Result<PodParts, AppError> {
        match (pods, backend(self.flags)) {
            (Pods::Shared(cluster, functions), _) => self.on_this_machine(&cluster, functions),
            (Pods::Flags, PodBackend::Local) => {
                let (cluster, functions) = local_cluster(self.flags)?;
                let parts = self.on_this_machine(&cluster, functions)?;
                Ok(PodParts { local: Some(cluster), ..parts })
            }
            (Pods::Flags, PodBackend::Kubernetes) => self.on_kubernetes().await,
            (Pods::Flags, PodBackend::None | PodBackend::Auto) => Ok(PodParts::default()),
        }
    }

    fn on_this_machine(
        &mut self,
        cluster: &LocalCluster,
        functions: LocalFunctions,
    ) -> Result<PodParts, AppError> {
        let (events, receiver) = mpsc::unbounded_channel();
        self.join_peers(&events)?;
        let backend = cluster.attach(events.clone());
        let catalog = Arc::new(functions.clone());
        let base = Config { skew: LOCAL_SKEW, ..base_config(self.flags) };
        let runtime = self.runtime(base, functions, backend, (events, receiver), catalog)?;
        Ok(PodParts { runtime: Some(runtime), ..PodParts::default() })
    }

    async fn on_kubernetes(&mut self) -> Result<PodParts, AppError> {
        let flags = self.flags;
        let template = match (given(&flags.function_pod_template), given(&flags.wrapper_server_image)) {
            (Some(name), _) => Templates::ConfigMap(name),
            (None, Some(wrapper_image)) => Templates::BuiltIn { wrapper_image },
            (None, None) => {
                let text = "function pods need WRAPPER_SERVER_IMAGE, the image with the wrapper-server, or a template of \
                        their own with --function-pod-template; --disable-runtimes=pod runs without pods";
                return Err(AppError::Flags(text.to_owned()));
            }
        };
        let service_domain = match flags.pod_connect {
            PodConnect::Service => Some(cluster_domain(flags)?),
            PodConnect::PodIp => None,
        };
        let metadata = match &flags.image_metadata {
            Some(path) => MetadataFile::read(path, &flags.default_image_prefix)?,
            None => {
                tracing::warn!("no function pod can be made without --image-metadata");
                MetadataFile::default()
            }
        };
        let (events, receiver) = mpsc::unbounded_channel();
        // Before the first pods are known: until it has heard of its peers, a runner owns nothing.
        self.join_peers(&events)?;
        let options = kubernetes::Options {
            kubeconfig: flags.kubeconfig.clone(),
            pod_namespace: flags.pod_namespace.clone(),
            own_namespace: given(&flags.namespace),
            template,
            service_domain,
            max_message: flags.max_request_body_size,
            scan_interval: flags.scan_interval.into(),
        };
        let parts = kubernetes::start(options, Arc::new(metadata), events.clone(), self.tasks).await?;
        let base = base_config(flags);
        let catalog = Arc::new(AllImages);
        let runtime = self.runtime(base, parts.blueprints, parts.backend, (events, receiver), catalog)?;
        Ok(PodParts { runtime: Some(runtime), synced: Some(parts.synced), local: None })
    }

    /// The runtime over `backend`, with the tasks that drive it and keep its configuration up to date.
    fn runtime(
        &mut self,
        base: Config,
        mut making: impl Making,
        backend: impl Backend,
        (events, receiver): (mpsc::UnboundedSender<Event>, mpsc::UnboundedReceiver<Event>),
        catalog: Arc<dyn Catalog>,
    ) -> Result<PodRuntime, AppError> {
        let flags = self.flags;
        let cache = self.cache_config()?;
        let first = Arc::clone(&cache.borrow());
        let config = configure::config(&base, &first, making.made_from(&first));
        let (runtime, driver) = PodRuntime::new(
            config,
            backend,
            receiver,
            catalog,
            flags.default_image_prefix.clone(),
            flags.max_request_body_size,
            Arc::clone(self.metrics),
        );
        self.tasks.spawn(driver.instrument(tracing::info_span!("pool")));
        let follow = configure::follow(base, making, cache, events);
        self.tasks.spawn(follow.instrument(tracing::info_span!("configuration")));
        if flags.warm_up_pod_cache {
            runtime.warm_up(first.entries.iter().map(|entry| entry.image.clone()));
        }
        Ok(runtime)
    }

    /// `--pod-cache-config` as it is and as it will be.
    fn cache_config(&mut self) -> Result<watch::Receiver<Arc<CacheConfig>>, AppError> {
        let flags = self.flags;
        let path = &flags.pod_cache_config;
        let first = if present("pod-cache-config", path, self.set)? {
            cache_config::read_config(path, &flags.default_image_prefix)?
        } else {
            CacheConfig::default()
        };
        let every = REREAD_EVERY.min(flags.scan_interval.into());
        let (watch, cache) =
            cache_config::watch(path.clone(), flags.default_image_prefix.clone(), every, first);
        self.tasks.spawn(watch.instrument(tracing::info_span!("pod-cache-config")));
        Ok(cache)
    }

    /// Has the pool told which images are this runner's. Without `--peers` all are.
    fn join_peers(&mut self, events: &mpsc::UnboundedSender<Event>) -> Result<(), AppError> {
        let flags = self.flags;
        if flags.peers.is_empty() {
            return Ok(());
        }
        let wrong = |flag: &str, error: &dyn std::fmt::Display| AppError::Flags(format!("--{flag}: {error}"));
        let target = Target::parse(&flags.peers, flags.port).map_err(|error| wrong("peers", &error))?;
        if flags.shard_address.is_empty() {
            let text =
                "--peers needs --shard-address, this runner's own address among them (POD_IP in a pod)";
            return Err(AppError::Flags(text.to_owned()));
        }
        let own = HostPort::parse(&flags.shard_address, flags.port)
            .map_err(|error| wrong("shard-address", &error))?;
        let resolver = DnsResolver::new(target.dns_server()).map_err(|error| wrong("peers", &error))?;
        let (watch, snapshots) = discovery::watch(target, resolver, std::future::pending());
        self.tasks.spawn(watch.instrument(tracing::info_span!("peers")));
        let ownership = Ownership::new(own.to_string(), events.clone());
        let show = show_ring(ownership.peers(), Arc::clone(self.metrics));
        self.tasks.spawn(show.instrument(tracing::info_span!("ring")));
        self.tasks.spawn(ownership.run(snapshots).instrument(tracing::info_span!("ownership")));
        Ok(())
    }
}

/// Keeps the metrics in step with the ring.
async fn show_ring(mut peers: watch::Receiver<Peers>, metrics: Arc<Metrics>) {
    loop {
        let Peers { members, listed } = *peers.borrow_and_update();
        metrics.ring(members, listed);
        if peers.changed().await.is_err() {
            return;
        }
    }
}

/// Where pods are to run.
fn backend(flags: &Flags) -> PodBackend {
    let in_cluster = || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    match flags.pod_backend {
        PodBackend::Auto if flags.kubeconfig.is_some() || in_cluster() => PodBackend::Kubernetes,
        PodBackend::Auto => PodBackend::None,
        chosen => chosen,
    }
}

/// Checked here, since it is part of every Service's name.
fn cluster_domain(flags: &Flags) -> Result<String, AppError> {
    let name = format!("pod.{}.svc.{}", flags.pod_namespace, flags.cluster_domain);
    match HostPort::parse(&name, 1) {
        Ok(host) if host.host == name => Ok(flags.cluster_domain.clone()),
        _ => {
            let text = format!(
                "--cluster-domain {:?} or --pod-namespace {:?} is no DNS name",
                flags.cluster_domain, flags.pod_namespace
            );
            Err(AppError::Flags(text))
        }
    }
}

fn given(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

fn local_cluster(flags: &Flags) -> Result<(LocalCluster, LocalFunctions), AppError> {
    let Some(path) = &flags.local_functions else {
        return Err(AppError::Flags("--pod-backend=local needs --local-functions FILE".to_owned()));
    };
    let functions = LocalFunctions::read(path, &flags.default_image_prefix)?;
    let options = LocalOptions {
        wrapper: vec![flags.wrapper_server.clone().into_os_string()],
        max_message: flags.max_request_body_size,
        log_level: flags.log_level,
        functions: functions.clone(),
    };
    Ok((LocalCluster::new(options), functions))
}

/// What the flags alone say.
fn base_config(flags: &Flags) -> Config {
    Config {
        limits: Limits {
            max_pods: flags.max_parallel_pods_per_function.max(1),
            waitlist: flags.max_waitlist_length.max(1),
            per_pod: flags.max_concurrent_per_pod.max(1),
            queue: flags.max_queue_per_function,
            ttl: flags.pod_ttl.into(),
        },
        scan_interval: flags.scan_interval.into(),
        ready_timeout: flags.pod_ready_timeout.into(),
        ..Config::default()
    }
}
