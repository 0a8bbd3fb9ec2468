//! The runner's flags: every flag and default of Porch's function runner, and our own.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use porch_fn_flags::{CommaList, GoDuration, positive};
use porch_fn_settings::TagSemantics;

/// The PodTemplate that newer Porch keeps in the function namespace: the default of
/// `--base-pod-template-name`.
pub const BASE_POD_TEMPLATE: &str = "base-pod-template";
/// The ServiceTemplate beside it: the default of `--base-service-template-name`.
const BASE_SERVICE_TEMPLATE: &str = "base-service-template";

/// Runs KRM functions for Porch: as local executables, or in pods that it keeps warm.
///
/// Takes the place of Porch's function runner with the same flags; behind porch-fn-router it can be
/// scaled.
#[derive(Debug, Clone, Parser)]
#[command(name = "porch-fn-runner", version)]
pub struct Flags {
    /// Address to listen on; all interfaces when not given
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// Port for function calls and gRPC health; 0 takes any and prints it
    #[arg(long, default_value_t = 9445)]
    pub port: u16,
    /// Port for /metrics, /healthz, /readyz and /pods; 0 takes any and prints it
    #[arg(long, env = "OTEL_EXPORTER_PROMETHEUS_PORT", default_value_t = 9464)]
    pub admin_port: u16,
    /// Runtimes to leave out: exec, pod
    #[arg(long, default_value = "")]
    pub disable_runtimes: CommaList,
    /// Log verbosity: 0 errors, 1 warnings, 2 events, 4 calls, 5 everything
    #[arg(long, default_value_t = porch_fn_telemetry::DEFAULT_LOG_LEVEL, value_parser = clap::value_parser!(u8).range(0..=5))]
    pub log_level: u8,
    /// Largest message in bytes; must agree with the router's and Porch's
    #[arg(long, default_value_t = 6_291_456)]
    pub max_request_body_size: usize,
    /// Bytes of messages held at once before calls are refused; when not given, 512 MiB or four
    /// messages, whichever is more
    #[arg(long)]
    pub max_inflight_bytes: Option<usize>,
    /// Prefix of images without a registry, as Porch has it
    #[arg(long, default_value = "ghcr.io/kptdev/krm-functions-catalog")]
    pub default_image_prefix: String,
    /// Images that may run: globs over whole references, separated by commas or in several flags; *
    /// is any text without a /, ** any text; a registry with a * in it needs a . or a :. All others
    /// are refused before anything is looked up or started for them
    #[arg(long, value_delimiter = ',')]
    pub allowed_images: Vec<String>,
    /// Mutual TLS with the routers: the certificate they are shown; all three files are read again
    /// when they change
    #[arg(long)]
    pub tls_cert: Option<PathBuf>,
    /// Mutual TLS with the routers: the key of that certificate
    #[arg(long)]
    pub tls_key: Option<PathBuf>,
    /// Mutual TLS with the routers: the authority that their certificates must come from
    #[arg(long)]
    pub tls_client_ca: Option<PathBuf>,
    /// TLS where there is no router, instead of --tls-cert: the certificate that callers are shown;
    /// Porch speaks no TLS
    #[arg(long, conflicts_with_all = ["tls_cert", "tls_key", "tls_client_ca"])]
    pub listen_tls_cert: Option<PathBuf>,
    /// TLS where there is no router: the key of that certificate
    #[arg(long)]
    pub listen_tls_key: Option<PathBuf>,
    /// TLS where there is no router: the authority that callers' certificates must come from; none
    /// is asked for when not given
    #[arg(long)]
    pub listen_tls_client_ca: Option<PathBuf>,
    /// How long a call may take whose caller sets no deadline
    #[arg(long, default_value = "5m")]
    pub request_timeout: GoDuration,
    /// How long a call may take whatever deadline its caller sets
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = positive)]
    pub max_timeout: GoDuration,
    /// Connections at once; for one more the one that has had no call for longest ends
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    pub max_connections: NonZeroUsize,
    /// How long to go on accepting after SIGTERM, while routers learn of it
    #[arg(long, default_value = "1s")]
    pub drain_delay: GoDuration,
    /// How long calls in flight may take after that
    #[arg(long, default_value = "5m")]
    pub drain_timeout: GoDuration,

    /// Most calls of one function that wait for a pod, or for a place in the exec runtime
    #[arg(long, default_value_t = 1000)]
    pub max_queue_per_function: u32,

    /// Exec runtime: directory with the functions' executables
    #[arg(long, default_value = "./functions")]
    pub functions: PathBuf,
    /// Exec runtime: file that says which executable runs which images
    #[arg(long, default_value = "./config.yaml")]
    pub config: PathBuf,
    /// Exec runtime: functions that run at once, more wait; 0 means two per core
    #[arg(long, default_value_t = 0)]
    pub max_parallel_executions: usize,
    /// Exec runtime: environment variables passed on beside PATH, HOME, TMPDIR, TZ, proxies and
    /// certificates
    #[arg(long, default_value = "")]
    pub exec_env: CommaList,

    /// Pod runtime: where pods run
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t = PodBackend::Auto)]
    pub pod_backend: PodBackend,
    /// Pod runtime, local: file that says which command stands for which image
    #[arg(long)]
    pub local_functions: Option<PathBuf>,
    /// Pod runtime, local: the wrapper-server executable
    #[arg(long, default_value = "wrapper-server")]
    pub wrapper_server: PathBuf,
    /// Pod runtime: file with per-image limits and the images to warm up
    // Where Porch's manifests mount the ConfigMap.
    #[arg(long, default_value = "/pod-cache-config/pod-cache-config.yaml")]
    pub pod_cache_config: PathBuf,
    /// Pod runtime: start the pods of --pod-cache-config at start
    #[arg(long, default_value_t = true)]
    pub warm_up_pod_cache: bool,
    /// Pod runtime: how long an unused pod is kept
    #[arg(long, default_value = "30m")]
    pub pod_ttl: GoDuration,
    /// Pod runtime: how often to look for pods to collect
    #[arg(long, default_value = "1m")]
    pub scan_interval: GoDuration,
    /// Pod runtime: load of a function's least loaded pod at which one more is started
    #[arg(long, default_value_t = 2)]
    pub max_waitlist_length: u32,
    /// Pod runtime: most pods of one function
    #[arg(long, default_value_t = 1)]
    pub max_parallel_pods_per_function: u32,
    /// Pod runtime: most pods of all functions and runners of the namespace together; the one
    /// unused for longest makes place for another; 0 means any number
    #[arg(long, default_value_t = 0)]
    pub max_pods: u32,
    /// Pod runtime: most calls at once in one pod
    #[arg(long, default_value_t = 16)]
    pub max_concurrent_per_pod: u32,
    /// Pod runtime: how many more pods run a call whose pod died while it ran the call; 0 means
    /// none. A pod that was gone before it began does not count
    #[arg(long, default_value_t = 2)]
    pub max_grpc_retries: u32,
    /// Pod runtime: how long a call waits for a pod to become ready, and a running pod may take
    #[arg(long, default_value = "1m")]
    pub pod_ready_timeout: GoDuration,
    /// Pod runtime: how long a pod may be pending without a fault, while its image is pulled or a
    /// node is awaited, before it is deleted
    #[arg(long, default_value = "10m")]
    pub pod_pending_timeout: GoDuration,

    /// Kubernetes: namespace of function pods
    #[arg(long, default_value = "porch-fn-system")]
    pub pod_namespace: String,
    /// Kubernetes: what tags of FunctionConfigs mean; constraint as in Porch since its pull request
    /// 1186, exact as before it, auto as the schema in the cluster says
    #[arg(long, value_enum, default_value_t = FunctionConfigTags::Auto)]
    pub functionconfig_tags: FunctionConfigTags,
    /// Kubernetes: ConfigMap with the pod and Service templates, in the runner's own namespace
    #[arg(long, default_value = "")]
    pub function_pod_template: String,
    /// Kubernetes: PodTemplate in the function namespace that pods are made from when it is there;
    /// not read with
    /// --function-pod-template
    #[arg(long, default_value = BASE_POD_TEMPLATE)]
    pub base_pod_template_name: String,
    /// Kubernetes: ServiceTemplate in the function namespace that goes with that PodTemplate
    #[arg(long, default_value = BASE_SERVICE_TEMPLATE)]
    pub base_service_template_name: String,
    /// Kubernetes: make no pods while one of these two objects is missing, instead of using the
    /// built-in template. The runner never creates the objects, with or without this flag
    #[arg(long, default_value_t = false)]
    pub skip_template_creation: bool,
    /// Kubernetes: after the start, make no pods for so long while one of these two objects is
    /// missing
    #[arg(long, default_value = "0s")]
    pub template_wait_timeout: GoDuration,
    /// Kubernetes: image with the wrapper-server, for the built-in template
    #[arg(long, env = "WRAPPER_SERVER_IMAGE", default_value = "")]
    pub wrapper_server_image: String,
    /// Kubernetes: file that says what images run, for those whose registry is not to be asked:
    /// images: [{image, entrypoint: [PROGRAM, ARG, ...]}]
    #[arg(long)]
    pub image_metadata: Option<PathBuf>,
    /// Kubernetes: how long to rely on what a registry said about a tag; digests hold for good
    #[arg(long, default_value = "10m")]
    pub image_metadata_ttl: GoDuration,
    /// Kubernetes: which of a multi-platform image to run, os/architecture[/variant]; the runner's
    /// own when not given
    #[arg(long, default_value = "")]
    pub platform: String,
    /// Kubernetes: registries that speak plain HTTP, host or host:port
    #[arg(long, default_value = "")]
    pub insecure_registries: CommaList,
    /// Kubernetes: how pods are reached
    #[arg(long, value_enum, default_value_t = PodConnect::Service)]
    pub pod_connect: PodConnect,
    /// Kubernetes: the cluster's DNS domain
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Kubernetes: the runner's own namespace; the service account's when not given
    #[arg(long, env = "POD_NAMESPACE", default_value = "")]
    pub namespace: String,
    /// Kubernetes: how to reach the API server from outside; the service account when not given
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// All runners, this one among them: a target as the router's --runners has it; for
    /// kubernetes:/// see --kubeconfig. Of several runners only a function's owner replaces and
    /// collects its pods; a runner without --peers owns all
    #[arg(long, default_value = "")]
    pub peers: String,
    /// This runner's own address among --peers; the port may be left out
    #[arg(long, env = "POD_IP", default_value = "")]
    pub shard_address: String,

    /// Registries: use the credentials of --registry-auth-secret-path, and give them to function
    /// pods
    #[arg(long, default_value_t = false)]
    pub enable_private_registries: bool,
    /// Registries: the docker config file with the credentials; read again when it changes
    #[arg(long, default_value = "/var/tmp/config-secret/.dockerconfigjson")]
    pub registry_auth_secret_path: PathBuf,
    /// Registries: the pull secret that is kept in --pod-namespace with the content of that file
    #[arg(long, default_value = "auth-secret")]
    pub registry_auth_secret_name: String,
    /// Registries: trust the CA of --tls-secret-path beside the system's
    #[arg(long, default_value_t = false)]
    pub enable_private_registries_tls: bool,
    /// Registries: directory with that CA, as ca.crt or ca.pem
    #[arg(long, default_value = "/var/tmp/tls-secret/")]
    pub tls_secret_path: PathBuf,
}

/// Where function pods run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PodBackend {
    /// On Kubernetes when the runner does or --kubeconfig is given, else nowhere.
    Auto,
    /// Nowhere: only the exec runtime.
    None,
    /// As wrapper-server processes on this machine.
    Local,
    /// In a Kubernetes cluster.
    Kubernetes,
}

/// What tags of FunctionConfigs mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FunctionConfigTags {
    /// What the schema in the cluster says, and like `exact` where it does not say.
    Auto,
    /// Those of pods are not looked at, those of executables are literal.
    Exact,
    /// Version constraints.
    Constraint,
}

/// How function pods are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PodConnect {
    /// By each pod's Service, which service meshes need.
    Service,
    /// By each pod's own address.
    PodIp,
}

impl FunctionConfigTags {
    /// `None`: the schema in the cluster decides.
    pub(crate) fn semantics(self) -> Option<TagSemantics> {
        match self {
            Self::Auto => None,
            Self::Exact => Some(TagSemantics::Exact),
            Self::Constraint => Some(TagSemantics::Constraint),
        }
    }
}

impl Flags {
    /// Whether `--disable-runtimes` leaves this runtime in.
    pub(crate) fn is_enabled(&self, runtime: &str) -> bool {
        !self.disable_runtimes.iter().any(|disabled| disabled == runtime)
    }

    /// Whether functions run in pods of a cluster with these flags, if the runner itself runs in a
    /// cluster.
    pub fn has_function_pods(&self) -> bool {
        self.is_enabled("pod") && matches!(self.pod_backend, PodBackend::Auto | PodBackend::Kubernetes)
    }
}
