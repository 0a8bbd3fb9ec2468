//! The runner's flags: every flag and default of Porch's function runner, and our own.

use std::path::PathBuf;

use clap::{Arg, ArgAction, Parser, ValueEnum};
use porch_fn_flags::{CommaList, GoDuration, ServerFlags};
use porch_fn_settings::TagSemantics;

/// The default of `--base-pod-template-name`: the PodTemplate that newer Porch keeps in the
/// function namespace.
pub const BASE_POD_TEMPLATE: &str = "base-pod-template";
/// The default of `--base-service-template-name`: the ServiceTemplate in the same namespace.
const BASE_SERVICE_TEMPLATE: &str = "base-service-template";

/// Boolean flags that have no effect any more. The next version refuses them.
pub const REMOVED_FLAGS: [&str; 1] = ["prestart"];

/// Runs KRM functions for Porch: as local executables, or in pods that it keeps warm.
///
/// Replaces Porch's function runner and has the same flags. It can be scaled behind
/// porch-fn-router.
#[derive(Debug, Clone, Parser)]
#[command(name = "porch-fn-runner", version = porch_fn_version::VERSION)]
#[command(mut_arg("drain_delay", |flag| flag.default_value("1s")))]
#[command(mut_args(hide_empty_default))]
#[command(args(REMOVED_FLAGS.map(hidden)))]
// The runner has one listener: its certificate comes from `--listen-tls-*` or from `--tls-*`.
#[command(mut_arg("listen_tls_cert", |flag| flag.conflicts_with_all(["tls_cert", "tls_key", "tls_client_ca"])))]
pub struct Flags {
    /// The flags that routers have too.
    #[command(flatten)]
    pub server: ServerFlags,
    /// The runner's name in reports. It is not a flag: `None` means the name of the pod or host.
    #[arg(skip)]
    pub name: Option<String>,
    /// Runtimes to disable: exec, pod
    #[arg(long, value_name = "RUNTIMES", default_value = "", help_heading = "Runtimes")]
    pub disable_runtimes: CommaList,

    /// Most calls of one function that wait for a pod or for the exec runtime; more calls are
    /// refused.
    ///
    /// 0 counts as 1
    #[arg(long, value_name = "COUNT", default_value_t = 1000, help_heading = "Limits")]
    pub max_queue_per_function: u32,

    /// Directory with the functions' executables
    #[arg(long, value_name = "DIR", default_value = "./functions", help_heading = "Exec runtime")]
    pub functions: PathBuf,
    /// File that assigns images to executables
    #[arg(long, value_name = "FILE", default_value = "./config.yaml", help_heading = "Exec runtime")]
    pub config: PathBuf,
    /// Most functions that run at the same time; more calls wait.
    ///
    /// 0 means two per core
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = "Exec runtime")]
    pub max_parallel_executions: usize,
    /// Environment variables that functions get in addition to PATH, HOME, TMPDIR, TZ and those for
    /// proxies and certificates
    #[arg(long, value_name = "NAMES", default_value = "", help_heading = "Exec runtime")]
    pub exec_env: CommaList,

    /// Where pods run
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t = PodBackend::Auto, help_heading = "Pod runtime")]
    pub pod_backend: PodBackend,
    /// With --pod-backend=local: file that assigns images to commands
    #[arg(long, value_name = "FILE", help_heading = "Pod runtime")]
    pub local_functions: Option<PathBuf>,
    /// With --pod-backend=local: the wrapper-server executable
    #[arg(long, value_name = "FILE", default_value = "wrapper-server", help_heading = "Pod runtime")]
    pub wrapper_server: PathBuf,
    /// Let new function pods report to this runner that they serve, before the API server reports
    /// their address.
    ///
    /// Needs --shard-address and a listener without TLS. A network policy must let function pods
    /// reach the runners
    #[arg(long, default_value_t = false, help_heading = "Pod runtime")]
    pub pod_announce: bool,
    /// File with limits of images, and with the images to warm up
    // Where Porch's manifests mount the ConfigMap.
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/pod-cache-config/pod-cache-config.yaml",
        help_heading = "Pod runtime"
    )]
    pub pod_cache_config: PathBuf,
    /// Start a pod for each image of --pod-cache-config and of FunctionConfigs before its first
    /// call
    #[arg(long, default_value_t = true, help_heading = "Pod runtime")]
    pub warm_up_pod_cache: bool,
    /// How long an unused pod is kept
    #[arg(long, value_name = "DURATION", default_value = "30m", help_heading = "Pod runtime")]
    pub pod_ttl: GoDuration,
    /// How often to look for pods to delete or replace
    #[arg(long, value_name = "DURATION", default_value = "1m", help_heading = "Pod runtime")]
    pub scan_interval: GoDuration,
    /// Start one more pod of a function when its least loaded pod has this many calls
    #[arg(long, value_name = "COUNT", default_value_t = 2, help_heading = "Pod runtime")]
    pub max_waitlist_length: u32,
    /// Most pods of one function
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "Pod runtime")]
    pub max_parallel_pods_per_function: u32,
    /// Most pods of all functions and runners in the namespace together.
    ///
    /// At the limit, the pod that has been unused for the longest time is deleted for a new one. 0
    /// means no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0, help_heading = "Pod runtime")]
    pub max_pods: u32,
    /// Most calls that one pod runs at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 16, help_heading = "Pod runtime")]
    pub max_concurrent_per_pod: u32,
    /// How often a call is retried in another pod if its pod dies while it runs the call.
    ///
    /// A pod that died before it began the call does not count
    #[arg(long, value_name = "COUNT", default_value_t = 2, help_heading = "Pod runtime")]
    pub max_grpc_retries: u32,
    /// How long a call waits for a starting pod, and how long a running pod may take to become
    /// ready
    #[arg(long, value_name = "DURATION", default_value = "1m", help_heading = "Pod runtime")]
    pub pod_ready_timeout: GoDuration,
    /// How long a pod may be pending without an error, because its image is pulled or no node has
    /// room yet.
    ///
    /// After that, it is deleted
    #[arg(long, value_name = "DURATION", default_value = "10m", help_heading = "Pod runtime")]
    pub pod_pending_timeout: GoDuration,

    /// Namespace of function pods
    #[arg(long, value_name = "NAMESPACE", default_value = "porch-fn-system", help_heading = "Kubernetes")]
    pub pod_namespace: String,
    /// Meaning of tags in FunctionConfigs
    #[arg(long, value_name = "MEANING", value_enum, default_value_t = FunctionConfigTags::Auto, help_heading = "Kubernetes")]
    pub functionconfig_tags: FunctionConfigTags,
    /// ConfigMap with the pod and Service templates, in the runner's own namespace
    #[arg(long, value_name = "NAME", default_value = "", help_heading = "Kubernetes")]
    pub function_pod_template: String,
    /// PodTemplate in the function namespace that pods are made from, if it exists.
    ///
    /// It is ignored with --function-pod-template
    #[arg(long, value_name = "NAME", default_value = BASE_POD_TEMPLATE, help_heading = "Kubernetes")]
    pub base_pod_template_name: String,
    /// ServiceTemplate in the function namespace that belongs to that PodTemplate
    #[arg(long, value_name = "NAME", default_value = BASE_SERVICE_TEMPLATE, help_heading = "Kubernetes")]
    pub base_service_template_name: String,
    /// Create no pods while one of these two objects is missing.
    ///
    /// Without this flag, the built-in template is used then. The runner never creates these
    /// objects
    #[arg(long, default_value_t = false, help_heading = "Kubernetes")]
    pub skip_template_creation: bool,
    /// How long after its start the runner creates no pods while one of these two objects is
    /// missing
    #[arg(long, value_name = "DURATION", default_value = "0s", help_heading = "Kubernetes")]
    pub template_wait_timeout: GoDuration,
    /// Image with the wrapper-server, for the built-in template
    #[arg(
        long,
        value_name = "IMAGE",
        env = "WRAPPER_SERVER_IMAGE",
        default_value = "",
        help_heading = "Kubernetes"
    )]
    pub wrapper_server_image: String,
    /// File with the entry points of images, whose registries are then not asked.
    ///
    /// The file has images: [{image, entrypoint: [PROGRAM, ARG, ...]}]
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes")]
    pub image_metadata: Option<PathBuf>,
    /// How long a registry's answer about a tag is used.
    ///
    /// An answer about a digest is used forever
    #[arg(long, value_name = "DURATION", default_value = "10m", help_heading = "Kubernetes")]
    pub image_metadata_ttl: GoDuration,
    /// Platform to run of a multi-platform image, as os/architecture[/variant].
    ///
    /// Default: the runner's own
    #[arg(long, value_name = "PLATFORM", default_value = "", help_heading = "Kubernetes")]
    pub platform: String,
    /// Registries that use plain HTTP, as host or host:port
    #[arg(long, value_name = "HOSTS", default_value = "", help_heading = "Kubernetes")]
    pub insecure_registries: CommaList,
    /// How the runner reaches pods
    #[arg(long, value_name = "WAY", value_enum, default_value_t = PodConnect::Service, help_heading = "Kubernetes")]
    pub pod_connect: PodConnect,
    /// The cluster's DNS domain
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", help_heading = "Kubernetes")]
    pub cluster_domain: String,
    /// The runner's own namespace.
    ///
    /// Default: the namespace of its service account
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "POD_NAMESPACE",
        default_value = "",
        help_heading = "Kubernetes"
    )]
    pub namespace: String,
    /// All runners, including this one, in the same form as the router's --runners.
    ///
    /// For kubernetes:/// see --kubeconfig. Only the runner that owns a function replaces and
    /// deletes its pods. A runner without --peers owns all functions
    #[arg(long, value_name = "TARGET", default_value = "", help_heading = "Runners")]
    pub peers: String,
    /// This runner's own address among --peers.
    ///
    /// The port may be left out
    #[arg(long, value_name = "ADDRESS", env = "POD_IP", default_value = "", help_heading = "Runners")]
    pub shard_address: String,

    /// Use the credentials of --registry-auth-secret-path, and give them to function pods
    #[arg(long, default_value_t = false, help_heading = "Registries")]
    pub enable_private_registries: bool,
    /// Docker config file with the credentials.
    ///
    /// It is read again when it changes
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/tmp/config-secret/.dockerconfigjson",
        help_heading = "Registries"
    )]
    pub registry_auth_secret_path: PathBuf,
    /// Pull secret in --pod-namespace that the runner creates and updates from that file
    #[arg(long, value_name = "NAME", default_value = "auth-secret", help_heading = "Registries")]
    pub registry_auth_secret_name: String,
    /// Trust the CA of --tls-secret-path in addition to the system's CAs
    #[arg(long, default_value_t = false, help_heading = "Registries")]
    pub enable_private_registries_tls: bool,
    /// Directory with that CA, as ca.crt or ca.pem
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/tls-secret/", help_heading = "Registries")]
    pub tls_secret_path: PathBuf,
    /// Mirrors of registries.
    #[command(flatten)]
    pub mirrors: MirrorFlags,
}

/// The help shows no default that is the empty text.
fn hide_empty_default(flag: Arg) -> Arg {
    if flag.get_default_values() == [""] { flag.hide_default_value(true) } else { flag }
}

fn hidden(flag: &'static str) -> Arg {
    Arg::new(flag).long(flag).action(ArgAction::SetTrue).hide(true)
}

/// Mirrors, for runners and for the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct MirrorFlags {
    /// Registries to ask first for the images of each HOST, separated by commas
    #[arg(
        long,
        value_name = "HOST=URL",
        env = "PORCH_FN_REGISTRY_MIRROR",
        default_value = "",
        hide_default_value = true,
        help_heading = "Registries"
    )]
    pub registry_mirror: CommaList,
}

/// Where function pods run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PodBackend {
    /// `kubernetes` if the runner runs in a cluster or --kubeconfig is set; otherwise `none`.
    Auto,
    /// No pods: only the exec runtime.
    None,
    /// As wrapper-server processes on this machine.
    Local,
    /// In a Kubernetes cluster.
    Kubernetes,
}

/// The meaning of tags in FunctionConfigs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FunctionConfigTags {
    /// The meaning that the schema in the cluster describes. Without a description: `exact`.
    Auto,
    /// As in Porch 1.6: tags of executables are literal, and tags of pods are ignored.
    Exact,
    /// Version constraints, as in Porch since its pull request 1186.
    Constraint,
}

/// How the runner reaches function pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PodConnect {
    /// By each pod's Service. Service meshes need this.
    Service,
    /// By each pod's own address.
    PodIp,
}

impl FunctionConfigTags {
    /// `None`: the schema in the cluster decides.
    pub fn semantics(self) -> Option<TagSemantics> {
        match self {
            Self::Auto => None,
            Self::Exact => Some(TagSemantics::Exact),
            Self::Constraint => Some(TagSemantics::Constraint),
        }
    }
}

impl Flags {
    /// Whether `--disable-runtimes` does not contain this runtime.
    pub fn is_enabled(&self, runtime: &str) -> bool {
        !self.disable_runtimes.iter().any(|disabled| disabled == runtime)
    }

    /// Whether a runner in a cluster runs functions in pods of the cluster with these flags.
    pub fn has_function_pods(&self) -> bool {
        self.is_enabled("pod") && matches!(self.pod_backend, PodBackend::Auto | PodBackend::Kubernetes)
    }
}
