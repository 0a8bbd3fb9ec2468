//! What each field of a FunctionConfig does to the functions of its images, and to no other.

use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use porch_fn_tests::process::{eventually, figure};
use serde_json::{Value, json};
use tokio::time::Instant;
use tonic::Code;

use super::{Configs, install};
use crate::parity::{Bench, INPUT, LONG_AGO, RECLAIM_AFTER, Runner, is_ours, sleeping};

/// One function's image, its FunctionConfig, and runners for it.
struct Function {
    bench: Bench,
    configs: Configs,
    name: &'static str,
}

// === impl Function ===

impl Function {
    async fn new(name: &'static str) -> Self {
        let mut bench = Bench::new().await;
        install(&bench.cluster, &bench.sandbox).await;
        bench.image = bench.cluster.function_named(&format!("configs/{name}:v1")).await;
        Self { configs: Configs::of(&bench.namespace), bench, name }
    }

    /// Makes or changes the FunctionConfig.
    async fn apply(&self, annotations: Value, executors: Value) {
        let mut spec = json!({"image": self.name, "prefixes": [self.prefix()]});
        spec.as_object_mut().unwrap().extend(executors.as_object().unwrap().clone());
        self.configs.apply(self.name, annotations, spec).await;
    }

    fn prefix(&self) -> String {
        format!("{}/configs", self.bench.cluster.registry())
    }

    async fn applied(&self) {
        self.configs.applied(self.name).await;
    }

    /// The function's image with another tag, and the image of that name in another repository.
    async fn others(&self) -> (String, String) {
        let name = self.name;
        let tag = self.bench.cluster.function_named(&format!("configs/{name}:v2")).await;
        let foreign = self.bench.cluster.function_named(&format!("elsewhere/{name}:v1")).await;
        (tag, foreign)
    }

    /// The only pod of an image.
    async fn pod(&self, image: &str) -> Pod {
        let of = |pod: &Pod| function(pod).image.as_deref() == Some(image);
        let mut pods = self.bench.pods().await;
        pods.retain(of);
        assert_eq!(pods.len(), 1, "{image}: {pods:#?}");
        pods.remove(0)
    }
}

fn function(pod: &Pod) -> &Container {
    let spec = pod.spec.as_ref().unwrap();
    spec.containers.iter().find(|container| container.name == "function").unwrap()
}

/// A setting of an image on the runner's page, and where it is from.
async fn setting(runner: &Runner, image: &str, name: &str) -> Option<(Value, String)> {
    let page = runner.server.json(&format!("/config?image={image}")).await;
    let row = page["settings"].as_array()?.iter().find(|row| row["setting"] == name)?.clone();
    Some((row["value"].clone(), row["from"].as_str()?.to_owned()))
}

/// How long the pod has from now on, in seconds.
fn lifetime(pod: &Pod) -> i64 {
    let end: Timestamp = pod.annotations()[RECLAIM_AFTER].parse().unwrap();
    end.as_second() - Timestamp::now().as_second()
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn overrides_are_in_the_pods_of_the_image_alone() {
    let function_of = Function::new("overridden").await;
    let bench = &function_of.bench;
    let (_, foreign) = function_of.others().await;
    let map = json!({"metadata": {"name": "variables"}, "data": {"FROM_MAP": "yes"}});
    bench.namespace.make::<ConfigMap>(map).await;
    bench.namespace.make::<ServiceAccount>(json!({"metadata": {"name": "functions"}})).await;
    let template = crate::templates::template(bench).to_string();
    let map = json!({"metadata": {"name": "templates"}, "data": {"template": template}});
    bench.namespace.make::<ConfigMap>(map).await;
    let resources = json!({"limits": {"memory": "70Mi"}, "requests": {"cpu": "3m", "memory": "60Mi"}});
    let few = json!({"limits": {"memory": "30Mi"}, "requests": {"cpu": "2m"}});
    function_of
        .apply(
            json!({}),
            json!({"podExecutor": {"templateOverrides": {
                "container": {
                    "env": [{"name": "C", "value": "over"}, {"name": "NEW", "value": "n"}],
                    "envFrom": [{"configMapRef": {"name": "variables"}}],
                    "resources": resources,
                },
                "initContainer": {"env": [{"name": "I", "value": "i"}], "resources": few},
                "serviceAccountName": "functions",
                "securityContext": {"fsGroup": 1234, "supplementalGroups": [7]},
            }}}),
        )
        .await;
    let own = format!("--namespace={}", bench.namespace.name());
    let flags = [own.as_str(), "--function-pod-template=templates"];
    let runner = bench.runner_of(&[&bench.image, &foreign], &flags).await;
    function_of.applied().await;
    runner.succeeds().await;
    runner.client.call(&foreign, INPUT).await.output();

    let pod = function_of.pod(&bench.image).await;
    // The template's first container, as in Porch, although it does not run the function.
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let env: Vec<_> =
        container.env.iter().flatten().map(|one| (one.name.as_str(), one.value.as_deref())).collect();
    assert_eq!(env, [("A", Some("B")), ("C", Some("over")), ("NEW", Some("n"))]);
    let from = &container.env_from.as_ref().unwrap()[0];
    assert_eq!(from.config_map_ref.as_ref().unwrap().name, "variables");
    assert_eq!(json!(container.resources), resources);
    assert_eq!(function(&pod).env.as_ref().unwrap()[0].value.as_deref(), Some("D"));
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.service_account_name.as_deref(), Some("functions"));
    let context = spec.security_context.as_ref().unwrap();
    assert_eq!((context.fs_group, context.supplemental_groups.as_deref()), (Some(1234), Some(&[7][..])));
    let init = &spec.init_containers.as_ref().unwrap()[0];
    assert_eq!(init.env.as_ref().unwrap()[0].name, "I");
    assert_eq!(init.resources.as_ref().unwrap().requests.as_ref().unwrap()["cpu"].0, "2m");
    // What is beside them is as the template says.
    assert_eq!(pod.labels()["team"], "network");

    let other = function_of.pod(&foreign).await;
    let (container, spec) = (function(&other), other.spec.as_ref().unwrap());
    assert_eq!(container.env.as_ref().unwrap()[0].value.as_deref(), Some("D"));
    assert_eq!((container.env.as_ref().unwrap().len(), &container.env_from), (1, &None));
    assert_eq!(spec.service_account_name.as_deref(), Some("default"));
    assert_eq!(spec.security_context.as_ref().and_then(|context| context.fs_group), None);
    assert_eq!(spec.init_containers.as_ref().unwrap()[0].env, None);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_time_to_live_is_that_of_the_tags_in_effect() {
    // The kind that is installed is that of Porch 1.6.
    for (name, flag, semantics, other) in [
        ("living", "--functionconfig-tags=constraint", "constraint", (2, "--pod-ttl")),
        ("lasting", "--functionconfig-tags=auto", "exact", (3, "FunctionConfig lasting")),
    ] {
        let function_of = Function::new(name).await;
        let bench = &function_of.bench;
        let (tag, foreign) = function_of.others().await;
        function_of.apply(json!({}), json!({"podExecutor": {"tags": ["v1"], "timeToLive": "3h"}})).await;
        let images = [bench.image.as_str(), &tag, &foreign];
        let runner = bench.runner_of(&images, &["--pod-ttl=2h", flag]).await;
        function_of.applied().await;
        let (value, source) = setting(&runner, images[0], "functionConfigTags").await.unwrap();
        assert_eq!(value, semantics, "{source}");
        let own = format!("FunctionConfig {name}");
        for (image, (hours, from)) in
            [(images[0], (3, own.as_str())), (images[1], other), (images[2], (2, "--pod-ttl"))]
        {
            runner.client.call(image, INPUT).await.output();
            let left = lifetime(&function_of.pod(image).await);
            assert!((hours * 3600 - 300..=hours * 3600).contains(&left), "{image}: {left}");
            let (value, source) = setting(&runner, image, "ttl").await.unwrap();
            assert_eq!(value, format!("{hours}h0m0s"), "{image}");
            assert!(source.contains(from), "{image}: {source}");
        }
    }
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_schema_says_what_tags_mean() {
    let function_of = Function::new("described").await;
    function_of.apply(json!({}), json!({"podExecutor": {}})).await;
    let runner = function_of.bench.runner_of(&[&function_of.bench.image], &["--scan-interval=1s"]).await;
    // The API server may need a moment for the schema of a kind that has just come.
    eventually("the schema is read", async || {
        let row = setting(&runner, &function_of.bench.image, "functionConfigTags").await?;
        (row == (json!("exact"), "schema of the cluster's FunctionConfigs".to_owned())).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn replicas_of_a_range_are_those_of_its_highest_version() {
    let function_of = Function::new("ranged").await;
    let bench = &function_of.bench;
    let _runner = bench.runner(&[]).await;
    let executors = json!({"podExecutor": {"tags": ["~1"]}});
    function_of.apply(json!({"fn.kpt.dev/min-replicas": "1"}), executors).await;
    bench
        .namespace
        .until("there is a pod without a call", |pods: &[Pod]| {
            let pod = pods.iter().find(|pod| is_ours(pod))?;
            assert_eq!(function(pod).image.as_deref(), Some(bench.image.as_str()));
            Some(())
        })
        .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn parallel_executions_and_queues_are_those_of_the_image() {
    const CALLS: usize = 8;
    let function_of = Function::new("parallel").await;
    let bench = &function_of.bench;
    let (_, foreign) = function_of.others().await;
    let executors =
        |queue| json!({"podExecutor": {"maxParallelExecutions": 2, "preferredMaxQueueLength": queue}});
    function_of.apply(json!({}), executors(100)).await;
    let flags = ["--max-parallel-pods-per-function=3", "--max-waitlist-length=1"];
    let runner = bench.runner_of(&[&bench.image, &foreign], &flags).await;
    function_of.applied().await;
    let load = async |image: &str| {
        let calls = (0..CALLS).map(|_| runner.client.call(image, sleeping(Duration::from_millis(500))));
        for answer in join_all(calls).await {
            answer.output();
        }
        let pods = bench.pods().await;
        pods.iter().filter(|pod| function(pod).image.as_deref() == Some(image)).count()
    };
    assert_eq!(load(&bench.image).await, 1, "the queue is long");
    assert_eq!(load(&foreign).await, 3, "as the flags say");
    function_of.apply(json!({}), executors(1)).await;
    function_of.applied().await;
    eventually("the change is known to the pool", async || (load(&bench.image).await == 2).then_some(()))
        .await;
    assert_eq!(load(&bench.image).await, 2);
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn an_executable_stands_for_the_named_tags() {
    let function_of = Function::new("executable").await;
    let bench = &function_of.bench;
    let program = bench.sandbox.script("program", "cat > /dev/null; echo 'kind: Executed'");
    let runner = bench.runner(&[]).await;
    let image = format!("{}/executable:v9", function_of.prefix());
    let foreign = format!("{}/elsewhere/executable:v9", bench.cluster.registry());
    function_of.apply(json!({}), json!({"binaryExecutor": {"tags": ["v9"], "path": program}})).await;
    function_of.applied().await;
    eventually("the executable is run", async || {
        let answer = runner.client.call(&image, INPUT).await;
        (answer.code == Code::Ok).then(|| assert_eq!(answer.output(), "kind: Executed\n"))
    })
    .await;
    runner.succeeds().await;
    let answer = runner.client.call(&foreign, INPUT).await;
    assert_ne!(answer.code, Code::Ok, "there is no such image");

    function_of.configs.delete("executable").await;
    eventually("the executable is no longer run", async || {
        (runner.client.call(&image, INPUT).await.code != Code::Ok).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn replicas_are_kept_until_nobody_wants_them() {
    let function_of = Function::new("kept").await;
    let bench = &function_of.bench;
    let runner = bench.runner(&[]).await;
    let executors = json!({"podExecutor": {"tags": ["v1"]}});
    let begin = Instant::now();
    function_of.apply(json!({"fn.kpt.dev/min-replicas": "1"}), executors.clone()).await;
    let pod = bench
        .namespace
        .until("there is a pod without a call", |pods: &[Pod]| pods.iter().find(|pod| is_ours(pod)).cloned())
        .await;
    figure(&format!("a pod is made {:.2?} after a FunctionConfig asks for one", begin.elapsed()));
    runner.succeeds().await;
    // Its time runs out again and again.
    for _ in 0..3 {
        bench.lapse(&bench.pod().await).await;
        eventually("it is given more", async || (lifetime(&bench.pod().await) > 0).then_some(())).await;
    }
    assert_eq!(bench.pod().await.uid(), pod.uid());
    function_of.apply(json!({}), executors).await;
    // It has some minutes left, which are taken away as before.
    let pods = bench.namespace.api::<Pod>();
    eventually("it is collected", async || {
        let there = pods.get_opt(&pod.name_any()).await.unwrap();
        if there.as_ref().is_none_or(|there| there.metadata.deletion_timestamp.is_some()) {
            return Some(());
        }
        let lapsed = Patch::Merge(json!({"metadata": {"annotations": {RECLAIM_AFTER: LONG_AGO}}}));
        // It may be gone by now.
        let _ = pods.patch(&pod.name_any(), &PatchParams::default(), &lapsed).await;
        None
    })
    .await;
    bench.gone(&pod).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn what_breaks_stays_in_effect_as_it_was() {
    let function_of = Function::new("broken").await;
    let bench = &function_of.bench;
    let executors = json!({"podExecutor": {"maxParallelExecutions": 5}});
    function_of.apply(json!({}), executors.clone()).await;
    let runner = bench.runner(&[]).await;
    function_of.applied().await;
    let pods = async || setting(&runner, &bench.image, "maxPods").await.unwrap();
    eventually("it is in effect", async || (pods().await.0 == 5).then_some(())).await;
    function_of.apply(json!({"fn.kpt.dev/max-replicas": "many"}), executors.clone()).await;
    function_of.configs.says("broken", "fn.kpt.dev/max-replicas").await;
    let (value, from) = pods().await;
    assert_eq!(value, 5);
    assert!(from.contains("FunctionConfig broken"), "{from}");
    function_of.apply(json!({"fn.kpt.dev/max-replicas": "6"}), executors).await;
    eventually("what is mended is in effect", async || (pods().await.0 == 6).then_some(())).await;
    function_of.configs.delete("broken").await;
    eventually("what is deleted is not", async || (pods().await.0 == 1).then_some(())).await;
}
