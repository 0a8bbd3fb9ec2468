//! Calls through router, runner and a real pod: what they answer, what callers notice when pods go while they run, and
//! what the API server notices of calls.

mod front;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::ResourceExt;
use kube::api::DeleteParams;
use porch_fn_tests::client::Client;
use porch_fn_tests::cluster::{Audit, Change, Cluster, Mark, Recorder};
use porch_fn_tests::load::Load;
use porch_fn_tests::process::{Sandbox, Server, eventually, figure};
use tokio::time::Instant;
use tonic::Code;

use front::Front;

/// A package that the function answers as it is.
pub(super) const INPUT: &str = "kind: ResourceList\n";
/// How pods are reached.
const CONNECTS: [&str; 2] = ["service", "pod-ip"];

/// A number of the function's entry on the runner's `/pods` page; zero when it has none.
pub(super) async fn count(runner: &Server, image: &str, field: &str) -> u64 {
    let page = runner.json("/pods").await;
    let entry = page.as_array().unwrap().iter().find(|function| function["image"] == image);
    entry.map_or(0, |entry| entry[field].as_u64().unwrap())
}

/// Waits until the runner has that many.
pub(super) async fn until_count(runner: &Server, image: &str, field: &str, expected: u64) {
    let what = format!("{field} of {image} is {expected}");
    eventually(&what, async || (count(runner, image, field).await == expected).then_some(())).await;
}

/// Nobody has deleted it.
pub(super) fn alive(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

/// When each pod was first heard of, in that order, by uid.
pub(super) fn births(record: &Recorder<Pod>) -> Vec<(String, Instant)> {
    let mut births: Vec<(String, Instant)> = Vec::new();
    for (at, change) in record.changes() {
        let (Change::Applied(pod) | Change::Deleted(pod)) = change;
        let uid = pod.uid().unwrap();
        if births.iter().all(|(known, _)| *known != uid) {
            births.push((uid, at));
        }
    }
    births
}

/// The same of so many pods: the record may hear of them later than others do.
async fn exact_births(record: &Recorder<Pod>, pods: usize) -> Vec<(String, Instant)> {
    let heard = async || (births(record).len() >= pods).then_some(());
    eventually(&format!("{pods} pods were made"), heard).await;
    let births = births(record);
    assert_eq!(births.len(), pods);
    births
}

/// Whatever a byte may be in YAML: no final newline, long lines, more than one HTTP/2 frame and window.
fn unusual() -> String {
    let mut text = String::from("apiVersion: config.kubernetes.io/v1\r\nkind: ResourceList\r\nitems:\r\n");
    for number in 0..2000 {
        let long = "x".repeat(500);
        let _ = writeln!(text, "- {{kind: ConfigMap, data: {{k{number}: \"ä\\0\t😀 {long}\"}}}} # \u{a0}");
    }
    text + "# no newline at the end"
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_answer_comes_back_byte_for_byte() {
    let cluster = Cluster::connect().await;
    for connect in CONNECTS {
        let front = Front::connected_by(&cluster, connect).await;
        let input = unusual();
        let start = Instant::now();
        let answer = front.client.call(&front.image, input.clone()).await;
        figure(&format!("first call by {connect}: {:.0?} with {} bytes", start.elapsed(), input.len()));
        assert!(
            *answer.output() == input.as_bytes(),
            "{} bytes of {}",
            answer.resource_list.len(),
            input.len()
        );

        let says = format!("{INPUT}# test-stderr: heard\n");
        let answer = front.client.call(&front.image, says.clone()).await;
        assert_eq!((answer.output(), answer.log().as_str()), (&says.into(), "heard\n"));
        let services = front.namespace.services().await.len();
        assert_eq!((front.namespace.pods().await.len(), services), (1, usize::from(connect == "service")));
        front.no_load().await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_deleted_pod_finishes_its_call_and_the_next_call_has_another() {
    let cluster = Cluster::connect().await;
    for connect in CONNECTS {
        let front = Front::connected_by(&cluster, connect).await;
        let record = front.namespace.record::<Pod>().await;
        let pod = front.warm().await;
        let next = async || {
            let start = Instant::now();
            front.delete(&pod, &DeleteParams::default()).await;
            // The runner's own watch decides: until it has heard, the pod serves and is used.
            until_count(&front.runner, &front.image, "ready", 0).await;
            assert_eq!(front.client.call(&front.image, INPUT).await.output(), INPUT);
            figure(&format!("a call right after the delete by {connect}: {:.1?}", start.elapsed()));
        };
        let takes = Duration::from_secs(4);
        let start = Instant::now();
        let answered = front.during(takes, next).await;
        figure(&format!("a call of {takes:?} in a deleted pod by {connect}: {:.1?}", answered - start));
        exact_births(&record, 2).await;
        assert_eq!(front.run_again().await, 0);
        front.no_load().await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_call_whose_pod_is_deleted_without_grace_runs_again_in_another() {
    let cluster = Cluster::connect().await;
    for connect in CONNECTS {
        let front = Front::connected_by(&cluster, connect).await;
        let record = front.namespace.record::<Pod>().await;
        let pod = front.warm().await;
        // Longer than the kubelet leaves such a pod: it takes it down after some 4 s.
        let takes = Duration::from_secs(10);
        let start = Instant::now();
        let kill = async || front.delete(&pod, &DeleteParams::default().grace_period(0)).await;
        let answered = front.during(takes, kill).await;
        let births = exact_births(&record, 2).await;
        figure(&format!(
            "a call of {takes:?} whose pod is taken away by {connect}: {:.1?}, with a new pod after {:.1?}",
            answered - start,
            births[1].1 - start
        ));
        let answered = SystemTime::now() - answered.elapsed();
        let pods = front.namespace.pods().await;
        let new = pods.iter().find(|new| new.uid().as_ref() == Some(&births[1].0)).unwrap();
        // A whole second, which is rounded down.
        let made = SystemTime::from(new.creation_timestamp().unwrap().0);
        assert!(answered >= made + takes, "it ran in the new pod from its beginning");
        assert_eq!(front.run_again().await, 1);
        front.no_load().await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn pods_deleted_under_load_cost_no_call() {
    let cluster = Cluster::connect().await;
    for connect in CONNECTS {
        let front = Front::connected_by(&cluster, connect).await;
        let record = front.namespace.record::<Pod>().await;
        front.warm().await;
        let load = Load::start(front.router.address(), 16, std::slice::from_ref(&front.image));
        for deleted in 1..=3 {
            let enough = load.answered() + 200;
            eventually("the load goes on", async || (load.answered() >= enough).then_some(())).await;
            let first = |pods: &[Pod]| pods.iter().find(|pod| alive(pod)).cloned();
            let pod = front.namespace.until("there is a pod", first).await;
            front.delete(&pod, &DeleteParams::default()).await;
            let replaced = async || (births(&record).len() > deleted).then_some(());
            eventually("there is another pod", replaced).await;
        }
        let enough = load.answered() + 200;
        eventually("the load goes on", async || (load.answered() >= enough).then_some(())).await;
        let report = load.stop().await;
        figure(&format!(
            "3 pods deleted under load by {connect}: {} calls, {:?} failed, slowest {:.1?}",
            report.succeeded, report.failed, report.slowest
        ));
        report.all_succeeded();
        front.no_load().await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_call_whose_wrapper_is_killed_runs_again() {
    let cluster = Cluster::connect().await;
    let Some(own) = cluster.own() else { return };
    for connect in CONNECTS {
        let front = Front::connected_by(&cluster, connect).await;
        let pod = front.warm().await;
        let takes = Duration::from_secs(6);
        let mut killed = Instant::now();
        let kill = async || {
            killed = Instant::now();
            assert!(own.kill_processes(&pod) > 0);
        };
        let answered = front.during(takes, kill).await;
        figure(&format!(
            "a call of {takes:?} after its wrapper was killed by {connect}: {:.1?}",
            answered - killed
        ));
        assert!(answered - killed >= takes, "it ran again from its beginning");
        front.no_load().await;
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_caller_that_does_not_wait_leaves_the_pod_to_the_next_and_no_load() {
    let cluster = Cluster::connect().await;
    for connect in CONNECTS {
        for goes_away in [false, true] {
            let front = Front::held(&cluster, connect).await;
            let record = front.namespace.record::<Pod>().await;
            if goes_away {
                tokio::select! {
                    answer = front.client.call(&front.image, INPUT) => panic!("there is no pod for {answer:?}"),
                    () = until_count(&front.runner, &front.image, "waiting", 1) => {}
                }
            } else {
                let text = format!(
                    "function evaluation timed out for {}: the deadline passed while the call waited for a pod of \
                     this function: allow a longer deadline, warm the function up, or raise \
                     --max-parallel-pods-per-function",
                    front.image
                );
                // A server before the runner may be the first to notice that the deadline has passed.
                eventually("the runner's own words", async || {
                    let answer = front.client.call_within(&front.image, INPUT, Duration::from_secs(1)).await;
                    assert_eq!(answer.code, Code::DeadlineExceeded, "{}", answer.message);
                    (answer.message == text).then_some(())
                })
                .await;
            }
            let first = |pods: &[Pod]| pods.first().cloned();
            let pod = front.namespace.until("the pod is made all the same", first).await;
            front.no_load().await;
            assert_eq!(count(&front.runner, &front.image, "starting").await, 1);
            front.release(&pod).await;
            assert_eq!(front.client.call(&front.image, INPUT).await.output(), INPUT);
            front.no_load().await;
            assert_eq!(count(&front.runner, &front.image, "ready").await, 1);
            exact_births(&record, 1).await;
        }
    }
}

/// The rights that the manifests of Porch give its function runner in the function namespace, but those to Secrets.
fn rights() -> Vec<PolicyRule> {
    let rule = |resources: &[&str], verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(resources.iter().map(ToString::to_string).collect()),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    };
    vec![
        rule(&["pods"], &["create", "delete", "get", "list", "patch", "watch"]),
        rule(&["services", "endpoints"], &["create", "delete", "get", "list", "watch"]),
        rule(&["configmaps"], &["get", "list"]),
    ]
}

/// How often a user asked what since then, by verb and resource.
async fn requests(audit: &Audit, since: &Mark, user: &str) -> BTreeMap<String, usize> {
    let mut asked = BTreeMap::new();
    for request in audit.since(since).await {
        if request.user == user {
            *asked.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
        }
    }
    asked
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn warm_calls_ask_nothing_of_the_api_server() {
    const CALLS: usize = 1000;
    let cluster = Cluster::connect().await;
    let Some(own) = cluster.own() else { return };
    for connect in CONNECTS {
        let (namespace, sandbox) = (cluster.namespace().await, Sandbox::new());
        let account = namespace.account("runner").await;
        account.allow(&namespace, &rights()).await;
        let image = cluster.function_image();
        let kubeconfig = account.kubeconfig(&sandbox).await;
        let more = [format!("--pod-connect={connect}")];
        let runner = namespace.runner_as(&sandbox, kubeconfig, &[&image], &[&more[0]]).await;
        let client = Client::new(runner.address());
        let audit = own.audit(cluster.client());
        let mark = audit.mark().await;
        assert_eq!(client.call(&image, INPUT).await.output(), INPUT);
        let cold = requests(&audit, &mark, &account.user()).await;
        assert_eq!(cold.get("create pods"), Some(&1), "the runner's requests are seen: {cold:?}");

        let mark = audit.mark().await;
        let start = Instant::now();
        for _ in 0..CALLS / 10 {
            let answers = join_all((0..10).map(|_| client.call(&image, INPUT))).await;
            assert!(answers.iter().all(|answer| answer.output() == INPUT));
        }
        let took = start.elapsed();
        let asked = requests(&audit, &mark, &account.user()).await;
        figure(&format!(
            "{CALLS} warm calls by {connect} in {took:.1?}, 10 at once; API requests: {asked:?}"
        ));
        // None of them is a call's: a renewed watch, reclaim-after pushed at most every 60 s, the template looked at
        // every --scan-interval, which is 60 s too.
        let minutes = 1 + usize::try_from(took.as_secs() / 60).unwrap();
        for (request, times) in asked {
            let allowed = match request.as_str() {
                "patch pods"
                | "watch pods"
                | "watch services"
                | "get configmaps"
                | "get podtemplates"
                | "get servicetemplates" => minutes,
                _ => 0,
            };
            assert!(times <= allowed, "{times} times: {request}");
        }
        assert_eq!(namespace.pods().await.len(), 1);
    }
}
