//! Connects all parts of the router.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use porch_fn_admin::Admin;
use porch_fn_admin::rpc_metrics::RpcMetrics;
use porch_fn_discovery::{LiveMembership, SetupError, Snapshot};
use porch_fn_flags::{EXIT_USAGE, ServerFlags};
use porch_fn_grpc::listen::{ListenError, Listener, listen};
use porch_fn_grpc::serve;
use porch_fn_grpc::{Hop, Inflight, MAX_REQUEST_HEADERS, Server, inflight_limit};
use porch_fn_image::{AllowedImages, PatternError};
use porch_fn_lifecycle::drain;
use porch_fn_lifecycle::health::Health;
use porch_fn_lifecycle::tasks::Tasks;
use porch_fn_lifecycle::{App, AtEnd, DrainTimes};
use porch_fn_spans::Spans;
use porch_fn_status_page::{Peers, RouterInfo};
use porch_fn_tls::{Acceptor, Connector, Files, Gauges, TlsError};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::config::Flags;
use crate::hints::{Hints, hints};
use crate::members::Members;
use crate::metrics::Metrics;
use crate::page::{known, recordings};
use crate::runner::Shared;
use crate::service::{Options, Router};
use crate::view::View;

/// Why the router could not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A port cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Two flags contradict each other.
    #[error("{0}")]
    Limit(String),
    /// A glob of allowed images is not valid.
    #[error("--allowed-images: {0}")]
    AllowedImages(#[from] PatternError),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Discovery of the runners cannot start.
    #[error("--runners: {0}")]
    Runners(#[from] SetupError),
    /// Discovery of the other routers cannot start.
    #[error("--router-peers: {0}")]
    Peers(SetupError),
}

impl AppError {
    /// The process's exit code: 64 for errors that the user can fix in flags and files.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            AppError::Listen(_) => ExitCode::FAILURE,
            _ => ExitCode::from(EXIT_USAGE),
        }
    }
}

/// Binds both ports and starts everything.
///
/// # Errors
/// [`AppError`], when flags or files are not valid or a port is in use.
pub async fn start(flags: Flags) -> Result<App, AppError> {
    let limit = inflight_limit(flags.server.max_inflight_bytes, flags.server.max_request_body_size)
        .map_err(AppError::Limit)?;
    let allowed_images =
        AllowedImages::parse(&flags.server.allowed_images, &flags.server.default_image_prefix)?;
    let inflight = Inflight::new(limit, Hop::Router);
    let mut tasks = Tasks::new();
    let (listener, address) = listen(flags.server.address, flags.server.port, "--port")?;
    let mut registry = Registry::default();
    let (otel, spans) = porch_fn_spans::start("porch-fn-router", env!("CARGO_PKG_VERSION"), &mut registry);
    let admin_host = flags.server.address.or(otel.admin_host);
    let (admin_listener, admin_address) = listen(admin_host, flags.server.admin_port, "--admin-port")?;
    let metrics = Arc::new(Metrics::new(&mut registry, &inflight, flags.server.metrics_per_function.into()));
    let served = Arc::new(RpcMetrics::new(&mut registry, "rpc_server"));
    let gauges = Gauges::new(registry.sub_registry_with_prefix("porch_fn_router"));
    let (connector, acceptor) =
        (connector(&flags, &gauges, &mut tasks)?, acceptor(&flags, &gauges, &mut tasks)?);
    let health = Health::new();
    let (signal, drain) = drain::channel();

    let kubeconfig = flags.server.kubeconfig.as_deref();
    let (discover, snapshots) =
        porch_fn_discovery::watch(flags.runners.clone(), kubeconfig, "porch-fn-router").await?;
    let discovered = snapshots.clone();
    tasks.keep(tracing::info_span!("discovery"), discover);

    let peers = peers(&flags, &mut tasks).await?;

    let (available, changes) = watch::channel(());
    let shared = Shared {
        connections: flags.connections(),
        connector,
        changed: Arc::default(),
        totals: Arc::default(),
        routers: flags.router_count,
    };
    let view = Arc::new(ArcSwap::from_pointee(View::empty(&shared.totals)));
    let members = Members {
        view: Arc::clone(&view),
        shared,
        health: health.clone(),
        metrics: Arc::clone(&metrics),
        membership: LiveMembership::new(snapshots),
        available,
        runners: BTreeMap::new(),
        probers: JoinSet::new(),
    };
    tasks.keep(tracing::info_span!("members"), members.run());

    let options = Options {
        default_prefix: flags.server.default_image_prefix.clone(),
        allowed_images,
        max_message: flags.server.max_request_body_size,
        routers: flags.router_count,
        hints: flags.predict.then(|| send_hints(&view, &metrics, &mut tasks)),
    };
    let router = Arc::new(Router::new(options, Arc::clone(&view), changes, metrics));
    let (shown, default_prefix) = (Arc::clone(&router), router.options.default_prefix.clone());
    let recorded = {
        let (view, router) = (Arc::clone(&view), Arc::clone(&router));
        move || recordings(&view.load(), &router)
    };
    let known = move || {
        let info = RouterInfo {
            name: porch_fn_lifecycle::server_name(),
            address: admin_address.to_string(),
            count: flags.router_count,
            peers: peers.as_ref().map(|peers| {
                let peers = peers.borrow();
                Peers { addresses: Arc::clone(&peers.endpoints), error: error_of(&peers) }
            }),
        };
        known(&view.load(), &shown, error_of(&discovered.borrow()), info)
    };
    let pages = porch_fn_status_page::pages(known, recorded, default_prefix);
    let hosts = &flags.server.admin_hosts;
    let admin = Admin::new(health.clone(), otel.metrics.then_some(registry), pages, hosts);
    tasks.keep(tracing::info_span!("admin"), porch_fn_admin::serve(admin_listener, admin));

    let options = porch_fn_grpc::Options {
        max_message: flags.server.max_request_body_size,
        max_headers: MAX_REQUEST_HEADERS,
        default_timeout: flags.server.request_timeout.into(),
        max_timeout: flags.server.max_timeout.into(),
        inflight,
        report_load: false,
        observer: Some(served),
        tracer: spans.as_ref().map(Spans::tracer),
    };
    let server = Server::new(router, &health, options);
    let handler = move |request| {
        let server = Arc::clone(&server);
        async move { server.handle(request).await }
    };
    let serve = serve::serve(Listener::Tcp(listener), acceptor, of_callers(&flags), handler, drain);
    tasks.keep(tracing::info_span!("serve"), serve);

    let drain_times = DrainTimes::of(&flags.server);
    let flush = spans.map(|spans| -> AtEnd { Box::new(move || spans.flush().boxed()) });
    let at_end = flush.into_iter().collect();
    let (address, admin_address) = (Some(address), Some(admin_address));
    Ok(App { address, admin_address, health, signal, drain_times, tasks, at_end })
}

/// The limits of callers' connections.
fn of_callers(flags: &Flags) -> serve::Options {
    serve::Options {
        max_age: Some(Duration::from(flags.max_connection_age)).filter(|age| !age.is_zero()),
        max_connections: flags.server.max_connections.get(),
        max_frame_bytes: porch_fn_grpc::MIN_FRAME_BYTES,
        max_streams: serve::STREAMS_OF_CALLERS,
    }
}

/// Discovers the other routers, if the flags enable it.
async fn peers(flags: &Flags, tasks: &mut Tasks) -> Result<Option<watch::Receiver<Snapshot>>, AppError> {
    let Some(target) = flags.router_peers.clone() else { return Ok(None) };
    let kubeconfig = flags.server.kubeconfig.as_deref();
    let watched = porch_fn_discovery::watch(target, kubeconfig, "porch-fn-router").await;
    let (discover, snapshots) = watched.map_err(AppError::Peers)?;
    tasks.keep(tracing::info_span!("router peers"), discover);
    Ok(Some(snapshots))
}

/// Starts the task that sends hints.
fn send_hints(view: &Arc<ArcSwap<View>>, metrics: &Arc<Metrics>, tasks: &mut Tasks) -> Hints {
    let (hints, send) = hints(Arc::clone(view), Arc::clone(metrics));
    tasks.keep(tracing::info_span!("hints"), send.run());
    hints
}

fn error_of(snapshot: &Snapshot) -> Option<String> {
    snapshot.last_error.as_deref().map(str::to_owned)
}

/// TLS with the runners, if the flags enable it.
fn connector(flags: &Flags, gauges: &Gauges, tasks: &mut Tasks) -> Result<Option<Connector>, TlsError> {
    let ServerFlags { tls_cert, tls_key, tls_client_ca, .. } = &flags.server;
    let Some(files) = Files::of("--tls", [tls_cert, tls_key, tls_client_ca], true)? else { return Ok(None) };
    let name = flags.tls_server_name.clone().or_else(|| flags.runners.server_name());
    files.connector(name.as_deref(), gauges, tasks).map(Some)
}

/// TLS with callers, if the flags enable it.
fn acceptor(flags: &Flags, gauges: &Gauges, tasks: &mut Tasks) -> Result<Option<Acceptor>, TlsError> {
    let ServerFlags { listen_tls_cert, listen_tls_key, listen_tls_client_ca, .. } = &flags.server;
    let files = Files::of("--listen-tls", [listen_tls_cert, listen_tls_key, listen_tls_client_ca], false)?;
    files.map(|files| files.acceptor(gauges, tasks)).transpose()
}
