//! Wires the router: the only place that knows all of its parts.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt;
use futures_util::future::ready;
use porch_fn_ring::Ring;
use porch_fn_ring::spill::Spill;
use porch_fn_service::admin::{Admin, JSON, Page};
use porch_fn_service::discovery::{self, SetupError, Source};
use porch_fn_service::drain;
use porch_fn_service::flags::EXIT_USAGE;
use porch_fn_service::grpc::{self, Hop, Inflight, LimitError, Server, inflight_limit};
use porch_fn_service::health::Health;
use porch_fn_service::lifecycle::{self, DrainTimes, Drained};
use porch_fn_service::listen::{ListenError, listen};
use porch_fn_service::{admin, serve};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::config::Flags;
use crate::members::Members;
use crate::metrics::Metrics;
use crate::service::{Options, Router};
use crate::shards::Shards;
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
    /// Discovery, probers and the admin port: dropped last, with the app.
    background: JoinSet<()>,
    /// The server, which the drain waits for.
    server: JoinSet<()>,
}

impl App {
    /// Binds both ports and starts everything.
    pub async fn start(flags: Flags) -> Result<Self, AppError> {
        let limit = inflight_limit(flags.max_inflight_bytes, flags.max_request_body_size)?;
        let inflight = Inflight::new(limit, Hop::Router);
        let (listener, address) = listen(flags.address, flags.port, "--port").await?;
        let (admin_listener, admin_address) = listen(flags.address, flags.admin_port, "--admin-port").await?;
        let mut registry = Registry::default();
        let metrics = Arc::new(Metrics::new(&mut registry, &inflight));
        let health = Health::new();
        let (signal, drain) = drain::channel();
        let mut background = JoinSet::new();

        let source = Source::of(flags.runners, flags.kubeconfig.as_deref()).await?;
        let (discover, snapshots) = discovery::watch(source, std::future::pending());
        let discovered = snapshots.clone();
        background.spawn(discover.instrument(tracing::info_span!("discovery")));

        let empty = Ring::new([]).unwrap_or_else(|_| unreachable!("no runners are not too many"));
        let view = Arc::new(ArcSwap::from_pointee(View::new(empty, Vec::new())));
        let (changed, heard) = watch::channel(());
        let members =
            Members::new(Arc::clone(&view), Arc::new(changed), health.clone(), Arc::clone(&metrics));
        background.spawn(members.run(snapshots).instrument(tracing::info_span!("members")));

        let options = Options {
            default_prefix: flags.default_image_prefix,
            max_message: flags.max_request_body_size,
            spill: Spill { routers: flags.router_count, ..Spill::default() },
        };
        let router = Arc::new(Router::new(options, Arc::clone(&view), heard, metrics));
        let shown = Arc::clone(&router);
        let shards = move || {
            let error = discovered.borrow().last_error.clone();
            Shards::now(&view.load(), &shown, error.as_deref()).to_json()
        };
        let page = Page {
            path: "/shards",
            content_type: JSON,
            content: Box::new(move |_| ready(Ok(shards())).boxed()),
        };
        let pages = Admin::new(health.clone(), registry, vec![page]);
        background.spawn(admin::serve(admin_listener, pages).instrument(tracing::info_span!("admin")));

        let options = grpc::Options {
            max_message: flags.max_request_body_size,
            default_timeout: flags.request_timeout.into(),
            default_timeout_text: "no answer within --request-timeout, which bounds calls without a deadline",
            inflight: Some(inflight),
            tell_load: false,
        };
        let server = Server::new(router, &health, options);
        let handler = move |request| {
            let server = Arc::clone(&server);
            async move { server.handle(request).await }
        };
        let max_age = Some(Duration::from(flags.max_connection_age)).filter(|age| !age.is_zero());
        let mut serving = JoinSet::new();
        serving
            .spawn(serve::serve(listener, max_age, handler, drain).instrument(tracing::info_span!("serve")));

        let drain_times = DrainTimes { delay: flags.drain_delay.into(), timeout: flags.drain_timeout.into() };
        Ok(Self { address, admin_address, health, signal, drain_times, background, server: serving })
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

    /// Stops in order: unready, stop accepting, finish, deadline.
    pub async fn drain(mut self) -> Drained {
        let drained = lifecycle::drain(&self.health, &mut self.signal, self.drain_times).await;
        self.server.shutdown().await;
        self.background.shutdown().await;
        drained
    }
}
