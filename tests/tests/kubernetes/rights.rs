//! With the rights that the manifests grant, and with those of the original's Roles, everything works; and what is seen when
//! one that the manifests grant is missing (tests/rights.rs compares them with these tests):
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
//! | services get | calls work; callers are not told of a foreign Service that holds a name, only the log is |
//! | services list | calls work; a pod's first one waits 2 s, Services are made in vain; the log says it |
//! | services watch | calls work, by lists that are taken again and again; the log says it |
//! | podtemplates get | pods are made from the template that is built in; the log says it |
//! | servicetemplates get | Services are made without Porch's; the log says it |
//! | configmaps get | calls without a pod name the right |
//! | secrets create, get | pods that need credentials are not pulled; the log says it |
//! | secrets update | nodes pull with the old credentials; the log says it |
//! | secrets delete | a copy that cannot be changed stays; the log says it |
//!
//! Of what the original's Roles allow besides, nothing is used: endpoints, configmaps list.

mod pods;
mod secrets;
mod services;
mod templates;

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding};
use kube::ResourceExt;
use porch_fn_tests::cluster::{Audit, Mark, Namespace, Request};
use porch_fn_tests::process::eventually;
use porch_fn_tests::rights::{BASE, FUNCTIONS, HOME, POD_TEMPLATE, PRIVATE_REGISTRIES, Roles};
use serde_json::json;
use tonic::Code;

use crate::parity::{Bench, INPUT, RECLAIM_AFTER, Runner};

/// With the name that the manifests grant.
const TEMPLATE: &str = "kpt-function-eval-pod-template";
const TEMPLATE_FLAG: &str = "--function-pod-template=kpt-function-eval-pod-template";

/// A right that is taken away: verb and resource.
type Missing<'a> = &'a [(&'a str, &'a str)];

/// A runner with few rights, whose own namespace is not that of its functions.
struct Limited {
    bench: Bench,
    home: Namespace,
    runner: Runner,
}

impl Limited {
    /// With the manifests' rights but for what is missing.
    async fn without(missing: Missing<'_>, more: &[&str]) -> Self {
        // Boxed, as below: it is large for those that hold it.
        Box::pin(Self::start(Bench::new().await, missing, more)).await
    }

    async fn start(bench: Bench, missing: Missing<'_>, more: &[&str]) -> Self {
        // As the components that turn these flags on.
        let has = |flag: &str| more.iter().any(|other| other.starts_with(flag));
        let mut files = vec![BASE];
        files.extend(has("--function-pod-template").then_some(POD_TEMPLATE));
        files.extend(has("--enable-private-registries").then_some(PRIVATE_REGISTRIES));
        Box::pin(Self::with(bench, &Roles::of(&files).without(missing), more)).await
    }

    async fn with(bench: Bench, roles: &Roles, more: &[&str]) -> Self {
        let home = bench.cluster.namespace().await;
        let account = home.account("runner").await;
        account.allow(&bench.namespace, &roles.rules(FUNCTIONS)).await;
        account.allow(&home, &roles.rules(HOME)).await;
        let kubeconfig = account.kubeconfig(&bench.sandbox).await;
        let own = format!("--namespace={}", home.name());
        let flags: Vec<_> =
            ["--scan-interval=1s", own.as_str()].into_iter().chain(more.iter().copied()).collect();
        // Boxed: it is large for those that hold it.
        let server =
            Box::pin(bench.namespace.runner_as(&bench.sandbox, kubeconfig, &[&bench.image], &flags)).await;
        let runner = Runner::new(server, &bench.image);
        Self { bench, home, runner }
    }

    /// Its name as a user, which the audit log has.
    fn user(&self) -> String {
        format!("system:serviceaccount:{}:runner", self.home.name())
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

/// What a runner asks the API server from now on.
struct Watched(Option<(Mark, Audit)>);

/// Makes a pod with all rights, for a runner that may not.
async fn with_a_pod() -> Bench {
    let bench = Bench::new().await;
    bench.runner(&[]).await.succeeds().await;
    bench
}

const MAY_NOT_CREATE: &str = "the runner may not create pods and Services in the function namespace: grant its service \
                              account the Role of the deployment manifests there";

/// What the Roles of v1.5 allow.
fn originals() -> Roles {
    let rule =
        |resource: &str, verbs: &[&str]| json!({"apiGroups": [""], "resources": [resource], "verbs": verbs});
    let role = |namespace: &str, rules: serde_json::Value| {
        serde_json::from_value(json!({"metadata": {"namespace": namespace}, "rules": rules})).unwrap()
    };
    let functions = json!([
        rule("pods", &["create", "delete", "patch", "get", "watch", "list"]),
        rule("services", &["create", "delete", "get", "watch", "list"]),
        rule("endpoints", &["create", "delete", "get", "watch", "list"]),
        rule("secrets", &["create", "delete", "update", "get"]),
    ]);
    Roles::from(vec![role(FUNCTIONS, functions), role(HOME, json!([rule("configmaps", &["get", "list"])]))])
}

/// All that a runner does with pods and their templates. Nothing else is refused.
async fn are_enough(roles: &Roles, may_be_refused: &[&str]) {
    let bench = Bench::new().await;
    let audit = bench.cluster.own().map(|own| own.audit(bench.cluster.client()));
    let mark = match &audit {
        Some(audit) => Some(audit.mark().await),
        None => None,
    };
    let limited = Limited::with(bench, roles, &[TEMPLATE_FLAG]).await;
    let map: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": TEMPLATE},
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

    let (Some(audit), Some(mark)) = (audit, mark) else { return };
    let requests = audit.since(&mark).await;
    let own: Vec<_> = requests.into_iter().filter(|request| request.user == limited.user()).collect();
    assert!(own.len() > 10, "{own:?}");
    let refused =
        |request: &&Request| request.code == 403 && !may_be_refused.contains(&request.resource.as_str());
    let refused: Vec<_> = own.iter().filter(refused).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_manifests_rights_are_enough() {
    Box::pin(are_enough(&Roles::of(&[BASE, POD_TEMPLATE]), &[])).await;
}

/// The Roles of v1.5 know no `FunctionConfigs`: they are asked for all the same, now and then.
#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_originals_rights_are_enough() {
    Box::pin(are_enough(&originals(), &["functionconfigs"])).await;
}

// === impl Watched ===

impl Watched {
    async fn new(bench: &Bench) -> Self {
        match bench.cluster.own().map(|own| own.audit(bench.cluster.client())) {
            Some(audit) => Self(Some((audit.mark().await, audit))),
            None => Self(None),
        }
    }

    /// Verb and status of each request for Services. None where the cluster is not ours.
    async fn services(&self, limited: &Limited) -> Option<Vec<(String, u16)>> {
        let (mark, audit) = self.0.as_ref()?;
        let mut own = audit.since(mark).await;
        own.retain(|request| request.user == limited.user() && request.resource == "services");
        Some(own.into_iter().map(|request| (request.verb, request.code)).collect())
    }
}
