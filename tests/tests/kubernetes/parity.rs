//! What Porch's own tests say of its function runner's pods, held by this one against a real Kubernetes: a call goes in,
//! and the answer and the objects in the cluster are looked at.
//!
//! | line of the checklist | held by |
//! |---|---|
//! | ready message with empty image, unknown image, no pending pod | `runner/pool`: `fuzz` (any event in any state) |
//! | request queues on a pending pod, all waiters answered | [`scaling::three_calls_overlap_in_one_pod`] |
//! | create failure reaches waiters with its cause | [`names::a_namespace_that_is_not_there_is_told`], [`adoption::a_foreign_pod_under_the_name_is_told_and_left_alone`] |
//! | startup list failure tolerated | `rights::without_pods_list` |
//! | list error: still creates | does not hold: until the pods are known, calls wait (`rights::without_pods_list`); afterwards `faults` |
//! | empty list: empty map | [`adoption::without_a_pod_one_is_made_with_its_service`] |
//! | least loaded, ties by round robin, none | `runner/pool`: `calls` |
//! | per-image TTL, queue, pods; zero or unknown: global | [`scaling::the_cache_file_decides_per_image`], [`scaling::a_map_of_times_to_live_is_read`]; `runner/pool`: `config` |
//! | a new pod counts its first waiter | [`scaling::four_calls_make_exactly_two_pods`]; `runner/pool`: `scaling` |
//! | response: error, not ready, connection | `runner/src/pods/error.rs`; here throughout |
//! | pending pods never evicted; missing or Failed evicted | `runner/pool`: `starting`; [`adoption::a_pod_that_is_gone_is_made_again`], [`adoption::a_failed_pod_is_replaced`] |
//! | idle past its TTL removed only by the GC, pod and Service, fresh ones kept | [`collecting::a_lapsed_pod_goes_with_its_service_and_nothing_else_does`], [`collecting::a_pod_in_use_stays`] |
//! | redistribution answers waiters; none: false | `runner/pool`: `calls`, `histories` (no lost waiter) |
//! | deletes tolerate nil, unnamed; delete and wait | `runner/pool`: `fuzz`; [`adoption::an_only_pod_that_terminates_holds_nobody_up`] |
//! | pod exists uncached: adopted | [`adoption::a_pod_that_is_there_is_adopted`] |
//! | cached: queued | [`scaling::three_calls_overlap_in_one_pod`] |
//! | none: scale up | [`adoption::without_a_pod_one_is_made_with_its_service`] |
//! | cached but gone: evicted, made again | [`adoption::a_pod_that_is_gone_is_made_again`] |
//! | Service without its pod | not reused here but made again: [`adoption::a_service_of_another_pod_is_made_again`] |
//! | pod without Service works | [`adoption::a_pod_without_a_service_gets_one`], [`adoption::a_service_that_vanishes_is_made_again`] |
//! | terminating or Failed pod of the same id: new one | [`adoption::an_only_pod_that_terminates_holds_nobody_up`], [`adoption::pods_stuck_in_termination_are_passed`], [`adoption::a_failed_pod_is_replaced`] |
//! | no endpoint, endpoint IP differs, never Ready | does not hold as written: the wrapper's own health stands for it (`runner/pool`: `starting`) |
//! | create error, bad reference, bad namespace: error | `rights::without_pods_create`, [`names::a_bad_reference_is_told`], [`names::a_namespace_that_is_not_there_is_told`] |
//! | template used; an update applies to the next pod | `templates` |
//! | two endpoints: older pod deleted | does not hold: a second endpoint is ignored, and nothing is deleted |
//! | podID: default tag, dots, `_`, bad reference | [`names::every_image_has_valid_names`]; `common/image`: `pod_name` |
//! | template version equal: keep; else not adopted | does not hold: any version serves, the owner replaces: `templates::slow` |
//! | args, sidecars, container missing, labels and annotations merged | `templates`; `runner`: `spec`, `template` |
//! | counter back to 0; calls overlap on one connection | [`scaling::three_calls_overlap_in_one_pod`] |
//! | second pod gets a new suffix after a deletion | does not hold: names are of slots: [`adoption::a_pod_that_is_gone_is_made_again`] |
//! | 2 × 5 s in less than 13 s; 4 × 3 s: exactly two pods | [`scaling::three_calls_overlap_in_one_pod`], [`scaling::four_calls_make_exactly_two_pods`] |

mod adoption;
mod collecting;
mod names;
mod scaling;

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use porch_fn_image::{Image, pod_name};
use porch_fn_tests::client::{Answer, Client};
use porch_fn_tests::cluster::{Change, Cluster, Namespace, Recorder};
use porch_fn_tests::process::{Sandbox, Server, eventually};
use serde_json::{Value, json};

/// A package that functions answer unchanged.
pub(crate) const INPUT: &str = "kind: ResourceList\n";
/// Longer than any call of these tests takes.
const DEADLINE: Duration = Duration::from_secs(100);

pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub(crate) const MANAGER: &str = "porch-fn-runner";
pub(crate) const RECLAIM_AFTER: &str = "fn.kpt.dev/reclaim-after";
/// A moment that every pod's time is past of.
pub(crate) const LONG_AGO: &str = "2001-01-01T00:00:00Z";

/// One test's namespace, and what it starts there.
pub(crate) struct Bench {
    pub(crate) sandbox: Sandbox,
    pub(crate) cluster: Cluster,
    pub(crate) namespace: Namespace,
    /// A function that is there.
    pub(crate) image: String,
}

/// A runner and a caller.
pub(crate) struct Runner {
    pub(crate) client: Client,
    pub(crate) server: Server,
    image: String,
}

/// A package at which the function takes its time.
pub(crate) fn sleeping(time: Duration) -> String {
    format!("{INPUT}# test-sleep-ms: {}\n", time.as_millis())
}

/// The uids of all pods that ever were, in the record.
pub(crate) fn uids(record: &Recorder<Pod>) -> BTreeSet<String> {
    let changes = record.changes().into_iter();
    let pod = |(_, change)| match change {
        Change::Applied(pod) | Change::Deleted(pod) => pod,
    };
    changes.map(pod).filter(is_ours).filter_map(|pod: Pod| pod.uid()).collect()
}

/// A function pod of ours.
pub(crate) fn is_ours(pod: &Pod) -> bool {
    pod.labels().get(MANAGED_BY).is_some_and(|by| by == MANAGER)
}

// === impl Bench ===

impl Bench {
    pub(crate) async fn new() -> Self {
        let cluster = Cluster::connect().await;
        let namespace = cluster.namespace().await;
        let image = cluster.function_image();
        Self { sandbox: Sandbox::new(), cluster, namespace, image }
    }

    /// A runner that collects every second.
    pub(crate) async fn runner(&self, more: &[&str]) -> Runner {
        self.runner_of(&[&self.image], more).await
    }

    /// The same for other functions, the first of which is called.
    pub(crate) async fn runner_of(&self, images: &[&str], more: &[&str]) -> Runner {
        let flags: Vec<_> = std::iter::once("--scan-interval=1s").chain(more.iter().copied()).collect();
        let server = self.namespace.runner(&self.sandbox, images, &flags).await;
        Runner::new(server, images[0])
    }

    /// The name of the function's pod in a slot.
    pub(crate) fn name(&self, slot: u32) -> String {
        pod_name(&Image::parse(&self.image, "").unwrap(), slot)
    }

    /// The only function pod there is.
    pub(crate) async fn pod(&self) -> Pod {
        let mut pods = self.pods().await;
        assert_eq!(pods.len(), 1, "{pods:#?}");
        pods.remove(0)
    }

    /// All function pods.
    pub(crate) async fn pods(&self) -> Vec<Pod> {
        self.namespace.pods().await.into_iter().filter(is_ours).collect()
    }

    /// Waits until the Service of that name is the pod's.
    pub(crate) async fn service_of(&self, pod: &Pod) -> Service {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap());
        let owned = |service: &&Service| {
            service.name_any() == name
                && service.owner_references().iter().any(|owner| owner.uid == uid)
                && service.metadata.deletion_timestamp.is_none()
        };
        let look = |services: &[Service]| services.iter().find(owned).cloned();
        self.namespace.until(&format!("{name} has a Service of its own"), look).await
    }

    /// Waits until no pod has this uid.
    pub(crate) async fn gone(&self, pod: &Pod) {
        let look = |pods: &[Pod]| pods.iter().all(|other| other.uid() != pod.uid()).then_some(());
        self.namespace.until(&format!("pod {} is gone", pod.name_any()), look).await;
    }

    pub(crate) async fn patch(&self, pod: &Pod, patch: Value) {
        let params = PatchParams::default();
        self.namespace.api::<Pod>().patch(&pod.name_any(), &params, &Patch::Merge(patch)).await.unwrap();
    }

    /// Makes the pod's time run out.
    pub(crate) async fn lapse(&self, pod: &Pod) {
        self.patch(pod, json!({"metadata": {"annotations": {RECLAIM_AFTER: LONG_AGO}}})).await;
    }

    /// A pod of somebody else's, under this name.
    pub(crate) async fn foreign_pod(&self, name: &str, labels: Value, annotations: Value) -> Pod {
        let pod = json!({
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                "name": "idle", "image": self.cluster.wrapper_image(),
                "command": ["/wrapper-server/wrapper-server", "--idle"],
            }]},
        });
        self.namespace.make(pod).await
    }

    /// Asserts that nobody has changed or deleted what `foreign_pod` made.
    pub(crate) async fn untouched(&self, pod: &Pod) {
        let now = self.namespace.api::<Pod>().get(&pod.name_any()).await.unwrap();
        assert_eq!(
            (now.uid(), now.labels(), now.annotations()),
            (pod.uid(), pod.labels(), pod.annotations())
        );
        assert_eq!(now.metadata.deletion_timestamp, None);
    }
}

// === impl Runner ===

impl Runner {
    /// The caller calls `image`.
    pub(crate) fn new(server: Server, image: &str) -> Self {
        Self { client: Client::new(server.address()), server, image: image.to_owned() }
    }

    /// Calls the function.
    pub(crate) async fn call(&self, input: impl Into<bytes::Bytes>) -> Answer {
        self.client.call_within(&self.image, input, DEADLINE).await
    }

    /// Calls the function, which must succeed.
    pub(crate) async fn succeeds(&self) {
        assert_eq!(self.call(INPUT).await.output(), INPUT);
    }

    /// Waits until the pool counts so many calls of the function in a state, such as `waiting`.
    pub(crate) async fn counts(&self, state: &str, calls: u64) {
        eventually(&format!("{calls} {state}"), async || {
            let page = self.server.json("/pods").await;
            let function = page.as_array()?.iter().find(|function| function["image"] == self.image)?;
            (function[state] == calls).then_some(())
        })
        .await;
    }
}
