//! The collection of unused pods and Services. runner/pool tests that a pod in use is kept.

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::json;

use crate::rig::{INPUT, LONG_AGO, RECLAIM_AFTER, Setup};

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_expired_pod_is_deleted_with_its_service_and_nothing_else() {
    let setup = Setup::new().await;
    let fresh = setup.cluster.function_named("collecting/fresh:v1").await;
    // The pods of Porch's own runner have this label and this reclaim-after.
    let original = json!({"fn.kpt.dev/image": "original"});
    let original = setup.foreign_pod("original", original, json!({RECLAIM_AFTER: LONG_AGO})).await;
    let bare = setup.foreign_pod("bare", json!({}), json!({})).await;
    let images = [setup.image.as_str(), fresh.as_str()];
    for restarted in [false, true] {
        let runner = setup.runner_of(&images, &[]).await;
        runner.call_ok().await;
        let expired = setup.pod_of(&setup.image).await;
        setup.service_of(&expired).await;
        runner.client.call(&fresh, INPUT).await.output();
        let kept = setup.pod_of(&fresh).await;
        if restarted {
            drop(runner);
            setup.expire(&expired).await;
            // This runner has not called the function.
            let _runner = setup.runner_of(&images, &[]).await;
            setup.wait_gone(&expired).await;
        } else {
            setup.expire(&expired).await;
            setup.wait_gone(&expired).await;
        }
        let gone = |services: &[Service]| {
            services.iter().all(|service| service.name_any() != expired.name_any()).then_some(())
        };
        setup.namespace.wait_until("its Service is gone", gone).await;
        setup.assert_untouched(&original).await;
        setup.assert_untouched(&bare).await;
        setup.service_of(&kept).await;
        assert_eq!(setup.pod().await.uid(), kept.uid());
    }
}
