//! Pods that cannot start: callers hear the reason as soon as it is known, in words that are the same each time, and
//! nothing is left behind.

use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Pod, ResourceQuota};
use porch_fn_tests::client::{Answer, Client};
use porch_fn_tests::cluster::{ApiProxy, Asked, Change, Cluster, Namespace};
use porch_fn_tests::process::{Sandbox, Server, figure};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use super::calls::{INPUT, until_count};

/// What the call of an image that does not exist is answered in: before the kubelet pulls again, which it does 10 s after
/// its first pull has failed. On a quiet node it is under 2 s, which the figure shows.
const NO_IMAGE: Duration = Duration::from_secs(10);
/// What a call is answered in whose pod cannot be made. On a quiet node it is 0.1 s, which the figures show.
const NO_POD: Duration = Duration::from_secs(10);

async fn timed(client: &Client, image: &str) -> (Answer, Duration) {
    let start = Instant::now();
    let answer = client.call(image, INPUT).await;
    (answer, start.elapsed())
}

fn failed(image: &str, reason: &str) -> String {
    format!(
        "unable to get the grpc client to the pod for {image}: the function's pod failed to start: {reason}"
    )
}

async fn no_pod_is_left(namespace: &Namespace, runner: &Server, image: &str) {
    namespace.until("the pod is collected", |pods: &[Pod]| pods.is_empty().then_some(())).await;
    for field in ["starting", "waiting", "in_flight"] {
        until_count(runner, image, field, 0).await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_image_that_does_not_exist_fails_early() {
    let cluster = Cluster::connect().await;
    for connect in ["--pod-connect=service", "--pod-connect=pod-ip"] {
        let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
        let (image, bogus) = (cluster.function_image(), format!("{}/no/such-image:v1", cluster.registry()));
        let runner = namespace.runner(&sandbox, &[&image, &bogus], &[connect]).await;
        let client = Client::new(runner.address());
        // With it the wrapper's image is on the node, as it is after the first function.
        assert_eq!(client.call(&image, INPUT).await.output(), INPUT);

        let (answer, took) = timed(&client, &bogus).await;
        figure(&format!("an image that does not exist, {connect}: {took:.1?}"));
        let reason = "the function's image was not found in its registry or may not be pulled: check its name and tag, \
                      and the pull secrets of the function namespace";
        answer.fails(Code::Unknown, &failed(&bogus, reason));
        assert!(took < NO_IMAGE, "{took:?}");
        let gone = |pods: &[Pod]| (pods.len() == 1).then_some(());
        namespace.until("the pod is collected, and the other one is not", gone).await;
        until_count(&runner, &bogus, "waiting", 0).await;

        // The next caller does not wait for another try.
        let (again, took) = timed(&client, &bogus).await;
        assert_eq!((&again.code, &again.message), (&answer.code, &answer.message));
        assert!(took < NO_IMAGE, "{took:?}");
        assert_eq!(client.call(&image, INPUT).await.output(), INPUT);
    }
}

/// A template in which `cp` brings the wrapper-server, and `command` is what the function's container runs. No pod of it
/// is scheduled before all gates, such as `{"name": "tests/held"}`, are taken away from it.
pub(super) async fn template(namespace: &Namespace, command: &[&str], gates: Value) {
    let mount = json!([{"name": "tools", "mountPath": "/tools"}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "spec": {
            "schedulingGates": gates,
            "volumes": [{"name": "tools", "emptyDir": {}}],
            "initContainers": [{
                "name": "copy", "image": namespace.cluster().wrapper_image(), "volumeMounts": mount,
                "command": ["cp", "-a", "/wrapper-server/.", "/tools"],
            }],
            "containers": [{
                "name": "function", "image": "function", "volumeMounts": mount, "command": command,
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }],
        },
    });
    let data = json!({"metadata": {"name": "template"}, "data": {"template": pod.to_string()}});
    namespace.make::<ConfigMap>(data).await;
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten())
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_wrapper_that_ends_at_once_is_given_up_at_its_second_exit_with_its_last_lines_in_the_log() {
    let cluster = Cluster::connect().await;
    let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
    template(&namespace, &["/tools/wrapper-server", "--max-concurrent-calls=many"], json!([])).await;
    let image = cluster.function_image();
    let more = ["--function-pod-template=template", &format!("--namespace={}", namespace.name())];
    let runner = namespace.runner(&sandbox, &[&image], &more).await;
    let client = Client::new(runner.address());
    let record = namespace.record::<Pod>().await;

    let (answer, took) = timed(&client, &image).await;
    let answered = Instant::now();
    figure(&format!("a wrapper-server that ends at once: {took:.1?}"));
    let reason = "the container `function` ended with exit code 64: check that the pod template puts a wrapper-server \
                  for the node's platform where the container's command says (WRAPPER_SERVER_IMAGE, \
                  --function-pod-template); the runner's log has its last lines";
    answer.fails(Code::Unknown, &failed(&image, reason));
    let restarts = |pod: &Pod| statuses(pod).map(|status| status.restart_count).max().unwrap_or_default();
    let exited_again = |(_, change): &(Instant, Change<Pod>)| {
        let (Change::Applied(pod) | Change::Deleted(pod)) = change;
        let down =
            |status: &ContainerStatus| status.state.as_ref().is_some_and(|state| state.terminated.is_some());
        statuses(pod).any(|status| status.restart_count == 1 && down(status))
    };
    let log = runner.log();
    assert!(log.contains("--max-concurrent-calls"), "the container's last lines are missing:\n{log}");
    no_pod_is_left(&namespace, &runner, &image).await;
    record.all_gone().await;
    assert!(record.most_at_once(|pod| restarts(pod) >= 1) == 1, "one try more was made");
    assert!(record.most_at_once(|pod| restarts(pod) >= 2) == 0, "and no other");
    // The next try would come 10 s after the second exit, of which the kubelet need not tell.
    let exit = record.changes().into_iter().find(exited_again);
    assert!(
        exit.is_none_or(|(heard, _)| answered < heard + Duration::from_secs(10)),
        "nor was it waited for"
    );
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_template_without_a_wrapper_server_is_given_up_early() {
    let cluster = Cluster::connect().await;
    let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
    template(&namespace, &["/tools/no-such-program"], json!([])).await;
    let image = cluster.function_image();
    let more = ["--function-pod-template=template", &format!("--namespace={}", namespace.name())];
    let runner = namespace.runner(&sandbox, &[&image], &more).await;

    let (answer, took) = timed(&Client::new(runner.address()), &image).await;
    figure(&format!("a template without a wrapper-server: {took:.1?}"));
    let reason = "the entrypoint of the container `function` could not be started: check that the pod template puts a \
                  wrapper-server for the node's platform where the container's command says (WRAPPER_SERVER_IMAGE, \
                  --function-pod-template); the runner's log has its last lines";
    answer.fails(Code::Unknown, &failed(&image, reason));
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(runner.log().contains("/tools/no-such-program"), "{}", runner.log());
    no_pod_is_left(&namespace, &runner, &image).await;
}

/// How often the API server refused to make a pod with this code. Another try would keep the caller waiting in vain.
fn pods_refused(proxy: &ApiProxy, code: StatusCode) -> usize {
    let create = |asked: &Asked| asked.verb == "create" && asked.resource == "pods";
    let passed = proxy.passed();
    passed.iter().filter(|passed| create(&passed.asked) && passed.status == Some(code)).count()
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_quota_that_is_used_up_is_told_at_once() {
    let cluster = Cluster::connect().await;
    let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    namespace.make::<ResourceQuota>(quota).await;
    let in_force = |quotas: &[ResourceQuota]| {
        let hard = quotas.first()?.status.as_ref()?.hard.as_ref()?;
        hard.contains_key("pods").then_some(())
    };
    namespace.until("the quota is in force", in_force).await;
    let image = cluster.function_image();
    let proxy = ApiProxy::start(&cluster, 0).await;
    let runner = namespace.runner_as(&sandbox, proxy.kubeconfig(&sandbox), &[&image], &[]).await;

    let (answer, took) = timed(&Client::new(runner.address()), &image).await;
    figure(&format!("a quota that is used up: {took:.1?}"));
    let reason = "a ResourceQuota of the function namespace is used up: raise it, or lower \
                  --max-parallel-pods-per-function or the functions' resource requests";
    answer.fails(Code::Unknown, &failed(&image, reason));
    assert!(took < NO_POD, "{took:?}");
    no_pod_is_left(&namespace, &runner, &image).await;
    assert_eq!(pods_refused(&proxy, StatusCode::FORBIDDEN), 1);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_namespace_that_does_not_exist_is_told_at_once() {
    let cluster = Cluster::connect().await;
    let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
    let image = cluster.function_image();
    let proxy = ApiProxy::start(&cluster, 0).await;
    let more = ["--pod-namespace=test-no-such-namespace"];
    let runner = namespace.runner_as(&sandbox, proxy.kubeconfig(&sandbox), &[&image], &more).await;

    let (answer, took) = timed(&Client::new(runner.address()), &image).await;
    figure(&format!("a namespace that does not exist: {took:.1?}"));
    answer.fails(
        Code::Unknown,
        &failed(&image, "the function namespace (--pod-namespace) does not exist: create it"),
    );
    assert!(took < NO_POD, "{took:?}");
    until_count(&runner, &image, "waiting", 0).await;
    assert_eq!(pods_refused(&proxy, StatusCode::NOT_FOUND), 1);
}
