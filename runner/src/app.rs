//! Wires the runner: the only place that knows all of its parts.

mod pods;
mod registries;
mod settings;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use percent_encoding::percent_decode_str;
use porch_fn_admin::rpc_metrics::{RpcMetrics, Side};
use porch_fn_admin::{Admin, JSON, Page};
use porch_fn_flags::{EXIT_USAGE, SetFlags};
use porch_fn_grpc::listen::{ListenError, listen};
use porch_fn_grpc::serve;
use porch_fn_grpc::{Hop, Inflight, LimitError, Server, inflight_limit};
use porch_fn_image::Image;
use porch_fn_kubernetes::ConnectError;
use porch_fn_lifecycle::drain;
use porch_fn_lifecycle::health::Health;
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_lifecycle::{App, AtEnd, DrainTimes};
use porch_fn_settings::ExecConfig;
use porch_fn_spans::Spans;
use porch_fn_spans::otel::Otel;
use porch_fn_tls::{Acceptor, Gauges, TlsError};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use self::pods::{PodParts, PodWiring};
use crate::config::Flags;
use crate::describe::{Describe, Parts as DescribeParts};
use crate::evaluate::Runner;
use crate::exec::{ExecHash, ExecRuntime};
use crate::metrics::Metrics;
use crate::pods::local::{LocalCluster, LocalFunctions};
use crate::pods::page;
use crate::settings::CurrentSettings;
use crate::settings_file::{Content, FileError};

/// How long readiness waits for the API server.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Why the runner could not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A port cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A file of settings cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Flags that do not go together.
    #[error("{0}")]
    Flags(String),
    /// The same of what may be in flight.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// There is no TLS with these files.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No way to the API server for the pods.
    #[error("--pod-backend=kubernetes needs the API server: {0}; --disable-runtimes=pod runs without pods")]
    Kubernetes(#[from] ConnectError),
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

/// Binds both ports and starts everything. `set` tells defaults from what the user wrote.
///
/// # Errors
/// [`AppError`], when flags and files do not fit or a port is taken.
pub async fn start(flags: Flags, set: &SetFlags, pods: Pods) -> Result<App, AppError> {
    let ready_by = Instant::now() + READY_WITHIN;
    let disabled = disabled_runtimes(&flags)?;
    let limit = inflight_limit(flags.max_inflight_bytes, flags.max_request_body_size)?;
    let inflight = Inflight::new(limit, Hop::Runner);
    let (listener, address) = listen(flags.address, flags.port, "--port").await?;
    let otel = Otel::from_env();
    otel.warn();
    let spans = Spans::start(&otel, "porch-fn-runner", env!("CARGO_PKG_VERSION"));
    let admin_host = flags.address.or(otel.admin_host);
    let (admin_listener, admin_address) = listen(admin_host, flags.admin_port, "--admin-port").await?;
    let mut registry = Registry::default();
    otel.register(&mut registry, "porch-fn-runner", env!("CARGO_PKG_VERSION"));
    let metrics = Arc::new(Metrics::new(&mut registry, &inflight));
    let served = Arc::new(RpcMetrics::new(&mut registry, Side::Server));
    let health = Health::new();
    let (signal, drain) = drain::channel();
    let mut tasks = Tasks::new();
    let acceptor = acceptor(&flags, &mut registry, &mut tasks)?;
    let mut pages = Vec::new();

    let mut sources = settings::sources(&flags, set, &metrics, &mut tasks)?;
    let allowed_images = Arc::clone(&sources.flags.allowed_images);
    let (exec_config, mut ring) = (sources.exec.clone(), None);
    let wiring = PodWiring {
        flags: &flags,
        metrics: &metrics,
        tasks: &mut tasks,
        ring: &mut ring,
        drain: drain.clone(),
    };
    let parts = wiring.start((!disabled.pod).then_some(pods), &mut sources).await?;
    let PodParts { runtime: pods, synced, local, current, scope } = parts;
    let current = current.unwrap_or_else(|| {
        let (follow, current) = sources.follow();
        tasks.keep(tracing::info_span!("settings"), follow);
        current
    });
    pages.push(config_page(&current, &flags));
    let exec = if disabled.exec { None } else { Some(exec_runtime(&flags, set, &current, &metrics)?) };
    let hash = exec.as_ref().map(|_| exec_hash(exec_config, &current, &metrics, &mut tasks));
    let pool = pods.as_ref().map(|runtime| (runtime.pool(), scope));
    if let Some(runtime) = &pods {
        let pool = runtime.pool();
        pages.push(Page {
            path: "/pods",
            content_type: JSON,
            policy: None,
            content: Box::new(move |_| page(pool.clone()).map(Ok).boxed()),
        });
    }
    if pods.is_none() && (disabled.exec || !flags.config.exists()) {
        tracing::warn!(
            "no runtime is enabled: every call is answered NOT_FOUND; see --config, --pod-backend and \
                 --disable-runtimes"
        );
    }

    let pages = Admin::new(health.clone(), otel.metrics.then_some(registry), pages);
    tasks.keep(tracing::info_span!("admin"), porch_fn_admin::serve(admin_listener, pages));
    let options = server_options(&flags, inflight, served, spans.as_ref());
    let runner = Runner::new(exec, pods, flags.default_image_prefix.clone(), allowed_images, metrics);
    let failures = runner.failures();
    let describe = Describe::new(DescribeParts {
        pods: pool,
        exec: hash,
        ring,
        failures,
        turns: DescribeParts::turns(),
    });
    let server = Server::new(Arc::new(runner), &health, options);
    let handler = move |request| {
        let (server, describe) = (Arc::clone(&server), describe.clone());
        async move {
            if Describe::is_asked(&request) {
                describe.answer(request).await
            } else {
                server.handle(request).await
            }
        }
    };
    let listening = serve::Options { max_age: None, max_connections: flags.max_connections.get() };
    tasks.keep(tracing::info_span!("serve"), serve::serve(listener, acceptor, listening, handler, drain));
    match synced {
        None => health.set("", true),
        Some(synced) => {
            let ready = ready_once(synced, ready_by, health.clone());
            tasks.spawn(tracing::info_span!("ready"), ready);
        }
    }
    let drain_times = DrainTimes { delay: flags.drain_delay.into(), timeout: flags.drain_timeout.into() };
    let flush = spans.map(|spans| -> AtEnd { Box::new(move || spans.flush().boxed()) });
    let stop = local.map(|local| -> AtEnd { Box::new(move || async move { local.stop().await }.boxed()) });
    let at_end = flush.into_iter().chain(stop).collect();
    Ok(App { address, admin_address: Some(admin_address), health, signal, drain_times, tasks, at_end })
}

/// A runner is ready once it knows the pods there are. It does not wait for ever: it can serve without an API server.
async fn ready_once(mut synced: watch::Receiver<bool>, by: Instant, health: Health) {
    if !matches!(timeout_at(by, synced.wait_for(|synced| *synced)).await, Ok(Ok(_))) {
        tracing::warn!("ready although the pods are not known: the API server does not answer");
    }
    health.set("", true);
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

/// What the server does with calls before they are anybody's.
fn server_options(
    flags: &Flags,
    inflight: Arc<Inflight>,
    observer: Arc<RpcMetrics>,
    spans: Option<&Spans>,
) -> porch_fn_grpc::Options {
    porch_fn_grpc::Options {
        max_message: flags.max_request_body_size,
        default_timeout: flags.request_timeout.into(),
        max_timeout: flags.max_timeout.into(),
        inflight: Some(inflight),
        // Calls wait in line instead.
        places: None,
        tell_load: true,
        observer: Some(observer),
        tracer: spans.map(Spans::tracer),
    }
}

fn exec_runtime(
    flags: &Flags,
    set: &SetFlags,
    current: &watch::Receiver<CurrentSettings>,
    metrics: &Arc<Metrics>,
) -> Result<ExecRuntime, AppError> {
    present("functions", &flags.functions, set)?;
    let parallel = match flags.max_parallel_executions {
        0 => 2 * std::thread::available_parallelism().map_or(1, usize::from),
        set => set,
    };
    let waiting = usize::try_from(flags.max_queue_per_function).unwrap_or(usize::MAX);
    let (largest, metrics) = (flags.max_request_body_size, Arc::clone(metrics));
    Ok(ExecRuntime::new(current.clone(), &flags.exec_env, parallel, waiting, largest, metrics))
}

/// What the exec runtime runs. A task keeps it and its metric up to date.
fn exec_hash(
    config: watch::Receiver<Content<ExecConfig>>,
    current: &watch::Receiver<CurrentSettings>,
    metrics: &Arc<Metrics>,
    tasks: &mut Tasks,
) -> watch::Receiver<ExecHash> {
    let (mut current, metrics) = (current.clone(), Arc::clone(metrics));
    // The settings are made from the file: whenever they change, it is at least as new.
    let hash = move |current: &CurrentSettings| {
        let hash = ExecHash::of(&config.borrow().value, &current.settings);
        metrics.exec_config(hash);
        hash
    };
    let (sender, receiver) = watch::channel(hash(&current.borrow_and_update()));
    let follow = async move {
        while current.changed().await.is_ok() {
            sender.send_replace(hash(&current.borrow_and_update()));
        }
    };
    tasks.keep(tracing::info_span!("exec hash"), follow);
    receiver
}

/// `/config?image=IMAGE`: what holds for an image, and why.
fn config_page(current: &watch::Receiver<CurrentSettings>, flags: &Flags) -> Page {
    let (current, prefix) = (current.clone(), flags.default_image_prefix.clone());
    let content = move |query: &str| {
        let page = image_of(query, &prefix).map(|image| {
            let page = porch_fn_settings::page(&current.borrow().settings, &image);
            format!("{page:#}\n")
        });
        std::future::ready(page).boxed()
    };
    Page { path: "/config", content_type: JSON, policy: None, content: Box::new(content) }
}

/// The image that a query asks for; an error is JSON.
fn image_of(query: &str, prefix: &str) -> Result<Image, String> {
    let asked = query.split('&').find_map(|pair| pair.strip_prefix("image="));
    let image = asked.map(|image| percent_decode_str(image).decode_utf8_lossy());
    let image = image.filter(|image| !image.is_empty()).ok_or("write /config?image=IMAGE".to_owned());
    let image = image.and_then(|image| Image::parse(&image, prefix).map_err(|error| error.to_string()));
    image.map_err(|error| serde_json::json!({ "error": error }).to_string())
}

/// TLS with routers or callers, if it was asked for. There is one listener: flags rule out both.
fn acceptor(flags: &Flags, registry: &mut Registry, tasks: &mut Tasks) -> Result<Option<Acceptor>, TlsError> {
    let (cert, key, ca) = (flags.tls_cert.clone(), flags.tls_key.clone(), flags.tls_client_ca.clone());
    let (listen_cert, listen_key) = (flags.listen_tls_cert.clone(), flags.listen_tls_key.clone());
    let between = porch_fn_tls::Files::of("--tls", cert, key, ca, true)?;
    let listening = porch_fn_tls::Files::of(
        "--listen-tls",
        listen_cert,
        listen_key,
        flags.listen_tls_client_ca.clone(),
        false,
    )?;
    let gauges = Gauges::new(registry.sub_registry_with_prefix("porch_fn_runner"));
    between.or(listening).map(|files| files.acceptor(&gauges, tasks)).transpose()
}
