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
/// Timeout of one dial. A call does not wait longer for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// Timeout of one dial with TLS. The handshake costs CPU time on both sides.
const TLS_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Routes function calls from Porch to the runner that keeps the function's pods warm.
///
/// Set Porch's --function-runner to this router (HOST:9445), and --runners to the runners' headless
/// Service.
#[derive(Debug, Clone, Parser)]
#[command(name = "porch-fn-router", version)]
pub struct Flags {
    /// The runners: dns:///HOST:PORT (a headless Service), kubernetes:///NAMESPACE/SERVICE:PORT (its
    /// EndpointSlices), static:///A:PORT,B:PORT (a list), or HOST:PORT (the same as dns:///HOST:PORT)
    // These texts appear in --help, which does not render Markdown.
    #[allow(clippy::doc_markdown)]
    #[arg(long, value_name = "TARGET", value_parser = target)]
    pub runners: Target,
    /// Kubeconfig file with the API server for kubernetes:///; if not set, the pod's service account
    /// is used
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// IP address to listen on; if not set, all interfaces
    #[arg(long, value_name = "IP")]
    pub address: Option<IpAddr>,
    /// Port for function calls and gRPC health; 0 chooses a free port and prints it
    #[arg(long, value_name = "PORT", default_value_t = 9445)]
    pub port: u16,
    /// Port for the status page, /status.json, /shards, /metrics, /healthz and /readyz; 0 chooses a
    /// free port and prints it
    #[arg(long, value_name = "PORT", env = "OTEL_EXPORTER_PROMETHEUS_PORT", default_value_t = 9464)]
    pub admin_port: u16,
    /// Largest request and answer in bytes; must be the same on router, runners and Porch
    #[arg(long, value_name = "BYTES", default_value_t = 6_291_456)]
    pub max_request_body_size: usize,
    /// Bytes of messages held at once before calls are refused; if not set, 512 MiB or four messages
    /// of the largest size, whichever is more
    #[arg(long, value_name = "BYTES")]
    pub max_inflight_bytes: Option<usize>,
    /// Prefix for images without a registry; must be the same as Porch's
    #[arg(long, value_name = "PREFIX", default_value = "ghcr.io/kptdev/krm-functions-catalog")]
    pub default_image_prefix: String,
    /// Images that may run, as globs for the whole reference, separated by commas or in several
    /// flags. * matches any text without a /, and ** matches any text. A registry with a * in it needs
    /// a . or a :. Other images are refused. The runners check this too
    #[arg(long, value_name = "GLOBS", value_delimiter = ',')]
    pub allowed_images: Vec<String>,
    /// Mutual TLS with the runners: the router's certificate. Changed files are read again
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Mutual TLS with the runners: the key of the router's certificate
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Mutual TLS with the runners: the CA that must have signed the runners' certificates
    #[arg(long, value_name = "FILE")]
    pub tls_client_ca: Option<PathBuf>,
    /// Mutual TLS with the runners: the name that the runners' certificates must contain; if not set,
    /// HOST for dns:///, SERVICE.NAMESPACE.svc for kubernetes:///, and each runner's address for
    /// static:///
    #[allow(clippy::doc_markdown)]
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// TLS for callers: the router's certificate. Porch itself does not speak TLS
    #[arg(long, value_name = "FILE")]
    pub listen_tls_cert: Option<PathBuf>,
    /// TLS for callers: the key of the router's certificate
    #[arg(long, value_name = "FILE")]
    pub listen_tls_key: Option<PathBuf>,
    /// TLS for callers: the CA that must have signed the callers' certificates; if not set, callers
    /// need no certificate
    #[arg(long, value_name = "FILE")]
    pub listen_tls_client_ca: Option<PathBuf>,
    /// Deadline of calls that come without one
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub request_timeout: GoDuration,
    /// Longest deadline of a call; a longer one is shortened to this
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = positive)]
    pub max_timeout: GoDuration,
    /// Most connections; at the limit, a new one closes the one idle for longest
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    pub max_connections: NonZeroUsize,
    /// Interval of HTTP/2 pings to each runner; the calls of a runner that does not answer move to
    /// other runners
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive)]
    pub keepalive_time: GoDuration,
    /// How long a runner may take to answer a ping; sent bytes must be acknowledged within
    /// --keepalive-time and this together
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive)]
    pub keepalive_timeout: GoDuration,
    /// How long connecting to a runner may take, including the name lookup; if not set, 250ms, or 1s
    /// with mutual TLS
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    pub connect_timeout: Option<GoDuration>,
    /// Age at which the router asks a caller to open a new connection, so that callers spread over
    /// routers; 0 means never
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    pub max_connection_age: GoDuration,
    /// Number of routers that use the same runners; each one sees only its part of an image's calls
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub router_count: usize,
    /// How long to accept calls after SIGTERM, until callers have noticed it
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub drain_delay: GoDuration,
    /// How long calls in flight may take after --drain-delay
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
