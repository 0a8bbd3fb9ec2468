//! The collection of unused pods and Services. runner/pool tests that a pod in use is kept.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;

use crate::rig::{Bench, INPUT, LONG_AGO, RECLAIM_AFTER};

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_expired_pod_is_deleted_with_its_service_and_nothing_else() {
    let bench = Bench::new().await;
    let fresh = bench.cluster.function_named("collecting/fresh:v1").await;
    // Porch's own pods look like this.
    let original = json!({"fn.kpt.dev/image": "original"});
    let original = bench.foreign_pod("original", original, json!({RECLAIM_AFTER: LONG_AGO})).await;
    let bare = bench.foreign_pod("bare", json!({}), json!({})).await;
    let images = [bench.image.as_str(), fresh.as_str()];
    for restarted in [false, true] {
        let runner = bench.runner_of(&images, &[]).await;
        runner.call_ok().await;
        let expired = bench.pod_of(&bench.image).await;
        bench.service_of(&expired).await;
        runner.client.call(&fresh, INPUT).await.output();
        let kept = bench.pod_of(&fresh).await;
        if restarted {
            drop(runner);
            bench.expire(&expired).await;
            // This runner has not called the function.
            let _runner = bench.runner_of(&images, &[]).await;
            bench.wait_gone(&expired).await;
        } else {
            bench.expire(&expired).await;
            bench.wait_gone(&expired).await;
        }
        let gone = |services: &[Service]| {
            services.iter().all(|service| service.name_any() != expired.name_any()).then_some(())
        };
        bench.namespace.wait_until("its Service is gone", gone).await;
        bench.assert_untouched(&original).await;
        bench.assert_untouched(&bare).await;
        bench.service_of(&kept).await;
        assert_eq!(bench.pod().await.uid(), kept.uid());
    }
}
