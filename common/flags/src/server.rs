//! The flags that routers and runners have in common.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::{GoDuration, positive};

/// Default of `--log-level`.
pub const DEFAULT_LOG_LEVEL: u8 = 2;

/// The value of `--log-format`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// Lines for programs: one JSON object per line.
    Json,
}

// A doc comment here would replace the description of the program.
#[allow(missing_docs)]
#[derive(Debug, Clone, Args)]
pub struct ServerFlags {
    /// IP address to listen on.
    ///
    /// Default: all interfaces
    #[arg(long, value_name = "IP", help_heading = "Listeners")]
    pub address: Option<IpAddr>,
    /// Port for function calls and gRPC health.
    ///
    /// 0 means any free port, which the program prints
    #[arg(long, value_name = "PORT", default_value_t = 9445, help_heading = "Listeners")]
    pub port: u16,
    /// Port for /metrics, /healthz, /readyz and the program's own pages.
    ///
    /// 0 means any free port, which the program prints
    #[arg(
        long,
        value_name = "PORT",
        env = "OTEL_EXPORTER_PROMETHEUS_PORT",
        default_value_t = 9464,
        help_heading = "Listeners"
    )]
    pub admin_port: u16,
    /// More names by which clients reach the admin port, such as that of an Ingress.
    ///
    /// .DOMAIN means all names that end with it. IP addresses, names without a dot, names of
    /// Services, and NAME.NAMESPACE in the pod's own namespace are always accepted. Separate names by
    /// commas, or repeat the flag
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Listeners")]
    pub admin_hosts: Vec<String>,
    /// Log verbosity: 0 errors, 1 warnings, 2 events, 4 calls, 5 everything
    #[arg(long, value_name = "LEVEL", default_value_t = DEFAULT_LOG_LEVEL, value_parser = clap::value_parser!(u8).range(0..=5), help_heading = "Logs and metrics")]
    pub log_level: u8,
    /// Format of log lines; json has one object in each line
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t, help_heading = "Logs and metrics")]
    pub log_format: LogFormat,
    /// Most function images with metrics of their own at /metrics, up to 1000.
    ///
    /// The calls of all other images count as "other". Each image costs up to 18 series per program.
    /// 0 turns these metrics off
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1000), help_heading = "Logs and metrics")]
    pub metrics_per_function: u16,
    /// Kubeconfig file to reach the API server from outside the cluster.
    ///
    /// Default: the service account of the pod
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes")]
    pub kubeconfig: Option<PathBuf>,
    /// Largest request and answer in bytes.
    ///
    /// Routers, runners and Porch must have the same value
    #[arg(long, value_name = "BYTES", default_value_t = 6_291_456, help_heading = "Limits")]
    pub max_request_body_size: usize,
    /// Most bytes of messages in memory; more calls are refused.
    ///
    /// Default: 512 MiB or four messages of the largest size, whichever is more
    #[arg(long, value_name = "BYTES", help_heading = "Limits")]
    pub max_inflight_bytes: Option<usize>,
    /// Prefix for images without a registry.
    ///
    /// Porch must have the same value
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "ghcr.io/kptdev/krm-functions-catalog",
        help_heading = "Images"
    )]
    pub default_image_prefix: String,
    /// Images that may run; calls of all other images are refused at once.
    ///
    /// A pattern matches the whole reference: * is any text without a /, and ** is any text. If the
    /// registry of a pattern has a *, it also needs a . or a :. Separate patterns by commas, or
    /// repeat the flag
    #[arg(long, value_name = "GLOBS", value_delimiter = ',', help_heading = "Images")]
    pub allowed_images: Vec<String>,
    /// Mutual TLS between routers and runners: file with the certificate of this program.
    ///
    /// All files of these flags are read again when they change
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,
    /// Mutual TLS between routers and runners: file with the private key of that certificate
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,
    /// Mutual TLS between routers and runners: file with the CA of the other side's certificates
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,
    /// TLS for callers: file with the certificate of this program.
    ///
    /// Porch does not support TLS. Set it on a runner only if there are no routers, and without
    /// --tls-cert
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub listen_tls_cert: Option<PathBuf>,
    /// TLS for callers: file with the private key of that certificate
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub listen_tls_key: Option<PathBuf>,
    /// TLS for callers: file with the CA of the callers' certificates.
    ///
    /// Default: callers need no certificate
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    pub listen_tls_client_ca: Option<PathBuf>,
    /// Deadline of calls that come without one
    #[arg(long, value_name = "DURATION", default_value = "5m", help_heading = "Limits")]
    pub request_timeout: GoDuration,
    /// Longest time for a call; a later deadline of the caller does not count
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = positive, help_heading = "Limits")]
    pub max_timeout: GoDuration,
    /// Threads that serve calls.
    ///
    /// With one thread, a call wakes no other thread. More threads serve more calls per second if
    /// one is not enough
    #[arg(long, value_name = "COUNT", default_value = "1", help_heading = "Limits")]
    pub worker_threads: NonZeroUsize,
    /// Most connections.
    ///
    /// At the limit, a new connection closes the one that has been idle for the longest time
    #[arg(long, value_name = "COUNT", default_value = "10000", help_heading = "Limits")]
    pub max_connections: NonZeroUsize,
    /// How long to accept new calls after SIGTERM, until all callers have noticed
    #[arg(long, value_name = "DURATION", default_value = "5s", help_heading = "Shutdown")]
    pub drain_delay: GoDuration,
    /// How long calls in flight may take to finish, after --drain-delay
    #[arg(long, value_name = "DURATION", default_value = "5m", help_heading = "Shutdown")]
    pub drain_timeout: GoDuration,
}
