//! Creates the parts of the runner and connects them. No other module knows all of them.

mod kubernetes;
mod pods;
mod registries;
mod settings;

use std::fmt::Display;
use std::future::ready;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::StatusCode;
use porch_fn_admin::failures::{Failures, now_ms};
use porch_fn_admin::rpc_metrics::RpcMetrics;
use porch_fn_admin::{Admin, JSON, Page, query_value};
use porch_fn_flags::{EXIT_USAGE, ServerFlags, SetFlags};
use porch_fn_grpc::listen::{ListenError, Listener, listen};
use porch_fn_grpc::{
    ADDED_HEADERS, Hop, Inflight, MAX_REQUEST_HEADERS, Options, Server, inflight_limit, serve,
};
use porch_fn_image::Image;
use porch_fn_lifecycle::health::Health;
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_lifecycle::{App, AtEnd, DrainTimes, drain, server_name};
use porch_fn_proto::SHARD_PATHS;
use porch_fn_proto::shard::shard_server::ShardServer;
use porch_fn_spans::Spans;
use porch_fn_tls::{Acceptor, Files, Gauges, TlsError};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout_at};

use self::pods::PodParts;
use crate::describe::{Describe, MAX_ANSWERS, config};
use crate::environment::environment;
use crate::evaluate::Runner;
use crate::exec::ExecRuntime;
use crate::exec::queue::Queue;
use crate::last_errors::LastErrors;
use crate::metrics::Metrics;
use crate::pods::Handle;
use crate::pods::local::LocalCluster;
use crate::settings::CurrentSettings;
use porch_fn_runner_config::{Flags, REMOVED_FLAGS};

/// How long readiness waits for the API server.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Why the runner could not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A port cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A flag has an invalid value, names a file that cannot be used, or needs something that is
    /// missing.
    #[error("{0}")]
    Usage(String),
}

/// The inputs for starting the parts of a runner.
struct Wiring<'a> {
    flags: &'a Flags,
    /// The flags that the user set explicitly.
    set: &'a SetFlags,
    metrics: Arc<Metrics>,
    tasks: Tasks,
    at_end: Vec<AtEnd>,
}

// === impl AppError ===

impl AppError {
    /// The process's exit code: 64 for errors that the user can fix in flags and files.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            AppError::Listen(_) => ExitCode::FAILURE,
            AppError::Usage(_) => ExitCode::from(EXIT_USAGE),
        }
    }

    fn of_flag(flag: &str, error: impl Display) -> Self {
        Self::Usage(format!("--{flag}: {error}"))
    }
}

impl From<String> for AppError {
    fn from(text: String) -> Self {
        Self::Usage(text)
    }
}

/// Binds both ports and starts everything. `set` lists the flags that the user set explicitly.
/// `shared` is a set of local pods that several runners of this process use; the code that created
/// the set stops it. Without `shared`, the flags choose where pods run.
///
/// # Errors
/// [`AppError`], if a flag or file is invalid or a port is in use.
pub async fn start(flags: Flags, set: &SetFlags, shared: Option<LocalCluster>) -> Result<App, AppError> {
    let (ready_by, started_ms) = (Instant::now() + READY_WITHIN, now_ms());
    for flag in REMOVED_FLAGS.into_iter().filter(|&flag| set.contains(flag)) {
        tracing::warn!("--{flag} has no effect any more and goes in the next version: remove it");
    }
    if let Some(other) = flags.disable_runtimes.iter().find(|one| !["exec", "pod"].contains(&one.as_str())) {
        return Err(AppError::of_flag(
            "disable-runtimes",
            format!("there is no runtime {other:?}; exec and pod are accepted"),
        ));
    }
    let limit = inflight_limit(flags.server.max_inflight_bytes, flags.server.max_request_body_size)?;
    let inflight = Inflight::new(limit, Hop::Runner);
    let (listener, address) = listen(flags.server.address, flags.server.port, "--port")?;
    let mut registry = Registry::default();
    let (otel, spans) = porch_fn_spans::start("porch-fn-runner", env!("CARGO_PKG_VERSION"), &mut registry);
    let admin_host = flags.server.address.or(otel.admin_host);
    let (admin_listener, admin_address) = listen(admin_host, flags.server.admin_port, "--admin-port")?;
    let metrics = Arc::new(Metrics::new(&mut registry, &inflight, flags.server.metrics_per_function.into()));
    let served = Arc::new(RpcMetrics::new(&mut registry, "rpc_server"));
    let health = Health::new();
    let (signal, drain) = drain::channel();
    let tracer = spans.as_ref().map(Spans::tracer);
    let flush = spans.map(|spans| -> AtEnd { Box::new(move || spans.flush().boxed()) });
    let at_end = flush.into_iter().collect();
    let mut wiring = Wiring { flags: &flags, set, metrics, tasks: Tasks::new(), at_end };
    let acceptor = wiring.acceptor(&mut registry).map_err(|error| error.to_string())?;

    let sources = wiring.sources()?;
    let allowed_images = Arc::clone(&sources.flags.allowed_images);
    // Join the peers before the pods are read: with `--peers`, the runner owns no image until it
    // knows its peers.
    let (owned, ring) = wiring.join_peers(drain.clone()).await?;
    let PodParts { current, runtime: pods, scope, synced, store } =
        wiring.pods(shared, sources, owned).await?;
    let exec = flags.is_enabled("exec").then(|| wiring.exec_runtime(&current)).transpose()?;
    if pods.is_none() && (exec.is_none() || !flags.config.exists()) {
        tracing::warn!(
            "no runtime is enabled: every call is answered NOT_FOUND; see --config, --pod-backend and \
                 --disable-runtimes"
        );
    }

    let mut pages = vec![config_page(&current, &flags.server.default_image_prefix)];
    pages.extend(pods.as_ref().map(|runtime| pods_page(runtime.pool.clone())));
    let hosts = &flags.server.admin_hosts;
    let admin = Admin::new(health.clone(), otel.metrics.then_some(registry), pages, hosts);
    wiring.tasks.keep(tracing::info_span!("admin"), porch_fn_admin::serve(admin_listener, admin));

    let runner = Arc::new(Runner {
        exec,
        pods,
        default_prefix: flags.server.default_image_prefix.clone(),
        allowed_images,
        metrics: wiring.metrics,
        failures: Failures::default(),
        last_errors: LastErrors::default(),
    });
    let describe = ShardServer::new(Describe {
        name: flags.name.clone().unwrap_or_else(server_name),
        started_ms,
        runner: Arc::clone(&runner),
        scope,
        store,
        current,
        ring,
        answers: Semaphore::new(MAX_ANSWERS),
    });
    let options = Options {
        max_message: flags.server.max_request_body_size,
        max_headers: MAX_REQUEST_HEADERS + ADDED_HEADERS,
        default_timeout: flags.server.request_timeout.into(),
        max_timeout: flags.server.max_timeout.into(),
        inflight,
        report_load: true,
        observer: Some(served),
        tracer,
    };
    let server = Server::new(runner, &health, options);
    let handler = move |request: http::Request<_>| {
        let (server, describe) = (Arc::clone(&server), describe.clone());
        async move {
            if request.uri().path().starts_with(SHARD_PATHS) {
                Box::pin(server.beside(describe, request)).await
            } else {
                server.handle(request).await
            }
        }
    };
    let listening = serve::Options::between_hops(flags.server.max_connections.get());
    let serve = serve::serve(Listener::Tcp(listener), acceptor, listening, handler, drain);
    let Wiring { mut tasks, at_end, .. } = wiring;
    tasks.keep(tracing::info_span!("serve"), serve);
    match synced {
        None => health.set("", true),
        Some(synced) => {
            tasks.spawn(tracing::info_span!("ready"), set_ready(synced, ready_by, health.clone()));
        }
    }
    let drain_times = DrainTimes::of(&flags.server);
    let (address, admin_address) = (Some(address), Some(admin_address));
    Ok(App { address, admin_address, health, signal, drain_times, tasks, at_end })
}

/// Sets the runner ready once it knows the existing pods, and at `by` at the latest: executables
/// need no API server.
async fn set_ready(mut synced: watch::Receiver<bool>, by: Instant, health: Health) {
    if !matches!(timeout_at(by, synced.wait_for(|synced| *synced)).await, Ok(Ok(_))) {
        tracing::warn!("ready although the pods are not known: the API server does not answer");
    }
    health.set("", true);
}

/// `/config?image=IMAGE`: the settings of an image, each with its source.
fn config_page(current: &watch::Receiver<CurrentSettings>, prefix: &str) -> Page {
    let (current, prefix) = (current.clone(), prefix.to_owned());
    let content = move |query: &str| {
        let image = query_value(query, "image").ok_or("write /config?image=IMAGE".to_owned());
        let image = image.and_then(|image| Image::parse(&image, &prefix).map_err(|error| error.to_string()));
        // A clone, because the sender waits while a page borrows.
        let page = image.map(|image| config(&current.borrow().clone(), &image).into());
        ready(page.map_err(|error| (StatusCode::BAD_REQUEST, json!({ "error": error }).to_string()))).boxed()
    };
    Page { path: "/config", content_type: JSON, policy: None, content: Box::new(content) }
}

/// `/pods`: what the pool holds. Fields are only ever added.
fn pods_page(pool: Handle) -> Page {
    let content = move |_: &str| {
        let functions = pool.stats().into_iter().map(|function| {
            json!({
                "image": function.image.as_str(),
                "owned": function.owned,
                "ready": function.ready,
                "starting": function.starting,
                "terminating": function.terminating,
                // Pods that served before and no longer answer.
                "silent": function.silent,
                "in_flight": function.in_flight,
                "waiting": function.waiting,
            })
        });
        ready(Ok(format!("{:#}", functions.collect::<serde_json::Value>()).into())).boxed()
    };
    Page { path: "/pods", content_type: JSON, policy: None, content: Box::new(content) }
}

// === impl Wiring ===

impl Wiring<'_> {
    /// The TLS of the listener, if the flags enable it: for routers (`--tls-*`) or for callers
    /// (`--listen-tls-*`). The flags exclude each other, because there is only one listener.
    fn acceptor(&mut self, registry: &mut Registry) -> Result<Option<Acceptor>, TlsError> {
        let ServerFlags { tls_cert, tls_key, tls_client_ca, .. } = &self.flags.server;
        let between = Files::of("--tls", [tls_cert, tls_key, tls_client_ca], true)?;
        let ServerFlags { listen_tls_cert, listen_tls_key, listen_tls_client_ca, .. } = &self.flags.server;
        let listening =
            Files::of("--listen-tls", [listen_tls_cert, listen_tls_key, listen_tls_client_ca], false)?;
        let gauges = Gauges::new(registry.sub_registry_with_prefix("porch_fn_runner"));
        between.or(listening).map(|files| files.acceptor(&gauges, &mut self.tasks)).transpose()
    }

    fn exec_runtime(&self, current: &watch::Receiver<CurrentSettings>) -> Result<ExecRuntime, AppError> {
        let flags = self.flags;
        self.exists("functions", &flags.functions)?;
        let parallel = match flags.max_parallel_executions {
            0 => 2 * std::thread::available_parallelism().map_or(1, usize::from),
            set => set,
        };
        let max_waiting = current.borrow().settings.flags.queue.value;
        Ok(ExecRuntime {
            current: current.clone(),
            environment: environment(&flags.exec_env),
            queue: Queue::new(parallel, usize::try_from(max_waiting).unwrap_or(usize::MAX)),
            default_prefix: flags.server.default_image_prefix.clone(),
            max_message: flags.server.max_request_body_size,
            metrics: Arc::clone(&self.metrics),
        })
    }
}
