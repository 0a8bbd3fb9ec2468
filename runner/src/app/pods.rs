//! Wires the pod runtime: where pods live, what they are made from, who owns them.

mod pool;

use std::sync::Arc;
use std::time::Duration;

use porch_fn_discovery::{HostPort, Source, Target};
use porch_fn_kubernetes::{Connected, connect};
use porch_fn_lifecycle::drain;
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_pool::{Config, OwnedShards};
use porch_fn_registry::CredentialsFileContent;
use porch_fn_ring::{Identity, fingerprint};
use tokio::sync::watch;
use tokio::time::timeout;

use self::pool::ToPool;
use super::registries::{Registries, registries};
use super::{AppError, Pods};
use crate::config::{Flags, PodBackend, PodConnect};
use crate::metrics::Metrics;
use crate::ownership::{Ownership, Peers};
use crate::pods::PodRuntime;
use crate::pods::configure::Desired;
use crate::pods::kubernetes::function_configs::{self, Counts};
use crate::pods::kubernetes::pull_secret::PullSecret;
use crate::pods::kubernetes::{self, ObjectNames, Surroundings, Templates};
use crate::pods::local::{LocalCluster, LocalFunctions, LocalOptions};
use crate::settings::{CurrentSettings, Sources};

/// All local pods and runners are on one clock.
const LOCAL_SKEW: Duration = Duration::from_secs(1);
/// How long the start waits for the FunctionConfigs: with them, the first configuration of the pool is the right one.
const FIRST_FUNCTIONS_WITHIN: Duration = Duration::from_secs(5);

/// The pod runtime, if there is one, and what belongs to it.
#[derive(Default)]
pub(super) struct PodParts {
    pub(super) runtime: Option<PodRuntime>,
    /// Turns true when the pods are known; `None`: they are from the start.
    pub(super) synced: Option<watch::Receiver<bool>>,
    /// Local pods of its own, ended last.
    pub(super) local: Option<LocalCluster>,
    /// The settings that it goes by, FunctionConfigs included.
    pub(super) current: Option<watch::Receiver<CurrentSettings>>,
    /// Where its pods live: runners with the same text see the same pods.
    pub(super) scope: String,
}

/// What every kind of pod runtime starts from.
pub(super) struct PodWiring<'a> {
    pub(super) flags: &'a Flags,
    pub(super) metrics: &'a Arc<Metrics>,
    /// Gets the tasks that keep the runtime going.
    pub(super) tasks: &'a mut Tasks,
    /// Gets who is on the ring, with `--peers`.
    pub(super) ring: &'a mut Option<watch::Receiver<Arc<[Identity]>>>,
    /// Says when this runner is about to leave its peers.
    pub(super) drain: drain::Watch,
}

impl PodWiring<'_> {
    /// Starts the pod runtime that the flags ask for, which goes by `sources`; none without `pods`.
    pub(super) async fn start(
        mut self,
        pods: Option<Pods>,
        sources: &mut Sources,
    ) -> Result<PodParts, AppError> {
        let Some(pods) = pods else { return self.without_pods().await };
        match (pods, backend(self.flags)) {
            (Pods::Shared(cluster, functions), _) => self.on_this_machine(&cluster, functions, sources).await,
            (Pods::Flags, PodBackend::Local) => {
                let (cluster, functions) = local_cluster(self.flags)?;
                let parts = self.on_this_machine(&cluster, functions, sources).await?;
                Ok(PodParts { local: Some(cluster), ..parts })
            }
            (Pods::Flags, PodBackend::Kubernetes) => self.on_kubernetes(sources).await,
            (Pods::Flags, PodBackend::None | PodBackend::Auto) => self.without_pods().await,
        }
    }

    /// No pod runtime. There is nothing to own, but who is on the ring is shown as elsewhere.
    async fn without_pods(mut self) -> Result<PodParts, AppError> {
        self.join_peers().await?;
        Ok(PodParts::default())
    }

    async fn on_this_machine(
        &mut self,
        cluster: &LocalCluster,
        functions: LocalFunctions,
        sources: &Sources,
    ) -> Result<PodParts, AppError> {
        let pool = ToPool::new();
        let owned = self.join_peers().await?;
        let backend = cluster.attach(pool.events.clone());
        let catalog = Arc::new(functions.clone());
        let base = Config { skew: LOCAL_SKEW, ..base_config(self.flags) };
        let current = self.follow_settings(sources.clone());
        let desired = Desired { base, origins: functions, owned, warm_up: None };
        let runtime = self.runtime(desired, backend, pool, catalog, &current);
        let scope = cluster.scope();
        Ok(PodParts { runtime: Some(runtime), current: Some(current), scope, ..PodParts::default() })
    }

    async fn on_kubernetes(&mut self, sources: &mut Sources) -> Result<PodParts, AppError> {
        let flags = self.flags;
        let template = match (given(&flags.function_pod_template), given(&flags.wrapper_server_image)) {
            (Some(name), _) => Templates::ConfigMap(name),
            (None, Some(wrapper_image)) => Templates::Objects {
                names: ObjectNames {
                    pod: flags.base_pod_template_name.clone(),
                    service: flags.base_service_template_name.clone(),
                },
                built_in: (!flags.skip_template_creation).then_some(wrapper_image),
                wait: flags.template_wait_timeout.into(),
            },
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
        let Registries { images, credentials } = registries(flags, self.metrics, self.tasks)?;
        let pool = ToPool::new();
        // Before the first pods are known: until it has heard of its peers, a runner owns nothing.
        let owned = self.join_peers().await?;
        let connected = connect(flags.kubeconfig.as_deref(), "porch-fn-runner").await?;
        self.follow_function_configs(&connected, &owned, sources);
        let pull_secret = flags.enable_private_registries.then(|| flags.registry_auth_secret_name.clone());
        let secret_written = pull_secret
            .as_ref()
            .map(|name| self.copy_credentials(&connected, name, credentials.subscribe(), &owned));
        let options = kubernetes::Options {
            pod_namespace: flags.pod_namespace.clone(),
            own_namespace: given(&flags.namespace),
            template,
            service_domain,
            max_message: flags.max_request_body_size,
            pull_secret,
            metadata_ttl: flags.image_metadata_ttl.into(),
            scan_interval: flags.scan_interval.into(),
        };
        let surroundings = Surroundings {
            images: Arc::clone(&images),
            settings: sources.current().settings,
            owned: owned.clone(),
            secret_written,
            events: pool.events.clone(),
            metrics: Arc::clone(self.metrics),
        };
        let mut functions = sources.functions.clone();
        let wait_for_functions = async move {
            let _ = timeout(FIRST_FUNCTIONS_WITHIN, functions.wait_for(Option::is_some)).await;
        };
        let (parts, ()) = tokio::join!(
            kubernetes::start(&connected, options, surroundings, self.tasks),
            wait_for_functions
        );
        let current = self.follow_settings(sources.clone());
        let desired = Desired { base: base_config(flags), origins: parts.blueprints, owned, warm_up: None };
        let runtime = self.runtime(desired, parts.backend, pool, images, &current);
        Ok(PodParts {
            runtime: Some(runtime),
            synced: Some(parts.synced),
            local: None,
            current: Some(current),
            scope: format!("kubernetes/{}", flags.pod_namespace),
        })
    }

    /// Has `sources` follow the FunctionConfigs of the function namespace.
    fn follow_function_configs(
        &mut self,
        connected: &Connected,
        owned: &watch::Receiver<OwnedShards>,
        sources: &mut Sources,
    ) {
        let options = function_configs::Options {
            client: connected.client.clone(),
            namespace: self.flags.pod_namespace.clone(),
            default_prefix: self.flags.default_image_prefix.clone(),
            semantics: self.flags.functionconfig_tags.semantics(),
            retry_every: self.flags.scan_interval.into(),
            schema_every: function_configs::SCHEMA_EVERY,
            schema_within: function_configs::SCHEMA_WITHIN,
        };
        let (sender, functions) = watch::channel(None);
        sources.functions = functions;
        let (counts, counted) = watch::channel(Counts::default());
        let show = show_function_configs(counted, Arc::clone(self.metrics));
        self.tasks.keep(tracing::info_span!("functionconfigs"), show);
        let follow = function_configs::follow(options, owned.clone(), sender, counts);
        self.tasks.keep(tracing::info_span!("functionconfigs"), follow);
    }

    /// Copies the credentials into the function namespace.
    fn copy_credentials(
        &mut self,
        connected: &Connected,
        name: &str,
        content: watch::Receiver<Option<CredentialsFileContent>>,
        owned: &watch::Receiver<OwnedShards>,
    ) -> watch::Receiver<bool> {
        let (sender, settled) = watch::channel(false);
        let secret = PullSecret {
            client: connected.client.clone(),
            namespace: self.flags.pod_namespace.clone(),
            name: name.to_owned(),
        };
        let follow = secret.follow(content, owned.clone(), self.flags.scan_interval.into(), sender);
        self.tasks.keep(tracing::info_span!("pull secret"), follow);
        settled
    }

    fn follow_settings(&mut self, sources: Sources) -> watch::Receiver<CurrentSettings> {
        let (follow, current) = sources.follow();
        self.tasks.keep(tracing::info_span!("settings"), follow);
        current
    }

    /// Follows which images are this runner's. Without `--peers` all are.
    async fn join_peers(&mut self) -> Result<watch::Receiver<OwnedShards>, AppError> {
        let flags = self.flags;
        if flags.peers.is_empty() {
            let (_, all) = watch::channel(OwnedShards::All);
            return Ok(all);
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
        let source = Source::of(target, flags.kubeconfig.as_deref(), "porch-fn-runner").await;
        let source = source.map_err(|error| wrong("peers", &error))?;
        let (watch, snapshots) = porch_fn_discovery::watch(source);
        self.tasks.keep(tracing::info_span!("peers"), watch);
        let ownership = Ownership::new(own.to_string());
        let owned = ownership.owned();
        *self.ring = Some(ownership.ring());
        let show = show_ring(ownership.peers(), ownership.ring(), Arc::clone(self.metrics));
        self.tasks.keep(tracing::info_span!("ring"), show);
        self.tasks.keep(tracing::info_span!("ownership"), ownership.run(snapshots, self.drain.clone()));
        Ok(owned)
    }
}

/// Keeps the metrics in step with the FunctionConfigs.
async fn show_function_configs(mut counted: watch::Receiver<Counts>, metrics: Arc<Metrics>) {
    loop {
        let Counts { objects, problems, broken } = *counted.borrow_and_update();
        metrics.function_configs(objects, problems);
        metrics.config_valid("functionconfigs", broken == 0);
        if counted.changed().await.is_err() {
            return;
        }
    }
}

/// Keeps the metrics in step with the ring.
async fn show_ring(
    mut peers: watch::Receiver<Peers>,
    ring: watch::Receiver<Arc<[Identity]>>,
    metrics: Arc<Metrics>,
) {
    loop {
        let Peers { members, listed } = *peers.borrow_and_update();
        // Told before the peers.
        metrics.ring(members, listed, fingerprint(&ring.borrow()));
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

/// What is not told of each image.
fn base_config(flags: &Flags) -> Config {
    Config {
        capacity: Some(flags.max_pods).filter(|&pods| pods > 0),
        scan_interval: flags.scan_interval.into(),
        ready_timeout: flags.pod_ready_timeout.into(),
        pending_timeout: flags.pod_pending_timeout.into(),
        ..Config::default()
    }
}
