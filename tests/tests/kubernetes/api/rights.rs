//! The manifests grant exactly the rights that a runner needs. If a right is missing, a failed call
//! or the log reports it.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use porch_fn_image::{Image, pod_name};
use porch_fn_tests::cluster::{Account, Namespace};
use porch_fn_tests::process::eventually;
use porch_fn_tests::registry::{User, base64, docker_config};
use porch_fn_tests::rights::{BASE, FUNCTIONS, HOME, POD_TEMPLATE, PRIVATE_REGISTRIES, Right, Roles};
use serde_json::json;
use tonic::Code;

use super::function_configs::{Configs, FINALIZER, install, pods_of};
use crate::rig::{COPY, INPUT, MANAGED_BY, MANAGER, RECLAIM_AFTER, Runner, Setup, failed, template};

/// The manifests grant access to a ConfigMap of this name.
const TEMPLATE: &str = "kpt-function-eval-pod-template";

/// The effect of a missing right.
enum Effect {
    /// Calls succeed, and the log has this text.
    Logs(&'static str),
    /// Calls fail for this reason.
    Fails(&'static str),
}

use Effect::{Fails, Logs};

const MAY_NOT_CREATE: &str = "the runner may not create pods and Services in the function namespace: grant its service \
                              account the Role of the deployment manifests there";
const NO_TEMPLATE: &str = "the runner may not read ConfigMap kpt-function-eval-pod-template of --function-pod-template: its \
                           Role needs the verb get on configmaps in its own namespace";
const EARLIER_SERVICE: &str = "the Service of an earlier pod has the name of the function's Service, and the \
                               runner may not delete that Service: grant the runner's service account the \
                               Role of the deployment manifests in the function namespace";
const MAY_NOT_WRITE: &str = "the runner may not write Secret auth-secret in the function namespace: its Role needs the verbs \
                             create, delete, get and update on secrets there";
const NOT_SEEN: &str = "FunctionConfigs are not read; grant the runner's service account the Role of the deployment \
                        manifests in the function namespace, with API group config.porch.kpt.dev: list and watch on \
                        functionconfigs";

/// Each right (verb and resource), and the effect if it is missing. `get` on pods and Services is
/// not in the table. Without it, calls succeed, but an error does not report which object already
/// has the name of a function's pod or Service. [`a_missing_list_of_pods_can_be_granted_later`]
/// tests `list` on pods.
const TABLE: [(&str, &str, Effect); 19] = [
    ("create", "pods", Fails(MAY_NOT_CREATE)),
    ("delete", "pods", Logs("a pod was not deleted")),
    ("watch", "pods", Logs("cannot watch resource")),
    ("patch", "pods", Logs("reclaim-after of a pod was not written")),
    ("create", "services", Fails(MAY_NOT_CREATE)),
    ("delete", "services", Fails(EARLIER_SERVICE)),
    ("list", "services", Logs("cannot list resource")),
    ("watch", "services", Logs("cannot watch resource")),
    ("get", "podtemplates", Logs("uses the built-in template")),
    ("get", "servicetemplates", Logs("grant the runner's service account get on servicetemplates")),
    ("get", "configmaps", Fails(NO_TEMPLATE)),
    ("create", "secrets", Logs(MAY_NOT_WRITE)),
    ("get", "secrets", Logs(MAY_NOT_WRITE)),
    ("update", "secrets", Logs(MAY_NOT_WRITE)),
    ("delete", "secrets", Logs(MAY_NOT_WRITE)),
    ("list", "functionconfigs", Logs(NOT_SEEN)),
    ("watch", "functionconfigs", Logs("FunctionConfigs are listed at intervals, not watched; grant")),
    ("patch", "functionconfigs", Logs("so its finalizer keeps it from being deleted; grant")),
    ("patch", "functionconfigs/status", Logs("so its status is old; grant")),
];

/// A runner with limited rights, whose own namespace differs from the function namespace.
struct Limited<'a> {
    setup: &'a Setup,
    home: &'a Namespace,
    account: Account<'a>,
}

// === impl Limited ===

impl<'a> Limited<'a> {
    async fn new(setup: &'a Setup, home: &'a Namespace, roles: &Roles) -> Self {
        let limited = Self { setup, home, account: home.account("runner").await };
        limited.allow(roles).await;
        limited
    }

    async fn allow(&self, roles: &Roles) {
        self.account.allow(&self.setup.namespace, &roles.rules(FUNCTIONS)).await;
        self.account.allow(self.home, &roles.rules(HOME)).await;
    }

    async fn runner(&self, images: &[&str], more: &[&str]) -> Runner {
        let kubeconfig = self.account.kubeconfig(&self.setup.sandbox).await;
        let own = format!("--namespace={}", self.home.name());
        let flags: Vec<_> = ["--scan-interval=1s", &own].into_iter().chain(more.iter().copied()).collect();
        let server = self.setup.namespace.runner_as(&self.setup.sandbox, kubeconfig, images, &flags).await;
        Runner::new(server, images[0])
    }
}

fn all_roles() -> Roles {
    Roles::of(&[BASE, POD_TEMPLATE, PRIVATE_REGISTRIES])
}

/// The content of a file with registry credentials.
fn config(password: &str) -> String {
    docker_config([("registry.example.com", &User::new("runner", password))])
}

/// Creates the Secret that an earlier runner left behind as its copy of the credentials.
async fn earlier_copy(setup: &Setup, immutable: bool) {
    let secret = json!({
        "metadata": {"name": COPY, "labels": {MANAGED_BY: MANAGER}},
        "type": "kubernetes.io/dockerconfigjson", "immutable": immutable,
        "data": {".dockerconfigjson": base64("{\"auths\": {}}")},
    });
    setup.namespace.make::<Secret>(secret).await;
}

/// Creates a FunctionConfig with the finalizer of Porch's runner, and deletes it.
async fn delete_with_finalizer(configs: &Configs, name: &str) {
    configs.apply(name, json!({}), pods_of(name)).await;
    configs.patch(name, json!({"metadata": {"finalizers": [FINALIZER]}})).await;
    configs.delete(name).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_manifests_grant_exactly_the_rights_that_are_used() {
    let setup = Setup::new().await;
    let home = setup.cluster.namespace().await;
    install(&setup).await;
    setup.apply_base_templates().await;
    let limited = Limited::new(&setup, &home, &all_roles()).await;
    let audit = setup.cluster.audit();
    let mark = audit.mark().await;

    // A foreign pod and Service have names that the runner needs. An earlier runner left objects.
    let [of_pod, of_service] = ["pod", "service"].map(|name| format!("example.com/{name}:v1"));
    let name = |image: &str| pod_name(&Image::parse(image, "").unwrap(), 0, "");
    setup.foreign_pod(&name(&of_pod), json!({}), json!({})).await;
    setup.service(&name(&of_service), json!({}), None).await;
    setup.service(&setup.name(0), json!({MANAGED_BY: MANAGER}), None).await;
    earlier_copy(&setup, true).await;
    let flags = setup.credentials(&config("one"));
    let images = [setup.image.as_str(), &of_pod, &of_service];
    let runner = limited.runner(&images, &flags.each_ref().map(String::as_str)).await;
    runner.call_ok().await;
    for image in &images[1..] {
        assert_ne!(runner.client.call(image, INPUT).await.code, Code::Ok);
    }
    setup.wait_copied(&config("one")).await;
    setup.credentials(&config("two"));
    setup.wait_copied(&config("two")).await;
    let configs = Configs::of(&setup.namespace);
    delete_with_finalizer(&configs, "a").await;
    configs.wait_gone("a").await;
    configs.apply("b", json!({}), pods_of("b")).await;
    configs.wait_applied("b").await;

    // A call of a pod that is about to expire first moves the pod's reclaim-after into the future.
    let pod = setup.pod_of(&setup.image).await;
    let soon = (Timestamp::now() + SignedDuration::from_secs(25)).to_string();
    setup.patch(&pod, json!({"metadata": {"annotations": {RECLAIM_AFTER: soon}}})).await;
    eventually("a call has moved the reclaim-after", async || {
        runner.call_ok().await;
        (setup.pod_of(&setup.image).await.annotations()[RECLAIM_AFTER] != soon).then_some(())
    })
    .await;
    setup.expire(&pod).await;
    setup.wait_gone(&pod).await;
    drop(runner);

    let template = template(&setup.cluster, &["/tools/wrapper-server"]).to_string();
    home.make::<ConfigMap>(json!({"metadata": {"name": TEMPLATE}, "data": {"template": template}})).await;
    limited.runner(&images, &[&format!("--function-pod-template={TEMPLATE}")]).await.call_ok().await;
    assert_eq!(setup.pod_of(&setup.image).await.labels()["team"], "network");

    let mut own = audit.since(&mark).await;
    own.retain(|request| request.user == limited.account.user() && !request.resource.is_empty());
    let refused: Vec<_> = own.iter().filter(|request| request.code == 403).collect();
    assert!(refused.is_empty(), "{refused:?}");
    let used: BTreeSet<_> = own.into_iter().map(|request| (request.verb, request.resource)).collect();
    let rights = all_roles().rights();
    let granted = rights.iter().map(Right::as_in_rule).map(|(verb, resource)| (verb.to_owned(), resource));
    assert_eq!(used, granted.collect());
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn each_missing_right_is_reported() {
    let setup = Setup::new().await;
    install(&setup).await;
    let rows = TABLE.iter().map(|(verb, resource, effect)| Box::pin(without(verb, resource, effect)));
    stream::iter(rows).buffer_unordered(4).collect::<Vec<()>>().await;
}

async fn without(verb: &str, resource: &str, effect: &Effect) {
    let setup = Setup::new().await;
    let home = setup.cluster.namespace().await;
    match (verb, resource) {
        ("delete", "services") => {
            setup.service(&setup.name(0), json!({MANAGED_BY: MANAGER}), None).await;
        }
        ("update", "secrets") => earlier_copy(&setup, false).await,
        ("delete", "secrets") => earlier_copy(&setup, true).await,
        ("get", "servicetemplates") => setup.apply_base_templates().await,
        _ => {}
    }
    let flags = match (verb, resource) {
        ("patch", "pods") => vec!["--scan-interval=1h".to_owned()],
        (_, "configmaps") => vec![format!("--function-pod-template={TEMPLATE}")],
        (_, "secrets") => setup.credentials(&config("one")).to_vec(),
        _ => Vec::new(),
    };
    let configs = Configs::of(&setup.namespace);
    configs.apply("a", json!({}), pods_of("a")).await;
    delete_with_finalizer(&configs, "b").await;
    let limited = Limited::new(&setup, &home, &all_roles().without(&[(verb, resource)])).await;
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let runner = limited.runner(&[&setup.image], &flags).await;
    let text = match effect {
        Fails(reason) => {
            return runner.call(INPUT).await.assert_failed(Code::Unknown, &failed(&setup.image, reason));
        }
        Logs(text) => text,
    };
    runner.call_ok().await;
    setup.expire(&setup.pod().await).await;
    eventually(&format!("without {verb} {resource} the log has {text:?}"), async || {
        // A call would move the pod's reclaim-after into the future; without calls the pod is
        // deleted.
        if (verb, resource) != ("delete", "pods") {
            runner.call_ok().await;
        }
        runner.server.log().contains(text).then_some(())
    })
    .await;
    runner.call_ok().await;
}

/// The runner repeats its failed request. So the right can be granted without a restart.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_missing_list_of_pods_can_be_granted_later() {
    let setup = Setup::new().await;
    let home = setup.cluster.namespace().await;
    let limited = Limited::new(&setup, &home, &all_roles().without(&[("list", "pods")])).await;
    let runner = limited.runner(&[&setup.image], &["--pod-ready-timeout=5s"]).await;
    let text = format!(
        "unable to get the grpc client to the pod for {}: no pod of this function was ready within 5s (the runner could \
         not list the pods of the function namespace: check that it reaches the API server and that its Role has the \
         verbs list and watch on pods): check that its image starts in that time, or raise --pod-ready-timeout",
        setup.image
    );
    runner.call(INPUT).await.assert_failed(Code::DeadlineExceeded, &text);
    runner.server.wait_log("cannot list resource").await;
    limited.allow(&all_roles()).await;
    eventually("the pods are listed", async || (runner.call(INPUT).await.code == Code::Ok).then_some(()))
        .await;
}
