//! A runner adopts some existing pods and Services, replaces some, and does not touch the others.

use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Service};
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_image::{Image, pod_name};
use porch_fn_tests::process::eventually;
use serde_json::{Value, json};
use tonic::Code;

use crate::rig::{
    INPUT, MANAGED_BY, MANAGER, RECLAIM_AFTER, REFERENCE, Setup, VERSION, alive, births, failed,
};

const POD_NAME_TAKEN: &str = "a pod that this runner does not manage holds the name of the function's pod: remove it \
                              from the function namespace";
const SERVICE_NAME_TAKEN: &str = "a Service that this runner does not manage has the name of the function's \
                                  Service: remove it from the function namespace";

// === impl Setup ===

impl Setup {
    /// Creates a pod with this name directly, not through a runner.
    pub(super) async fn foreign_pod(&self, name: &str, labels: Value, annotations: Value) -> Pod {
        let pod = json!({
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {"containers": [{"name": "idle", "image": self.cluster.wrapper_image()}]},
        });
        self.namespace.make(pod).await
    }

    /// Asserts that the pod from `foreign_pod` was neither changed nor deleted.
    pub(super) async fn assert_untouched(&self, pod: &Pod) {
        let now = self.namespace.api::<Pod>().get(&pod.name_any()).await.unwrap();
        let parts = |pod: &Pod| (pod.uid(), pod.labels().clone(), pod.annotations().clone());
        assert_eq!(parts(&now), parts(pod));
        assert!(alive(&now));
    }

    /// Creates a Service with or without an owner.
    pub(super) async fn service(&self, name: &str, labels: Value, owner: Option<&Pod>) -> Service {
        let owners: Vec<_> = owner
            .iter()
            .map(|pod| json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()}))
            .collect();
        let service = json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": owners},
            "spec": {"ports": [{"port": 9446}], "selector": {"fn.kpt.dev/image": "an-old-pod"}},
        });
        self.namespace.make(service).await
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_is_created_with_its_service_and_adopted_by_other_runners() {
    let setup = Setup::new().await;
    let record = setup.namespace.record::<Pod>().await;
    // Both runners race to create the first pod.
    let (first, second) = tokio::join!(setup.runner(&[]), setup.runner(&[]));
    tokio::join!(first.call_ok(), second.call_ok(), first.call_ok(), second.call_ok());
    drop((first, second));
    let pod = setup.pod().await;
    assert_eq!(pod.name_any(), setup.name(0));
    assert_eq!(pod.labels()["fn.kpt.dev/image"], pod.name_any());
    assert_eq!(pod.annotations()[REFERENCE], setup.image);
    assert!(pod.annotations()[VERSION].starts_with("inline-"));
    let service = setup.service_of(&pod).await;
    let spec = service.spec.as_ref().unwrap();
    assert_eq!(spec.type_.as_deref(), Some("ClusterIP"));
    assert_eq!(spec.ports.as_ref().unwrap()[0].port, 9446);
    assert_eq!(spec.selector.as_ref().unwrap()["fn.kpt.dev/image"], pod.name_any());

    // A full quota does not prevent adoption.
    let full = json!({"metadata": {"name": "full"}, "spec": {"hard": {"pods": "1", "services": "1"}}});
    setup.namespace.make::<ResourceQuota>(full).await;
    let counted = |quotas: &[ResourceQuota]| {
        let used = quotas.first()?.status.as_ref()?.used.as_ref()?;
        (used.get("pods")?.0 == "1" && used.get("services")?.0 == "1").then_some(())
    };
    setup.namespace.wait_until("the quota is full", counted).await;
    setup.runner(&[]).await.call_ok().await;
    assert_eq!(births(&record).len(), 1);
    assert_eq!(setup.service_of(&pod).await.uid(), service.uid());
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn foreign_objects_with_a_functions_name_are_reported_and_kept() {
    let setup = Setup::new().await;
    let [marker, second] = ["marker", "second"].map(|name| format!("example.com/{name}:v1"));
    // The second foreign pod has our labels but another image, and is never ready. Its
    // reclaim-after time is in the far future, so no runner may delete it.
    let ours = json!({MANAGED_BY: MANAGER, "fn.kpt.dev/image": setup.name(0)});
    let other = json!({
        REFERENCE: "example.com/other:v1", "fn.kpt.dev/slot": "0", RECLAIM_AFTER: "2999-01-01T00:00:00Z",
    });
    let runner = setup.runner_of(&[&setup.image, &marker, &second], &["--pod-ready-timeout=10m"]).await;
    for (labels, annotations) in [(json!({"app": "other"}), json!({"a": "b"})), (ours, other)] {
        let foreign = setup.foreign_pod(&setup.name(0), labels, annotations).await;
        // After a failed start, the runner waits before it starts another pod. Until then, calls
        // get the same failure.
        eventually("the name is reported as taken", async || {
            let answer = runner.call(INPUT).await;
            (answer.message == failed(&setup.image, POD_NAME_TAKEN)).then_some(())
        })
        .await;
        // If the runner has deleted an expired pod that is newer than `foreign`, it has also
        // checked `foreign`.
        runner.client.call(&marker, INPUT).await.output();
        let newer = setup.pods().await.into_iter().find(|pod| pod.annotations()[REFERENCE] == marker);
        let newer = newer.expect("the marker's pod");
        setup.expire(&newer).await;
        setup.wait_gone(&newer).await;
        setup.assert_untouched(&foreign).await;
        setup.delete(&foreign, &DeleteParams::default().grace_period(0)).await;
    }
    let name = pod_name(&Image::parse(&second, "").unwrap(), 0, "");
    let foreign = setup.service(&name, json!({"app": "other"}), None).await;
    let answer = runner.client.call(&second, INPUT).await;
    answer.assert_failed(Code::Unknown, &failed(&second, SERVICE_NAME_TAKEN));
    let services = setup.namespace.api::<Service>();
    assert_eq!(services.get(&name).await.unwrap(), foreign);
    services.delete(&name, &DeleteParams::default()).await.unwrap();
    eventually("the name is free", async || {
        (runner.client.call(&second, INPUT).await.code == Code::Ok).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_pod_gets_its_own_service() {
    let setup = Setup::new().await;
    let runner = setup.runner(&["--pod-connect=pod-ip"]).await;
    runner.call_ok().await;
    let pod = setup.pod().await;
    assert_eq!(setup.namespace.services().await, []);
    drop(runner);
    // A Service that belongs to an earlier pod, or to no pod, is replaced. The owner must exist, or
    // Kubernetes would delete the Service itself.
    let owner = setup.foreign_pod("owner", json!({}), json!({})).await;
    for earlier in [None, Some(None), Some(Some(&owner))] {
        if let Some(owner) = earlier {
            setup.service(&setup.name(0), json!({MANAGED_BY: MANAGER}), owner).await;
        }
        let runner = setup.runner(&[]).await;
        runner.call_ok().await;
        let services = setup.namespace.api::<Service>();
        if earlier.is_none() {
            let first = setup.service_of(&pod).await;
            services.delete(&first.name_any(), &DeleteParams::default()).await.unwrap();
            eventually("there is another Service", async || {
                runner.call_ok().await;
                let there = setup.namespace.services().await;
                there.iter().any(|other| other.uid() != first.uid()).then_some(())
            })
            .await;
        }
        let service = setup.service_of(&pod).await;
        drop(runner);
        services.delete(&service.name_any(), &DeleteParams::default()).await.unwrap();
    }
    assert_eq!(setup.pod().await.uid(), pod.uid());
}
