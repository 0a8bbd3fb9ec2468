//! That the node pulls from each kind of registry, and from none without credentials: what the other tests take for
//! granted.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use porch_fn_tests::registry::{Authority, Kind, User, base64, docker_config};
use serde_json::json;

use super::*;

const REFUSED: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];

/// A Secret with this configuration, and a pod that pulls with it.
async fn pull(stand: &Stand, name: &str, image: &str, config: &str) {
    let secret = json!({
        "metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64(config)},
    });
    stand.namespace.make::<Secret>(secret).await;
    let pod = json!({
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never", "imagePullSecrets": [{"name": name}],
            "containers": [{"name": "function", "image": image}],
        },
    });
    stand.namespace.make::<Pod>(pod).await;
}

/// Waits until its container waits for one of these reasons, or has ended for it.
async fn until(stand: &Stand, name: &str, reasons: &[&str]) {
    let look = |pods: &[Pod]| {
        let pod = pods.iter().find(|pod| pod.name_any() == name)?;
        let state = pod.status.as_ref()?.container_statuses.as_ref()?.first()?.state.clone()?;
        let waiting = state.waiting.and_then(|waiting| waiting.reason);
        let ended = state.terminated.and_then(|terminated| terminated.reason);
        reasons.contains(&ended.or(waiting)?.as_str()).then_some(())
    };
    stand.namespace.until(&format!("the pod {name} is {reasons:?}"), look).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_node_pulls_from_every_kind_of_registry() {
    let Some(stand) = Stand::start().await else { return };
    let user = User::new("runner", "a planted password");
    let authority = Authority::create(&stand.sandbox, "ours").await;
    let open = stand.registry("open", Access::default()).await;
    let mut password = stand.registry("password", Access { user: Some(user.clone()), tls: None }).await;
    let access = Access { user: Some(user.clone()), tls: Some(authority) };
    let secure = stand.registry("secure", access).await;
    let proxy = stand.proxy(&open, Auth::Token { lifetime: Duration::from_mins(5) }).await;
    node::plain(&stand.own, proxy.address());
    proxy.set_users(&[&user]);
    let images = [
        open.push("team/a:v1", "word").await,
        password.push("team/a:v1", "word").await,
        secure.push("team/a:v1", "word").await,
    ];

    let config = |image: &str| docker_config([(image.split_once('/').unwrap().0, &user)]);
    for (name, image) in ["open", "password", "secure"].into_iter().zip(&images) {
        pull(&stand, name, image, &config(image)).await;
    }
    pull(&stand, "token", &proxy.image("team/a:v1"), &config(&proxy.image("team/a:v1"))).await;
    // A pull without the Secret, which the kubelet makes when it cannot read it at once, is followed by one with it.
    for name in ["open", "password", "secure", "token"] {
        until(&stand, name, &["Completed"]).await;
    }
    assert!(proxy.count(Kind::Token) > 0 && proxy.count(Kind::Manifest) > 0, "{:?}", proxy.asked());

    password.registry.set_users(&[&User::new("runner", "another")]).await;
    let image = password.registry.image("team/b:v1");
    Crane::of(&password.registry).copy(&stand.cluster.function_image(), &image).await;
    pull(&stand, "refused", &image, &config(&image)).await;
    until(&stand, "refused", &REFUSED).await;
    proxy.set_users(&[]);
    pull(&stand, "no-token", &proxy.image("team/c:v1"), &config(&proxy.image("team/c:v1"))).await;
    until(&stand, "no-token", &REFUSED).await;
}
