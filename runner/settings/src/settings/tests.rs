//! Tests which source each setting comes from. The settings decide which pods and executables run.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::function_config::{MAX_REPLICAS, MIN_REPLICAS};
use crate::tags::TagSemantics;

const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";
const PORCH: &str = include_str!("../../../../tests/packages/porch/1.6/23-function-configurations.yaml");

pub(crate) fn flags() -> Flags {
    Flags {
        ttl: Setting::new(Duration::from_mins(30), Source::Default("pod-ttl")),
        max_pods: Setting::new(1, Source::Default("max-parallel-pods-per-function")),
        waitlist: Setting::new(2, Source::Default("max-waitlist-length")),
        per_pod: Setting::new(16, Source::Default("max-concurrent-per-pod")),
        queue: Setting::new(1000, Source::Default("max-queue-per-function")),
        functions: PathBuf::from("/functions"),
        allowed_images: Arc::default(),
    }
}

fn flags_set() -> Flags {
    Flags {
        ttl: Setting::new(Duration::from_mins(1), Source::Flag("pod-ttl")),
        max_pods: Setting::new(5, Source::Flag("max-parallel-pods-per-function")),
        ..flags()
    }
}

fn settings(flags: Flags, cache: &str, exec: &str, configs: Vec<FunctionConfig>) -> Settings {
    Settings::new(
        flags,
        Arc::new(CacheConfig::parse(cache, PREFIX).unwrap()),
        Arc::new(ExecConfig::parse(exec, PREFIX).unwrap()),
        Arc::new(FunctionConfigs::new(configs, semantics(), None)),
        |_| true,
    )
}

/// The tag semantics that [`object`] uses.
fn semantics() -> Setting<TagSemantics> {
    Setting::new(TagSemantics::Constraint, Source::Schema)
}

/// Looks up the executable in the same way as the runner.
fn executable(settings: &Settings, image: &str, tag: &str) -> Option<Setting<PathBuf>> {
    settings.executable(image, Image::parse(image, PREFIX).ok().as_ref(), tag)
}

fn object(name: &str, annotations: &Value, spec: &Value) -> FunctionConfig {
    let metadata = json!({"name": name, "annotations": annotations});
    let object = json!({"metadata": metadata, "spec": spec});
    FunctionConfig::parse(&object, PREFIX, TagSemantics::Constraint).unwrap()
}

fn pods(pod: &Value) -> FunctionConfig {
    let mut pod = pod.clone();
    pod["tags"] = json!(["*"]);
    object("fc", &Value::Null, &json!({"image": "f", "podExecutor": pod}))
}

fn image(text: &str) -> Image {
    Image::parse(text, PREFIX).unwrap()
}

fn of_function() -> Source {
    Source::FunctionConfig("fc".to_owned())
}

fn of_cache() -> Source {
    Source::CacheConfig("f:v1".to_owned())
}

/// Porch's own objects, as of 1.6.
fn porch(semantics: TagSemantics) -> Vec<FunctionConfig> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(PORCH).unwrap();
    documents.iter().map(|object| FunctionConfig::parse(object, PREFIX, semantics).unwrap()).collect()
}

#[test]
fn porchs_own_objects_are_used_in_both_semantics() {
    for semantics in [TagSemantics::Exact, TagSemantics::Constraint] {
        let settings = settings(flags_set(), "", "", porch(semantics));
        for config in settings.functions.iter() {
            let (name, source) = (&config.name, config.source());
            assert_eq!(config.repositories, [format!("{PREFIX}/{name}")], "both prefixes are the same");
            assert_eq!(settings.functions.problem(name), None);
            let of = |text: String| settings.of(&image(&text));
            let tag = config.pod.as_ref().unwrap().tags.texts().next().unwrap();
            let effective = of(format!("{name}:{tag}"));
            assert_eq!(effective.ttl, Setting::new(Duration::from_mins(30), source.clone()), "{name}");
            assert_eq!(effective.max_pods, Setting::new(5, Source::Flag("max-parallel-pods-per-function")));
            assert_eq!(effective.executable, None, "{name}");
            let is_any = semantics == TagSemantics::Exact;
            let of_another_tag = if is_any { source.clone() } else { Source::Flag("pod-ttl") };
            assert_eq!(of(format!("{name}:v99")).ttl.source, of_another_tag);
            assert_eq!(of(format!("evil.io/{name}:{tag}")).ttl.source, Source::Flag("pod-ttl"));
            if let Some(binary) = &config.binary {
                let tag = binary.tags.texts().next().unwrap();
                let expected = Some(Setting::new(Path::new("/functions").join(name), source));
                assert_eq!(executable(&settings, &format!("{name}:{tag}"), ""), expected);
                assert_eq!(executable(&settings, name, tag), expected);
                assert_eq!(executable(&settings, &format!("evil.io/{name}:{tag}"), ""), None);
            }
        }
        let warm = settings.warm(&Resolved::default());
        assert_eq!((warm.len(), &warm[0]), (19, &image("apply-replacements:v0.1.1")));
        assert!(settings.kept(&Resolved::default()).is_empty() && settings.ranges(true).is_empty());
        assert_eq!(settings.functions.iter().filter(|config| config.binary.is_some()).count(), 10);
    }
}

/// The tags are like in the FunctionConfigs of Porch after 1.6.
#[test]
fn ranges_are_warmed_and_kept_after_a_registry_has_resolved_them() {
    let object = |name: &str, tags: Value| {
        let spec = json!({"image": name, "prefixes": ["quay.io/x", ""], "podExecutor": {"tags": tags}});
        object(name, &json!({MIN_REPLICAS: "2"}), &spec)
    };
    let settings = settings(
        flags(),
        "",
        "",
        vec![
            object("a", json!(["~0.1 != v0.1.4", "~0.2"])),
            object("b", json!(["*"])),
            object("c", json!(["v0.4.1"])),
            object("d", json!([""])),
            object("e", json!([])),
        ],
    );
    let range = |name: &str, constraint: &str| Range {
        repository: image(&format!("quay.io/x/{name}")),
        constraint: constraint.to_owned(),
    };
    assert_eq!(
        settings.ranges(true),
        [range("a", "~0.1 != v0.1.4"), range("b", "*")],
        "the first of each object"
    );

    let literal = ["quay.io/x/c:v0.4.1", "c:v0.4.1", "quay.io/x/d", "d"].map(image);
    assert_eq!(settings.warm(&Resolved::default()), literal);
    let known = image("quay.io/x/a:v0.1.5");
    let resolved = Resolved::from([
        (range("a", "~0.1 != v0.1.4"), known.clone()),
        (range("old", "~1"), image("old:v1")),
    ]);
    assert_eq!(settings.warm(&resolved), [std::slice::from_ref(&known), &literal[..]].concat());
    assert_eq!(settings.kept(&resolved)[0], known);
    let none = settings.of(&image("quay.io/x/e:v1"));
    assert_eq!(none.min_pods.value, 0);
    assert_eq!(
        settings.notes(&image("quay.io/x/e:v1")),
        ["FunctionConfig e is not used for podExecutor: it lists no tags; write \"*\" for all"]
    );
}

/// Each step adds a source that takes precedence over the earlier ones.
#[test]
fn each_field_is_taken_from_the_highest_source() {
    let cache = "- {name: 'f:v1', timeToLive: 2m, maxParallelPodsPerFunction: 9, maxWaitlistLength: 10, \
                 minReplicas: 2, resources: {limits: {cpu: 1}}}";
    let pod = json!({"timeToLive": "3m", "maxParallelExecutions": 11, "preferredMaxQueueLength": 12,
        "templateOverrides": {"container": {"resources": {"limits": {"cpu": 2}}}}});
    let object = |min: Option<u32>, pod| FunctionConfig { min_replicas: min, ..pods(pod) };
    let exec = "functions: [{function: e, images: ['f:v1']}]";
    let silent = json!({"templateOverrides": {"serviceAccountName": "s"}});
    let (default, flag, minutes) = (Source::Default, Source::Flag, Duration::from_mins);
    let of = |flags, cache, exec, configs| settings(flags, cache, exec, configs).of(&image("f:v1"));

    let defaults = Effective {
        ttl: Setting::new(minutes(30), default("pod-ttl")),
        max_pods: Setting::new(1, default("max-parallel-pods-per-function")),
        min_pods: Setting::new(0, Source::BuiltIn),
        waitlist: Setting::new(2, default("max-waitlist-length")),
        overrides: PodOverrides::default(),
        overrides_from: None,
        resources_from: None,
        executable: None,
    };
    assert_eq!(of(flags(), "", "", vec![]), defaults);

    let set = Effective {
        ttl: Setting::new(minutes(1), flag("pod-ttl")),
        max_pods: Setting::new(5, flag("max-parallel-pods-per-function")),
        ..defaults
    };
    assert_eq!(of(flags_set(), "", "", vec![]), set);

    let found = of(flags_set(), cache, exec, vec![]);
    assert_eq!(cpu(&found).as_deref(), Some("1"));
    let of_e = Source::ExecConfig("e".to_owned());
    let with_files = Effective {
        ttl: Setting::new(minutes(2), of_cache()),
        max_pods: Setting::new(9, of_cache()),
        min_pods: Setting::new(2, of_cache()),
        waitlist: Setting::new(10, of_cache()),
        executable: Some(Setting::new(PathBuf::from("/functions/e"), of_e)),
        overrides: found.overrides.clone(),
        resources_from: Some(of_cache()),
        ..set
    };
    assert_eq!(found, with_files);

    // This object sets only one field.
    let found = of(flags_set(), cache, exec, vec![object(None, &silent)]);
    assert_eq!((cpu(&found).as_deref(), found.overrides.service_account.as_deref()), (Some("1"), Some("s")));
    let expected = Effective {
        overrides: found.overrides.clone(),
        overrides_from: Some(of_function()),
        ..with_files.clone()
    };
    assert_eq!(found, expected);

    let found = of(flags_set(), cache, exec, vec![object(Some(3), &pod)]);
    assert_eq!(cpu(&found).as_deref(), Some("2"));
    let expected = Effective {
        ttl: Setting::new(minutes(3), of_function()),
        max_pods: Setting::new(11, of_function()),
        min_pods: Setting::new(3, of_function()),
        waitlist: Setting::new(12, of_function()),
        overrides: found.overrides.clone(),
        overrides_from: Some(of_function()),
        resources_from: Some(of_function()),
        ..with_files
    };
    assert_eq!(found, expected);
}

fn cpu(effective: &Effective) -> Option<String> {
    let resources = effective.overrides.container.resources.as_ref()?;
    Some(resources.limits.as_ref()?["cpu"].0.clone())
}

#[test]
fn executables_of_function_configs_win_over_the_file() {
    let binary = json!({"image": "f", "binaryExecutor": {"tags": ["v1"], "path": "bin/f"}});
    let absolute = json!({"image": "g", "binaryExecutor": {"tags": ["v1"], "path": "/usr/bin/g"}});
    let pinned = format!("f@sha256:{}", "0".repeat(64));
    let exec = format!("functions: [{{function: e, images: ['f:v1', 'f:v2', 'Odd Name', '{pinned}']}}]");
    let configs = [("fc", binary), ("g", absolute)].map(|(name, spec)| object(name, &Value::Null, &spec));
    let settings = settings(flags(), "", &exec, configs.into());
    let (own, file) = (Some("/functions/bin/f"), Some("/functions/e"));
    for (image, tag, expected) in [
        ("f:v1", "", own),
        ("f:v2", "", file),
        ("Odd Name", "", file),
        ("g:v1", "", Some("/usr/bin/g")),
        ("evil.io/f:v1", "", None),
        ("f", "v1", own),
        // The tag field counts, not the image's tag.
        ("f:v1", "v2", file),
        ("f:v1", "v3", None),
        ("Odd Name", "v1", None),
        // With a digest, no tag counts.
        (&pinned, "v1", file),
        ("f", ">=1", own),
        ("f:v1", ">=2", None),
        // `--config` is used if the tag of the call's image satisfies the constraint.
        ("f:v2", ">=2", file),
        ("f:v2", ">2", None),
        // kpt resolved the constraint to `v1`.
        ("f:v1", ">=1 <2", own),
        // `nightly` is no constraint, so the image's own tag counts.
        ("f:v1", "nightly", own),
    ] {
        let found = executable(&settings, image, tag).map(|found| found.value);
        assert_eq!(found.as_deref(), expected.map(Path::new), "{image} {tag}");
    }
}

#[test]
fn executables_that_do_not_exist_are_not_used() {
    let binary = |path: &str| json!({"image": "f", "binaryExecutor": {"tags": ["v1", "v2"], "path": path}});
    let configs = vec![
        object("a", &Value::Null, &binary("a")),
        object("b", &Value::Null, &binary("/opt/b")),
        object("c", &Value::Null, &binary("c")),
    ];
    let exec = "functions: [{function: e, images: ['f:v1']}]";
    let exec = Arc::new(ExecConfig::parse(exec, PREFIX).unwrap());
    let functions = Arc::new(FunctionConfigs::new(configs, semantics(), None));
    let with = |there: &[&str]| {
        let is_there = |path: &Path| there.contains(&path.to_str().unwrap());
        let settings =
            Settings::new(flags(), Arc::default(), Arc::clone(&exec), Arc::clone(&functions), is_there);
        assert!(settings.has_same_executables(is_there));
        settings
    };
    let of = |settings: &Settings, image: &str| {
        let found = executable(settings, image, "");
        assert_eq!(settings.of(&super::tests::image(image)).executable, found);
        found.map(|found| found.value.to_str().unwrap().to_owned())
    };
    let gone = |name: &str, path: &str| {
        format!(
            "FunctionConfig {name} is not used for binaryExecutor: the file {path} does not exist; see --functions"
        )
    };

    let none = with(&[]);
    assert_eq!(of(&none, "f:v1").as_deref(), Some("/functions/e"), "--config counts in any case");
    assert_eq!(of(&none, "f:v2"), None, "it runs in pods");
    assert_eq!(none.missing_executables().count(), 3);
    assert!(!none.has_same_executables(|path| path == Path::new("/opt/b")), "one executable was created");

    let second = with(&["/opt/b", "/functions/c"]);
    assert_eq!(of(&second, "f:v1").as_deref(), Some("/opt/b"));
    assert_eq!(
        second.notes(&image("f:v1")),
        [
            gone("a", "/functions/a"),
            "FunctionConfig c is not used for binaryExecutor: b comes before it".to_owned(),
            "--config, function e is not used: FunctionConfig b wins".to_owned(),
        ]
    );
    assert_eq!(second.missing_executables().count(), 1);
}

/// Two sources set minimum and maximum, and the minimum would exceed the maximum.
#[test]
fn the_maximum_of_pods_is_not_below_the_minimum() {
    let (two, six) = ("- {name: 'f:v1', maxReplicas: 2}", "- {name: 'f:v1', minReplicas: 6}");
    let default = Source::Default("max-parallel-pods-per-function");
    for (cache, annotations, flags, min, max) in [
        ("", json!({MIN_REPLICAS: "3"}), flags(), (3, of_function()), (3, of_function())),
        (two, json!({MIN_REPLICAS: "3"}), flags(), (3, of_function()), (3, of_function())),
        (six, json!({}), flags_set(), (6, of_cache()), (6, of_cache())),
        (six, json!({MAX_REPLICAS: "4"}), flags(), (4, of_function()), (4, of_function())),
        (six, json!({MIN_REPLICAS: "0"}), flags(), (0, of_function()), (1, default)),
    ] {
        let function = object("fc", &annotations, &json!({"image": "f", "podExecutor": {"tags": ["*"]}}));
        let found = settings(flags, cache, "", vec![function]).of(&image("f:v1"));
        let pair = |setting: Setting<u32>| (setting.value, setting.source);
        assert_eq!((pair(found.min_pods), pair(found.max_pods)), (min, max), "{cache} {annotations}");
    }
}

#[test]
fn notes_name_values_that_have_no_effect() {
    let cache = "- {name: 'f:v1', maxReplicas: 3}\n- {name: 'f:v1', timeToLive: 1h}";
    let spec =
        |tags: &[&str]| json!({"image": "f", "podExecutor": {"tags": tags, "maxParallelExecutions": 9}});
    let configs = vec![
        object("a", &json!({MAX_REPLICAS: "8"}), &spec(&["v1"])),
        object("b", &Value::Null, &spec(&["v1"])),
        object("c", &Value::Null, &spec(&["*"])),
    ];
    let settings = settings(flags(), cache, "", configs);
    let effective = settings.of(&image("f:v1"));
    assert_eq!(effective.max_pods, Setting::new(8, Source::FunctionConfig("a".to_owned())));
    assert_eq!(effective.ttl.source, Source::Default("pod-ttl"), "the second entry is not used");
    assert_eq!(
        settings.notes(&image("f:v1")),
        [
            "--pod-cache-config has 2 entries for this image: the first one is used",
            "FunctionConfig b is not used for podExecutor: a comes before it",
            "FunctionConfig c is not used for podExecutor: a comes before it",
        ]
    );
}

/// Every call of an image that `--allowed-images` does not allow is rejected.
#[test]
fn images_that_are_not_allowed_are_neither_warmed_nor_kept() {
    let cache = "- {name: 'f:v1', minReplicas: 1, timeToLive: 2m}\n- {name: 'f:v2', minReplicas: 1}\n";
    let exec = "functions: [{function: e, images: ['f:v2', 'f:v1']}]";
    let spec = json!({"image": "g", "prefixes": ["", "quay.io"], "podExecutor": {"tags": ["v1", "~1"]}});
    let configs = vec![object("fc", &json!({MIN_REPLICAS: "1"}), &spec)];
    let allowed = AllowedImages::parse(&["f:v1", "quay.io/*"], PREFIX).unwrap();
    let settings = settings(Flags { allowed_images: Arc::new(allowed), ..flags() }, cache, exec, configs);

    assert_eq!(settings.ranges(true), [], "no registry is asked");
    let range = Range { repository: image("g"), constraint: "~1".to_owned() };
    let resolved = Resolved::from([(range, image("g:v1.1"))]);
    assert_eq!(settings.warm(&resolved), ["f:v1", "quay.io/g:v1"].map(image));
    assert_eq!(settings.kept(&resolved), ["f:v1", "quay.io/g:v1"].map(image));
    assert!(settings.of(&image("f:v1")).executable.is_some() && settings.notes(&image("f:v1")).is_empty());
    for refused in ["f:v2", "g:v1"].map(image) {
        let effective = settings.of(&refused);
        assert_eq!(effective.min_pods, Setting::new(0, Source::Flag("allowed-images")));
        assert_eq!(effective.executable, None);
        let note = "every call is refused: no pattern of --allowed-images matches this image";
        assert_eq!(settings.notes(&refused), [note]);
    }
}

#[test]
fn literal_tags_are_warmed_and_kept() {
    let cache = "- {name: 'g:v1', minReplicas: 1}\n- name: f:v1\n- name: g:v1\n";
    let spec = json!({"image": "f", "prefixes": ["", "quay.io"],
        "podExecutor": {"tags": ["v1", "v2", ">=3", "latest"]}});
    let configs = vec![
        object("a", &json!({MIN_REPLICAS: "2"}), &spec),
        object("all", &json!({MIN_REPLICAS: "4"}), &json!({"image": "h", "podExecutor": {"tags": ["*"]}})),
        object("b", &Value::Null, &json!({"image": "h", "podExecutor": {"tags": ["v7"]}})),
        object("c", &Value::Null, &json!({"image": "i", "binaryExecutor": {"tags": ["v1"], "path": "i"}})),
    ];
    let settings = settings(flags(), cache, "", configs);
    let expected =
        ["g:v1", "f:v1", "f:v2", "f", "quay.io/f:v1", "quay.io/f:v2", "quay.io/f", "h:v7"].map(image);
    assert_eq!(settings.warm(&Resolved::default()), expected);
    assert_eq!(settings.kept(&Resolved::default()), expected[..7]);
    assert_eq!(settings.of(&image("h:v8")).min_pods.value, 4, "kept after its first call");
}
