//! Which unused pods and Services are deleted. runner/pool tests that a pod in use is kept.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;

use crate::rig::{Bench, INPUT, LONG_AGO, RECLAIM_AFTER};

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_lapsed_pod_goes_with_its_service_and_nothing_else_does() {
    let bench = Bench::new().await;
    let fresh = bench.cluster.function_named("collecting/fresh:v1").await;
    // Porch's own pods look like this.
    let original = json!({"fn.kpt.dev/image": "original"});
    let original = bench.foreign_pod("original", original, json!({RECLAIM_AFTER: LONG_AGO})).await;
    let bare = bench.foreign_pod("bare", json!({}), json!({})).await;
    let images = [bench.image.as_str(), fresh.as_str()];
    for restarted in [false, true] {
        let runner = bench.runner_of(&images, &[]).await;
        runner.succeeds().await;
        let lapsed = bench.pod_of(&bench.image).await;
        bench.service_of(&lapsed).await;
        runner.client.call(&fresh, INPUT).await.output();
        let kept = bench.pod_of(&fresh).await;
        if restarted {
            drop(runner);
            bench.lapse(&lapsed).await;
            let _nobody_has_called_it = bench.runner_of(&images, &[]).await;
            bench.gone(&lapsed).await;
        } else {
            bench.lapse(&lapsed).await;
            bench.gone(&lapsed).await;
        }
        let gone = |services: &[Service]| {
            services.iter().all(|service| service.name_any() != lapsed.name_any()).then_some(())
        };
        bench.namespace.until("its Service is gone", gone).await;
        bench.untouched(&original).await;
        bench.untouched(&bare).await;
        bench.service_of(&kept).await;
        assert_eq!(bench.pod().await.uid(), kept.uid());
    }
}
