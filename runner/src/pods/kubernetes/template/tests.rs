//! Templates as Porch documents them work unchanged; those that cannot work are refused with the reason.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use porch_fn_settings::yaml;

/// The example of Porch's documentation, as it is.
const DOCUMENTED: &str = include_str!("documented.yaml");
/// What newer Porch installs, as it is.
const BASE: &str = include_str!("base-templates.yaml");

const POD: &str = "kind: Pod
metadata:
  labels: {team: a}
spec:
  containers:
  - name: function
    image: to-be-replaced
    command: [/tools/wrapper-server]
    volumeMounts:
    - {name: tools, mountPath: /tools}
";
const SERVICE: &str = "kind: Service\nspec:\n  ports:\n  - port: 9446\n";

fn documented() -> BTreeMap<String, String> {
    yaml::parse::<ConfigMap>(DOCUMENTED).unwrap().data.unwrap()
}

fn read(pod: &str, service: Option<&str>) -> Result<Template, TemplateError> {
    let mut data = BTreeMap::from([("template".to_owned(), pod.to_owned())]);
    data.extend(service.map(|text| ("serviceTemplate".to_owned(), text.to_owned())));
    Template::from_config_map(&data)
}

fn objects() -> (PodTemplate, Value) {
    let (pod, service) = BASE.split_once("\n---\n").unwrap();
    (yaml::parse(pod).unwrap(), yaml::parse(service).unwrap())
}

#[test]
fn inline_is_hardened() {
    let template = Template::inline("example.com/wrapper-server:v1");
    let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let mounts = json!([{"name": "wrapper-server-tools", "mountPath": "/wrapper-server-tools"}]);
    let pod = json!({
        "metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
        "spec": {
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "wrapper-server",
                    "image": "example.com/wrapper-server:v1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/wrapper-server/wrapper-server", "--idle"],
                    "lifecycle": {"postStart": {"exec": {
                        "command": ["/wrapper-server/wrapper-server", "--copy-to=/wrapper-server-tools"],
                    }}},
                    "resources": {
                        "requests": {"cpu": "1m", "memory": "8Mi"},
                        "limits": {"memory": "32Mi"},
                    },
                    "securityContext": security,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": mounts,
                },
                {
                    "name": "function",
                    "image": "to-be-replaced",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/wrapper-server-tools/wrapper-server"],
                    "readinessProbe": {"grpc": {"port": 9446}},
                    "securityContext": security,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [{"name": "wrapper-server-tools", "mountPath": "/wrapper-server-tools", "readOnly": true}],
                },
            ],
            "volumes": [{"name": "wrapper-server-tools", "emptyDir": {}}],
        },
    });
    assert_eq!(json!(template.pod), pod);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {},
        "spec": {
            "type": "ClusterIP",
            "ports": [{"port": 9446, "protocol": "TCP", "targetPort": 9446}],
            "publishNotReadyAddresses": true,
            "selector": {"fn.kpt.dev/image": "to-be-replaced"},
        },
    });
    assert_eq!(json!(template.service), service);
}

#[test]
fn inline_keeps_the_contract() {
    let template = Template::inline("w:v1");
    assert_eq!(template.clone().checked(Part::PodTemplate, Part::ServiceTemplate), Ok(template));
}

#[test]
fn the_documented_example_works_as_it_is() {
    let template = Template::from_config_map(&documented()).unwrap();
    assert_eq!(
        template.warnings,
        ["key template: annotations stand beside metadata and count as if they stood in it: \
          move them under metadata"]
    );
    assert_eq!((template.source, template.time), (Source::ConfigMap, None));
    let mounts = json!([{"name": "wrapper-server-tools", "mountPath": "/wrapper-server-tools"}]);
    let pod = json!({
        "metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
        "spec": {
            "initContainers": [{
                "name": "copy-wrapper-server",
                "image": "docker.io/nephio/porch-wrapper-server:latest",
                "command": ["cp", "-a", "/wrapper-server/.", "/wrapper-server-tools"],
                "volumeMounts": mounts,
            }],
            "containers": [{
                "name": "function",
                "image": "image-replaced-by-kpt-func-image",
                "command": ["/wrapper-server-tools/wrapper-server"],
                "volumeMounts": mounts,
            }],
            "volumes": [{"name": "wrapper-server-tools", "emptyDir": {}}],
        },
    });
    assert_eq!(json!(template.pod), pod);
    let spec = json!({
        "type": "ClusterIP",
        "ports": [{"port": 9446, "protocol": "TCP", "targetPort": 9446}],
        "selector": {"fn.kpt.dev/image": "to-be-replaced"},
    });
    assert_eq!(json!(template.service.spec), spec);
}

#[test]
fn without_a_service_template_it_is_the_documented_one() {
    let whole = Template::from_config_map(&documented()).unwrap();
    let mut data = documented();
    data.remove("serviceTemplate");
    assert_eq!(Template::from_config_map(&data).unwrap(), whole);
    let (pod, _) = objects();
    assert_eq!(Template::from_objects(&pod, None).unwrap().service, whole.service);
}

#[test]
fn the_objects_of_newer_porch_work_as_they_are() {
    let (pod, service) = objects();
    let template = Template::from_objects(&pod, Some(&service)).unwrap();
    assert_eq!(template.source, Source::PodTemplate);
    assert!(template.warnings.is_empty(), "{:?}", template.warnings);
    assert_eq!(template.pod.spec, pod.template.unwrap().spec);
    assert_eq!(json!(template.service.spec), service["template"]["spec"]);
    let annotations = template.pod.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "true");
}

#[test]
fn time_is_that_of_the_last_change() {
    let (mut pod, mut service) = objects();
    assert_eq!(Template::from_objects(&pod, Some(&service)).unwrap().time, None);
    pod.metadata.creation_timestamp = Some("2024-01-01T00:00:00Z".parse().map(k8s_time).unwrap());
    let at = |template: Template| template.time.map(times::format_time).unwrap();
    assert_eq!(at(Template::from_objects(&pod, Some(&service)).unwrap()), "2024-01-01T00:00:00.000Z");
    service["metadata"]["creationTimestamp"] = json!("2024-01-02T00:00:00Z");
    assert_eq!(at(Template::from_objects(&pod, Some(&service)).unwrap()), "2024-01-02T00:00:00.000Z");
    service["metadata"]["managedFields"] =
        json!([{"time": "2024-01-04T00:00:00Z"}, {"manager": "x"}, {"time": "2024-01-03T00:00:00Z"}]);
    assert_eq!(at(Template::from_objects(&pod, Some(&service)).unwrap()), "2024-01-04T00:00:00.000Z");
    assert_eq!(at(Template::from_objects(&pod, None).unwrap()), "2024-01-01T00:00:00.000Z");
}

fn k8s_time(at: jiff::Timestamp) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at)
}

#[test]
fn plain_scalars_are_strings_where_strings_belong() {
    let pod = POD.replace("{team: a}", "{team: 1.10}\n  annotations: {a: true, b: 007, c: no}")
        + "    env: [{name: DEBUG, value: 1}]\n    resources: {requests: {cpu: 1, memory: 64Mi}}\n";
    let template = read(&pod, None).unwrap();
    let metadata = template.pod.metadata.unwrap();
    assert_eq!(json!(metadata.labels), json!({"team": "1.10"}));
    assert_eq!(json!(metadata.annotations), json!({"a": "true", "b": "007", "c": "no"}));
    let container = &template.pod.spec.unwrap().containers[0];
    assert_eq!(json!(container.env), json!([{"name": "DEBUG", "value": "1"}]));
    assert_eq!(json!(container.resources), json!({"requests": {"cpu": "1", "memory": "64Mi"}}));
}

#[test]
fn misplaced_metadata_yields_to_what_stands_in_place() {
    let template = read(&format!("labels: {{team: b, zone: 1}}\n{POD}"), None).unwrap();
    assert_eq!(json!(template.pod.metadata), json!({"labels": {"team": "a", "zone": "1"}}));
    assert_eq!(template.warnings.len(), 1);
    assert!(read(POD, None).unwrap().warnings.is_empty());
}

#[test]
fn of_metadata_only_labels_and_annotations_are_kept() {
    let own = "\n  annotations: {a: b}\n  name: x\n  generateName: x-\n  namespace: n\n  uid: u\n  \
               resourceVersion: '1'\n  ownerReferences: [{apiVersion: v1, kind: Pod, name: x, uid: y}]\n  \
               finalizers: [f]\n  managedFields: [{manager: m}]\n  creationTimestamp: 2024-01-01T00:00:00Z";
    let pod = POD.replace("{team: a}", &format!("{{team: a}}{own}"));
    let service = format!(
        "metadata:\n  labels: {{team: a}}{own}\n{SERVICE}  clusterIP: 10.0.0.1\n  clusterIPs: [10.0.0.1]\n"
    );
    let template = read(&pod, Some(&service)).unwrap();
    let kept = json!({"labels": {"team": "a"}, "annotations": {"a": "b"}});
    assert_eq!(json!(template.pod.metadata), kept);
    assert_eq!(json!(template.service.metadata), kept);
    assert_eq!(json!(template.service.spec), json!({"ports": [{"port": 9446}]}));
    let headless = read(POD, Some(&format!("{SERVICE}  clusterIP: None\n"))).unwrap();
    assert_eq!(headless.service.spec.unwrap().cluster_ip.as_deref(), Some("None"));
}

/// Each mistake, and the whole of what the user reads.
#[test]
fn a_broken_contract_is_refused_with_its_point() {
    let pod = |from: &str, to: &str| {
        assert!(POD.contains(from));
        read(&POD.replace(from, to), None).unwrap_err().to_string()
    };
    let key = "key template: ";
    assert_eq!(
        pod("name: function", "name: main"),
        format!(
            "{key}no container is named \"function\" (point 1 of the contract): give that name to the \
             container that is to run functions, under spec.containers"
        )
    );
    let no_command = format!(
        "{key}container \"function\" has no command, so the function image's own entrypoint would run \
         instead of the wrapper-server (point 2 of the contract): write `command: \
         [/wrapper-server-tools/wrapper-server]`, or where else the wrapper-server is mounted"
    );
    assert_eq!(pod("    command: [/tools/wrapper-server]\n", ""), no_command);
    assert_eq!(pod("[/tools/wrapper-server]", "[]"), no_command);
    for program in ["wrapper-server", "./wrapper-server", ""] {
        assert_eq!(
            pod("[/tools/wrapper-server]", &format!("['{program}', --port]")),
            format!(
                "{key}the command of container \"function\" begins with {program:?}, which depends on the \
                 image, and the image is replaced by the function's (point 3 of the contract): write the \
                 absolute path of a program in a volume mounted there, such as \
                 /wrapper-server-tools/wrapper-server"
            )
        );
    }
    assert_eq!(
        pod("    command:", "    args: [--log-level, '2', --, x]\n    command:"),
        format!(
            "{key}the args of container \"function\" hold \"--\", after which everything belongs to the \
             function, so none can be appended (point 4 of the contract): remove it; the runner appends \
             it with the function's entrypoint"
        )
    );
    assert!(pod("spec:", "other:").contains("point 1"));
}

#[test]
fn a_function_container_among_init_containers_does_not_count() {
    let pod = POD.replace("containers:", "initContainers:");
    assert_eq!(read(&pod, None), Err(TemplateError::NoFunctionContainer { part: Part::PodKey }));
}

#[test]
fn a_program_outside_the_mounts_is_a_warning() {
    for (program, warned) in [
        ("/tools/wrapper-server", false),
        ("/tools/bin/wrapper-server", false),
        ("/toolshed/wrapper-server", true),
        ("/bin/sh", true),
    ] {
        let template = read(&POD.replace("/tools/wrapper-server", program), None).unwrap();
        let warning = format!(
            "key template: {program:?}, the command of container \"function\", is in no volume \
             mounted there: function images without it cannot start"
        );
        assert_eq!(template.warnings, if warned { vec![warning] } else { vec![] }, "{program}");
    }
}

#[test]
fn an_unusable_service_is_refused() {
    let service = |text: &str| read(POD, Some(text)).unwrap_err().to_string();
    let key = "key serviceTemplate: ";
    let no_port = format!(
        "{key}the Service has no TCP port 9446, which is where the runner calls: write `port: 9446` and \
         `targetPort: 9446` under spec.ports"
    );
    assert_eq!(service("kind: Service\nspec:\n  ports:\n  - {port: 80, targetPort: 9446}\n"), no_port);
    assert_eq!(service("kind: Service\nspec: {ports: [{port: 9446, protocol: UDP}]}\n"), no_port);
    assert_eq!(service("kind: Service\n"), no_port);
    assert_eq!(
        service(&format!("{SERVICE}  type: ExternalName\n")),
        format!("{key}a Service of type ExternalName leads to no pod: write `type: ClusterIP`")
    );
    let (pod, _) = objects();
    let error = Template::from_objects(&pod, Some(&json!({"template": {}}))).unwrap_err();
    assert_eq!(error, TemplateError::NoPort { part: Part::ServiceTemplate });
}

#[test]
fn a_selector_that_misses_the_pods_is_a_warning() {
    let good = format!(
        "{SERVICE}  selector: {{team: a, fn.kpt.dev/image: x, app.kubernetes.io/managed-by: \
         porch-fn-runner}}\n"
    );
    assert!(read(POD, Some(&good)).unwrap().warnings.is_empty());
    let warnings = read(POD, Some(&format!("{SERVICE}  selector: {{team: b}}\n"))).unwrap().warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("key serviceTemplate: the selector asks for team=\"b\""), "{warnings:?}");
}

#[test]
fn texts_that_are_no_such_object_are_refused() {
    assert_eq!(Template::from_config_map(&BTreeMap::new()), Err(TemplateError::Missing));
    let kind = |found: &str| TemplateError::Kind { part: Part::PodKey, expected: "Pod", found: found.into() };
    assert_eq!(read("kind: Deployment\n", None), Err(kind("Deployment")));
    assert_eq!(read("spec: {}\n", None), Err(kind("")));
    assert_eq!(read("", None), Err(kind("")));
    assert_eq!(
        read(POD, Some(POD)).unwrap_err().to_string(),
        "key serviceTemplate: its kind is \"Pod\": write `apiVersion: v1` and `kind: Service`"
    );
    let big = format!("{POD}#{}", "x".repeat(MAX_BYTES));
    assert_eq!(read(&big, None), Err(TemplateError::TooLarge { part: Part::PodKey, size: big.len() }));
}

#[test]
fn yaml_mistakes_have_line_and_column() {
    for (text, line) in [
        ("kind: Pod\nspec: [", "line 2"),
        ("kind: Pod\nspec:\n  containers:\n    name: function\n", "line 4"),
        (
            "kind: Pod\nspec:\n  containers:\n  - name: function\n    ports:\n    - containerPort: web\n",
            "line 6",
        ),
        ("kind: Pod\napiVersion: v2\n", "line 2"),
        ("- kind: Pod\n", "line 1"),
        ("kind: Pod\n---\nkind: Pod\n", "line "),
    ] {
        let error = read(text, None).unwrap_err().to_string();
        let place = "key template: ";
        assert!(error.starts_with(place) && error.contains(line) && error.contains("column "), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn version_is_of_the_content_and_of_the_source() {
    let base = Template::from_config_map(&documented()).unwrap();
    let version = base.fingerprint().version(b"x");
    // Another value would replace all pods when the runner is upgraded.
    assert_eq!(version, "configmap-54c2f6655405f72e");
    let (_, hash) = version.split_once('-').unwrap();

    let mut same = base.clone();
    same.time = Some(Time::from_millis(7));
    same.warnings.clear();
    assert_eq!(same.fingerprint().version(b"x"), version);
    assert_ne!(base.fingerprint().version(b"y"), version);

    let mut other = base.clone();
    other.service.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
    assert_ne!(other.fingerprint().version(b"x"), version);
    let mut other = base.clone();
    other.pod.spec.as_mut().unwrap().host_network = Some(true);
    assert_ne!(other.fingerprint().version(b"x"), version);
    let mut other = base;
    other.source = Source::PodTemplate;
    assert_eq!(other.fingerprint().version(b"x"), format!("podtemplate-{hash}"));
    assert!(Template::inline("w:v1").fingerprint().version(b"").starts_with("inline-"));
    assert_ne!(
        Template::inline("w:v1").fingerprint().version(b""),
        Template::inline("w:v2").fingerprint().version(b"")
    );
}

proptest! {
    /// The same object, however its fields are ordered in the text.
    #[test]
    fn version_ignores_the_order_of_fields(order in Just(vec![0, 1, 2]).prop_shuffle()) {
        let fields = [
            "kind: Pod\n",
            "metadata: {labels: {b: '1', a: '2'}}\n",
            "spec: {containers: [{command: [/w], name: function}], hostNetwork: true}\n",
        ];
        let text: String = order.into_iter().map(|i| fields[i]).collect();
        let version = |text: &str| read(text, None).unwrap().fingerprint().version(b"");
        prop_assert_eq!(version(&text), version(&fields.concat()));
    }

    #[test]
    fn no_text_is_too_much(at in 0..POD.len(), with in "\\PC{0,3}|[\\[{&*:|>-]", cut in 0..20_usize) {
        let end = (at + cut).min(POD.len());
        let _ = read(&format!("{}{with}{}", &POD[..at], &POD[end..]), None);
    }
}
