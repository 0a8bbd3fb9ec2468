//! Tests that Porch's documented templates work unchanged, and that invalid templates are refused
//! with the reason.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplate};
use serde_json::json;

use super::*;

/// The unchanged example of Porch's documentation.
const DOCUMENTED: &str = include_str!("documented.yaml");
/// The unchanged objects that newer Porch installs.
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

fn read(pod: &str, service: Option<&str>) -> Result<Template, String> {
    let mut data = BTreeMap::from([("template".to_owned(), pod.to_owned())]);
    data.extend(service.map(|text| ("serviceTemplate".to_owned(), text.to_owned())));
    Template::from_config_map(&data)
}

fn objects() -> (PodTemplate, DynamicObject) {
    let (pod, service) = BASE.split_once("\n---\n").unwrap();
    (yaml::parse(pod).unwrap(), yaml::parse(service).unwrap())
}

#[test]
fn the_documented_example_works_unchanged() {
    let template = Template::from_config_map(&documented()).unwrap();
    assert_eq!(
        template.warnings,
        ["key template: annotations are beside metadata and are used as if they were in it: \
          move them under metadata"]
    );
    let mut data = documented();
    data.remove("serviceTemplate");
    assert_eq!(Template::from_config_map(&data).unwrap(), template, "its Service is the default");
}

#[test]
fn the_objects_of_newer_porch_work_unchanged() {
    let (pod, service) = objects();
    let template = Template::from_objects(&pod, Some(&service)).unwrap();
    assert_eq!(template.source, Source::PodTemplate);
    assert!(template.warnings.is_empty(), "{:?}", template.warnings);
    assert_eq!(template.pod.spec, pod.template.unwrap().spec);
    assert_eq!(json!(template.service.spec), service.data["template"]["spec"]);
    let annotations = template.pod.metadata.unwrap().annotations.unwrap();
    assert_eq!(annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"], "true");
}

#[test]
fn the_time_is_that_of_the_last_change() {
    let (mut pod, mut service) = objects();
    let at = |pod: &PodTemplate, service: Option<&DynamicObject>| {
        Template::from_objects(pod, service).unwrap().time.map(times::format_time)
    };
    assert_eq!(at(&pod, Some(&service)), None);
    pod.metadata.creation_timestamp = Some("2024-01-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap().into());
    assert_eq!(at(&pod, Some(&service)).as_deref(), Some("2024-01-01T00:00:00.000Z"));
    let metadata = json!({
        "creationTimestamp": "2024-01-02T00:00:00Z",
        "managedFields": [{"time": "2024-01-04T00:00:00Z"}, {"manager": "x"}, {"time": "2024-01-03T00:00:00Z"}],
    });
    service.metadata = serde_json::from_value(metadata).unwrap();
    assert_eq!(at(&pod, Some(&service)).as_deref(), Some("2024-01-04T00:00:00.000Z"));
    assert_eq!(at(&pod, None).as_deref(), Some("2024-01-01T00:00:00.000Z"));
}

#[test]
fn labels_under_metadata_win_over_misplaced_labels() {
    let template = read(&format!("labels: {{team: b, zone: 1}}\n{POD}"), None).unwrap();
    assert_eq!(json!(template.pod.metadata), json!({"labels": {"team": "a", "zone": "1"}}));
    assert_eq!(template.warnings.len(), 1);
    assert!(read(POD, None).unwrap().warnings.is_empty());
}

#[test]
fn only_labels_and_annotations_of_metadata_are_kept() {
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

/// Each case has an edit of the pod (from, to), the number of the violated point of the contract,
/// and a part of the error.
#[test]
fn a_violated_contract_is_refused_with_its_point() {
    let (command, whole) = ("[/tools/wrapper-server]", "    command: [/tools/wrapper-server]\n");
    let relative = "['wrapper-server', --port]";
    for (from, to, point, advice) in [
        ("name: function", "name: main", 1, "give that name to the container that runs functions"),
        ("containers:", "initContainers:", 1, "under spec.containers"),
        ("spec:", "other:", 1, "under spec.containers"),
        (whole, "", 2, "write `command: [/wrapper-server-tools/wrapper-server]`"),
        (command, "[]", 2, "or the path where the wrapper-server is mounted"),
        (command, relative, 3, "begins with \"wrapper-server\", which depends on the image"),
        (command, "[./wrapper-server]", 3, "write the absolute path of a program in a volume that"),
        (
            "    command:",
            "    args: [--log-level, '2', --, x]\n    command:",
            4,
            "remove it; the runner appends it",
        ),
    ] {
        assert!(POD.contains(from));
        let error = read(&POD.replace(from, to), None).unwrap_err();
        let is_whole = error.starts_with("key template: ") && error.contains(advice);
        assert!(is_whole && error.contains(&format!("(point {point} of the contract)")), "{error}");
    }
}

#[test]
fn probable_mistakes_are_warnings() {
    for (program, is_warned) in [
        ("/tools/wrapper-server", false),
        ("/tools/bin/wrapper-server", false),
        ("/toolshed/wrapper-server", true),
        ("/bin/sh", true),
    ] {
        let warnings = read(&POD.replace("/tools/wrapper-server", program), None).unwrap().warnings;
        let warning =
            format!("key template: {program:?}, the command of container \"function\", is in no volume");
        assert_eq!(warnings.len(), usize::from(is_warned), "{program}");
        assert!(warnings.iter().all(|text| text.starts_with(&warning)), "{warnings:?}");
    }
    let selecting =
        |labels: &str| read(POD, Some(&format!("{SERVICE}  selector: {{{labels}}}\n"))).unwrap().warnings;
    let ours = "team: a, fn.kpt.dev/image: x, app.kubernetes.io/managed-by: porch-fn-runner";
    assert_eq!(selecting(ours), Vec::<String>::new());
    let warnings = selecting("team: b");
    assert!(
        warnings[0].contains("key serviceTemplate: the selector needs the label team=\"b\""),
        "{warnings:?}"
    );
}

#[test]
fn an_unusable_service_is_refused() {
    let no_port = "the Service has no TCP port 9446, which the runner calls: write `port: 9446` and \
                   `targetPort: 9446` under spec.ports";
    let external = "a Service of type ExternalName selects no pods: write `type: ClusterIP`";
    for (service, expected) in [
        ("kind: Service\nspec: {ports: [{port: 80, targetPort: 9446}]}\n", no_port),
        ("kind: Service\nspec: {ports: [{port: 9446, protocol: UDP}]}\n", no_port),
        ("kind: Service\n", no_port),
        ("kind: Service\nspec: {type: ExternalName}\n", external),
        (POD, "its kind is \"Pod\": write `apiVersion: v1` and `kind: Service`"),
    ] {
        assert_eq!(read(POD, Some(service)), Err(format!("key serviceTemplate: {expected}")));
    }
    let (pod, mut service) = objects();
    service.data = json!({"template": {}});
    let error = Template::from_objects(&pod, Some(&service));
    assert_eq!(error, Err(format!("ServiceTemplate: {no_port}")));
}

#[test]
fn texts_without_the_expected_object_are_refused() {
    let missing = Template::from_config_map(&BTreeMap::new()).unwrap_err();
    assert!(missing.starts_with("the ConfigMap has no key template"), "{missing}");
    for (text, kind) in [("kind: Deployment\n", "Deployment"), ("spec: {}\n", ""), ("", "")] {
        let error = format!("key template: its kind is {kind:?}: write `apiVersion: v1` and `kind: Pod`");
        assert_eq!(read(text, None), Err(error));
    }
    for (text, line) in [
        ("kind: Pod\nspec: [", "line 2"),
        ("kind: Pod\nspec:\n  containers:\n    name: function\n", "line 4"),
        ("kind: Pod\n---\nkind: Pod\n", "line "),
    ] {
        let error = read(text, None).unwrap_err();
        assert!(error.starts_with("key template: ") && error.contains(line), "{error}");
        assert!(error.contains("column ") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn the_version_depends_on_content_and_source() {
    let base = Template::from_config_map(&documented()).unwrap();
    let version = |template: &Template| template.version(b"x");
    // If these values change, an upgrade of the runner replaces all pods.
    assert_eq!(version(&base), "configmap-54c2f6655405f72e");
    assert_eq!(version(&Template::built_in("w:v1").unwrap()), "inline-46625960c545be4f");
    assert_ne!(version(&Template::built_in("w:v2").unwrap()), "inline-46625960c545be4f");

    let same = Template { time: Some(Time::from_millis(7)), warnings: Vec::new(), ..base.clone() };
    assert_eq!(version(&same), version(&base));
    let mut other = documented();
    other.insert("serviceTemplate".to_owned(), SERVICE.to_owned());
    assert_ne!(version(&Template::from_config_map(&other).unwrap()), version(&base));
    let other = Template { source: Source::PodTemplate, ..base };
    assert_eq!(version(&other), "podtemplate-54c2f6655405f72e");
}
