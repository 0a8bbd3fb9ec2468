//! Replaces the kubelet in a cluster without a node: reports pods as ready. One wrapper-server,
//! which `cluster/inside` starts, answers at the addresses of all pods and Services.

use std::pin::pin;
use std::sync::atomic::{AtomicU16, Ordering};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// Reports every pod as running and ready, each with its own address.
pub(super) async fn run(pods: Api<Pod>) {
    let mut seen =
        pin!(watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects());
    while let Some(pod) = seen.next().await {
        let Ok(pod) = pod else { continue };
        let has_address = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
        if !has_address && pod.metadata.deletion_timestamp.is_none() {
            // This request fails if the pod has been deleted. A deleted pod needs no status.
            let status = Patch::Merge(json!({"status": running(&pod)}));
            let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &status).await;
        }
    }
}

fn running(pod: &Pod) -> Value {
    static ADDRESSES: AtomicU16 = AtomicU16::new(1);
    let [high, low] = ADDRESSES.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let ip = format!("10.252.{high}.{low}");
    let state = json!({"running": {"startedAt": Timestamp::now().to_string()}});
    let status = |container: &Container| {
        json!({
            "name": container.name, "image": container.image, "imageID": "", "ready": true, "started": true,
            "restartCount": 0, "state": state,
        })
    };
    let containers: Vec<_> = pod.spec.iter().flat_map(|spec| &spec.containers).map(status).collect();
    json!({
        "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "containerStatuses": containers,
        "conditions": [{"type": "Ready", "status": "True"}],
    })
}
