//! Sets up the pod runtime: its backend, the configuration of its pods, and the ownership of
//! images.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::SignedDuration;
use porch_fn_discovery::{HostPort, Target};
use porch_fn_lifecycle::drain;
use porch_fn_pool::{Config, Event, OwnedShards, PodRecipe};
use porch_fn_settings::Resolved;
use tokio::sync::{mpsc, watch};

use super::{AppError, Wiring};
use crate::ownership::Ownership;
use crate::pods::configure::{Desired, Origins, ranges};
use crate::pods::images::ImageSource;
use crate::pods::kubernetes::store::Store;
use crate::pods::local::{LocalCluster, LocalOptions};
use crate::pods::{Backend, Driver, Events, ImageCommands, PodRuntime, moved_tags};
use crate::settings::{CurrentSettings, Sources};
use porch_fn_runner_config::{Flags, PodBackend};

/// Local pods and runners share one clock, so a small skew is enough.
const LOCAL_SKEW: Duration = Duration::from_secs(1);

/// The pod runtime, if it is enabled, with its settings and state.
pub(super) struct PodParts {
    /// The runtime's settings, including FunctionConfigs.
    pub(super) current: watch::Receiver<CurrentSettings>,
    pub(super) runtime: Option<PodRuntime>,
    /// Identifies the set of pods: runners with the same scope see the same pods.
    pub(super) scope: String,
    /// Becomes true when the runtime knows the existing pods; `None` if it knows them from the
    /// start.
    pub(super) synced: Option<watch::Receiver<bool>>,
    /// The pods of a cluster.
    pub(super) store: Option<Arc<Store>>,
}

/// Which images this runner owns.
pub(super) type Owned = watch::Receiver<OwnedShards>;
/// The runners on the hash ring.
type RingMembers = watch::Receiver<Arc<[Arc<str>]>>;

impl Wiring<'_> {
    /// Tracks which images this runner owns, and with `--peers` which runners are on the hash ring.
    /// Without `--peers` the runner owns all images.
    pub(super) async fn join_peers(
        &mut self,
        drain: drain::Watch,
    ) -> Result<(Owned, Option<RingMembers>), AppError> {
        let flags = self.flags;
        if flags.peers.is_empty() {
            return Ok((watch::channel(OwnedShards::All).1, None));
        }
        let target = Target::parse(&flags.peers, flags.server.port);
        let target = target.map_err(|error| AppError::of_flag("peers", error))?;
        let own = own_address(flags, "peers")?;
        let kubeconfig = flags.server.kubeconfig.as_deref();
        let watched = porch_fn_discovery::watch(target, kubeconfig, "porch-fn-runner").await;
        let (discover, snapshots) = watched.map_err(|error| AppError::of_flag("peers", error))?;
        self.tasks.keep(tracing::info_span!("peers"), discover);
        let ownership = Ownership::new(own, Arc::clone(&self.metrics));
        let (owned, ring) = (ownership.owned.subscribe(), ownership.ring.subscribe());
        self.tasks.keep(tracing::info_span!("ownership"), ownership.run(snapshots, drain));
        Ok((owned, Some(ring)))
    }

    /// Starts the pod runtime that the flags choose, with the settings of `sources`. If `shared` is
    /// set and the flags enable pods, the runtime uses the local pods in `shared`, which several
    /// runners of this process use.
    pub(super) async fn pods(
        &mut self,
        shared: Option<LocalCluster>,
        sources: Sources,
        owned: Owned,
    ) -> Result<PodParts, AppError> {
        match (shared, backend(self.flags)) {
            (_, PodBackend::None) | (None, PodBackend::Auto) => {
                let current = self.follow_settings(sources);
                Ok(PodParts { current, runtime: None, scope: String::new(), synced: None, store: None })
            }
            (Some(cluster), _) => Ok(self.local_pods(&cluster, sources, owned)),
            (None, PodBackend::Local) => {
                let cluster = self.local_cluster()?;
                let parts = self.local_pods(&cluster, sources, owned);
                self.at_end.push(Box::new(move || async move { cluster.stop().await }.boxed()));
                Ok(parts)
            }
            (None, PodBackend::Kubernetes) => self.kubernetes_pods(sources, owned).await,
        }
    }

    fn local_cluster(&mut self) -> Result<LocalCluster, AppError> {
        let flags = self.flags;
        let prefix = &flags.server.default_image_prefix;
        let file = flags.local_functions.as_ref();
        let file = file.ok_or("--pod-backend=local needs --local-functions FILE".to_owned())?;
        let functions = ImageCommands::local(file, prefix)?;
        Ok(LocalCluster::new(LocalOptions {
            wrapper: vec![flags.wrapper_server.clone().into_os_string()],
            max_message: flags.server.max_request_body_size,
            log_level: flags.server.log_level,
            log_format: flags.server.log_format,
            functions,
            sandboxes: None,
        }))
    }

    fn local_pods(&mut self, cluster: &LocalCluster, sources: Sources, owned: Owned) -> PodParts {
        let events = events();
        cluster.subscribe(events.0.clone());
        // All local pods have the same configuration: their flags change only with the process.
        let origins: Origins<()> =
            Box::new(|_, ()| Box::new(|_, content| PodRecipe { content, ..PodRecipe::of("local", None) }));
        let mut desired = desired(self.flags, origins, watch::channel(()).1, cluster.images(), owned);
        desired.base.skew = LOCAL_SKEW;
        self.runtime(
            desired,
            Arc::new(cluster.clone()),
            SignedDuration::ZERO,
            events,
            sources,
            cluster.scope(),
        )
    }

    /// Creates the runtime for the pods of `backend`. Starts the tasks that run the pool and keep
    /// its configuration up to date. `scope` identifies the set of pods.
    pub(super) fn runtime(
        &mut self,
        mut desired: Desired<impl Send + Sync + 'static>,
        backend: Arc<dyn Backend>,
        clock_ahead: SignedDuration,
        events: Events,
        sources: Sources,
        scope: String,
    ) -> PodParts {
        let flags = self.flags;
        let current = self.follow_settings(sources);
        let images = Arc::clone(&desired.images);
        let (sender, resolved) = watch::channel(Resolved::default());
        let find = ranges::follow(current.clone(), Arc::clone(&images), desired.warm_up, sender);
        self.tasks.keep(tracing::info_span!("warm-up"), find);
        let config = desired.config(&current.borrow(), &Resolved::default());
        let sender = events.0.clone();
        let (driver, pool) = Driver::new(config, backend, clock_ahead, events, Arc::clone(&self.metrics));
        self.tasks.keep(tracing::info_span!("pool"), driver.run());
        let moved = moved_tags::follow(pool.clone(), Arc::clone(&images), flags.image_metadata_ttl.into());
        self.tasks.keep(tracing::info_span!("tags"), moved);
        let follow = desired.follow(current.clone(), resolved, sender);
        self.tasks.keep(tracing::info_span!("configuration"), follow);
        let runtime = PodRuntime {
            pool,
            images,
            default_prefix: flags.server.default_image_prefix.clone(),
            max_message: flags.server.max_request_body_size,
            max_retries: flags.max_grpc_retries,
            metrics: Arc::clone(&self.metrics),
        };
        PodParts { current, runtime: Some(runtime), scope, synced: None, store: None }
    }

    fn follow_settings(&mut self, sources: Sources) -> watch::Receiver<CurrentSettings> {
        let (follow, current) = sources.follow();
        self.tasks.keep(tracing::info_span!("settings"), follow);
        current
    }
}

/// The address of this runner, in the form that routers use. `--needed_by` needs it.
pub(super) fn own_address(flags: &Flags, needed_by: &str) -> Result<String, AppError> {
    if flags.shard_address.is_empty() {
        let text = "needs --shard-address, this runner's own address (POD_IP in a pod)";
        return Err(AppError::Usage(format!("--{needed_by} {text}")));
    }
    let own = HostPort::parse(&flags.shard_address, flags.server.port);
    own.map(|own| own.to_string()).map_err(|error| AppError::of_flag("shard-address", error))
}

/// Creates the pool's event channel. Its first event reports to the pool that this runner owns no
/// image yet.
pub(super) fn events() -> Events {
    let (sender, receiver) = mpsc::unbounded_channel();
    // Cannot fail: the receiver is here.
    let _ = sender.send(Event::Own(OwnedShards::None));
    (sender, receiver)
}

/// Chooses the backend. Outside of a cluster, `Auto` stays `Auto`, which means no pods.
fn backend(flags: &Flags) -> PodBackend {
    let in_cluster = || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    match flags.pod_backend {
        _ if !flags.is_enabled("pod") => PodBackend::None,
        PodBackend::Auto if flags.server.kubeconfig.is_some() || in_cluster() => PodBackend::Kubernetes,
        chosen => chosen,
    }
}

/// The pool's configuration according to the flags.
pub(super) fn desired<T>(
    flags: &Flags,
    origins: Origins<T>,
    template: watch::Receiver<T>,
    images: Arc<ImageSource>,
    owned: Owned,
) -> Desired<T> {
    let base = Config {
        capacity: Some(flags.max_pods).filter(|&pods| pods > 0),
        scan_interval: flags.scan_interval.into(),
        ready_timeout: flags.pod_ready_timeout.into(),
        pending_timeout: flags.pod_pending_timeout.into(),
        ..Config::default()
    };
    Desired {
        base,
        origins,
        template,
        owned,
        images,
        warm_up: flags.warm_up_pod_cache,
        warmed_up: HashSet::new(),
    }
}
