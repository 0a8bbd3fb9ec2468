//! FunctionConfigs of newer Porch versions in a real API server. A runner writes their status, and
//! users can always delete them. The kind belongs to the whole cluster. Each test applies its CRD
//! again, which changes nothing if the kind is already installed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::ResourceExt;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use porch_fn_tests::cluster::{Audit, Mark, Namespace};
use porch_fn_tests::process::{Server, eventually, figure};
use porch_fn_tests::rights::{BASE, FUNCTIONS, Roles};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::rig::Setup;

const GROUP: &str = "config.porch.kpt.dev";
/// The FunctionConfigs in the manifests of Porch 1.6.
const OBJECTS: &str = include_str!("../../../packages/porch/1.6/23-function-configurations.yaml");
pub(crate) const FINALIZER: &str = "config.porch.kpt.dev/functionconfig-function-runner";
const SERVER_FINALIZER: &str = "config.porch.kpt.dev/functionconfig-porch-server";

/// The FunctionConfigs of a namespace.
pub(crate) struct Configs {
    api: Api<DynamicObject>,
}

/// Applies the CRD of FunctionConfigs, and waits until the API server serves the kind.
pub(crate) async fn install(setup: &Setup) {
    setup.apply_crd("functionconfigs").await;
    // The API server serves a kind a little later than it reports the kind as established.
    let configs = Configs::of(&setup.namespace);
    eventually("FunctionConfigs are served", async || configs.api.list(&ListParams::default()).await.ok())
        .await;
}

// === impl Configs ===

impl Configs {
    pub(crate) fn of(namespace: &Namespace) -> Self {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, "v1alpha1", "FunctionConfig"));
        Self { api: Api::namespaced_with(namespace.cluster().client(), namespace.name(), &kind) }
    }

    pub(crate) async fn apply(&self, name: &str, annotations: Value, spec: Value) -> DynamicObject {
        let object = json!({
            "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "FunctionConfig",
            "metadata": {"name": name, "annotations": annotations},
            "spec": spec,
        });
        let params = PatchParams::apply("tests").force();
        self.api.patch(name, &params, &Patch::Apply(object)).await.unwrap()
    }

    pub(crate) async fn patch(&self, name: &str, patch: Value) -> DynamicObject {
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn list(&self) -> Vec<DynamicObject> {
        self.api.list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until `look` returns a value for the FunctionConfig.
    async fn wait_until<T>(&self, name: &str, what: &str, look: impl Fn(&DynamicObject) -> Option<T>) -> T {
        eventually(&format!("{name}: {what}"), async || look(&self.api.get(name).await.ok()?)).await
    }

    /// Waits until the status reports that the object's current generation is applied, without an
    /// error.
    pub(crate) async fn wait_applied(&self, name: &str) {
        self.wait_until(name, "the present state is in effect", |object| {
            (is_applied(object) && error(object).is_empty()).then_some(())
        })
        .await;
    }

    pub(crate) async fn wait_gone(&self, name: &str) {
        eventually(&format!("{name} is gone"), async || {
            self.api.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    }
}

fn observed(object: &DynamicObject) -> Option<i64> {
    object.data["status"]["functionRunnerObservedGeneration"].as_i64()
}

fn is_applied(object: &DynamicObject) -> bool {
    object.metadata.generation.is_some() && observed(object) == object.metadata.generation
}

fn error(object: &DynamicObject) -> &str {
    object.data["status"]["error"].as_str().unwrap_or_default()
}

pub(crate) fn pods_of(image: &str) -> Value {
    json!({"image": image, "podExecutor": {}})
}

/// Starts three runners that are peers, each with its own service account.
async fn runners(setup: &Setup) -> Vec<Server> {
    let mut kubeconfigs = Vec::new();
    for number in 0..3 {
        let account = setup.namespace.account(&format!("runner-{number}")).await;
        account.allow(&setup.namespace, &Roles::of(&[BASE]).rules(FUNCTIONS)).await;
        kubeconfigs.push(account.kubeconfig(&setup.sandbox).await);
    }
    setup.fleet("127.0.8", &kubeconfigs, &[], &["--scan-interval=1s"]).await
}

/// The users that wrote the status of each FunctionConfig, one entry for each write.
async fn writers(namespace: &Namespace, audit: &Audit, mark: &Mark) -> BTreeMap<String, Vec<String>> {
    let mut writers: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for request in audit.since(mark).await {
        if request.namespace == namespace.name() && request.resource == "functionconfigs/status" {
            assert_eq!((request.verb.as_str(), request.code), ("patch", 200), "{request:?}");
            writers.entry(request.name).or_default().push(request.user);
        }
    }
    writers
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn porchs_function_configs_are_applied_and_can_be_deleted() {
    let setup = Setup::new().await;
    install(&setup).await;
    let configs = Configs::of(&setup.namespace);
    let audit = setup.cluster.audit();
    let _runners = runners(&setup).await;
    let mark = audit.mark().await;
    let begin = Instant::now();
    let objects = OBJECTS.replace("porch-fn-system", setup.namespace.name());
    setup.kubectl(&["apply", "-f", "-"], &objects).await;
    let all = eventually("all are in effect", async || {
        let all = configs.list().await;
        all.iter().all(is_applied).then_some(all)
    })
    .await;
    let took = begin.elapsed();
    figure(&format!("{} FunctionConfigs applied and in effect in {took:.2?}", all.len()));
    assert_eq!(all.len(), 19);
    assert!(took < Duration::from_secs(30), "{took:?}");
    let errors: Vec<_> = all.iter().map(error).filter(|error| !error.is_empty()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    // No runner adds a finalizer.
    assert!(all.iter().all(|object| object.finalizers().is_empty()));

    // Edit each object, so that a runner that writes twice has the time to do so.
    for object in &all {
        let edit = json!({"spec": {"podExecutor": {"maxParallelExecutions": 1}}});
        configs.patch(&object.name_any(), edit).await;
    }
    for object in &all {
        configs.wait_applied(&object.name_any()).await;
    }
    let writers = writers(&setup.namespace, &audit, &mark).await;
    assert_eq!(writers.len(), 19);
    for (name, users) in &writers {
        assert!(users.iter().all(|user| *user == users[0]), "{name} has one writer: {users:?}");
        // One more write is allowed: a runner repeats its write if its watch does not report the
        // new status within a second.
        assert!((2..=3).contains(&users.len()), "{name} is written once for each generation: {users:?}");
    }
    let users: BTreeSet<_> = writers.values().flatten().collect();
    assert_eq!(users.len(), 3, "the work is shared: {users:?}");

    // The finalizers that Porch's own runner and server add.
    let finalizers = |number: usize| match number % 3 {
        0 => json!([FINALIZER]),
        1 => json!([SERVER_FINALIZER, FINALIZER]),
        _ => json!([FINALIZER, SERVER_FINALIZER]),
    };
    for (number, object) in all.iter().enumerate() {
        configs.patch(&object.name_any(), json!({"metadata": {"finalizers": finalizers(number)}})).await;
    }
    for object in &all {
        configs.delete(&object.name_any()).await;
    }
    let left = eventually("only the server's finalizers are left", async || {
        let left = configs.list().await;
        left.iter().all(|object| object.finalizers() == [SERVER_FINALIZER]).then_some(left)
    })
    .await;
    assert_eq!(left.len(), 12);
    for object in &left {
        configs.patch(&object.name_any(), json!({"metadata": {"finalizers": null}})).await;
    }
    for object in &all {
        configs.wait_gone(&object.name_any()).await;
    }
}
