//! Where the pods' templates come from, and that what they say is kept: the documentation's example and the objects of
//! newer Porch as they are, broken ones, changed ones.

mod slow;

use std::path::Path;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use porch_fn_tests::foreign;
use porch_fn_tests::process::eventually;
use serde_json::{Value, json};
use tonic::Code;

use crate::parity::{Bench, INPUT, Runner};

/// Porch's documentation has it, in `data` of this ConfigMap.
const DOCUMENTED: &str = include_str!("../../../runner/src/pods/kubernetes/template/documented.yaml");
const DOCUMENTED_NAME: &str = "kpt-function-eval-pod-template";
/// As newer Porch's manifests have them.
const BASE: &str = include_str!("../../../runner/src/pods/kubernetes/template/base-templates.yaml");
/// Both name it, each with the program elsewhere.
const WRAPPER: &str = "docker.io/nephio/porch-wrapper-server:latest";
const CRD: &str = "packages/porch/1.6/crds/config.porch.kpt.dev_servicetemplates.yaml";

/// The name of the ConfigMap of [`config_map`].
const NAME: &str = "templates";

fn function(pod: &Pod) -> &Container {
    let spec = pod.spec.as_ref().unwrap();
    spec.containers.iter().find(|container| container.name == "function").unwrap()
}

pub(crate) fn version(pod: &Pod) -> &str {
    &pod.annotations()["fn.kpt.dev/template-version"]
}

/// A small template of a user's.
pub(crate) fn template(bench: &Bench) -> Value {
    let mounts = json!([{"name": "tools", "mountPath": "/tools"}]);
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "not-kept", "namespace": "not-kept",
            "labels": {"team": "network"},
            "annotations": {"example.com/note": "kept"},
        },
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "volumes": [{"name": "tools", "emptyDir": {}}],
            "initContainers": [{
                "name": "copy", "image": bench.cluster.wrapper_image(), "volumeMounts": mounts,
                "command": ["cp", "-a", "/wrapper-server/.", "/tools"],
            }],
            "containers": [
                {
                    "name": "sidecar", "image": bench.cluster.wrapper_image(),
                    "command": ["/wrapper-server/wrapper-server"], "args": ["--idle"],
                    "env": [{"name": "A", "value": "B"}],
                },
                {
                    "name": "function", "image": "replaced", "volumeMounts": mounts,
                    "command": ["/tools/wrapper-server"], "args": ["--verbosity", "4"],
                    "env": [{"name": "C", "value": "D"}],
                },
            ],
        },
    })
}

/// Writes the pod template into the ConfigMap. JSON is YAML.
async fn config_map(bench: &Bench, template: &Value) {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME},
        "data": {"template": template.to_string()},
    });
    let maps = bench.namespace.api::<ConfigMap>();
    maps.patch(NAME, &PatchParams::apply("tests").force(), &Patch::Apply(map)).await.unwrap();
}

/// A runner that makes pods from a ConfigMap in the functions' namespace.
async fn runner_with(bench: &Bench, config_map: &str, images: &[&str], more: &[&str]) -> Runner {
    let own = format!("--namespace={}", bench.namespace.name());
    let template = format!("--function-pod-template={config_map}");
    let flags: Vec<_> = [own.as_str(), template.as_str()].into_iter().chain(more.iter().copied()).collect();
    bench.runner_of(images, &flags).await
}

async fn kubectl(bench: &Bench, args: &[&str], stdin: &str) {
    let kubeconfig = bench.cluster.kubeconfig().to_str().unwrap();
    let own = ["--kubeconfig", kubeconfig, "--namespace", bench.namespace.name()];
    let ended = bench.sandbox.run("kubectl", own.iter().chain(args), stdin.as_bytes()).await;
    assert!(ended.status.success(), "kubectl {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// The wrapper's image with more files, or others in the place of its own.
async fn wrapper_with(bench: &Bench, files: &[(&str, &Path)]) -> String {
    let root = bench.sandbox.path("layer");
    for (path, file) in files {
        let to = root.join(path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(file, to).unwrap();
    }
    let layer = bench.sandbox.path("layer.tar");
    let (root, layer) = (root.to_str().unwrap(), layer.to_str().unwrap());
    run(bench, "tar", &["-C", root, "--owner=0", "--group=0", "-cf", layer, "."]).await;
    let image = format!("{}/{}:test", bench.cluster.registry(), bench.namespace.name());
    let base = bench.cluster.wrapper_image();
    run(bench, "crane", &["append", "--insecure", "-b", &base, "-f", layer, "-t", &image]).await;
    image
}

async fn run(bench: &Bench, program: &str, args: &[&str]) {
    let ended = bench.sandbox.run(program, args, b"").await;
    assert!(ended.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// Makes the objects of newer Porch. Their Services are to be told from those that come with the runner.
pub(crate) async fn apply_base_templates(bench: &Bench) {
    let crd = Path::new(env!("CARGO_MANIFEST_DIR")).join(CRD);
    // Its probes run a program of the wrapper's image, which ours has as well.
    let image = bench.cluster.wrapper_image();
    kubectl(bench, &["apply", "--server-side", "-f", crd.to_str().unwrap()], "").await;
    let established = "crd/servicetemplates.config.porch.kpt.dev";
    kubectl(bench, &["wait", "--for=condition=established", "--timeout=30s", established], "").await;
    let text = BASE
        .replace(WRAPPER, &image)
        .replace("porch-fn-system", bench.namespace.name())
        .replace("type: ClusterIP", "type: ClusterIP\n    sessionAffinity: ClientIP");
    kubectl(bench, &["apply", "-f", "-"], &text).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_documented_example_works_as_it_is() {
    let bench = Bench::new().await;
    let text = DOCUMENTED.replace(WRAPPER, &bench.cluster.wrapper_image());
    kubectl(&bench, &["apply", "-f", "-"], &text).await;
    let runner = runner_with(&bench, DOCUMENTED_NAME, &[&bench.image], &[]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    assert!(version(&pod).starts_with("configmap-"), "{}", version(&pod));
    // It stands beside the metadata there.
    assert_eq!(pod.annotations()["cluster-autoscaler.kubernetes.io/safe-to-evict"], "true");
    assert!(runner.server.log().contains("annotations stand beside metadata"));
    let init = pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap();
    assert_eq!(init[0].name, "copy-wrapper-server");
    assert_eq!(
        function(&pod).args.as_deref().unwrap(),
        ["--port", "9446", "--max-request-body-size", "6291456", "--", "/function"]
    );
    bench.service_of(&pod).await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_wrapper_that_knows_nothing_of_ours_works() {
    let server = foreign::client("echoserver");
    let bench = Bench::new().await;
    let image = wrapper_with(&bench, &[("wrapper-server/wrapper-server", &server)]).await;
    // It has Porch's flags and grpc-go's health service. Unlike Porch's it listens on 127.0.0.1 unless told otherwise.
    let command = "            - /wrapper-server-tools/wrapper-server\n";
    let told = format!("{command}          args: [--address, 0.0.0.0]\n");
    let text = DOCUMENTED.replace(WRAPPER, &image).replace(command, &told);
    assert!(text.contains("0.0.0.0"));
    kubectl(&bench, &["apply", "-f", "-"], &text).await;
    for connect in ["--pod-connect=pod-ip", "--pod-connect=service"] {
        let runner = runner_with(&bench, DOCUMENTED_NAME, &[&bench.image], &[connect]).await;
        let answer = runner.call(INPUT).await;
        assert_eq!(answer.output(), INPUT);
        assert!(answer.log().starts_with("image "), "the stand-in answers: {}", answer.log());
    }
    bench.pod().await;
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn what_a_template_says_is_kept() {
    let bench = Bench::new().await;
    config_map(&bench, &template(&bench)).await;
    let runner = runner_with(&bench, NAME, &[&bench.image], &["--max-request-body-size=1000000"]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    assert_eq!(pod.name_any(), bench.name(0));
    assert_eq!(
        (pod.labels()["team"].as_str(), pod.annotations()["example.com/note"].as_str()),
        ("network", "kept")
    );
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.termination_grace_period_seconds, Some(5));
    let function = function(&pod);
    assert_eq!(function.image.as_ref(), Some(&bench.image));
    let args =
        ["--verbosity", "4", "--port", "9446", "--max-request-body-size", "1000000", "--", "/function"];
    assert_eq!(function.args.as_deref().unwrap(), args);
    assert_eq!(function.env.as_ref().unwrap()[0].name, "C");

    // The rest of the pod is as the user wrote it, but for what Kubernetes fills in.
    let sidecar = spec.containers.iter().find(|container| container.name == "sidecar").unwrap();
    assert_eq!(sidecar.image.as_ref(), Some(&bench.cluster.wrapper_image()));
    assert_eq!(sidecar.command.as_deref().unwrap(), ["/wrapper-server/wrapper-server"]);
    assert_eq!(sidecar.args.as_deref().unwrap(), ["--idle"]);
    assert_eq!(sidecar.env.as_ref().unwrap().len(), 1);
    assert_eq!(spec.init_containers.as_ref().unwrap()[0].command.as_ref().unwrap()[0], "cp");
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn a_broken_template_is_told_and_replaces_no_good_one() {
    let bench = Bench::new().await;
    let other = bench.cluster.function_named("templates/other:v1").await;
    let good = template(&bench);
    let broken = |change: fn(&mut Value)| {
        let mut template = good.clone();
        change(&mut template["spec"]["containers"][1]);
        template
    };
    let first = broken(|function| function["name"] = json!("functions"));
    config_map(&bench, &first).await;
    let runner = runner_with(&bench, NAME, &[&bench.image, &other], &[]).await;
    let told = |text: &str| {
        format!(
            "unable to get the grpc client to the pod for {}: the function's pod failed to start: ConfigMap {NAME} of \
             --function-pod-template: key template: {text}",
            bench.image
        )
    };
    let answer = runner.call(INPUT).await;
    assert_eq!(answer.code, Code::Unknown);
    assert!(
        answer.message.starts_with(&told("no container is named \"function\" (point 1 of")),
        "{answer:?}"
    );
    for (template, text) in [
        (broken(|function| drop(function.as_object_mut().unwrap().remove("command"))), "(point 2 of"),
        (broken(|function| function["command"] = json!(["wrapper-server"])), "(point 3 of"),
        (broken(|function| function["args"] = json!(["--", "x"])), "(point 4 of"),
    ] {
        config_map(&bench, &template).await;
        eventually(text, async || {
            let answer = runner.call(INPUT).await;
            assert_eq!(answer.code, Code::Unknown, "{}", answer.message);
            assert!(answer.message.starts_with(&told("")), "{}", answer.message);
            answer.message.contains(text).then_some(())
        })
        .await;
    }
    assert_eq!(bench.pods().await, []);

    config_map(&bench, &good).await;
    eventually("a good template is taken up", async || {
        (runner.call(INPUT).await.code == Code::Ok).then_some(())
    })
    .await;

    config_map(&bench, &first).await;
    eventually("the broken one is noticed", async || {
        let log = runner.server.log();
        log.lines().any(|line| line.contains("cannot be used") && line.contains("kept=true")).then_some(())
    })
    .await;
    runner.succeeds().await;
    // Even new pods can be made, from what was good.
    runner.client.call(&other, INPUT).await.output();
    let pods = bench.pods().await;
    assert_eq!(version(&pods[0]), version(&pods[1]));
}

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn the_objects_of_newer_porch_are_used_when_they_are_there() {
    let bench = Bench::new().await;
    let image = bench.cluster.wrapper_image();
    apply_base_templates(&bench).await;

    let runner = bench.runner(&[]).await;
    runner.succeeds().await;
    let pod = bench.pod().await;
    assert!(version(&pod).starts_with("podtemplate-"), "{}", version(&pod));
    let init = pod.spec.as_ref().unwrap().init_containers.as_ref().unwrap();
    assert_eq!(init[0].image.as_ref(), Some(&image));
    assert_eq!(function(&pod).env.as_ref().unwrap()[0].name, "OTEL_METRICS_EXPORTER");
    let service = bench.service_of(&pod).await.spec.unwrap();
    assert_eq!(service.session_affinity.as_deref(), Some("ClientIP"));
    assert_eq!(service.selector.unwrap()["fn.kpt.dev/image"], pod.name_any());
}
