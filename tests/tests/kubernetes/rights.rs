//! With the rights of the original's Roles, and no more, everything works; and what is seen when one of them is missing:
//!
//! | missing | what is seen |
//! |---|---|
//! | pods create | calls without a pod fail at once and name the right; warm pods serve |
//! | pods delete | lapsed pods stay, the log says why |
//! | pods get | calls work; callers are not told of a foreign pod that holds a name, only the log is |
//! | pods list | calls say that the pods cannot be listed, once `--pod-ready-timeout` has passed; the log says it at once |
//! | pods watch | calls work, by lists that are taken again and again; nothing is collected; the log says it |
//! | pods patch | calls work; `reclaim-after` is not pushed, the log says why |
//! | services create | calls without a pod fail at once and name the right; with `--pod-connect=pod-ip` they work |
//! | services delete | the Service of an earlier pod is told to callers |
//! | services get, list, watch | nothing: any one of them does for the others |
//! | configmaps get | calls without a pod name the right |
//! | configmaps list, endpoints | nothing: these are not used |
//! | secrets | nothing without `--enable-private-registries` |

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding};
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::cluster::{Namespace, Request};
use porch_fn_tests::process::eventually;
use serde_json::json;
use tonic::Code;

use crate::parity::{Bench, INPUT, LONG_AGO, MANAGED_BY, MANAGER, RECLAIM_AFTER, Runner};

/// In the namespace of functions.
const FUNCTIONS: [(&str, &[&str]); 4] = [
    ("pods", &["create", "delete", "patch", "get", "watch", "list"]),
    ("services", &["create", "delete", "get", "watch", "list"]),
    ("endpoints", &["create", "delete", "get", "watch", "list"]),
    ("secrets", &["create", "delete", "update", "get"]),
];
/// In the runner's own.
const OWN: [(&str, &[&str]); 1] = [("configmaps", &["get", "list"])];

/// A right that is taken away: verb and resource.
type Missing<'a> = &'a [(&'a str, &'a str)];

fn rules(rights: &[(&str, &[&str])], missing: Missing<'_>) -> Vec<PolicyRule> {
    let rule = |&(resource, verbs): &(&str, &[&str])| {
        let verbs = verbs.iter().filter(|verb| !missing.contains(&(**verb, resource)));
        PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec![resource.to_owned()]),
            verbs: verbs.map(|&verb| verb.to_owned()).collect(),
            ..PolicyRule::default()
        }
    };
    let mut rules: Vec<_> = rights.iter().map(rule).collect();
    rules.retain(|rule| !rule.verbs.is_empty());
    rules
}

/// A runner with few rights, whose own namespace is not that of its functions.
struct Limited {
    bench: Bench,
    home: Namespace,
    runner: Runner,
}

impl Limited {
    /// With the original's rights but for what is missing.
    async fn without(missing: Missing<'_>, more: &[&str]) -> Self {
        Self::start(Bench::new().await, missing, more).await
    }

    async fn start(bench: Bench, missing: Missing<'_>, more: &[&str]) -> Self {
        let home = bench.cluster.namespace().await;
        let account = home.account("runner").await;
        let rights: BTreeSet<_> = FUNCTIONS
            .iter()
            .chain(&OWN)
            .flat_map(|&(of, verbs)| verbs.iter().map(move |&verb| (verb, of)))
            .collect();
        assert!(missing.iter().all(|right| rights.contains(right)), "only what is there can be taken away");
        account.allow(&bench.namespace, &rules(&FUNCTIONS, missing)).await;
        account.allow(&home, &rules(&OWN, missing)).await;
        let kubeconfig = account.kubeconfig(&bench.sandbox).await;
        let own = format!("--namespace={}", home.name());
        let flags: Vec<_> =
            ["--scan-interval=1s", own.as_str()].into_iter().chain(more.iter().copied()).collect();
        let server = bench.namespace.runner_as(&bench.sandbox, kubeconfig, &[&bench.image], &flags).await;
        let runner = Runner::new(server, &bench.image);
        Self { bench, home, runner }
    }

    /// Gives it more rights on functions.
    async fn allow(&self, rules: &[PolicyRule]) {
        let role = json!({"metadata": {"name": "more"}, "rules": rules});
        self.bench.namespace.make::<Role>(role).await;
        let binding = json!({
            "metadata": {"name": "more"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "more"},
            "subjects": [{"kind": "ServiceAccount", "name": "runner", "namespace": self.home.name()}],
        });
        self.bench.namespace.make::<RoleBinding>(binding).await;
    }

    async fn says(&self, text: &str) {
        eventually(&format!("the log says {text:?}"), async || {
            self.runner.server.log().contains(text).then_some(())
        })
        .await;
    }

    /// A cold call, a warm one, and a pod that lapses.
    async fn works(&self) {
        self.runner.succeeds().await;
        self.runner.succeeds().await;
        self.collects().await;
        self.runner.succeeds().await;
    }

    async fn collects(&self) {
        let pod = self.bench.pod().await;
        self.bench.lapse(&pod).await;
        self.bench.gone(&pod).await;
    }

    async fn fails(&self, reason: &str) {
        let text = format!(
            "unable to get the grpc client to the pod for {}: the function's pod failed to start: {reason}",
            self.bench.image
        );
        self.runner.call(INPUT).await.fails(Code::Unknown, &text);
    }
}

/// Makes a pod with all rights, for a runner that may not.
async fn with_a_pod() -> Bench {
    let bench = Bench::new().await;
    bench.runner(&[]).await.succeeds().await;
    bench
}

const MAY_NOT_CREATE: &str = "the runner may not create pods and Services in the function namespace: grant its service \
                              account the Role of the deployment manifests there";

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_originals_rights_are_enough() {
    let bench = Bench::new().await;
    let audit = bench.cluster.own().map(|own| own.audit(bench.cluster.client()));
    let mark = match &audit {
        Some(audit) => Some(audit.mark().await),
        None => None,
    };
    let limited = Limited::start(bench, &[], &["--function-pod-template=templates"]).await;
    let map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "templates"},
        "data": {"template": crate::templates::template(&limited.bench).to_string()},
    }))
    .unwrap();
    limited.home.api().create(&kube::api::PostParams::default(), &map).await.unwrap();
    eventually("the template is read", async || {
        (limited.runner.call(INPUT).await.code == Code::Ok).then_some(())
    })
    .await;
    let pod = limited.bench.pod().await;
    assert_eq!(pod.labels()["team"], "network");
    let service = limited.bench.service_of(&pod).await;

    // A use of a pod that is about to lapse pushes it first.
    let soon = {
        let now = k8s_openapi::jiff::Timestamp::now().as_millisecond() + 25_000;
        k8s_openapi::jiff::Timestamp::from_millisecond(now).unwrap().to_string()
    };
    limited.bench.patch(&pod, json!({"metadata": {"annotations": {RECLAIM_AFTER: soon}}})).await;
    eventually("the runner has seen it, and a call pushes it", async || {
        limited.runner.succeeds().await;
        (limited.bench.pod().await.annotations()[RECLAIM_AFTER] != soon).then_some(())
    })
    .await;
    assert_eq!(limited.bench.pod().await.uid(), pod.uid());

    limited.works().await;
    let gone = |services: &[Service]| services.iter().all(|other| other.uid() != service.uid()).then_some(());
    limited.bench.namespace.until("the Service of the collected pod is gone", gone).await;

    if let (Some(audit), Some(mark)) = (audit, mark) {
        let user = format!("system:serviceaccount:{}:runner", limited.home.name());
        let requests = audit.since(&mark).await;
        let own: Vec<_> = requests.into_iter().filter(|request| request.user == user).collect();
        assert!(own.len() > 10, "{own:?}");
        // The Role of v1.5 knows no FunctionConfigs: they are asked for all the same, now and then.
        let refused = |request: &&Request| request.code == 403 && request.resource != "functionconfigs";
        let refused: Vec<_> = own.iter().filter(refused).collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_create() {
    let limited = Limited::without(&[("create", "pods")], &[]).await;
    limited.fails(MAY_NOT_CREATE).await;
    drop(limited);
    let limited = Limited::start(with_a_pod().await, &[("create", "pods")], &[]).await;
    limited.runner.succeeds().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_delete() {
    let limited = Limited::without(&[("delete", "pods")], &[]).await;
    limited.runner.succeeds().await;
    let pod = limited.bench.pod().await;
    limited.bench.lapse(&pod).await;
    limited.says("a pod was not deleted").await;
    limited.runner.succeeds().await;
    assert_eq!(limited.bench.pod().await.uid(), pod.uid());
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_get() {
    let limited = Limited::without(&[("get", "pods")], &[]).await;
    limited.works().await;
    drop(limited);

    let bench = Bench::new().await;
    let foreign = bench.foreign_pod(&bench.name(0), json!({}), json!({})).await;
    let limited = Limited::start(bench, &[("get", "pods")], &["--pod-ready-timeout=2s"]).await;
    let answer = limited.runner.call(INPUT).await;
    assert_eq!(answer.code, Code::DeadlineExceeded, "{}", answer.message);
    limited.says("pod not created after several attempts").await;
    limited.bench.untouched(&foreign).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_list() {
    let limited = Limited::without(&[("list", "pods")], &["--pod-ready-timeout=2s"]).await;
    let text = format!(
        "unable to get the grpc client to the pod for {}: no pod of this function was ready within 2s (the runner could \
         not list the pods of the function namespace: check that it reaches the API server and that its Role has the \
         verbs list and watch on pods): check that its image starts in that time, or raise --pod-ready-timeout",
        limited.bench.image
    );
    limited.runner.call(INPUT).await.fails(Code::DeadlineExceeded, &text);
    limited.says("cannot list resource").await;
    // The list is tried again and again: a start that failed is none for ever.
    let rule = rules(&[("pods", &["list"])], &[]);
    limited.allow(&rule).await;
    eventually("the pods are listed", async || {
        (limited.runner.call(INPUT).await.code == Code::Ok).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_watch() {
    let limited = Limited::without(&[("watch", "pods")], &[]).await;
    limited.runner.succeeds().await;
    limited.says("cannot watch resource").await;
    let pod = limited.bench.pod().await;
    limited.bench.namespace.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    eventually("another pod serves", async || {
        limited.runner.succeeds().await;
        let pods = limited.bench.pods().await;
        pods.iter().all(|other| other.uid() != pod.uid()).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_pods_patch() {
    let limited = Limited::start(with_a_pod().await, &[("patch", "pods")], &["--scan-interval=1h"]).await;
    let pod = limited.bench.pod().await;
    limited.bench.lapse(&pod).await;
    limited.runner.succeeds().await;
    eventually("a push is refused", async || {
        limited.runner.succeeds().await;
        limited.runner.server.log().contains("reclaim-after of a pod was not written").then_some(())
    })
    .await;
    assert_eq!(limited.bench.pod().await.annotations()[RECLAIM_AFTER], LONG_AGO);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_services_create() {
    let limited = Limited::without(&[("create", "services")], &[]).await;
    limited.fails(MAY_NOT_CREATE).await;
    drop(limited);
    let limited = Limited::without(&[("create", "services")], &["--pod-connect=pod-ip"]).await;
    limited.works().await;
    drop(limited);
    let limited = Limited::start(with_a_pod().await, &[("create", "services")], &[]).await;
    limited.runner.succeeds().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_services_delete() {
    let bench = Bench::new().await;
    let old = json!({
        "metadata": {"name": bench.name(0), "labels": {MANAGED_BY: MANAGER}},
        "spec": {"ports": [{"port": 9446}]},
    });
    let old: Service = bench.namespace.make(old).await;
    let limited = Limited::start(bench, &[("delete", "services")], &[]).await;
    let reason = "the Service of an earlier pod holds the name of the function's, and the runner may not delete it: grant its \
                  service account the Role of the deployment manifests in the function namespace";
    limited.fails(reason).await;
    limited.bench.namespace.api::<Service>().delete(&old.name_any(), &DeleteParams::default()).await.unwrap();
    eventually("the name is free", async || {
        (limited.runner.call(INPUT).await.code == Code::Ok).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_one_way_to_see_services() {
    for verb in ["get", "list", "watch"] {
        // Its Service is found as well as made.
        let limited = Limited::start(with_a_pod().await, &[(verb, "services")], &[]).await;
        limited.works().await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn without_configmaps_get() {
    let more = ["--function-pod-template=templates"];
    let limited = Limited::without(&[("get", "configmaps")], &more).await;
    let reason = "the runner may not read ConfigMap templates of --function-pod-template: its Role needs the verb get on \
                  configmaps in its own namespace";
    limited.fails(reason).await;
    let limited = Limited::start(with_a_pod().await, &[("get", "configmaps")], &more).await;
    limited.runner.succeeds().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn what_is_not_used_may_be_missing() {
    let unused: Vec<_> = FUNCTIONS[2..]
        .iter()
        .flat_map(|&(resource, verbs)| verbs.iter().map(move |&verb| (verb, resource)))
        .chain([("list", "configmaps")])
        .collect();
    Limited::without(&unused, &[]).await.works().await;
}
