//! Wires the runner: the only place that knows all of its parts.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use futures_util::FutureExt;
use porch_fn_image::Image;
use porch_fn_pool::{Config, ImageKey, Limits, Override, Overrides};
use porch_fn_service::admin::{Admin, JSON, Page};
use porch_fn_service::drain;
use porch_fn_service::flags::{EXIT_USAGE, SetFlags};
use porch_fn_service::grpc::{self, Server};
use porch_fn_service::health::Health;
use porch_fn_service::lifecycle::{self, DrainTimes, Drained};
use porch_fn_service::listen::{ListenError, listen};
use porch_fn_service::{admin, serve};
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::config::{Flags, NOT_EFFECTIVE_YET, PodBackend};
use crate::evaluate::Runner;
use crate::exec::{ConfigError, ExecRuntime, Executables};
use crate::metrics::Metrics;
use crate::pods::cache_config::{self, CacheConfigError};
use crate::pods::local::{LocalCluster, LocalFunctions, LocalFunctionsError, LocalOptions};
use crate::pods::{PodRuntime, page};

/// Why the runner could not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A port cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The exec runtime's file cannot be used.
    #[error(transparent)]
    ExecConfig(#[from] ConfigError),
    /// The local pods' file cannot be used.
    #[error(transparent)]
    LocalFunctions(#[from] LocalFunctionsError),
    /// The pool's file cannot be used.
    #[error(transparent)]
    CacheConfig(#[from] CacheConfigError),
    /// Flags that do not go together.
    #[error("{0}")]
    Flags(String),
}

impl AppError {
    /// The process's exit code: 64 for what the user can mend in flags and files.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            AppError::Listen(_) => ExitCode::FAILURE,
            _ => ExitCode::from(EXIT_USAGE),
        }
    }
}

/// Where the pod runtime's pods come from.
#[derive(Debug)]
pub enum Pods {
    /// What the flags say.
    Flags,
    /// Local pods shared with other runners of this process, which whoever made them stops.
    Shared(LocalCluster, LocalFunctions),
}

/// A running runner. Dropping it cuts everything off; [`drain`](Self::drain) ends it in order.
#[derive(Debug)]
pub struct App {
    address: SocketAddr,
    admin_address: SocketAddr,
    health: Health,
    signal: drain::Signal,
    drain_times: DrainTimes,
    /// The server, which the drain waits for.
    server: JoinSet<()>,
    /// The pool's driver and the admin port.
    background: JoinSet<()>,
    /// Local pods of its own, ended last.
    local: Option<LocalCluster>,
}

impl App {
    /// Binds both ports and starts everything. `set` tells defaults from what the user wrote.
    pub async fn start(flags: Flags, set: &SetFlags, pods: Pods) -> Result<Self, AppError> {
        for flag in set.among(&NOT_EFFECTIVE_YET) {
            tracing::warn!("--{flag} is accepted and has no effect in this version");
        }
        let disabled = disabled_runtimes(&flags)?;
        let (listener, address) = listen(flags.address, flags.port, "--port").await?;
        let (admin_listener, admin_address) = listen(flags.address, flags.admin_port, "--admin-port").await?;
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry));
        let health = Health::new();
        let (signal, drain) = drain::channel();
        let mut background = JoinSet::new();
        let mut pages = Vec::new();

        let exec = if disabled.exec { None } else { exec_runtime(&flags, set)? };
        let mut local = None;
        let pods = match pods {
            _ if disabled.pod => None,
            Pods::Shared(cluster, functions) => Some((cluster, functions)),
            Pods::Flags if flags.pod_backend == PodBackend::Local => {
                let (cluster, functions) = local_cluster(&flags)?;
                local = Some(cluster.clone());
                Some((cluster, functions))
            }
            Pods::Flags => None,
        };
        let pods = match pods {
            Some((cluster, functions)) => {
                let (config, warm_up) = pool_config(&flags, set, &functions)?;
                let (backend, events) = cluster.attach();
                let (runtime, driver) = PodRuntime::new(
                    config,
                    backend,
                    events,
                    Arc::new(functions),
                    flags.default_image_prefix.clone(),
                    flags.max_request_body_size,
                    Arc::clone(&metrics),
                );
                background.spawn(driver.instrument(tracing::info_span!("pool")));
                if flags.warm_up_pod_cache {
                    runtime.warm_up(warm_up);
                }
                let pool = runtime.pool();
                pages.push(Page {
                    path: "/pods",
                    content_type: JSON,
                    content: Box::new(move || page(pool.clone()).boxed()),
                });
                Some(runtime)
            }
            None => None,
        };
        if exec.is_none() && pods.is_none() {
            tracing::warn!(
                "no runtime is enabled: every call is answered NOT_FOUND; see --config, --pod-backend and \
                 --disable-runtimes"
            );
        }

        let pages = Admin::new(health.clone(), registry, pages);
        background.spawn(admin::serve(admin_listener, pages).instrument(tracing::info_span!("admin")));
        let options = grpc::Options {
            max_message: flags.max_request_body_size,
            default_timeout: flags.request_timeout.into(),
            default_timeout_text: "no answer within --request-timeout, which bounds calls without a deadline",
        };
        let server = Server::new(Arc::new(Runner::new(exec, pods, metrics)), &health, options);
        let handler = move |request| {
            let server = Arc::clone(&server);
            async move { server.handle(request).await }
        };
        let mut serving = JoinSet::new();
        serving.spawn(serve::serve(listener, None, handler, drain).instrument(tracing::info_span!("serve")));
        health.set("", true);
        let drain_times = DrainTimes { delay: flags.drain_delay.into(), timeout: flags.drain_timeout.into() };
        Ok(Self { address, admin_address, health, signal, drain_times, server: serving, background, local })
    }

    /// Where calls are taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the admin port listens.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Stops in order: unready, stop accepting, finish, deadline, and then the pods that are its own.
    pub async fn drain(mut self) -> Drained {
        let drained = lifecycle::drain(&self.health, &mut self.signal, self.drain_times).await;
        self.server.shutdown().await;
        self.background.shutdown().await;
        if let Some(local) = &self.local {
            local.stop().await;
        }
        drained
    }
}

struct Disabled {
    exec: bool,
    pod: bool,
}

fn disabled_runtimes(flags: &Flags) -> Result<Disabled, AppError> {
    let mut disabled = Disabled { exec: false, pod: false };
    for runtime in flags.disable_runtimes.iter() {
        match runtime.as_str() {
            "exec" => disabled.exec = true,
            "pod" => disabled.pod = true,
            other => {
                let text =
                    format!("--disable-runtimes: there is no runtime {other:?}; exec and pod are accepted");
                return Err(AppError::Flags(text));
            }
        }
    }
    Ok(disabled)
}

/// Whether the file or directory that `--flag` names is there. One that the user named must be.
fn present(flag: &str, path: &Path, set: &SetFlags) -> Result<bool, AppError> {
    if path.exists() {
        return Ok(true);
    }
    if set.contains(flag) {
        let text = format!("--{flag} {}: no such file or directory", path.display());
        return Err(AppError::Flags(text));
    }
    tracing::info!(path = %path.display(), "the default of --{flag} does not exist");
    Ok(false)
}

fn exec_runtime(flags: &Flags, set: &SetFlags) -> Result<Option<ExecRuntime>, AppError> {
    present("functions", &flags.functions, set)?;
    if !present("config", &flags.config, set)? {
        return Ok(None);
    }
    let executables = Executables::read(&flags.config, &flags.functions, &flags.default_image_prefix)?;
    let parallel = match flags.max_parallel_executions {
        0 => 2 * std::thread::available_parallelism().map_or(1, usize::from),
        set => set,
    };
    let runtime = ExecRuntime::new(executables, &flags.exec_env, parallel, flags.max_request_body_size);
    Ok(Some(runtime))
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

/// The pool's configuration, and the images to warm up.
fn pool_config(
    flags: &Flags,
    set: &SetFlags,
    functions: &LocalFunctions,
) -> Result<(Config, Vec<Image>), AppError> {
    let entries = if present("pod-cache-config", &flags.pod_cache_config, set)? {
        cache_config::read(&flags.pod_cache_config, &flags.default_image_prefix)?
    } else {
        Vec::new()
    };
    let overrides = cache_config::overrides(&entries);
    let functions = functions.clone();
    let config = Config {
        limits: Limits {
            max_pods: flags.max_parallel_pods_per_function.max(1),
            waitlist: flags.max_waitlist_length.max(1),
            per_pod: flags.max_concurrent_per_pod.max(1),
            queue: flags.max_queue_per_function,
            ttl: flags.pod_ttl.into(),
        },
        overrides: Overrides::by(move |image: &ImageKey| {
            let limits = overrides.get(image).cloned().unwrap_or_default();
            Override { template: functions.template(image), ..limits }
        }),
        scan_interval: flags.scan_interval.into(),
        ready_timeout: flags.pod_ready_timeout.into(),
        // All local pods and runners are on one clock.
        skew: std::time::Duration::from_secs(1),
        ..Config::default()
    };
    Ok((config, entries.into_iter().map(|entry| entry.image).collect()))
}
