//! The runner's flags: every flag and default of Porch's function runner, and our own.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use porch_fn_flags::{CommaList, GoDuration, ServerFlags};
use porch_fn_settings::TagSemantics;

/// The default of `--base-pod-template-name`: the PodTemplate that newer Porch keeps in the
/// function namespace.
pub const BASE_POD_TEMPLATE: &str = "base-pod-template";
/// The default of `--base-service-template-name`: the ServiceTemplate in the same namespace.
const BASE_SERVICE_TEMPLATE: &str = "base-service-template";

/// Runs KRM functions for Porch: as local executables, or in pods that it keeps warm.
///
/// Replaces Porch's function runner and has the same flags. It can be scaled behind
/// porch-fn-router.
#[derive(Debug, Clone, Parser)]
#[command(name = "porch-fn-runner", version)]
#[command(mut_arg("drain_delay", |flag| flag.default_value("1s")))]
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
    #[arg(long, default_value = "")]
    pub disable_runtimes: CommaList,

    /// Most calls of one function that wait for a pod or for the exec runtime; more calls are
    /// refused. 0 counts as 1
    #[arg(long, default_value_t = 1000)]
    pub max_queue_per_function: u32,

    /// Exec runtime: directory with the functions' executables
    #[arg(long, default_value = "./functions")]
    pub functions: PathBuf,
    /// Exec runtime: file that assigns images to executables
    #[arg(long, default_value = "./config.yaml")]
    pub config: PathBuf,
    /// Exec runtime: most functions that run at the same time; more calls wait. 0 means two per
    /// core
    #[arg(long, default_value_t = 0)]
    pub max_parallel_executions: usize,
    /// Exec runtime: environment variables that functions get in addition to PATH, HOME, TMPDIR, TZ
    /// and those for proxies and certificates
    #[arg(long, default_value = "")]
    pub exec_env: CommaList,

    /// Pod runtime: where pods run
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t = PodBackend::Auto)]
    pub pod_backend: PodBackend,
    /// Pod runtime, local: file that assigns images to commands
    #[arg(long)]
    pub local_functions: Option<PathBuf>,
    /// Pod runtime, local: the wrapper-server executable
    #[arg(long, default_value = "wrapper-server")]
    pub wrapper_server: PathBuf,
    /// Pod runtime: file with limits of images, and with the images to warm up
    // Where Porch's manifests mount the ConfigMap.
    #[arg(long, default_value = "/pod-cache-config/pod-cache-config.yaml")]
    pub pod_cache_config: PathBuf,
    /// Pod runtime: start a pod for each image of --pod-cache-config and of FunctionConfigs before
    /// its first call
    #[arg(long, default_value_t = true)]
    pub warm_up_pod_cache: bool,
    /// Pod runtime: how long an unused pod is kept
    #[arg(long, default_value = "30m")]
    pub pod_ttl: GoDuration,
    /// Pod runtime: how often to look for pods to delete or replace
    #[arg(long, default_value = "1m")]
    pub scan_interval: GoDuration,
    /// Pod runtime: start one more pod of a function when its least loaded pod has this many calls
    #[arg(long, default_value_t = 2)]
    pub max_waitlist_length: u32,
    /// Pod runtime: most pods of one function
    #[arg(long, default_value_t = 1)]
    pub max_parallel_pods_per_function: u32,
    /// Pod runtime: most pods of all functions and runners in the namespace together. At the limit,
    /// the pod that has been unused for the longest time is deleted for a new one. 0 means no limit
    #[arg(long, default_value_t = 0)]
    pub max_pods: u32,
    /// Pod runtime: most calls that one pod runs at the same time
    #[arg(long, default_value_t = 16)]
    pub max_concurrent_per_pod: u32,
    /// Pod runtime: how often a call is retried in another pod if its pod dies while it runs the
    /// call. A pod that died before it began the call does not count
    #[arg(long, default_value_t = 2)]
    pub max_grpc_retries: u32,
    /// Pod runtime: how long a call waits for a starting pod, and how long a running pod may take
    /// to become ready
    #[arg(long, default_value = "1m")]
    pub pod_ready_timeout: GoDuration,
    /// Pod runtime: how long a pod may be pending without an error, because its image is pulled or
    /// no node has room yet. After that, it is deleted
    #[arg(long, default_value = "10m")]
    pub pod_pending_timeout: GoDuration,

    /// Kubernetes: namespace of function pods
    #[arg(long, default_value = "porch-fn-system")]
    pub pod_namespace: String,
    /// Kubernetes: meaning of tags in FunctionConfigs
    #[arg(long, value_enum, default_value_t = FunctionConfigTags::Auto)]
    pub functionconfig_tags: FunctionConfigTags,
    /// Kubernetes: ConfigMap with the pod and Service templates, in the runner's own namespace
    #[arg(long, default_value = "")]
    pub function_pod_template: String,
    /// Kubernetes: PodTemplate in the function namespace that pods are made from, if it exists. It
    /// is ignored with --function-pod-template
    #[arg(long, default_value = BASE_POD_TEMPLATE)]
    pub base_pod_template_name: String,
    /// Kubernetes: ServiceTemplate in the function namespace that belongs to that PodTemplate
    #[arg(long, default_value = BASE_SERVICE_TEMPLATE)]
    pub base_service_template_name: String,
    /// Kubernetes: create no pods while one of these two objects is missing. Without this flag, the
    /// built-in template is used then. The runner never creates these objects
    #[arg(long, default_value_t = false)]
    pub skip_template_creation: bool,
    /// Kubernetes: how long after its start the runner creates no pods while one of these two
    /// objects is missing
    #[arg(long, default_value = "0s")]
    pub template_wait_timeout: GoDuration,
    /// Kubernetes: image with the wrapper-server, for the built-in template
    #[arg(long, env = "WRAPPER_SERVER_IMAGE", default_value = "")]
    pub wrapper_server_image: String,
    /// Kubernetes: file with the entry points of images, whose registries are then not asked:
    /// images: [{image, entrypoint: [PROGRAM, ARG, ...]}]
    #[arg(long)]
    pub image_metadata: Option<PathBuf>,
    /// Kubernetes: how long a registry's answer about a tag is used. An answer about a digest is
    /// used forever
    #[arg(long, default_value = "10m")]
    pub image_metadata_ttl: GoDuration,
    /// Kubernetes: platform to run of a multi-platform image, as os/architecture[/variant].
    /// Default: the runner's own
    #[arg(long, default_value = "")]
    pub platform: String,
    /// Kubernetes: registries that use plain HTTP, as host or host:port
    #[arg(long, default_value = "")]
    pub insecure_registries: CommaList,
    /// Kubernetes: how the runner reaches pods
    #[arg(long, value_enum, default_value_t = PodConnect::Service)]
    pub pod_connect: PodConnect,
    /// Kubernetes: the cluster's DNS domain
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Kubernetes: the runner's own namespace. Default: the namespace of its service account
    #[arg(long, env = "POD_NAMESPACE", default_value = "")]
    pub namespace: String,
    /// All runners, including this one, in the same form as the router's --runners. For
    /// kubernetes:/// see --kubeconfig. Only the runner that owns a function replaces and deletes
    /// its pods. A runner without --peers owns all functions
    #[arg(long, default_value = "")]
    pub peers: String,
    /// This runner's own address among --peers. The port may be left out
    #[arg(long, env = "POD_IP", default_value = "")]
    pub shard_address: String,

    /// Registries: use the credentials of --registry-auth-secret-path, and give them to function
    /// pods
    #[arg(long, default_value_t = false)]
    pub enable_private_registries: bool,
    /// Registries: Docker config file with the credentials. It is read again when it changes
    #[arg(long, default_value = "/var/tmp/config-secret/.dockerconfigjson")]
    pub registry_auth_secret_path: PathBuf,
    /// Registries: pull secret in --pod-namespace that the runner creates and updates from that
    /// file
    #[arg(long, default_value = "auth-secret")]
    pub registry_auth_secret_name: String,
    /// Registries: trust the CA of --tls-secret-path in addition to the system's CAs
    #[arg(long, default_value_t = false)]
    pub enable_private_registries_tls: bool,
    /// Registries: directory with that CA, as ca.crt or ca.pem
    #[arg(long, default_value = "/var/tmp/tls-secret/")]
    pub tls_secret_path: PathBuf,
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
    pub(crate) fn semantics(self) -> Option<TagSemantics> {
        match self {
            Self::Auto => None,
            Self::Exact => Some(TagSemantics::Exact),
            Self::Constraint => Some(TagSemantics::Constraint),
        }
    }
}

impl Flags {
    /// Whether `--disable-runtimes` does not contain this runtime.
    pub(crate) fn is_enabled(&self, runtime: &str) -> bool {
        !self.disable_runtimes.iter().any(|disabled| disabled == runtime)
    }

    /// Whether a runner in a cluster runs functions in pods of the cluster with these flags.
    pub fn has_function_pods(&self) -> bool {
        self.is_enabled("pod") && matches!(self.pod_backend, PodBackend::Auto | PodBackend::Kubernetes)
    }
}
