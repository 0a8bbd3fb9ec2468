//! The page of an image: each value with its source, and no secrets.

use std::sync::Arc;

use super::*;
use crate::settings::tests::flags;
use crate::source::Source;
use crate::{CacheConfig, ExecConfig, Flags, FunctionConfig, FunctionConfigs, TagSemantics};

#[test]
fn the_page_has_values_and_sources_but_no_secrets() {
    let flags =
        Flags { max_pods: Setting::new(1, Source::Flag("max-parallel-pods-per-function")), ..flags() };
    let env = json!([
        {"name": "PLAIN", "value": "hunter2"},
        {"name": "NOTHING"},
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
    ]);
    let object = json!({
        "metadata": {"name": "fc"},
        "spec": {
            "image": "f",
            "binaryExecutor": {"tags": ["v1"], "path": "f"},
            "podExecutor": {"timeToLive": "90s", "templateOverrides": {
                "serviceAccountName": "runner",
                "securityContext": {"runAsUser": 7},
                "container": {"env": env, "envFrom": [
                    {"secretRef": {"name": "s"}}, {"configMapRef": {"name": "m"}, "prefix": "P_"},
                ]},
                "initContainer": {"env": [{"name": "X", "value": "hunter2"}], "resources": {"limits": {"cpu": "2"}}},
            }},
        },
    });
    let cache =
        "- {name: 'f:v1', maxWaitlistLength: 5, resources: {requests: {memory: 64Mi}}}\n- {name: 'f:v1'}";
    let config = FunctionConfig::parse(&object, "ghcr.io/x", TagSemantics::Exact).unwrap();
    let semantics = Setting::new(TagSemantics::Exact, Source::Flag("functionconfig-tags"));
    let settings = Settings::new(
        flags,
        Arc::new(CacheConfig::parse(cache, "ghcr.io/x").unwrap()),
        Arc::new(ExecConfig::default()),
        Arc::new(FunctionConfigs::new(vec![config], semantics, None)),
        |_| true,
    );
    let page = page(&settings, &Image::parse("f:v1", "ghcr.io/x").unwrap());
    assert!(!page.to_string().contains("hunter2"));

    let read: Page = serde_json::from_value(page).unwrap();
    assert_eq!(read.image, "ghcr.io/x/f:v1");
    assert_eq!(read.notes, ["--pod-cache-config has 2 entries for this image: the first one is used"]);
    let row = |row: &Row| (row.setting.clone(), row.value.clone(), row.from.clone());
    let rows: Vec<_> = read.settings.iter().map(row).collect();
    let expected = [
        ("ttl", json!("1m30s"), "FunctionConfig fc"),
        ("maxPods", json!(1), "--max-parallel-pods-per-function"),
        ("minPods", json!(0), "default"),
        ("maxWaitlistLength", json!(5), "--pod-cache-config, entry f:v1"),
        ("maxConcurrentPerPod", json!(16), "default of --max-concurrent-per-pod"),
        ("maxQueue", json!(1000), "default of --max-queue-per-function"),
        ("functionConfigTags", json!("exact"), "--functionconfig-tags"),
        ("executable", json!("/functions/f"), "FunctionConfig fc"),
        ("serviceAccountName", json!("runner"), "FunctionConfig fc"),
        ("securityContext", json!({"runAsUser": 7}), "FunctionConfig fc"),
        ("container.env.PLAIN", json!("(not shown)"), "FunctionConfig fc"),
        ("container.env.NOTHING", json!("(not shown)"), "FunctionConfig fc"),
        ("container.env.A", json!({"secretKeyRef": {"key": "k", "name": "s"}}), "FunctionConfig fc"),
        ("container.env.B", json!({"configMapKeyRef": {"key": "k", "name": "m"}}), "FunctionConfig fc"),
        ("container.envFrom[0]", json!({"secretRef": {"name": "s"}}), "FunctionConfig fc"),
        ("container.envFrom[1]", json!({"configMapRef": {"name": "m"}, "prefix": "P_"}), "FunctionConfig fc"),
        ("container.resources", json!({"requests": {"memory": "64Mi"}}), "--pod-cache-config, entry f:v1"),
        ("initContainer.env.X", json!("(not shown)"), "FunctionConfig fc"),
        ("initContainer.resources", json!({"limits": {"cpu": "2"}}), "FunctionConfig fc"),
    ];
    let expected = expected.map(|(setting, value, from)| (setting.to_owned(), value, from.to_owned()));
    assert_eq!(rows, expected);
}
