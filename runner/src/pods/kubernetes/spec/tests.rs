//! Compares the created pods and Services as whole objects, so that any change is noticed.

use porch_fn_pool::{ImageContent, ImageKey, Uid};
use serde_json::{Value, json};

use super::*;

const IMAGE: &str = "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1";
const OBJECT: &str = "set-namespace-v041-1-01234567";

fn name(slot: u32, past: Option<&str>) -> PodName {
    PodName { image: ImageKey::from(IMAGE), slot, past: past.map(Uid::from) }
}

fn content() -> ImageContent {
    ImageContent { digest: "sha256:00".into(), resolved: Some(Time::from_millis(1_700_000_001_000)) }
}

fn extras(overrides: &PodOverrides) -> Extras<'static> {
    let version = "inline-0123456789abcdef";
    let recipe = PodRecipe {
        content: Some(content()),
        ..PodRecipe::of(version, Some(Time::from_millis(1_700_000_000_000)))
    };
    Extras {
        recipe,
        max_message: 6_291_456,
        overrides: overrides.clone(),
        pull_secret: None,
        json_log: false,
    }
}

fn made(template: &Template, name: &PodName, metadata: &ImageMetadata, extras: &Extras<'_>) -> Pod {
    let order = PodOrder {
        object_name: OBJECT,
        name,
        shard_key: &"ghcr.io/kptdev/krm-functions-catalog/set-namespace".into(),
        reclaim_after: Time::from_millis(1_700_000_060_500),
        metadata,
        announce: None,
    };
    pod(template, &order, extras)
}

fn metadata(entrypoint: &[&str]) -> ImageMetadata {
    let entrypoint = entrypoint.iter().map(|&word| word.to_owned()).collect();
    ImageMetadata { entrypoint, content: Some(content()) }
}

fn built_in() -> Template {
    Template::built_in("w:v1").unwrap()
}

#[test]
fn a_pod_of_the_inline_template() {
    let template = built_in();
    let words = metadata(&["function", "--x=$(HOME)$"]);
    let pod = made(&template, &name(1, None), &words, &extras(&PodOverrides::default()));
    let metadata = json!({
        "name": OBJECT,
        "labels": {
            "app.kubernetes.io/managed-by": "porch-fn-runner",
            "fn.kpt.dev/image": OBJECT,
        },
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
            "kubectl.kubernetes.io/default-container": "function",
            "fn.kpt.dev/image-reference": IMAGE,
            "fn.kpt.dev/slot": "1",
            "fn.kpt.dev/shard-key": "ghcr.io/kptdev/krm-functions-catalog/set-namespace",
            "fn.kpt.dev/template-version": "inline-0123456789abcdef",
            "fn.kpt.dev/config-time": "2023-11-14T22:13:20.000Z",
            "fn.kpt.dev/image-digest": "sha256:00",
            "fn.kpt.dev/resolved-at": "2023-11-14T22:13:21.000Z",
            "fn.kpt.dev/entrypoint": r#"["function","--x=$(HOME)$"]"#,
            "fn.kpt.dev/reclaim-after": "2023-11-14T22:14:20.500Z",
        },
    });
    assert_eq!(json!(pod.metadata), metadata);
    let mut expected = json!(template.pod.spec);
    let function = &mut expected["containers"][1];
    function["image"] = json!(format!("{IMAGE}@sha256:00"));
    function["args"] =
        json!(["--port", "9446", "--max-request-body-size", "6291456", "--", "function", "--x=$$(HOME)$$"]);
    assert_eq!(json!(pod.spec), expected);
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The spec of a pod with these overrides.
fn overridden(template: &Template, overrides: &PodOverrides) -> Value {
    json!(made(template, &name(0, None), &metadata(&[]), &extras(overrides)).spec.unwrap())
}

fn env(value: &str) -> ContainerOverrides {
    ContainerOverrides {
        env: read(json!([{"name": "WHO", "value": value}])),
        ..ContainerOverrides::default()
    }
}

#[test]
fn container_overrides_are_merged_into_the_template() {
    let mut template = built_in();
    let function = &mut template.pod.spec.as_mut().unwrap().containers[1];
    function.resources = read(json!({"requests": {"cpu": "1"}}));
    function.env = read(json!([{"name": "A", "value": "template"}, {"name": "B", "value": "template"}]));
    function.env_from = read(json!([{"configMapRef": {"name": "template"}}]));
    let a = json!({"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}});
    let container = ContainerOverrides {
        env: read(json!([{"name": "C", "value": "own"}, a])),
        env_from: read(json!([{"secretRef": {"name": "own"}}])),
        resources: read(json!({"limits": {"cpu": "2"}})),
    };
    let mut expected = overridden(&template, &PodOverrides::default());
    let function = &mut expected["containers"][1];
    function["resources"] = json!({"limits": {"cpu": "2"}});
    function["env"] = json!([a, {"name": "B", "value": "template"}, {"name": "C", "value": "own"}]);
    function["envFrom"] = json!([{"configMapRef": {"name": "template"}}, {"secretRef": {"name": "own"}}]);
    assert_eq!(overridden(&template, &PodOverrides { container, ..PodOverrides::default() }), expected);
}

/// Like in Porch, overrides change a user's template by index: its first container and its first
/// init container. The built-in template has no init container; there, `initContainer` changes the
/// container with the wrapper-server.
#[test]
fn overrides_change_the_first_containers_of_a_users_template() {
    let overrides =
        PodOverrides { init_container: env("init"), container: env("first"), ..PodOverrides::default() };
    let who = |container: &Value| container["env"][0]["value"].as_str().map(str::to_owned);
    let mut template = built_in();
    let made = overridden(&template, &overrides);
    assert_eq!(who(&made["containers"][0]).as_deref(), Some("init"));
    assert_eq!(who(&made["containers"][1]).as_deref(), Some("first"));

    let spec = template.pod.spec.as_mut().unwrap();
    spec.containers =
        read(json!([{"name": "proxy"}, {"name": names::WRAPPER_CONTAINER}, {"name": "function"}]));
    spec.init_containers = read(json!([{"name": "certificates"}, {"name": "copy-wrapper-server"}]));
    for source in [Source::ConfigMap, Source::PodTemplate] {
        template.source = source;
        let made = overridden(&template, &overrides);
        assert_eq!(who(&made["initContainers"][0]).as_deref(), Some("init"));
        assert_eq!(made["initContainers"][1], json!({"name": "copy-wrapper-server"}));
        assert_eq!(who(&made["containers"][0]).as_deref(), Some("first"));
        assert_eq!(made["containers"][0]["image"], Value::Null, "it does not run the function");
        assert_eq!(made["containers"][1], json!({"name": names::WRAPPER_CONTAINER}));
        assert_eq!(made["containers"][2]["env"], Value::Null);

        let resources = read(json!({"limits": {"cpu": "2"}}));
        let container = ContainerOverrides { resources: Some(resources), ..ContainerOverrides::default() };
        let of_file = PodOverrides { container, resources_of_function: true, ..PodOverrides::default() };
        let made = overridden(&template, &of_file);
        assert_eq!(
            made["containers"][0],
            json!({"name": "proxy"}),
            "--pod-cache-config changes the function"
        );
        assert_eq!(made["containers"][2]["resources"], json!({"limits": {"cpu": "2"}}));
    }
}

#[test]
fn accounts_and_security_contexts_are_overridden() {
    let mut template = built_in();
    let overrides = PodOverrides {
        service_account: Some("own".to_owned()),
        security_context: read(json!({"runAsUser": 5, "fsGroup": 6})),
        ..PodOverrides::default()
    };
    let made = overridden(&template, &overrides);
    assert_eq!(made["serviceAccountName"], "own");
    assert_eq!(made.get("automountServiceAccountToken"), None, "the account decides");
    let seccomp = json!({"type": "RuntimeDefault"});
    assert_eq!(made["securityContext"], json!({"runAsUser": 5, "fsGroup": 6, "seccompProfile": seccomp}));
    assert_eq!(overridden(&template, &PodOverrides::default())["automountServiceAccountToken"], false);
    template.source = Source::ConfigMap;
    let made = overridden(&template, &overrides);
    assert_eq!(made["automountServiceAccountToken"], false, "the user's template decides");
}

#[test]
fn a_pull_secret_is_added_once() {
    let mut template = built_in();
    for (of_template, pull_secret, expected) in [
        (json!(null), None, json!(null)),
        (json!(null), Some("auth"), json!([{"name": "auth"}])),
        (json!([{"name": "a"}, {"name": "auth"}]), Some("auth"), json!([{"name": "a"}, {"name": "auth"}])),
        (json!([{"name": "a"}]), Some("b"), json!([{"name": "a"}, {"name": "b"}])),
    ] {
        template.pod.spec.as_mut().unwrap().image_pull_secrets = read(of_template);
        let extras = Extras { pull_secret, ..extras(&PodOverrides::default()) };
        let spec = json!(made(&template, &name(0, None), &metadata(&[]), &extras).spec);
        assert_eq!(spec.get("imagePullSecrets").unwrap_or(&Value::Null), &expected);
    }
}

#[test]
fn an_image_with_a_digest_is_pulled_once_unless_the_template_has_a_policy() {
    let mut template = built_in();
    for (of_template, content, expected) in [
        (None, Some(content()), json!("IfNotPresent")),
        (Some(""), Some(content()), json!("IfNotPresent")),
        (None, None, json!(null)),
        (Some("Always"), Some(content()), json!("Always")),
        (Some("Never"), Some(content()), json!("Never")),
    ] {
        template.pod.spec.as_mut().unwrap().containers[1].image_pull_policy = of_template.map(str::to_owned);
        let metadata = ImageMetadata { content, ..metadata(&[]) };
        let spec = made(&template, &name(0, None), &metadata, &extras(&PodOverrides::default())).spec;
        assert_eq!(json!(spec)["containers"][1]["imagePullPolicy"], expected, "{of_template:?}");
    }
}

#[test]
fn labels_and_annotations_of_runners_replace_those_of_the_template() {
    let mut template = built_in();
    let foreign = |keys: &[&str]| keys.iter().map(|&key| (key.to_owned(), "foreign".to_owned())).collect();
    let inherited = template.pod.metadata.get_or_insert_default();
    inherited.labels = Some(foreign(&[names::MANAGED_BY, names::IMAGE, "team"]));
    let absent = [names::PAST, names::CONFIG_TIME, names::IMAGE_DIGEST, names::RESOLVED_AT];
    inherited.annotations = Some(foreign(&[&absent[..], &[names::SLOT, "note"]].concat()));
    let recipe = PodRecipe::of("inline-0", None);
    let extras = Extras { recipe, ..extras(&PodOverrides::default()) };
    let plain = made(&template, &name(2, None), &metadata(&[]), &extras).metadata;
    let labels = json!({
        "app.kubernetes.io/managed-by": "porch-fn-runner",
        "fn.kpt.dev/image": OBJECT,
        "team": "foreign",
    });
    assert_eq!(json!(plain.labels), labels);
    let annotations = plain.annotations.unwrap();
    assert_eq!((annotations["note"].as_str(), annotations[names::SLOT].as_str()), ("foreign", "2"));
    for absent in absent {
        assert!(!annotations.contains_key(absent), "{absent}");
    }

    let passing = made(&template, &name(2, Some("stuck")), &metadata(&[]), &extras).metadata;
    assert_eq!(passing.annotations.unwrap()[names::PAST], "stuck");
}

#[test]
fn a_service_belongs_to_its_pod() {
    let mut template = built_in();
    template.service.metadata.labels = Some([("team".to_owned(), "a".to_owned())].into());
    template.service.metadata.annotations = Some([("note".to_owned(), "b".to_owned())].into());
    let selector = template.service.spec.as_mut().unwrap().selector.as_mut().unwrap();
    selector.insert("tier".to_owned(), "fn".to_owned());
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "set-namespace-v041-1-01234567",
            "labels": {"app.kubernetes.io/managed-by": "porch-fn-runner", "team": "a"},
            "annotations": {"note": "b"},
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Pod",
                "name": "set-namespace-v041-1-01234567",
                "uid": "1-2-3",
                "controller": false,
                "blockOwnerDeletion": false,
            }],
        },
        "spec": {
            "type": "ClusterIP",
            "ports": [{"port": 9446, "protocol": "TCP", "targetPort": 9446}],
            "publishNotReadyAddresses": true,
            "selector": {"fn.kpt.dev/image": "set-namespace-v041-1-01234567", "tier": "fn"},
        },
    });
    assert_eq!(json!(service(&template, OBJECT, "1-2-3")), expected);
}
