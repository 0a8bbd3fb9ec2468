//! Wires the router: the only place that knows all of its parts.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use futures_util::future::ready;
use porch_fn_image::{AllowedImages, PatternError};
use porch_fn_ring::Ring;
use porch_fn_ring::spill::Spill;
use porch_fn_service::admin::{Admin, HTML, JSON, Page};
use porch_fn_service::discovery::{self, SetupError, Snapshot, Source};
use porch_fn_service::drain;
use porch_fn_service::flags::EXIT_USAGE;
use porch_fn_service::grpc::{self, Hop, Inflight, LimitError, Server, inflight_limit};
use porch_fn_service::health::Health;
use porch_fn_service::lifecycle::{self, DrainTimes, Drained};
use porch_fn_service::listen::{ListenError, listen};
use porch_fn_service::rpc_metrics::{RpcMetrics, Side};
use porch_fn_service::tasks::{Failed, Tasks};
use porch_fn_service::telemetry::otel::Otel;
use porch_fn_service::tls::{self, Acceptor, Connector, Gauges, TlsError};
use porch_fn_service::{admin, serve};
use porch_fn_spans::Spans;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::config::Flags;
use crate::members::Members;
use crate::metrics::Metrics;
use crate::service::{Options, Router};
use crate::shards::Shards;
use crate::status;
use crate::view::View;

/// Why the router could not start.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A port cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Flags that do not go together.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The images that may run are not told clearly.
    #[error("--allowed-images: {0}")]
    AllowedImages(#[from] PatternError),
    /// There is no TLS with these files.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The runners cannot be looked for.
    #[error("--runners: {0}")]
    Runners(#[from] SetupError),
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

/// A running router. Dropping it cuts everything off; [`drain`](Self::drain) ends it in order.
#[derive(Debug)]
pub struct App {
    address: SocketAddr,
    admin_address: SocketAddr,
    health: Health,
    signal: drain::Signal,
    drain_times: DrainTimes,
    tasks: Tasks,
    /// Those of its calls, flushed last.
    spans: Option<Spans>,
}

impl App {
    /// Binds both ports and starts everything.
    pub async fn start(flags: Flags) -> Result<Self, AppError> {
        let limit = inflight_limit(flags.max_inflight_bytes, flags.max_request_body_size)?;
        let allowed_images = AllowedImages::parse(&flags.allowed_images, &flags.default_image_prefix)?;
        let inflight = Inflight::new(limit, Hop::Router);
        let mut tasks = Tasks::new();
        let (listener, address) = listen(flags.address, flags.port, "--port").await?;
        let otel = Otel::from_env();
        otel.warn();
        let spans = Spans::start(&otel, "porch-fn-router", env!("CARGO_PKG_VERSION"));
        let admin_host = flags.address.or(otel.admin_host);
        let (admin_listener, admin_address) = listen(admin_host, flags.admin_port, "--admin-port").await?;
        let mut registry = Registry::default();
        otel.register(&mut registry, "porch-fn-router", env!("CARGO_PKG_VERSION"));
        let metrics = Arc::new(Metrics::new(&mut registry, &inflight));
        let served = Arc::new(RpcMetrics::new(&mut registry, Side::Server));
        let gauges = Gauges::new(registry.sub_registry_with_prefix("porch_fn_router"));
        let connector = connector(&flags, &gauges, &mut tasks)?;
        let acceptor = acceptor(&flags, &gauges, &mut tasks)?;
        let connections = flags.connections();
        let health = Health::new();
        let (signal, drain) = drain::channel();

        let source = Source::of(flags.runners, flags.kubeconfig.as_deref(), "porch-fn-router").await?;
        let (discover, snapshots) = discovery::watch(source, std::future::pending());
        let discovered = snapshots.clone();
        tasks.keep(tracing::info_span!("discovery"), discover);

        let empty = Ring::new([]).unwrap_or_else(|_| unreachable!("no runners are not too many"));
        let view = Arc::new(ArcSwap::from_pointee(View::new(empty, Vec::new())));
        let (changed, heard) = watch::channel(());
        let members = Members::new(
            Arc::clone(&view),
            Arc::new(changed),
            health.clone(),
            Arc::clone(&metrics),
            connector,
            connections,
        );
        tasks.keep(tracing::info_span!("members"), members.run(snapshots));

        let options = Options {
            default_prefix: flags.default_image_prefix,
            allowed_images,
            max_message: flags.max_request_body_size,
            spill: Spill { routers: flags.router_count, ..Spill::default() },
        };
        let router = Arc::new(Router::new(options, Arc::clone(&view), heard, metrics));
        let pages =
            Admin::new(health.clone(), otel.metrics.then_some(registry), pages(view, &router, discovered));
        tasks.keep(tracing::info_span!("admin"), admin::serve(admin_listener, pages));

        let options = grpc::Options {
            max_message: flags.max_request_body_size,
            default_timeout: flags.request_timeout.into(),
            max_timeout: flags.max_timeout.into(),
            default_timeout_text: "no answer within --request-timeout, which bounds calls without a deadline",
            inflight: Some(inflight),
            places: None,
            tell_load: false,
            observer: Some(served),
            tracer: spans.as_ref().map(Spans::tracer),
        };
        let server = Server::new(router, &health, options);
        let handler = move |request| {
            let server = Arc::clone(&server);
            async move { server.handle(request).await }
        };
        let listening = serve::Options {
            max_age: Some(Duration::from(flags.max_connection_age)).filter(|age| !age.is_zero()),
            max_connections: flags.max_connections.get(),
        };
        tasks.keep(tracing::info_span!("serve"), serve::serve(listener, acceptor, listening, handler, drain));

        let drain_times = DrainTimes { delay: flags.drain_delay.into(), timeout: flags.drain_timeout.into() };
        Ok(Self { address, admin_address, health, signal, drain_times, tasks, spans })
    }

    /// Where calls are taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the admin port listens.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Its gRPC health.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns when a part of it ended that should not have. Then it can only be drained.
    pub async fn failed(&mut self) -> Failed {
        self.tasks.failed().await
    }

    /// Stops in order: unready, stop accepting, finish, deadline, and then the last spans.
    pub async fn drain(mut self) -> Drained {
        let drained = lifecycle::drain(&self.health, &mut self.signal, self.drain_times).await;
        self.tasks.shutdown().await;
        if let Some(spans) = self.spans {
            spans.flush().await;
        }
        drained
    }
}

/// TLS with the runners, if it was asked for.
fn connector(flags: &Flags, gauges: &Gauges, tasks: &mut Tasks) -> Result<Option<Connector>, TlsError> {
    let (cert, key, ca) = (flags.tls_cert.clone(), flags.tls_key.clone(), flags.tls_client_ca.clone());
    let Some(files) = tls::Files::of("--tls", cert, key, ca, true)? else {
        return Ok(None);
    };
    let name = flags.tls_server_name.clone().or_else(|| flags.runners.server_name());
    files.connector(name.as_deref(), gauges, tasks).map(Some)
}

/// TLS with callers, if it was asked for.
fn acceptor(flags: &Flags, gauges: &Gauges, tasks: &mut Tasks) -> Result<Option<Acceptor>, TlsError> {
    let (cert, key) = (flags.listen_tls_cert.clone(), flags.listen_tls_key.clone());
    let files = tls::Files::of("--listen-tls", cert, key, flags.listen_tls_client_ca.clone(), false)?;
    files.map(|files| files.acceptor(gauges, tasks)).transpose()
}

/// What the admin port shows of `router`, which goes by `view`.
fn pages(view: Arc<ArcSwap<View>>, router: &Arc<Router>, discovered: watch::Receiver<Snapshot>) -> Vec<Page> {
    let source = Arc::new(status::Source::new(Arc::clone(&view), Arc::clone(router)));
    let (shown, discovery) = (Arc::clone(router), discovered.clone());
    let shards = move || {
        let error = discovery.borrow().last_error.clone();
        Shards::now(&view.load(), &shown, error.as_deref()).to_json()
    };
    let status = move || {
        let (source, error) = (Arc::clone(&source), discovered.borrow().last_error.clone());
        async move { Ok(source.json(error.as_deref()).await) }
    };
    let html = |path| Page {
        path,
        content_type: HTML,
        policy: Some(status::policy()),
        content: Box::new(|_| ready(Ok(status::page())).boxed()),
    };
    let json = |path, content| Page { path, content_type: JSON, policy: None, content };
    vec![
        html("/"),
        html("/status"),
        json("/status.json", Box::new(move |_| status().boxed())),
        json("/shards", Box::new(move |_| ready(Ok(shards())).boxed())),
    ]
}
