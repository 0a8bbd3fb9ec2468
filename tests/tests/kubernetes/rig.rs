//! The setup of the cluster tests: a namespace with its own runners, and helpers for its objects.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, ResourceQuota, Secret, Service};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use porch_fn_image::{Image, pod_name};
use porch_fn_tests::client::{Answer, Client};
pub(crate) use porch_fn_tests::cluster::alive;
use porch_fn_tests::cluster::{Change, Cluster, Namespace, Recorder};
use porch_fn_tests::process::{Sandbox, Server};
pub(crate) use porch_fn_tests::process::{count, wait_count};
use serde_json::{Value, json};

/// A package that functions return unchanged.
pub(crate) const INPUT: &str = "kind: ResourceList\n";
/// The values of `--pod-connect`: how a runner connects to its pods.
pub(crate) const CONNECTS: [&str; 2] = ["service", "pod-ip"];
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub(crate) const MANAGER: &str = "porch-fn-runner";
pub(crate) const RECLAIM_AFTER: &str = "fn.kpt.dev/reclaim-after";
pub(crate) const REFERENCE: &str = "fn.kpt.dev/image-reference";
pub(crate) const VERSION: &str = "fn.kpt.dev/template-version";
/// A reclaim-after time in the past: a pod with it may be collected.
pub(crate) const LONG_AGO: &str = "2001-01-01T00:00:00Z";
/// The default name of the Secret into which a runner copies its registry credentials.
pub(crate) const COPY: &str = "auth-secret";
/// The deadline of calls. Every call of these tests takes less time.
const DEADLINE: Duration = Duration::from_secs(100);

/// One test's namespace and sandbox, and helpers that start runners there.
pub(crate) struct Setup {
    pub(crate) sandbox: Sandbox,
    pub(crate) cluster: Cluster,
    pub(crate) namespace: Namespace,
    /// A function image that exists in the registry.
    pub(crate) image: String,
}

/// A runner, and a client that calls its function `image`.
pub(crate) struct Runner {
    pub(crate) client: Client,
    pub(crate) server: Server,
    image: String,
}

/// A package that makes the function sleep for this time.
pub(crate) fn sleeping(time: Duration) -> String {
    format!("{INPUT}# test-sleep-ms: {}\n", time.as_millis())
}

/// The error text of a call after the function's pod failed to start for this reason.
pub(crate) fn failed(image: &str, reason: &str) -> String {
    format!(
        "unable to get the grpc client to the pod for {image}: the function's pod failed to start: {reason}"
    )
}

/// The first recorded state of each pod. The oldest pod is first.
pub(crate) fn births(record: &Recorder<Pod>) -> Vec<Pod> {
    let mut births: Vec<Pod> = Vec::new();
    for (_, change) in record.changes() {
        let (Change::Applied(pod) | Change::Deleted(pod)) = change;
        if births.iter().all(|known| known.uid() != pod.uid()) {
            births.push(pod);
        }
    }
    births
}

/// Whether one of our runners created the pod.
pub(crate) fn is_ours(pod: &Pod) -> bool {
    pod.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGER)
}

fn only(mut pods: Vec<Pod>) -> Pod {
    assert_eq!(pods.len(), 1, "{pods:#?}");
    pods.remove(0)
}

/// The container that runs the function.
pub(crate) fn function(pod: &Pod) -> &Container {
    let containers = &pod.spec.as_ref().unwrap().containers;
    containers.iter().find(|container| container.name == "function").unwrap()
}

/// A small pod template as a user would write it: `cp` copies the wrapper-server into the pod, and
/// the function's container runs `command`.
pub(crate) fn template(cluster: &Cluster, command: &[&str]) -> Value {
    let mounts = json!([{"name": "tools", "mountPath": "/tools"}]);
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "not-kept", "labels": {"team": "network"}, "annotations": {"example.com/note": "kept"},
        },
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "tools", "emptyDir": {}}],
            "initContainers": [{
                "name": "copy", "image": cluster.wrapper_image(), "volumeMounts": mounts,
                "command": ["cp", "-a", "/wrapper-server/.", "/tools"],
            }],
            "containers": [{
                "name": "function", "image": "replaced", "volumeMounts": mounts,
                "command": command, "args": ["--verbosity", "4"], "env": [{"name": "C", "value": "D"}],
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }],
        },
    })
}

// === impl Setup ===

impl Setup {
    pub(crate) async fn new() -> Self {
        let cluster = Cluster::connect().await;
        let namespace = cluster.namespace().await;
        let image = cluster.function_image();
        Self { sandbox: Sandbox::new(), cluster, namespace, image }
    }

    /// Starts a runner for the function `image`. The runner scans every second, so it collects
    /// unused pods soon.
    pub(crate) async fn runner(&self, more: &[&str]) -> Runner {
        self.runner_of(&[&self.image], more).await
    }

    /// Like [`Self::runner`], but for these functions. The client calls the first one.
    pub(crate) async fn runner_of(&self, images: &[&str], more: &[&str]) -> Runner {
        let flags: Vec<_> = ["--scan-interval=1s"].into_iter().chain(more.iter().copied()).collect();
        let server = self.namespace.runner(&self.sandbox, images, &flags).await;
        Runner::new(server, images[0])
    }

    /// Starts a runner that makes pods from a template in a ConfigMap of the function namespace.
    pub(crate) async fn runner_with(&self, config_map: &str, images: &[&str], more: &[&str]) -> Runner {
        let own = format!("--namespace={}", self.namespace.name());
        let template = format!("--function-pod-template={config_map}");
        let flags: Vec<_> = [own.as_str(), &template].into_iter().chain(more.iter().copied()).collect();
        self.runner_of(images, &flags).await
    }

    /// Starts one runner for each kubeconfig, all as peers. Each runner has its own address in
    /// `network`, such as `127.0.7`.
    pub(crate) async fn fleet(
        &self,
        network: &str,
        kubeconfigs: &[PathBuf],
        images: &[&str],
        more: &[&str],
    ) -> Vec<Server> {
        let addresses: Vec<_> = (1..=kubeconfigs.len()).map(|last| format!("{network}.{last}")).collect();
        let peers = addresses.iter().map(|address| format!("{address}:9445")).collect::<Vec<_>>().join(",");
        let runners = addresses
            .iter()
            .zip(kubeconfigs)
            .map(|(address, kubeconfig)| self.peer(address, &peers, kubeconfig.clone(), images, more));
        join_all(runners).await
    }

    /// Starts a runner with its own address and these peers.
    pub(crate) async fn peer(
        &self,
        address: &str,
        peers: &str,
        kubeconfig: PathBuf,
        images: &[&str],
        more: &[&str],
    ) -> Server {
        let own = [
            format!("--address={address}"),
            "--port=9445".into(),
            format!("--peers=static:///{peers}"),
            format!("--shard-address={address}:9445"),
        ];
        let flags: Vec<_> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        self.namespace.runner_as(&self.sandbox, kubeconfig, images, &flags).await
    }

    /// Limits the namespace to this number of pods, and waits until the quota is in force.
    pub(crate) async fn quota(&self, pods: &str) {
        let quota = json!({"metadata": {"name": "pods"}, "spec": {"hard": {"pods": pods}}});
        self.namespace.make::<ResourceQuota>(quota).await;
        let in_force = |quotas: &[ResourceQuota]| {
            let hard = quotas.first()?.status.as_ref()?.hard.as_ref()?;
            hard.contains_key("pods").then_some(())
        };
        self.namespace.wait_until("the quota is in force", in_force).await;
    }

    /// Writes a pod template as JSON into the ConfigMap `template`.
    pub(crate) async fn write_template(&self, template: &Value) {
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "template"},
            "data": {"template": template.to_string()},
        });
        let maps = self.namespace.api::<ConfigMap>();
        maps.patch("template", &PatchParams::apply("tests").force(), &Patch::Apply(map)).await.unwrap();
    }

    pub(crate) async fn kubectl(&self, args: &[&str], stdin: &str) {
        let args = [&["--namespace", self.namespace.name()], args].concat();
        self.cluster.kubectl_ok(&args, stdin).await;
    }

    /// Applies Porch's definition of a kind such as `functionconfigs`.
    pub(crate) async fn apply_crd(&self, kind: &str) {
        let file = format!("packages/porch/1.6/crds/config.porch.kpt.dev_{kind}.yaml");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let file = ["-f", file.to_str().unwrap()];
        self.kubectl(&[&["apply", "--server-side", "--force-conflicts"], &file[..]].concat(), "").await;
        let established = ["wait", "--for=condition=established", "--timeout=50s"];
        self.kubectl(&[&established, &file[..]].concat(), "").await;
    }

    /// The name of the function's pod with this slot number.
    pub(crate) fn name(&self, slot: u32) -> String {
        pod_name(&Image::parse(&self.image, "").unwrap(), slot, "")
    }

    /// The only function pod.
    pub(crate) async fn pod(&self) -> Pod {
        only(self.pods().await)
    }

    pub(crate) async fn pods(&self) -> Vec<Pod> {
        self.namespace.pods().await.into_iter().filter(is_ours).collect()
    }

    /// The only pod of an image.
    pub(crate) async fn pod_of(&self, image: &str) -> Pod {
        let mut pods = self.pods().await;
        pods.retain(|pod| function(pod).image.as_deref() == Some(image));
        only(pods)
    }

    /// Waits until this pod has its own Service, and returns it.
    pub(crate) async fn service_of(&self, pod: &Pod) -> Service {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap());
        let owned = |service: &&Service| {
            service.name_any() == name
                && service.owner_references().iter().any(|owner| owner.uid == uid)
                && service.metadata.deletion_timestamp.is_none()
        };
        let look = |services: &[Service]| services.iter().find(owned).cloned();
        self.namespace.wait_until(&format!("{name} has a Service of its own"), look).await
    }

    /// Writes the file with the registry credentials, and returns the flags that name it.
    pub(crate) fn credentials(&self, config: &str) -> [String; 2] {
        let file = self.sandbox.write("config-secret/.dockerconfigjson", config);
        let path = format!("--registry-auth-secret-path={}", file.display());
        ["--enable-private-registries".to_owned(), path]
    }

    /// Waits until the Secret with the copied credentials has this content.
    pub(crate) async fn wait_copied(&self, content: &str) -> Secret {
        let copied = |secrets: &[Secret]| {
            let secret = secrets.iter().find(|secret| secret.name_any() == COPY)?;
            let data = secret.data.as_ref()?.get(".dockerconfigjson")?;
            (data.0 == content.as_bytes()).then(|| secret.clone())
        };
        self.namespace.wait_until("the pull secret has the file's content", copied).await
    }

    pub(crate) async fn delete(&self, pod: &Pod, params: &DeleteParams) {
        self.namespace.api::<Pod>().delete(&pod.name_any(), params).await.unwrap();
    }

    /// Waits until no pod has this uid.
    pub(crate) async fn wait_gone(&self, pod: &Pod) {
        let look = |pods: &[Pod]| pods.iter().all(|other| other.uid() != pod.uid()).then_some(());
        self.namespace.wait_until(&format!("pod {} is gone", pod.name_any()), look).await;
    }

    pub(crate) async fn patch(&self, pod: &Pod, patch: Value) {
        let params = PatchParams::default();
        self.namespace.api::<Pod>().patch(&pod.name_any(), &params, &Patch::Merge(patch)).await.unwrap();
    }

    /// Sets the pod's reclaim-after to a time in the past, so that the pod may be collected.
    pub(crate) async fn expire(&self, pod: &Pod) {
        self.patch(pod, json!({"metadata": {"annotations": {RECLAIM_AFTER: LONG_AGO}}})).await;
    }
}

// === impl Runner ===

impl Runner {
    /// The client will call the function `image`.
    pub(crate) fn new(server: Server, image: &str) -> Self {
        Self { client: Client::new(server.address()), server, image: image.to_owned() }
    }

    pub(crate) async fn call(&self, input: impl Into<bytes::Bytes>) -> Answer {
        self.client.call_within(&self.image, input, DEADLINE).await
    }

    /// Calls the function and asserts that the call succeeds.
    pub(crate) async fn call_ok(&self) {
        assert_eq!(self.call(INPUT).await.output(), INPUT);
    }

    /// Waits until the runner counts this number of calls or pods of the function in a state such
    /// as `waiting`.
    pub(crate) async fn wait_count(&self, state: &str, expected: u64) {
        wait_count(&self.server, &self.image, state, expected).await;
    }
}
