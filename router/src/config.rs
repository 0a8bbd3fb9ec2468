//! The router's flags.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use porch_fn_discovery::{Target, TargetError};
use porch_fn_flags::{GoDuration, ServerFlags, positive};
use porch_fn_grpc_client::conn;

/// Port of runners when --runners names none.
const DEFAULT_PORT: u16 = 9445;
/// Timeout of one dial, and so the longest time that a call waits for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// The same with TLS, whose handshake costs CPU time on both sides.
const TLS_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Routes function calls from Porch to the runner that keeps the function's pods warm.
///
/// Point Porch at it with --function-runner=HOST:9445, and it at the runners' headless Service with
/// --runners.
#[derive(Debug, Clone, Parser)]
#[command(name = "porch-fn-router", version)]
pub struct Flags {
    /// The flags that runners have too.
    #[command(flatten)]
    pub server: ServerFlags,
    /// Where the runners are: dns:///HOST:PORT (a headless Service),
    /// kubernetes:///NAMESPACE/SERVICE:PORT (its EndpointSlices), static:///A:PORT,B:PORT, or
    /// HOST:PORT (means dns)
    // These texts appear in --help, which does not render Markdown.
    #[allow(clippy::doc_markdown)]
    #[arg(long, value_name = "TARGET", value_parser = target)]
    pub runners: Target,
    /// How to reach the API server from outside, for kubernetes:///; the service account when not
    /// given
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Port for the status page, /status.json, /shards, /metrics, /healthz and /readyz; 0 takes any
    /// and prints it
    #[arg(long, value_name = "PORT", env = "OTEL_EXPORTER_PROMETHEUS_PORT", default_value_t = 9464)]
    pub admin_port: u16,
    /// Mutual TLS with the runners: the name in their certificates; when not given, the host of
    /// dns:///, or SERVICE.NAMESPACE.svc of kubernetes:///, or each one's address of static:///
    #[allow(clippy::doc_markdown)]
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// How often to ping each runner over HTTP/2; a runner that does not answer is unreachable, and
    /// its calls move on
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive)]
    pub keepalive_time: GoDuration,
    /// How long a runner may take to answer a ping; sent bytes may be unacknowledged for this and
    /// --keepalive-time
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive)]
    pub keepalive_timeout: GoDuration,
    /// How long connecting to a runner may take, name lookup included; 250ms when not given, and 1s
    /// with mutual TLS
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    pub connect_timeout: Option<GoDuration>,
    /// Age after which a caller's connection is asked to dial again, so that callers spread over
    /// routers; 0 means never
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    pub max_connection_age: GoDuration,
    /// Routers that share the runners: how much of an image's demand this one sees
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub router_count: usize,
    /// Log verbosity: 0 errors, 1 warnings, 2 events, 4 details, 5 everything
    #[arg(long, value_name = "LEVEL", default_value_t = porch_fn_telemetry::DEFAULT_LOG_LEVEL, value_parser = clap::value_parser!(u8).range(0..=5))]
    pub log_level: u8,
}

impl Flags {
    /// How to connect to runners and detect lost connections.
    pub(crate) fn connections(&self) -> conn::Options {
        let default = if self.server.tls_cert.is_some() { TLS_CONNECT_TIMEOUT } else { CONNECT_TIMEOUT };
        let (time, timeout) = (self.keepalive_time.into(), self.keepalive_timeout.into());
        conn::Options {
            connect_timeout: self.connect_timeout.map_or(default, Duration::from),
            ping: Some((time, timeout)),
            user_timeout: time.saturating_add(timeout),
            keepalive: None,
        }
    }
}

fn target(text: &str) -> Result<Target, TargetError> {
    Target::parse(text, DEFAULT_PORT)
}
