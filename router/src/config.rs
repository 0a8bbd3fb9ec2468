//! The router's flags.

use std::time::Duration;

use clap::Parser;
use porch_fn_discovery::Target;
use porch_fn_flags::{GoDuration, ServerFlags, positive};
use porch_fn_grpc_client::conn;

/// Port of runners when --runners names none.
const DEFAULT_PORT: u16 = 9445;
/// Port of routers when --router-peers names none.
const DEFAULT_ADMIN_PORT: u16 = 9464;
/// Timeout of one dial. A call does not wait longer for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);
/// Timeout of one dial with TLS. The handshake costs CPU time on both sides.
const TLS_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Routes function calls from Porch to the runner that keeps the function's pods warm.
///
/// Set Porch's --function-runner to this router (HOST:9445), and --runners to the runners' headless
/// Service.
// The texts of the flags appear in --help, which does not render Markdown.
#[allow(clippy::doc_markdown)]
#[derive(Debug, Clone, Parser)]
#[command(name = "porch-fn-router", version = porch_fn_version::VERSION)]
pub struct Flags {
    /// The flags that runners have too.
    #[command(flatten)]
    pub server: ServerFlags,
    /// The runners: dns:///HOST:PORT (a headless Service), kubernetes:///NAMESPACE/SERVICE:PORT
    /// (its EndpointSlices), static:///A:PORT,B:PORT (a list), or HOST:PORT (the same as
    /// dns:///HOST:PORT)
    #[arg(long, value_name = "TARGET", value_parser = |text: &str| Target::parse(text, DEFAULT_PORT), help_heading = "Runners")]
    pub runners: Target,
    /// The admin ports of all routers with the same runners, for the status page: the same forms as
    /// --runners.
    ///
    /// The default port is 9464. If not set, the status page shows only this router's calls
    #[arg(long, value_name = "TARGET", value_parser = |text: &str| Target::parse(text, DEFAULT_ADMIN_PORT), help_heading = "Listeners")]
    pub router_peers: Option<Target>,
    /// Mutual TLS with the runners: the name that the runners' certificates must contain.
    ///
    /// Default: HOST for dns:///, SERVICE.NAMESPACE.svc for kubernetes:///, and each runner's
    /// address for static:///
    #[arg(long, value_name = "NAME", help_heading = "TLS")]
    pub tls_server_name: Option<String>,
    /// Interval of HTTP/2 pings to each runner; the calls of a runner that does not answer move to
    /// other runners
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive, help_heading = "Runners")]
    pub keepalive_time: GoDuration,
    /// How long a runner may take to answer a ping.
    ///
    /// Sent bytes must be acknowledged within --keepalive-time and this together
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive, help_heading = "Runners")]
    pub keepalive_timeout: GoDuration,
    /// How long connecting to a runner may take, including the name lookup; if not set, 250ms, or
    /// 1s with mutual TLS
    #[arg(long, value_name = "DURATION", value_parser = positive, help_heading = "Runners")]
    pub connect_timeout: Option<GoDuration>,
    /// Age at which the router asks a caller to open a new connection, so that callers spread over
    /// routers.
    ///
    /// 0 means never
    #[arg(long, value_name = "DURATION", default_value = "10m", help_heading = "Limits")]
    pub max_connection_age: GoDuration,
    /// Learn which function follows which, and let the runners start pods for the functions that
    /// will probably follow a call
    #[arg(long, default_value_t = true, help_heading = "Runners")]
    pub predict: bool,
    /// Number of routers that use the same runners; each one sees only its part of an image's calls
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "Runners")]
    pub router_count: usize,
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
