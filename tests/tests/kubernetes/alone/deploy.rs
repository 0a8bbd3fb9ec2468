//! Applies deploy/ like a user: the unchanged base, its components and the single runner. It also
//! checks that nothing is left after removal.
//!
//! The cluster's node and DNS can resolve the registry that the manifests name. Nothing enforces
//! `NetworkPolicies` here, and neither cert-manager nor the Prometheus operator runs. For those
//! components, the API server only validates the objects. `certificates` tests the mtls component
//! with cert-manager's controllers.

pub(crate) mod command_line;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Audit, Cluster, Mark, ROUTER, RUNNERS};
use porch_fn_tests::load::{Load, Plan, Routers};
use porch_fn_tests::process::{Sandbox, eventually, figure};
use porch_fn_tests::rights::{DEPLOY, FUNCTIONS, HOME};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::rig::INPUT;

const REGISTRY: &str = "porch-fn.example";
/// The label of all objects of the base and its components, except objects of Porch that a
/// component changes.
pub(crate) const PART_OF: &str = "app.kubernetes.io/part-of=porch-function-runner";
const FUNCTION_PODS: &str = "app.kubernetes.io/managed-by=porch-fn-runner";
/// All components that can be combined. `take-over-1.5` is missing, because it replaces `take-over`
/// for Porch 1.5.
const COMPONENTS: [&str; 11] = [
    "function-pod-limits",
    "hpa",
    "image-pull-secrets",
    "mtls",
    "network-policies",
    "pod-security",
    "pod-template",
    "private-registries",
    "prometheus-operator",
    "restricted",
    "take-over",
];
const CALLERS: usize = 4;

/// A cluster to which a test applies deploy/ with `kubectl`.
pub(crate) struct DeploySetup {
    pub(crate) cluster: Cluster,
    pub(crate) sandbox: Sandbox,
    pub(crate) images: Vec<String>,
}

impl DeploySetup {
    /// Pushes the function images, and removes what an earlier run left behind.
    pub(crate) async fn new(cluster: Cluster) -> Self {
        let mut images = Vec::new();
        for number in 0..4 {
            let name = format!("deployed/function-{number}:v1");
            cluster.function_named(&name).await;
            images.push(format!("{REGISTRY}/{name}"));
        }
        let setup = Self { cluster, sandbox: Sandbox::new(), images };
        setup.delete_namespaces().await;
        for namespace in [HOME, FUNCTIONS] {
            setup.kubectl(&["create", "--save-config", "namespace", namespace]).await;
        }
        setup
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Output {
        self.cluster.kubectl_ok(args, "").await
    }

    /// Runs `kubectl` and returns its output. Asserts that it prints no warning.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> String {
        let ended = self.run(args).await;
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "kubectl {args:?}");
        String::from_utf8(ended.stdout).unwrap()
    }

    pub(crate) async fn rolled_out(&self, deployments: &[&str]) {
        for deployment in deployments {
            self.kubectl(&["-n", HOME, "rollout", "status", "deployment", deployment, "--timeout=5m"]).await;
        }
    }

    async fn address_of(&self, service: &str) -> SocketAddr {
        let ip = "jsonpath={.spec.clusterIP}";
        let ip = self.kubectl(&["-n", HOME, "get", "service", service, "-o", ip]).await;
        SocketAddr::new(ip.parse().unwrap(), 9445)
    }

    /// Waits until a Service accepts connections. A pod can be ready before kube-proxy on the node
    /// knows that, and kube-proxy refuses connections until then.
    pub(crate) async fn wait_reachable(&self, service: &str, port: u16) {
        let mut address = self.address_of(service).await;
        address.set_port(port);
        eventually("the Service accepts connections", async || TcpStream::connect(address).await.ok()).await;
    }

    /// Calls each function through the routers' Service.
    pub(crate) async fn call_each(&self, images: &[String]) {
        self.call_each_at(ROUTER, images).await;
    }

    /// Calls each function through a Service.
    pub(crate) async fn call_each_at(&self, service: &str, images: &[String]) {
        self.wait_reachable(service, 9445).await;
        let client = Client::new(self.address_of(service).await);
        for image in images {
            assert_eq!(client.call(image, INPUT).await.output(), INPUT);
        }
    }

    /// Runs load during `happens`, and asserts that no call fails.
    pub(crate) async fn under_load(&self, what: &str, happens: impl AsyncFnOnce()) {
        let routers = Routers::new([self.address_of(ROUTER).await]);
        let load = Load::through(&routers, Plan::callers(CALLERS, &self.images[..2]));
        let start = Instant::now();
        happens().await;
        let report = load.stop().await;
        figure(&format!("{what} in {:.1?}: {report}", start.elapsed()));
        report.assert_all_succeeded();
    }

    /// Copies deploy/ and turns on some components, as the comment in its kustomization describes.
    pub(crate) fn with(&self, components: &[&str]) -> String {
        let copy = self.sandbox.path(&format!("with-{}", components.len()));
        copy_folder(Path::new(DEPLOY), &copy);
        let file = copy.join("kustomization.yaml");
        let mut text = std::fs::read_to_string(&file).unwrap();
        for component in components {
            let line = format!("- components/{component}\n");
            assert!(text.contains(&format!("# {line}")), "{component} is listed");
            text = text.replace(&format!("# {line}"), &line);
        }
        std::fs::write(file, text).unwrap();
        copy.to_str().unwrap().to_owned()
    }

    /// Installs the `CustomResourceDefinitions` that the components need.
    pub(crate) async fn install_component_crds(&self) {
        let definitions = self.sandbox.run("crds", [""; 0], b"").await.stdout;
        let definitions = self.sandbox.write("crds.yaml", definitions);
        self.apply_crds(&definitions).await;
    }

    /// Applies `CustomResourceDefinitions`, and waits until the API server serves them.
    pub(crate) async fn apply_crds(&self, definitions: &Path) {
        let file = ["-f", definitions.to_str().unwrap()];
        self.kubectl(&[&["apply", "--server-side"], &file[..]].concat()).await;
        let established = ["wait", "--for=condition=established", "--timeout=1m"];
        self.kubectl(&[&established, &file[..]].concat()).await;
        // A definition is established before the API server lists and serves its kind.
        let kinds = self.kubectl(&[&["get", "-o", "name"], &file[..]].concat()).await;
        let kinds = kinds.replace("customresourcedefinition.apiextensions.k8s.io/", "");
        let kinds = kinds.lines().collect::<Vec<_>>().join(",");
        eventually("the kinds are served", async || {
            self.cluster
                .kubectl(&["get", "--all-namespaces", &kinds], "")
                .await
                .status
                .success()
                .then_some(())
        })
        .await;
    }

    /// Asserts that no pod of the namespace violates the restricted Pod Security Standard.
    async fn assert_restricted(&self, namespace: &str) {
        let standard = "pod-security.kubernetes.io/enforce=restricted";
        self.kubectl(&["label", "--dry-run=server", "--overwrite", "namespace", namespace, standard]).await;
    }

    /// Uninstalls the objects of a folder, with the commands of docs/install.md for a cluster that
    /// keeps Porch.
    pub(crate) async fn uninstall(&self, folder: &str) {
        self.kubectl(&["delete", "-k", folder, "-l", PART_OF]).await;
        self.kubectl(&["-n", FUNCTIONS, "delete", "pods,secrets", "-l", FUNCTION_PODS]).await;
    }

    /// Waits until none of our objects is left after an uninstallation that keeps Porch.
    pub(crate) async fn wait_uninstalled(&self) {
        let kinds = "deployments,replicasets,pods,services,endpointslices,poddisruptionbudgets,roles,rolebindings,\
                     configmaps,secrets,limitranges,networkpolicies,horizontalpodautoscalers";
        eventually("nothing is left in the namespaces", async || {
            for namespace in [HOME, FUNCTIONS] {
                let all =
                    self.kubectl(&["-n", namespace, "get", kinds, "-o", "name", "--ignore-not-found"]).await;
                // Allowed: the ConfigMap that Kubernetes creates in each namespace, and Porch's
                // Service, which the take-over component keeps.
                let allowed =
                    |line: &str| line == "configmap/kube-root-ca.crt" || line == "service/function-runner";
                all.lines().all(allowed).then_some(())?;
            }
            let accounts = self.kubectl(&["-n", HOME, "get", "serviceaccounts", "-o", "name"]).await;
            (accounts.trim() == "serviceaccount/default").then_some(())
        })
        .await;
    }

    /// Deletes both namespaces. If pods in a namespace end slowly, Kubernetes may check the
    /// namespace again only after 166 s: half of their grace period.
    pub(crate) async fn delete_namespaces(&self) {
        self.run(&["delete", "namespace", HOME, FUNCTIONS, "--ignore-not-found", "--timeout=5m"]).await;
    }
}

/// Asserts that no request of the installation's service accounts was forbidden since `mark`.
async fn assert_nothing_forbidden(audit: &Audit, mark: &Mark) {
    let requests = audit.since(mark).await;
    let prefix = format!("system:serviceaccount:{HOME}:");
    let own: Vec<_> = requests.iter().filter(|request| request.user.starts_with(&prefix)).collect();
    assert!(own.iter().all(|request| request.user.ends_with(RUNNERS)), "routers send no requests: {own:?}");
    assert!(own.len() > 10, "{own:?}");
    let refused: Vec<_> = own.iter().filter(|request| request.code == 403).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-rT").args([from, to]).status();
    assert!(copied.unwrap().success(), "{}", from.display());
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_manifests_install_serve_upgrade_and_leave_nothing() {
    let cluster = Cluster::connect().await;
    let start = Instant::now();
    let audit = cluster.audit();
    let setup = DeploySetup::new(cluster).await;

    let mark = audit.mark().await;
    setup.kubectl(&["apply", "-k", DEPLOY]).await;
    setup.rolled_out(&[RUNNERS, ROUTER]).await;
    figure(&format!("router and runners ready after {:.1?}", start.elapsed()));
    setup.call_each(&setup.images[..2]).await;
    setup.assert_restricted(HOME).await;
    assert_nothing_forbidden(&audit, &mark).await;
    command_line::operate(&setup).await;
    figure(&format!("operated with porch-fn after {:.0?}", start.elapsed()));

    setup.install_component_crds().await;
    let folder = setup.with(&COMPONENTS);
    setup.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-k", &folder]).await;
    setup.kubectl(&["apply", "--dry-run=server", "-f", &format!("{DEPLOY}/examples")]).await;
    figure(&format!("components validated after {:.0?}", start.elapsed()));

    let changed = ["function-pod-limits", "pod-template", "network-policies", "pod-security", "restricted"];
    let changed = setup.with(&changed);
    setup
        .under_load("an upgrade", async || {
            setup.kubectl(&["apply", "-k", &changed]).await;
            setup.kubectl(&["-n", HOME, "rollout", "restart", "deployment", ROUTER]).await;
            setup.rolled_out(&[RUNNERS, ROUTER]).await;
        })
        .await;
    // The function's pod is made from the component's template, which has the probe of our wrapper
    // image.
    setup.call_each(&setup.images[2..3]).await;
    let pods: kube::Api<Pod> = kube::Api::namespaced(setup.cluster.client(), FUNCTIONS);
    let pods = pods.list(&kube::api::ListParams::default()).await.unwrap().items;
    let reference =
        |pod: &&Pod| pod.annotations().get("fn.kpt.dev/image-reference") == Some(&setup.images[2]);
    let pod = pods.iter().find(reference).expect("the function has a pod");
    assert!(pod.annotations()["fn.kpt.dev/template-version"].starts_with("configmap-"));

    setup.uninstall(&changed).await;
    setup.wait_uninstalled().await;

    let single = format!("{DEPLOY}/single-runner");
    setup.kubectl(&["apply", "-k", &single]).await;
    setup.rolled_out(&["function-runner"]).await;
    setup.assert_restricted(HOME).await;
    setup.delete_namespaces().await;
    figure(&format!("all of it took {:.0?}", start.elapsed()));
}
