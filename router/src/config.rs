//! The router's flags.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use porch_fn_discovery::{Target, TargetError};
use porch_fn_flags::{GoDuration, positive};
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
    /// IP address to listen on; all interfaces when not given
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Port for function calls and gRPC health; 0 takes any and prints it
    #[arg(long, value_name = "PORT", default_value_t = 9445)]
    pub port: u16,
    /// Port for the status page, /status.json, /shards, /metrics, /healthz and /readyz; 0 takes any
    /// and prints it
    #[arg(long, value_name = "PORT", env = "OTEL_EXPORTER_PROMETHEUS_PORT", default_value_t = 9464)]
    pub admin_port: u16,
    /// Largest request and answer in bytes; must agree with the runners' and Porch's
    #[arg(long, value_name = "BYTES", default_value_t = 6_291_456)]
    pub max_request_body_size: usize,
    /// Bytes of messages held at once before calls are refused; when not given, 512 MiB or four
    /// messages, whichever is more
    #[arg(long, value_name = "BYTES")]
    pub max_inflight_bytes: Option<usize>,
    /// Prefix of images without a registry, as Porch has it
    #[arg(long, value_name = "PREFIX", default_value = "ghcr.io/kptdev/krm-functions-catalog")]
    pub default_image_prefix: String,
    /// Images that may run: globs over whole references, separated by commas or in several flags; *
    /// is any text without a /, ** any text; a registry with a * in it needs a . or a :. All others
    /// are refused; the runners check it too
    #[arg(long, value_name = "GLOBS", value_delimiter = ',')]
    pub allowed_images: Vec<String>,
    /// Mutual TLS with the runners: the certificate they are shown; all three files are read again
    /// when they change
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Mutual TLS with the runners: the key of that certificate
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Mutual TLS with the runners: the authority that their certificates must come from
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Mutual TLS with the runners: the name in their certificates; when not given, the host of
    /// dns:///, or SERVICE.NAMESPACE.svc of kubernetes:///, or each one's address of static:///
    #[allow(clippy::doc_markdown)]
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// TLS for callers, which Porch does not speak: the certificate they are shown
    #[arg(long, value_name = "FILE")]
    pub listen_tls_cert: Option<PathBuf>,
    /// TLS for callers: the key of that certificate
    #[arg(long, value_name = "FILE")]
    pub listen_tls_key: Option<PathBuf>,
    /// TLS for callers: the authority that their certificates must come from; none is asked for
    /// when not given
    #[arg(long, value_name = "FILE")]
    pub listen_tls_client_ca: Option<PathBuf>,
    /// How long a call may take whose caller sets no deadline
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub request_timeout: GoDuration,
    /// How long a call may take whatever deadline its caller sets
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = positive)]
    pub max_timeout: GoDuration,
    /// Connections at once; for one more the one that has had no call for longest ends
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    pub max_connections: NonZeroUsize,
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
    /// How long to go on accepting after SIGTERM, while callers learn of it
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub drain_delay: GoDuration,
    /// How long calls in flight may take after that
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub drain_timeout: GoDuration,
    /// Log verbosity: 0 errors, 1 warnings, 2 events, 4 details, 5 everything
    #[arg(long, value_name = "LEVEL", default_value_t = porch_fn_telemetry::DEFAULT_LOG_LEVEL, value_parser = clap::value_parser!(u8).range(0..=5))]
    pub log_level: u8,
}

impl Flags {
    /// How to connect to runners and detect lost connections.
    pub(crate) fn connections(&self) -> conn::Options {
        let default = if self.tls_cert.is_some() { TLS_CONNECT_TIMEOUT } else { CONNECT_TIMEOUT };
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
