//! FunctionConfig objects field by field, as Porch's schema has them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    ConfigMapEnvSource, EnvFromSource, EnvVar, EnvVarSource, PodSecurityContext, ResourceRequirements,
    SecretKeySelector,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use super::*;
use crate::overrides::ContainerOverrides;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

pub(super) fn parse(object: &Value) -> Result<FunctionConfig, FunctionConfigError> {
    FunctionConfig::parse(object, PREFIX, TagSemantics::Constraint)
}

pub(super) fn object(spec: &Value) -> Value {
    json!({"metadata": {"name": "f"}, "spec": spec})
}

fn spec(spec: &Value) -> Spec {
    parse(&object(spec)).unwrap().spec
}

fn pod(pod: &Value) -> PodExecutor {
    spec(&json!({"image": "f", "podExecutor": pod})).pod.unwrap()
}

fn error(of: &Value) -> String {
    parse(of).unwrap_err().to_string()
}

fn spec_error(spec: &Value) -> String {
    error(&object(spec))
}

fn pod_error(pod: &Value) -> String {
    spec_error(&json!({"image": "f", "podExecutor": pod}))
}

fn overrides(overrides: &Value) -> PodOverrides {
    pod(&json!({"templateOverrides": overrides})).overrides
}

#[test]
fn metadata_is_read() {
    let metadata = json!({"name": "f", "generation": 7, "creationTimestamp": "2026-01-31T12:00:00Z",
        "annotations": {MIN_REPLICAS: "2", MAX_REPLICAS: "5", "other": "x"}});
    let config = parse(&json!({"metadata": metadata, "spec": {"image": "f", "podExecutor": {}}})).unwrap();
    assert_eq!(config.name, "f");
    assert_eq!(config.generation, 7);
    assert_eq!(config.created, Some(Timestamp::from_second(1_769_860_800).unwrap()));
    assert_eq!((config.min_replicas, config.max_replicas), (Some(2), Some(5)));

    let bare = parse(&object(&json!({"image": "f", "podExecutor": {}}))).unwrap();
    assert_eq!((bare.generation, bare.created, bare.min_replicas, bare.max_replicas), (0, None, None, None));
    assert_eq!(bare.limits(), Limits::default());
}

#[test]
fn repositories_are_the_image_under_each_prefix() {
    let of = |image: &str, prefixes: &Value| {
        spec(&json!({"image": image, "prefixes": prefixes, "goExecutor": {"tags": ["v1"]}})).repositories
    };
    let default = "ghcr.io/kptdev/krm-functions-catalog/f";
    assert_eq!(of("f", &Value::Null), [default]);
    assert_eq!(of("f", &json!([])), [default]);
    assert_eq!(of("f", &json!([""])), [default]);
    assert_eq!(of("f", &json!(["", PREFIX])), [default], "the same twice");
    assert_eq!(of("f", &json!(["Quay.io/x/", ""])), ["quay.io/x/f", default]);
    assert_eq!(of("f", &json!(["team"])), ["docker.io/team/f"], "as everywhere without a host");
    assert_eq!(of("team/f", &json!(["", "quay.io"])), ["docker.io/team/f", "quay.io/team/f"]);
    assert_eq!(of("localhost:5000/f", &Value::Null), ["localhost:5000/f"]);
    assert_eq!(of("index.docker.io/f", &json!([""])), ["docker.io/library/f"]);
}

#[test]
fn images_and_prefixes_that_make_no_repository_are_refused() {
    let with = |image: &str, prefixes: Value| {
        spec_error(&json!({"image": image, "prefixes": prefixes, "podExecutor": {}}))
    };
    let missing = "FunctionConfig f: spec.image: write the image's name without tag";
    assert_eq!(spec_error(&json!({"podExecutor": {}})), missing);
    assert_eq!(with("", json!([])), missing);
    for image in ["f:v1", "quay.io/x/f:v1", &format!("f@sha256:{}", "0".repeat(64))] {
        assert!(with(image, json!([])).contains("write tags under an executor's tags"), "{image}");
    }
    assert!(with("UPPER", json!([])).starts_with("FunctionConfig f: spec.image: image reference"));
    assert!(with("f", json!(["", "x y"])).starts_with("FunctionConfig f: spec.prefixes[1]: image reference"));
    assert!(with("f", json!(["/"])).starts_with("FunctionConfig f: spec.prefixes[0]: \"/\" is no registry"));
    assert!(with("f", json!(["quay.io/x:v1"])).starts_with("FunctionConfig f: spec.prefixes[0]: "));
    assert_eq!(
        with("ghcr.io/x/f", json!(["quay.io"])),
        "FunctionConfig f: spec.prefixes[0]: \"quay.io\" goes before a spec.image with a registry: leave one of them out"
    );
    assert_eq!(with("f", json!("quay.io")), "FunctionConfig f: spec.prefixes: \"quay.io\" is no list");
    assert!(with("f", json!(vec!["q.io"; 101])).contains("spec.prefixes: 101 items are more than the 100"));
    assert_eq!(
        spec(&json!({"image": "f", "podExecutor": {}, "prefixes": vec!["q.io"; 100]})).repositories,
        ["q.io/f"]
    );
}

#[test]
fn an_object_needs_a_name_and_an_executor() {
    for nameless in
        [json!(null), json!({}), json!({"metadata": {"name": ""}}), json!({"metadata": {"name": 3}})]
    {
        assert_eq!(parse(&nameless), Err(FunctionConfigError::NoName));
    }
    let none = "FunctionConfig f: spec: write at least one of podExecutor, binaryExecutor and goExecutor";
    assert_eq!(spec_error(&json!({"image": "f"})), none);
    assert_eq!(spec_error(&json!({"image": "f", "podExecutor": null})), none);
    assert_eq!(
        error(&json!({"metadata": {"name": "f"}})),
        "FunctionConfig f: spec.image: write the image's name without tag"
    );
    let go = |go: Value| spec_error(&json!({"image": "f", "goExecutor": go}));
    assert_eq!(go(json!(3)), "FunctionConfig f: spec.goExecutor: 3 is no object");
    assert_eq!(go(json!({"id": 3})), "FunctionConfig f: spec.goExecutor.id: 3 is no text");
    assert_eq!(go(json!({"tags": [3]})), "FunctionConfig f: spec.goExecutor.tags[0]: 3 is no text");
    let only = spec(&json!({"image": "f", "goExecutor": {"id": "x", "tags": ["v1"]}}));
    assert_eq!((only.pod, only.binary), (None, None));
}

#[test]
fn tags_are_read_with_the_semantics_that_hold() {
    let constrained = |texts: &[&str]| Tags::of_pods(texts, TagSemantics::Constraint).unwrap();
    assert_eq!(pod(&json!({})).tags, constrained(&[]));
    assert_eq!(pod(&json!({"tags": ["v1", ">=2"]})).tags, constrained(&["v1", ">=2"]));
    assert!(pod_error(&json!({"tags": vec!["v1"; 1001]})).contains("more than the 1000 tags"));

    let wrong = json!({"tags": ["v1", "a b"], "path": "f"});
    let reason =
        "\"a b\" is no version constraint: write one such as v0.1.1, v0.2, ~0.2.1, >=1.2 <2 or 1.x, or";
    for (executor, words) in [
        ("podExecutor", r#""*", "", "latest""#),
        ("binaryExecutor", r#""latest""#),
        ("goExecutor", r#""latest""#),
    ] {
        let object = object(&json!({"image": "f", executor: wrong}));
        assert_eq!(error(&object), format!("FunctionConfig f: spec.{executor}.tags[1]: {reason} {words}"));
        let exact = FunctionConfig::parse(&object, PREFIX, TagSemantics::Exact).unwrap();
        assert!(exact.spec.pod.is_none_or(|pod| pod.tags.is_all()));
    }
}

#[test]
fn time_to_live_is_read() {
    let ttl = |text: &str| pod(&json!({"timeToLive": text})).ttl;
    assert_eq!(ttl("1h30m"), Some(Duration::from_mins(90)));
    assert_eq!((ttl("0s"), ttl(""), pod(&json!({})).ttl), (None, None, None), "not set");
    assert_eq!(
        pod_error(&json!({"timeToLive": "1 day"})),
        "FunctionConfig f: spec.podExecutor.timeToLive: \"1 day\" is not a duration; use forms such as 30m, 1h30m, 500ms"
    );
    assert!(
        pod_error(&json!({"timeToLive": "-1s"})).contains("spec.podExecutor.timeToLive: \"-1s\" is negative")
    );
    assert_eq!(
        pod_error(&json!({"timeToLive": 30})),
        "FunctionConfig f: spec.podExecutor.timeToLive: 30 is no text"
    );
}

#[test]
fn counts_are_read() {
    let read = pod(&json!({"maxParallelExecutions": 3, "preferredMaxQueueLength": 4}));
    assert_eq!((read.max_parallel, read.queue_length), (Some(3), Some(4)));
    let unset = pod(&json!({"maxParallelExecutions": 0, "preferredMaxQueueLength": null}));
    assert_eq!((unset.max_parallel, unset.queue_length), (None, None));
    for field in ["maxParallelExecutions", "preferredMaxQueueLength"] {
        for wrong in [json!(-1), json!(1.5), json!("3"), json!(4_294_967_296_u64), json!([])] {
            let error = pod_error(&json!({field: wrong}));
            assert!(error.starts_with(&format!("FunctionConfig f: spec.podExecutor.{field}: ")), "{error}");
            assert!(error.ends_with("write a whole number from 0 to 4294967295; 0 means not set"), "{error}");
        }
    }
}

#[test]
fn replicas_are_read_and_agree() {
    let with = |annotations: Value, pod: Value| {
        parse(
            &json!({"metadata": {"name": "f", "annotations": annotations}, "spec": {"image": "f", "podExecutor": pod}}),
        )
    };
    let limits = |annotations, pod| {
        let limits = with(annotations, pod).unwrap().limits();
        (limits.min_pods, limits.max_pods)
    };
    assert_eq!(limits(json!({MIN_REPLICAS: "2", MAX_REPLICAS: "3"}), json!({})), (Some(2), Some(3)));
    assert_eq!(limits(json!({MIN_REPLICAS: "0", MAX_REPLICAS: "0"}), json!({})), (Some(0), None));
    assert_eq!(limits(json!({MAX_REPLICAS: "3"}), json!({"maxParallelExecutions": 9})), (None, Some(3)));
    assert_eq!(limits(json!({MAX_REPLICAS: "0"}), json!({"maxParallelExecutions": 9})), (None, Some(9)));
    assert_eq!(limits(json!({MIN_REPLICAS: "9"}), json!({"maxParallelExecutions": 9})), (Some(9), Some(9)));

    let error = |annotations, pod| with(annotations, pod).unwrap_err().to_string();
    assert_eq!(
        error(json!({MIN_REPLICAS: "4", MAX_REPLICAS: "3"}), json!({"maxParallelExecutions": 9})),
        "FunctionConfig f: metadata.annotations[fn.kpt.dev/min-replicas]: 4 pods are more than the 3 of annotation \
         fn.kpt.dev/max-replicas: write at most that"
    );
    assert_eq!(
        error(json!({MIN_REPLICAS: "4"}), json!({"maxParallelExecutions": 3})),
        "FunctionConfig f: metadata.annotations[fn.kpt.dev/min-replicas]: 4 pods are more than the 3 of \
         spec.podExecutor.maxParallelExecutions: write at most that"
    );
    for annotation in [MIN_REPLICAS, MAX_REPLICAS] {
        for wrong in ["-1", "+1", "", "1.5", "two", "4294967296", " 1"] {
            assert_eq!(
                error(json!({annotation: wrong}), json!({})),
                format!(
                    "FunctionConfig f: metadata.annotations[{annotation}]: {wrong:?} is no number of pods: write a \
                     whole number from 0 to 4294967295"
                )
            );
        }
    }
}

#[test]
fn service_account_and_security_context_are_read() {
    let read = overrides(
        &json!({"serviceAccountName": "runner", "securityContext": {"runAsUser": 7, "unknown": 1}}),
    );
    let context = PodSecurityContext { run_as_user: Some(7), ..PodSecurityContext::default() };
    let expected = PodOverrides {
        service_account: Some("runner".to_owned()),
        security_context: Some(context),
        ..PodOverrides::default()
    };
    assert_eq!(read, expected);
    assert_eq!(
        serde_json::to_value(&read).unwrap(),
        json!({"serviceAccount": "runner", "securityContext": {"runAsUser": 7}})
    );
    assert!(overrides(&json!({"serviceAccountName": "", "securityContext": {}})).is_empty());
    assert!(overrides(&json!(null)).is_empty());

    let error = |wrong: Value| pod_error(&json!({"templateOverrides": wrong}));
    let at = "FunctionConfig f: spec.podExecutor.templateOverrides";
    assert_eq!(error(json!([])), format!("{at}: a list is no object"));
    assert_eq!(error(json!({"serviceAccountName": 1})), format!("{at}.serviceAccountName: 1 is no text"));
    let wrong = error(json!({"securityContext": {"runAsUser": "root"}}));
    assert!(wrong.starts_with(&format!("{at}.securityContext: not a pod's securityContext: ")), "{wrong}");
}

#[test]
fn both_containers_are_read() {
    for container in ["container", "initContainer"] {
        let written = json!({
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            ],
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}],
            "resources": {"requests": {"cpu": 1, "memory": "64Mi"}, "limits": {"cpu": 1.5}},
            "unknown": true,
        });
        let read = overrides(&json!({container: written}));
        let quantity = |text: &str| Quantity(text.to_owned());
        let secret = SecretKeySelector { name: "s".to_owned(), key: "k".to_owned(), optional: None };
        let source = EnvVarSource { secret_key_ref: Some(secret), ..EnvVarSource::default() };
        let expected = ContainerOverrides {
            env: vec![
                EnvVar { name: "A".to_owned(), value: Some("1".to_owned()), ..EnvVar::default() },
                EnvVar { name: "B".to_owned(), value_from: Some(source), ..EnvVar::default() },
            ],
            env_from: vec![EnvFromSource {
                prefix: Some("P_".to_owned()),
                config_map_ref: Some(ConfigMapEnvSource { name: "m".to_owned(), optional: None }),
                secret_ref: None,
            }],
            resources: Some(ResourceRequirements {
                requests: Some(BTreeMap::from([
                    ("cpu".to_owned(), quantity("1")),
                    ("memory".to_owned(), quantity("64Mi")),
                ])),
                limits: Some(BTreeMap::from([("cpu".to_owned(), quantity("1.5"))])),
                claims: None,
            }),
        };
        let (own, other) = match container {
            "container" => (read.container, read.init_container),
            _ => (read.init_container, read.container),
        };
        assert_eq!(own, expected);
        assert!(other.is_empty());
        assert!(overrides(&json!({container: {"env": [], "envFrom": null, "resources": {}}})).is_empty());

        let at = format!("FunctionConfig f: spec.podExecutor.templateOverrides.{container}");
        let error = |wrong: Value| pod_error(&json!({"templateOverrides": {container: wrong}}));
        for (wrong, start) in [
            (json!({"env": {}}), ".env: an object is no list"),
            (json!({"env": [{"value": "x"}]}), ".env[0].name: write the variable's name"),
            (json!({"env": [{"name": "A"}, {"name": "A=B"}]}), ".env[1].name: write the variable's name"),
            (json!({"env": [{"name": "A", "value": 1}]}), ".env[0]: not an environment variable: "),
            (
                json!({"env": [{"name": "A", "value": "1", "valueFrom": {}}]}),
                ".env[0]: write either value or valueFrom",
            ),
            (json!({"env": vec![json!({"name": "A"}); 1001]}), ".env: 1001 items are more than the 1000"),
            (json!({"envFrom": [{}]}), ".envFrom[0]: write either configMapRef or secretRef"),
            (json!({"envFrom": [3]}), ".envFrom[0]: not a source of environment variables: "),
            (
                json!({"resources": {"limits": {"memory": "64MB"}}}),
                ".resources: limits: memory: \"64MB\" is no quantity",
            ),
            (
                json!({"resources": {"requests": {"cpu": "-1"}}}),
                ".resources: requests: cpu: \"-1\" is no quantity",
            ),
            (json!({"resources": 3}), ".resources: not a container's resources: "),
            (json!(3), ": 3 is no object"),
        ] {
            let error = error(wrong);
            assert!(error.starts_with(&format!("{at}{start}")), "{error}");
        }
    }
}

#[test]
fn executables_are_read() {
    let binary =
        |path: &str| spec(&json!({"image": "f", "binaryExecutor": {"path": path, "tags": ["v1"]}})).binary;
    for path in ["f", "dir/f", "/usr/bin/f", "./f"] {
        let expected = BinaryExecutor {
            tags: Tags::of_binaries(&["v1"], TagSemantics::Constraint).unwrap(),
            path: PathBuf::from(path),
        };
        assert_eq!(binary(path), Some(expected));
    }
    let error = |binary: Value| spec_error(&json!({"image": "f", "binaryExecutor": binary}));
    for path in ["", "..", "../f", "/a/../f", "/", ".", "a\0b"] {
        let error = error(json!({"path": path, "tags": ["v1"]}));
        let expected =
            format!("FunctionConfig f: spec.binaryExecutor.path: {path:?} is no path of an executable: ");
        assert!(error.starts_with(&expected), "{error}");
    }
    assert!(error(json!({"tags": ["v1"]})).contains("spec.binaryExecutor.path: "));
    for tags in [json!([]), Value::Null] {
        let read = spec(&json!({"image": "f", "binaryExecutor": {"path": "f", "tags": tags}})).binary;
        assert_eq!(read.unwrap().tags.texts().count(), 0);
    }
}

#[test]
fn error_texts_are_bounded() {
    let long = "ö".repeat(100_000);
    for wrong in [
        object(&json!({"image": long, "podExecutor": {}})),
        object(&json!({"image": "f", "prefixes": [long], "podExecutor": {}})),
        object(&json!({"image": "f", "podExecutor": {"tags": [long]}})),
        object(&json!({"image": "f", "podExecutor": {"timeToLive": long}})),
        object(&json!({"image": "f", "podExecutor": {"maxParallelExecutions": long}})),
        object(
            &json!({"image": "f", "podExecutor": {"templateOverrides": {"securityContext": {"runAsUser": long}}}}),
        ),
        object(
            &json!({"image": "f", "podExecutor": {"templateOverrides": {"container": {"resources": {"limits": {long.clone(): long}}}}}}),
        ),
        object(&json!({"image": "f", "binaryExecutor": {"path": format!("../{long}"), "tags": ["v1"]}})),
        json!({"metadata": {"name": long, "creationTimestamp": long}}),
    ] {
        let error = error(&wrong);
        assert!(error.len() < 2000, "{}", error.len());
    }
}

#[test]
fn a_path_for_porch_alone_is_no_executable_whatever_its_tags() {
    for tags in [json!(["*"]), json!([])] {
        let found = spec(&json!({"image": "f", "binaryExecutor": {"path": NO_EXECUTABLE, "tags": tags}}));
        assert_eq!((found.binary, found.pod), (None, None));
    }
}
