//! The pods and Services that are made, as whole objects, so that any change of them is seen.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{EnvVar, PodSpec, PodTemplateSpec};
use porch_fn_pool::{ImageContent, ImageKey, Uid};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::pods::kubernetes::template::Source;
use crate::pods::kubernetes::times::parse_time;

const IMAGE: &str = "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1";

static NONE: LazyLock<PodOverrides> = LazyLock::new(PodOverrides::default);

static RECIPE: LazyLock<PodRecipe> = LazyLock::new(|| PodRecipe {
    version: "inline-0123456789abcdef".into(),
    config_time: Some(Time::from_millis(1_700_000_000_000)),
    content: Some(ImageContent {
        digest: "sha256:00".into(),
        resolved: Some(Time::from_millis(1_700_000_001_000)),
    }),
});

fn name(slot: u32, past: Option<&str>) -> PodName {
    PodName { image: ImageKey::from(IMAGE), slot, past: past.map(Uid::from) }
}

fn input<'a>(name: &'a PodName, entrypoint: &'a [String]) -> PodSpecInput<'a> {
    PodSpecInput {
        object_name: "set-namespace-v041-1-01234567",
        namespace: "porch-fn-system",
        name,
        shard_key: "ghcr.io/kptdev/krm-functions-catalog/set-namespace",
        recipe: &RECIPE,
        reclaim_after: Time::from_millis(1_700_000_060_500),
        image: "ghcr.io/kptdev/krm-functions-catalog/set-namespace@sha256:00",
        entrypoint,
        max_message: 6_291_456,
        overrides: &NONE,
        pull_secret: None,
    }
}

#[test]
fn a_pod_of_the_inline_template() {
    let template = Template::inline("w:v1");
    let (name, entrypoint) = (name(1, None), ["function".to_owned(), "--x=$(HOME)$".to_owned()]);
    let pod = pod(&template, &input(&name, &entrypoint));
    let metadata = json!({
        "name": "set-namespace-v041-1-01234567",
        "namespace": "porch-fn-system",
        "labels": {
            "app.kubernetes.io/managed-by": "porch-fn-runner",
            "fn.kpt.dev/image": "set-namespace-v041-1-01234567",
        },
        "annotations": {
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
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
    function["image"] = json!("ghcr.io/kptdev/krm-functions-catalog/set-namespace@sha256:00");
    function["args"] =
        json!(["--port", "9446", "--max-request-body-size", "6291456", "--", "function", "--x=$$(HOME)$$"]);
    assert_eq!(json!(pod.spec), expected);
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn overridden(template: &Template, overrides: &PodOverrides) -> Value {
    json!(pod(template, &PodSpecInput { overrides, ..input(&name(0, None), &[]) }).spec.unwrap())
}

#[test]
fn what_a_container_overrides_is_laid_over_the_templates() {
    let mut template = Template::inline("w:v1");
    let function = &mut template.pod.spec.as_mut().unwrap().containers[1];
    function.resources = read(json!({"requests": {"cpu": "1"}}));
    function.env = read(json!([{"name": "A", "value": "template"}, {"name": "B", "value": "template"}]));
    function.env_from = read(json!([{"configMapRef": {"name": "template"}}]));
    let container = ContainerOverrides {
        env: read(
            json!([{"name": "C", "value": "own"}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]),
        ),
        env_from: read(json!([{"secretRef": {"name": "own"}}])),
        resources: read(json!({"limits": {"cpu": "2"}})),
    };
    let plain = overridden(&template, &NONE);
    let made = overridden(&template, &PodOverrides { container, ..PodOverrides::default() });
    let mut expected = plain.clone();
    let function = &mut expected["containers"][1];
    function["resources"] = json!({"limits": {"cpu": "2"}});
    function["env"] = json!([
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
        {"name": "B", "value": "template"},
        {"name": "C", "value": "own"},
    ]);
    function["envFrom"] = json!([{"configMapRef": {"name": "template"}}, {"secretRef": {"name": "own"}}]);
    assert_eq!(made, expected);
}

#[test]
fn the_container_that_brings_the_wrapper_server_has_overrides_of_its_own() {
    let env = |value: &str| ContainerOverrides {
        env: read(json!([{"name": "WHO", "value": value}])),
        ..ContainerOverrides::default()
    };
    let overrides =
        PodOverrides { init_container: env("init"), container: env("function"), ..PodOverrides::default() };
    let template = Template::inline("w:v1");
    let of_inline = overridden(&template, &overrides);
    assert_eq!(of_inline["containers"][0]["env"], json!([{"name": "WHO", "value": "init"}]));
    assert_eq!(of_inline["containers"][1]["env"], json!([{"name": "WHO", "value": "function"}]));
}

/// Porch merges overrides into a template by index.
#[test]
fn overrides_change_the_first_containers_of_a_users_template_whatever_their_names() {
    let env = |value: &str| ContainerOverrides {
        env: read(json!([{"name": "WHO", "value": value}])),
        ..ContainerOverrides::default()
    };
    let overrides =
        PodOverrides { init_container: env("init"), container: env("first"), ..PodOverrides::default() };
    for source in [Source::ConfigMap, Source::PodTemplate] {
        let mut template = Template { source, ..Template::inline("w:v1") };
        let spec = template.pod.spec.as_mut().unwrap();
        spec.containers =
            read(json!([{"name": "proxy"}, {"name": names::WRAPPER_CONTAINER}, {"name": "function"}]));
        let without_init = overridden(&template, &overrides);
        assert_eq!(without_init["containers"][0]["env"], json!([{"name": "WHO", "value": "first"}]));
        assert_eq!(without_init["containers"][0]["image"], Value::Null, "it does not run the function");
        assert_eq!(without_init["containers"][1], json!({"name": names::WRAPPER_CONTAINER}));
        assert_eq!(without_init["containers"][2]["env"], Value::Null);

        let resources = read(json!({"limits": {"cpu": "2"}}));
        let container = ContainerOverrides { resources: Some(resources), ..ContainerOverrides::default() };
        let of_file = PodOverrides { container, resources_of_function: true, ..PodOverrides::default() };
        let made = overridden(&template, &of_file);
        assert_eq!(made["containers"][0], json!({"name": "proxy"}), "--pod-cache-config means the function");
        assert_eq!(made["containers"][2]["resources"], json!({"limits": {"cpu": "2"}}));

        let spec = template.pod.spec.as_mut().unwrap();
        spec.init_containers = read(json!([{"name": "certificates"}, {"name": "copy-wrapper-server"}]));
        let made = overridden(&template, &overrides);
        assert_eq!(made["initContainers"][0]["env"], json!([{"name": "WHO", "value": "init"}]));
        assert_eq!(made["initContainers"][1], json!({"name": "copy-wrapper-server"}));
    }
}

#[test]
fn accounts_and_security_contexts_are_overridden() {
    let mut template = Template::inline("w:v1");
    let overrides = PodOverrides {
        service_account: Some("own".to_owned()),
        security_context: read(json!({"runAsUser": 5, "fsGroup": 6})),
        ..PodOverrides::default()
    };
    let made = overridden(&template, &overrides);
    assert_eq!(made["serviceAccountName"], "own");
    assert_eq!(made.get("automountServiceAccountToken"), None, "as its account says");
    let seccomp = json!({"type": "RuntimeDefault"});
    assert_eq!(made["securityContext"], json!({"runAsUser": 5, "fsGroup": 6, "seccompProfile": seccomp}));
    assert_eq!(overridden(&template, &NONE)["automountServiceAccountToken"], false);
    template.source = Source::ConfigMap;
    let made = overridden(&template, &overrides);
    assert_eq!(made["automountServiceAccountToken"], false, "the user's template means it");
}

#[test]
fn a_pull_secret_is_named_once() {
    let mut template = Template::inline("w:v1");
    let secrets = |template: &Template, pull_secret| {
        json!(pod(template, &PodSpecInput { pull_secret, ..input(&name(0, None), &[]) }).spec)["imagePullSecrets"]
            .clone()
    };
    assert_eq!(secrets(&template, None), Value::Null);
    assert_eq!(secrets(&template, Some("auth-secret")), json!([{"name": "auth-secret"}]));
    template.pod.spec.as_mut().unwrap().image_pull_secrets =
        read(json!([{"name": "a"}, {"name": "auth-secret"}]));
    assert_eq!(secrets(&template, Some("auth-secret")), json!([{"name": "a"}, {"name": "auth-secret"}]));
    assert_eq!(secrets(&template, Some("b")), json!([{"name": "a"}, {"name": "auth-secret"}, {"name": "b"}]));
}

#[test]
fn what_a_digest_names_is_pulled_once_unless_the_template_says_otherwise() {
    let mut template = Template::inline("w:v1");
    let policy = |template: &Template, image: &str| {
        json!(pod(template, &PodSpecInput { image, ..input(&name(0, None), &[]) }).spec)["containers"][1]
            ["imagePullPolicy"]
            .clone()
    };
    for (of_template, image, expected) in [
        (None, "example.com/f:latest@sha256:00", json!("IfNotPresent")),
        (Some(""), "example.com/f:latest@sha256:00", json!("IfNotPresent")),
        (None, "example.com/f@sha256:00", json!("IfNotPresent")),
        (None, "example.com/f:latest", Value::Null),
        (Some("Always"), "example.com/f:latest@sha256:00", json!("Always")),
        (Some("Never"), "example.com/f:v1@sha256:00", json!("Never")),
    ] {
        template.pod.spec.as_mut().unwrap().containers[1].image_pull_policy = of_template.map(str::to_owned);
        assert_eq!(policy(&template, image), expected, "{of_template:?} {image}");
    }
}

#[test]
fn what_is_ours_wins_and_what_is_absent_stays_absent() {
    let mut template = Template::inline("w:v1");
    let foreign = |keys: &[&str]| keys.iter().map(|&key| (key.to_owned(), "foreign".to_owned())).collect();
    let metadata = template.pod.metadata.get_or_insert_default();
    metadata.labels = Some(foreign(&[names::MANAGED_BY, names::IMAGE, "team"]));
    let absent = [names::PAST, names::CONFIG_TIME, names::IMAGE_DIGEST, names::RESOLVED_AT];
    metadata.annotations = Some(foreign(&[&absent[..], &[names::SLOT, "note"]].concat()));
    let plain = name(2, None);
    let recipe = PodRecipe::of("inline-0", None);
    let made = pod(&template, &PodSpecInput { recipe: &recipe, ..input(&plain, &[]) }).metadata;
    let labels = json!({
        "app.kubernetes.io/managed-by": "porch-fn-runner",
        "fn.kpt.dev/image": "set-namespace-v041-1-01234567",
        "team": "foreign",
    });
    assert_eq!(json!(made.labels), labels);
    let annotations = made.annotations.unwrap();
    assert_eq!((annotations["note"].as_str(), annotations[names::SLOT].as_str()), ("foreign", "2"));
    for absent in absent {
        assert!(!annotations.contains_key(absent), "{absent}");
    }

    let passing = name(2, Some("stuck"));
    assert_eq!(pod(&template, &input(&passing, &[])).metadata.annotations.unwrap()[names::PAST], "stuck");
}

#[test]
fn a_service_belongs_to_its_pod() {
    let mut template = Template::inline("w:v1");
    template.service.metadata.labels = Some([("team".to_owned(), "a".to_owned())].into());
    template.service.metadata.annotations = Some([("note".to_owned(), "b".to_owned())].into());
    let selector = template.service.spec.as_mut().unwrap().selector.as_mut().unwrap();
    selector.insert("tier".to_owned(), "fn".to_owned());
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "set-namespace-v041-1-01234567",
            "namespace": "porch-fn-system",
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
    let made = service(&template, "set-namespace-v041-1-01234567", "1-2-3", "porch-fn-system");
    assert_eq!(json!(made), expected);
}

#[test]
fn a_service_without_a_selector_gets_one() {
    let mut template = Template::inline("w:v1");
    template.service.spec.as_mut().unwrap().selector = None;
    let selector = service(&template, "a-0-01234567", "u", "n").spec.unwrap().selector;
    assert_eq!(json!(selector), json!({"fn.kpt.dev/image": "a-0-01234567"}));
}

#[test]
fn names_of_objects() {
    let plain = object_name(&name(0, None)).unwrap();
    assert!(plain.starts_with("set-namespace-v041-0-"), "{plain}");
    assert_eq!(plain, pod_name(&Image::parse(IMAGE, "").unwrap(), 0));
    let passing = object_name(&name(0, Some("stuck"))).unwrap();
    assert!(passing.starts_with("set-namespace-v041-0-") && passing != plain, "{passing}");
    let unreadable = PodName { image: ImageKey::from("No Image"), slot: 0, past: None };
    assert_eq!(object_name(&unreadable), None);
}

fn a_container(name: &'static str) -> impl Strategy<Value = Container> {
    let name = if name.is_empty() { "side-[a-z]{1,8}" } else { name };
    let text = "[ -~]{0,12}";
    (name, text, vec(text, 0..3), vec(("[A-Z]{1,5}", text), 0..3), any::<bool>()).prop_map(
        |(name, image, args, env, tty)| Container {
            name,
            image: Some(image),
            command: Some(vec!["/tools/wrapper-server".to_owned()]),
            args: (!args.is_empty()).then_some(args),
            env: Some(
                env.into_iter()
                    .map(|(name, v)| EnvVar { name, value: Some(v), ..EnvVar::default() })
                    .collect(),
            ),
            tty: Some(tty),
            ..Container::default()
        },
    )
}

prop_compose! {
    fn a_template()(
        function in a_container("function"),
        mut containers in vec(a_container(""), 0..4),
        init_containers in vec(a_container("(function|init)"), 0..3),
        at in any::<prop::sample::Index>(),
        labels in btree_map("[a-z./]{1,10}", "[a-z]{0,5}", 0..3),
        annotations in btree_map("[a-z./]{1,10}", ".{0,5}", 0..3),
        host_network in any::<Option<bool>>(),
    ) -> Template {
        containers.insert(at.index(containers.len() + 1), function);
        let inline = Template::inline("w:v1");
        Template {
            pod: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels),
                    annotations: Some(annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    containers,
                    init_containers: Some(init_containers),
                    host_network,
                    ..PodSpec::default()
                }),
            },
            source: Source::ConfigMap,
            service_of_object: false,
            ..inline
        }
    }
}

proptest! {
    #[test]
    fn nothing_but_the_function_is_touched(
        template in a_template(),
        slot in any::<u32>(),
        past in proptest::option::of("[a-f0-9-]{1,36}"),
        entrypoint in vec("[ -~]{0,10}", 0..4),
        max_message in any::<usize>(),
        image in "[a-z./:@]{1,20}",
        reclaim_after in 0..253_402_207_200_000_u64,
    ) {
        let name = name(slot, past.as_deref());
        let reclaim_after = Time::from_millis(reclaim_after);
        let input =
            PodSpecInput { max_message, image: &image, reclaim_after, ..input(&name, &entrypoint) };
        let made = pod(&template, &input);

        let (before, after) = (template.pod.spec.clone().unwrap(), made.spec.unwrap());
        let mut restored = after.clone();
        for (container, original) in restored.containers.iter_mut().zip(&before.containers) {
            if container.name == names::CONTAINER {
                prop_assert_eq!(container.image.as_ref(), Some(&image));
                let args = container.args.take().unwrap();
                let own = original.args.clone().unwrap_or_default();
                let (kept, appended) = args.split_at(own.len());
                prop_assert_eq!(kept, own);
                let size = max_message.to_string();
                let flags = ["--port", "9446", "--max-request-body-size", &size, "--"];
                prop_assert_eq!(&appended[..5], flags);
                let expanded: Vec<_> = appended[5..].iter().map(|arg| expand(arg)).collect();
                prop_assert_eq!(&expanded, &entrypoint);
                if container.image_pull_policy != original.image_pull_policy {
                    prop_assert_eq!(container.image_pull_policy.as_deref(), Some("IfNotPresent"));
                    container.image_pull_policy.clone_from(&original.image_pull_policy);
                }
                container.image.clone_from(&original.image);
                container.args.clone_from(&original.args);
            }
        }
        prop_assert_eq!(restored, before);

        let inherited = template.pod.metadata.unwrap();
        let (labels, annotations) = (made.metadata.labels.unwrap(), made.metadata.annotations.unwrap());
        for (key, value) in inherited.labels.unwrap() {
            prop_assert_eq!(&labels[&key], &value);
        }
        for (key, value) in inherited.annotations.unwrap() {
            prop_assert_eq!(&annotations[&key], &value);
        }
        prop_assert_eq!(parse_time(&annotations[names::RECLAIM_AFTER]), Some(reclaim_after));
    }

    /// The API server takes the pod for what was meant: nothing is lost on the way.
    #[test]
    fn a_pod_survives_json(template in a_template(), slot in any::<u32>()) {
        let name = name(slot, None);
        let made = pod(&template, &input(&name, &[]));
        let value: Value = json!(made);
        prop_assert_eq!(serde_json::from_value::<Pod>(value).unwrap(), made);
    }
}

/// The kubelet's expansion where no variable is known: `$$` is `$`, anything else stays.
fn expand(arg: &str) -> String {
    let (mut expanded, mut rest) = (String::new(), arg.chars());
    while let Some(c) = rest.next() {
        match (c, rest.clone().next()) {
            ('$', Some('$')) => {
                rest.next();
                expanded.push('$');
            }
            // A reference, which would be replaced if there were such a variable.
            ('$', Some('(')) => expanded.push('\u{fffd}'),
            _ => expanded.push(c),
        }
    }
    expanded
}
