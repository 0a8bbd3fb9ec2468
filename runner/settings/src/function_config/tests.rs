//! FunctionConfig objects field by field, as Porch's schema has them.

use serde_json::json;

use super::*;
use crate::function_configs::FunctionConfigs;
use crate::source::Setting;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";

fn parse(object: &Value) -> Result<FunctionConfig, String> {
    FunctionConfig::parse(object, PREFIX, TagSemantics::Constraint)
}

fn object(spec: &Value) -> Value {
    json!({"metadata": {"name": "f"}, "spec": spec})
}

fn spec(spec: &Value) -> FunctionConfig {
    parse(&object(spec)).unwrap()
}

fn pod(pod: &Value) -> PodExecutor {
    spec(&json!({"image": "f", "podExecutor": pod})).pod.unwrap()
}

#[test]
fn metadata_is_read() {
    let metadata = json!({"name": "f", "creationTimestamp": "2026-01-31T12:00:00Z",
        "annotations": {MIN_REPLICAS: "2", MAX_REPLICAS: "5", "other": "x"}});
    let config = parse(&json!({"metadata": metadata, "spec": {"image": "f", "podExecutor": {}}})).unwrap();
    assert_eq!(config.name, "f");
    assert_eq!(config.created, Some(Timestamp::from_second(1_769_860_800).unwrap()));
    assert_eq!((config.min_replicas, config.max_replicas), (Some(2), Some(5)));
    let bare = parse(&object(&json!({"image": "f", "podExecutor": {}}))).unwrap();
    assert_eq!((bare.created, bare.limits()), (None, Limits::default()));
}

#[test]
fn a_removed_annotation_has_no_effect_and_a_warning() {
    for value in ["true", "yes"] {
        let metadata = json!({"name": "f", "annotations": {"fn.kpt.dev/prestart": value}});
        let config =
            parse(&json!({"metadata": metadata, "spec": {"image": "f", "podExecutor": {}}})).unwrap();
        assert_eq!((config.limits(), config.warning()), (Limits::default(), None));
        let semantics = Setting::new(TagSemantics::Constraint, Source::Schema);
        let configs = FunctionConfigs::new(vec![config], semantics, None);
        let expected = "annotation fn.kpt.dev/prestart has no effect any more: remove it";
        assert_eq!(configs.problem("f"), Some(expected));
    }
}

#[test]
fn repositories_are_the_image_under_each_prefix() {
    let default = "ghcr.io/kptdev/krm-functions-catalog/f";
    for (image, prefixes, expected) in [
        ("f", json!([]), vec![default]),
        ("f", json!([""]), vec![default]),
        ("f", json!(["", PREFIX]), vec![default]),
        ("f", json!(["Quay.io/x/", ""]), vec!["quay.io/x/f", default]),
        ("f", json!(["team"]), vec!["docker.io/team/f"]),
        ("f", json!(vec!["q.io"; 100]), vec!["q.io/f"]),
        ("team/f", json!(["", "quay.io"]), vec!["docker.io/team/f", "quay.io/team/f"]),
        ("localhost:5000/f", json!([]), vec!["localhost:5000/f"]),
        ("index.docker.io/f", json!([""]), vec!["docker.io/library/f"]),
    ] {
        let read = spec(&json!({"image": image, "prefixes": prefixes, "goExecutor": {"tags": ["v1"]}}));
        assert_eq!(read.repositories, expected);
        assert_eq!((read.pod, read.binary), (None, None));
    }
}

#[test]
fn pods_are_read() {
    let read = pod(&json!({
        "timeToLive": "1h30m", "maxParallelExecutions": 3, "preferredMaxQueueLength": 4, "tags": ["v1", ">=2"],
    }));
    let expected = PodExecutor {
        tags: Tags::from(vec!["v1".to_owned(), ">=2".to_owned()]),
        ttl: Some(Duration::from_mins(90)),
        max_parallel: Some(3),
        queue_length: Some(4),
        overrides: PodOverrides::default(),
    };
    assert_eq!(read, expected);
    for nothing in [
        json!({}),
        json!({"timeToLive": "", "maxParallelExecutions": 0, "preferredMaxQueueLength": null}),
        json!({"timeToLive": "0s", "templateOverrides": {
            "serviceAccountName": "", "securityContext": {}, "container": {"env": [], "resources": {}},
        }}),
    ] {
        assert_eq!(pod(&nothing), PodExecutor::default());
    }
}

#[test]
fn template_overrides_are_read() {
    let container = json!({
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "m"}}],
        "resources": {"requests": {"cpu": 1, "memory": "64Mi"}, "limits": {"cpu": 1.5}},
        "unknown": true,
    });
    let overrides = json!({
        "serviceAccountName": "runner", "securityContext": {"runAsUser": 7, "unknown": 1},
        "container": container, "initContainer": {"env": [{"name": "C"}]},
    });
    let read = pod(&json!({"templateOverrides": overrides})).overrides;
    // This text is part of a pod's version. A change to it would replace all pods.
    let expected = json!({
        "serviceAccount": "runner",
        "securityContext": {"runAsUser": 7},
        "container": {
            "env": [
                {"name": "A", "value": "1"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"key": "k", "name": "s"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "m"}, "prefix": "P_"}],
            "resources": {"limits": {"cpu": "1.5"}, "requests": {"cpu": "1", "memory": "64Mi"}},
        },
        "initContainer": {"env": [{"name": "C"}]},
    });
    assert_eq!(serde_json::to_string(&read).unwrap(), expected.to_string());
}

#[test]
fn executables_are_read() {
    let binary =
        |path: &str| spec(&json!({"image": "f", "binaryExecutor": {"path": path, "tags": ["v1"]}})).binary;
    for path in ["f", "dir/f", "/usr/bin/f", "./f"] {
        assert_eq!(binary(path).unwrap().path, Path::new(path));
    }
    assert_eq!(binary(NO_EXECUTABLE), None, "only Porch uses this path");
}

#[test]
fn replicas_agree_with_parallel_executions() {
    let least = format!("[{MIN_REPLICAS}]: ");
    let whole = "is no number of pods: write a whole number from 0 to 4294967295";
    for (least_pods, most_pods, parallel, expected) in [
        ("2", "3", 0, Ok((Some(2), Some(3)))),
        ("0", "0", 0, Ok((Some(0), None))),
        ("0", "3", 9, Ok((Some(0), Some(3)))),
        ("9", "0", 9, Ok((Some(9), Some(9)))),
        (
            "4",
            "3",
            5,
            Err(format!(
                "{least}4 pods are more than the 3 of annotation {MAX_REPLICAS}: write at most that"
            )),
        ),
        (
            "6",
            "0",
            5,
            Err(format!(
                "{least}6 pods are more than the 5 of spec.podExecutor.maxParallelExecutions: write at most that"
            )),
        ),
        ("-1", "0", 0, Err(format!("{least}\"-1\" {whole}"))),
        ("0", "two", 0, Err(format!("[{MAX_REPLICAS}]: \"two\" {whole}"))),
        ("0", "4294967296", 0, Err(format!("[{MAX_REPLICAS}]: \"4294967296\" {whole}"))),
    ] {
        let annotations = json!({MIN_REPLICAS: least_pods, MAX_REPLICAS: most_pods});
        let spec = json!({"image": "f", "podExecutor": {"maxParallelExecutions": parallel}});
        let read = parse(&json!({"metadata": {"name": "f", "annotations": annotations}, "spec": spec}));
        let found = read.map(|config| (config.limits().min_pods, config.limits().max_pods));
        let expected = expected.map_err(|text| format!("FunctionConfig f: metadata.annotations{text}"));
        assert_eq!(found, expected);
    }
}

/// Each error names the field, the mistake and the valid form.
#[test]
fn errors_name_the_field() {
    let whole = "expected a whole number from 0 to 4294967295";
    let no_executor = "write at least one of podExecutor, binaryExecutor and goExecutor";
    let no_constraint =
        "\"a b\" is no version constraint: write one such as v0.1.1, v0.2, ~0.2.1, >=1.2 <2 or 1.x, or";
    let pods =
        |image: &str, prefixes: Value| json!({"image": image, "prefixes": prefixes, "podExecutor": {}});
    let in_pod = |pod: Value| json!({"image": "f", "podExecutor": pod});
    let in_container = |container: Value| json!({"image": "f", "podExecutor": {"templateOverrides": {"container": container}}});
    let tags = json!({"tags": ["v1", "a b"], "path": "f"});
    let many = |item: Value| json!(vec![item; 1001]);
    let container = "spec.podExecutor.templateOverrides.container";
    for (spec, path, reason) in [
        (json!({"podExecutor": {}}), "spec.image", "write the image's name without tag"),
        (pods("f:v1", json!([])), "spec.image", "write tags under an executor's tags"),
        (pods("UPPER", json!([])), "spec.image", "image reference"),
        (pods("f", json!(["", "x y"])), "spec.prefixes[1]", "image reference"),
        (pods("f", json!(["/"])), "spec.prefixes[0]", "\"/\" is no registry or path: write \"\""),
        (pods("f", json!(["quay.io/x:v1"])), "spec.prefixes[0]", "malformed repository part \"x:v1\""),
        (pods("g.io/f", json!(["q.io"])), "spec.prefixes[0]", "so \"q.io\" cannot precede it"),
        (pods("f", json!("quay.io")), "spec.prefixes", "string \"quay.io\", expected a sequence"),
        (pods("f", json!(vec!["q.io"; 101])), "spec.prefixes", "write at most 100 prefixes, not 101"),
        (json!({"image": "f"}), "spec", no_executor),
        (json!({"image": "f", "goExecutor": tags}), "spec.goExecutor.tags[1]", no_constraint),
        (json!({"image": "f", "binaryExecutor": tags}), "spec.binaryExecutor.tags[1]", no_constraint),
        (in_pod(tags.clone()), "spec.podExecutor.tags[1]", no_constraint),
        (
            in_pod(json!({"tags": many(json!("v1"))})),
            "spec.podExecutor.tags[1000]",
            "write at most 1000 tags",
        ),
        (in_pod(json!({"timeToLive": "1 day"})), "spec.podExecutor.timeToLive", "use forms such as 30m"),
        (in_pod(json!({"timeToLive": "-1s"})), "spec.podExecutor.timeToLive", "\"-1s\" is negative"),
        (in_pod(json!({"maxParallelExecutions": -1})), "spec.podExecutor.maxParallelExecutions", whole),
        (in_pod(json!({"preferredMaxQueueLength": 1.5})), "spec.podExecutor.preferredMaxQueueLength", whole),
        (
            in_pod(json!({"templateOverrides": {"securityContext": {"runAsUser": "root"}}})),
            "spec.podExecutor.templateOverrides.securityContext.runAsUser",
            "string \"root\", expected i64",
        ),
        (in_container(json!({"env": [{"value": "x"}]})), "env[0].name", "write the variable's name"),
        (in_container(json!({"env": [{"name": "A"}, {"name": "A=B"}]})), "env[1].name", "without '='"),
        (
            in_container(json!({"env": [{"name": "A", "value": "1", "valueFrom": {}}]})),
            "env[0]",
            "write either value or valueFrom",
        ),
        (
            in_container(json!({"env": many(json!({"name": "A"}))})),
            "env",
            "write at most 1000 items, not 1001",
        ),
        (in_container(json!({"envFrom": [{}]})), "envFrom[0]", "write either configMapRef or secretRef"),
        (
            in_container(json!({"resources": {"limits": {"memory": "64MB"}}})),
            "resources",
            "limits: memory: \"64MB\" is no quantity; write a number such as 100m",
        ),
    ] {
        let path = if path.starts_with("spec") { path.to_owned() } else { format!("{container}.{path}") };
        let error = parse(&object(&spec)).unwrap_err();
        assert!(error.starts_with(&format!("FunctionConfig f: {path}: ")), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    for path in ["", "..", "../f", "/a/../f", "/", ".", "a\0b"] {
        let error = parse(&object(&json!({"image": "f", "binaryExecutor": {"path": path}}))).unwrap_err();
        let expected =
            format!("FunctionConfig f: spec.binaryExecutor.path: {path:?} is no path of an executable: ");
        assert!(error.starts_with(&expected), "{error}");
    }
    let exact = FunctionConfig::parse(&object(&in_pod(tags)), PREFIX, TagSemantics::Exact).unwrap();
    assert!(exact.pod.unwrap().tags.is_all(), "its tags match everything");
}

#[test]
fn error_texts_are_bounded_and_keep_their_end() {
    let long = "ö".repeat(100_000);
    for wrong in [
        json!({"image": long, "podExecutor": {}}),
        json!({"image": "f", "podExecutor": {"tags": [long]}}),
        json!({"image": "f", "podExecutor": {"timeToLive": long}}),
        json!({"image": "f", "binaryExecutor": {"path": format!("../{long}")}}),
    ] {
        let error = parse(&json!({"metadata": {"name": long}, "spec": wrong})).unwrap_err();
        assert!(error.len() < 2000, "{}", error.len());
    }
    let user = json!({"securityContext": {"runAsUser": long}});
    let wrong = json!({"image": "f", "podExecutor": {"templateOverrides": user}});
    let error = parse(&object(&wrong)).unwrap_err();
    assert!(error.len() < 2000 && error.ends_with("expected i64"), "{error}");
}
