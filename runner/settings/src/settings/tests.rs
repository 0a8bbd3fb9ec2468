//! Which of several sources a value is taken from, by value: what wins decides what runs.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::function_config::{MAX_REPLICAS, MIN_REPLICAS};
use crate::tags::TagSemantics;

pub(super) const PREFIX: &str = "ghcr.io/kptdev/krm-functions-catalog";
const PORCH: &str = include_str!("../../../../tests/packages/porch/1.6/23-function-configurations.yaml");

pub(super) fn flags() -> Flags {
    Flags {
        ttl: Flag { value: Duration::from_mins(30), set: false },
        max_pods: Flag { value: 1, set: false },
        waitlist: Flag { value: 2, set: false },
        per_pod: Flag { value: 16, set: false },
        queue: Flag { value: 1000, set: false },
        functions: PathBuf::from("/functions"),
        default_prefix: PREFIX.to_owned(),
        allowed_images: Arc::default(),
    }
}

fn flags_set() -> Flags {
    Flags {
        ttl: Flag { value: Duration::from_mins(1), set: true },
        max_pods: Flag { value: 5, set: true },
        waitlist: Flag { value: 6, set: true },
        per_pod: Flag { value: 7, set: true },
        queue: Flag { value: 8, set: true },
        ..flags()
    }
}

pub(super) fn settings(flags: Flags, cache: &str, exec: &str, configs: Vec<FunctionConfig>) -> Settings {
    let exec = ExecConfig::parse(exec, &flags.functions, PREFIX).unwrap();
    Settings::new(
        flags,
        Arc::new(CacheConfig::parse(cache, PREFIX).unwrap()),
        Arc::new(exec),
        Arc::new(FunctionConfigs::new(configs, semantics(), None)),
        |_| true,
    )
}

/// Of what [`object`] reads.
fn semantics() -> Setting<TagSemantics> {
    Setting::new(TagSemantics::Constraint, Source::Schema)
}

/// As the runner asks.
pub(super) fn executable(settings: &Settings, image: &str, tag: &str) -> Option<Setting<PathBuf>> {
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

pub(super) fn image(text: &str) -> Image {
    Image::parse(text, PREFIX).unwrap()
}

fn of_function() -> Source {
    Source::FunctionConfig { name: "fc".to_owned() }
}

fn of_cache() -> Source {
    Source::CacheConfig { entry: "f:v1".to_owned() }
}

/// Porch's own objects, as of 1.6.
fn porch(semantics: TagSemantics) -> Vec<FunctionConfig> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(PORCH).unwrap();
    documents.iter().map(|object| FunctionConfig::parse(object, PREFIX, semantics).unwrap()).collect()
}

#[test]
fn porchs_own_objects_count() {
    let configs = porch(TagSemantics::Exact);
    assert_eq!(configs.len(), 19);
    let settings = settings(flags_set(), "", "", configs);
    for config in settings.functions().iter() {
        let (name, source) = (&config.name, Source::FunctionConfig { name: config.name.clone() });
        assert_eq!(config.spec.repositories, [format!("{PREFIX}/{name}")], "both prefixes are the same");
        assert_eq!(settings.functions().problem(name), None);
        let tag = config.spec.pod.as_ref().unwrap().tags.texts().next().unwrap();
        for spelling in [format!("{name}:{tag}"), format!("{PREFIX}/{name}:{tag}")] {
            let effective = settings.of(&image(&spelling));
            assert_eq!(effective.ttl, Setting::new(Duration::from_mins(30), source.clone()), "{spelling}");
            assert_eq!(effective.max_pods, Setting::new(5, Source::Flag("max-parallel-pods-per-function")));
            assert_eq!(effective.executable, None, "{spelling}");
        }
        for other in [format!("{name}:v99"), name.clone()] {
            assert_eq!(settings.of(&image(&other)).ttl.source, source, "any tag: {other}");
        }
        let other = format!("evil.io/{name}:{tag}");
        assert_eq!(settings.of(&image(&other)).ttl.source, Source::Flag("pod-ttl"), "{other}");
        if let Some(binary) = &config.spec.binary {
            let tag = binary.tags.texts().next().unwrap();
            let expected = Some(Setting::new(Path::new("/functions").join(name), source));
            assert_eq!(executable(&settings, &format!("{name}:{tag}"), ""), expected);
            assert_eq!(executable(&settings, name, tag), expected);
            assert_eq!(executable(&settings, &format!("evil.io/{name}:{tag}"), ""), None);
        }
    }
    let tag = |name: &str, tag: &str| image(&format!("{name}:{tag}"));
    let warm = settings.warm(&Resolved::default());
    assert_eq!(warm.len(), 19);
    assert_eq!(warm[0], tag("apply-replacements", "v0.1.1"));
    assert!(warm.contains(&tag("set-namespace", "v0.4.1")) && warm.contains(&tag("starlark", "v0.4.3")));
    assert!(settings.kept(&Resolved::default()).is_empty() && settings.ranges(true).is_empty());
    let executables: Vec<_> =
        settings.functions().iter().filter(|config| config.spec.binary.is_some()).collect();
    assert_eq!(executables.len(), 10);
}

#[test]
fn objects_of_1_6_count_with_constraints_too() {
    let settings = settings(flags(), "", "", porch(TagSemantics::Constraint));
    for config in settings.functions().iter() {
        let (name, source) = (&config.name, Source::FunctionConfig { name: config.name.clone() });
        assert_eq!(settings.functions().problem(name), None);
        let tag = config.spec.pod.as_ref().unwrap().tags.texts().next().unwrap();
        assert_eq!(settings.of(&image(&format!("{name}:{tag}"))).ttl.source, source);
        assert_eq!(settings.of(&image(&format!("{name}:v99"))).ttl.source, Source::Default("pod-ttl"));
    }
    assert_eq!(settings.warm(&Resolved::default()).len(), 19);
}

/// Tags as the objects of the Porch after 1.6 have them.
#[test]
fn ranges_are_warmed_and_kept_once_they_are_known() {
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
    assert_eq!(settings.ranges(true), [range("a", "~0.1 != v0.1.4"), range("b", "*")], "the first of each");

    let literal = ["quay.io/x/c:v0.4.1", "c:v0.4.1", "quay.io/x/d", "d"].map(image);
    assert_eq!(settings.warm(&Resolved::default()), literal);
    let known = image("quay.io/x/a:v0.1.5");
    let resolved = Resolved::from([
        (range("a", "~0.1 != v0.1.4"), known.clone()),
        (range("old", "~1"), image("old:v1")),
    ]);
    assert_eq!(settings.warm(&resolved), [std::slice::from_ref(&known), &literal[..]].concat());
    assert_eq!(settings.kept(&resolved)[0], (known, 2));
    let none = settings.of(&image("quay.io/x/e:v1"));
    assert_eq!(none.min_pods.value, 0);
    assert_eq!(
        none.notes,
        ["FunctionConfig e does not count for podExecutor: it lists no tags, write \"*\" for all"]
    );
}

/// What each source says when all those above it are silent.
#[test]
fn each_field_is_taken_from_the_highest_source() {
    let cache = "- {name: 'f:v1', timeToLive: 2m, maxParallelPodsPerFunction: 9, maxWaitlistLength: 10, \
                 minReplicas: 2, resources: {limits: {cpu: 1}}}";
    let annotations = json!({MIN_REPLICAS: "3"});
    let pod = json!({"tags": ["*"], "timeToLive": "3m", "maxParallelExecutions": 11, "preferredMaxQueueLength": 12,
        "templateOverrides": {"container": {"resources": {"limits": {"cpu": 2}}}}});
    let function = object("fc", &annotations, &json!({"image": "f", "podExecutor": pod}));
    let exec = "functions: [{function: e, images: ['f:v1']}]";
    let (default, flag) = (Source::Default, Source::Flag);
    let minutes = Duration::from_mins;
    let cpu = |effective: &Effective| {
        let resources = effective.overrides.container.resources.as_ref();
        resources.map(|resources| resources.limits.as_ref().unwrap()["cpu"].0.clone())
    };

    let only_defaults = settings(flags(), "", "", vec![]).of(&image("f:v1"));
    let expected = Effective {
        ttl: Setting::new(minutes(30), default("pod-ttl")),
        max_pods: Setting::new(1, default("max-parallel-pods-per-function")),
        min_pods: Setting::new(0, Source::BuiltIn),
        waitlist: Setting::new(2, default("max-waitlist-length")),
        per_pod: Setting::new(16, default("max-concurrent-per-pod")),
        queue: Setting::new(1000, default("max-queue-per-function")),
        overrides: PodOverrides::default(),
        overrides_from: OverridesFrom::default(),
        executable: None,
        notes: vec![],
    };
    assert_eq!(only_defaults, expected);

    let with_flags = settings(flags_set(), "", "", vec![]).of(&image("f:v1"));
    let expected = Effective {
        ttl: Setting::new(minutes(1), flag("pod-ttl")),
        max_pods: Setting::new(5, flag("max-parallel-pods-per-function")),
        waitlist: Setting::new(6, flag("max-waitlist-length")),
        per_pod: Setting::new(7, flag("max-concurrent-per-pod")),
        queue: Setting::new(8, flag("max-queue-per-function")),
        ..expected
    };
    assert_eq!(with_flags, expected);

    let with_files = settings(flags_set(), cache, exec, vec![]).of(&image("f:v1"));
    assert_eq!(cpu(&with_files).as_deref(), Some("1"));
    let executable = |path: &str, source| Some(Setting::new(PathBuf::from(path), source));
    let expected = Effective {
        ttl: Setting::new(minutes(2), of_cache()),
        max_pods: Setting::new(9, of_cache()),
        min_pods: Setting::new(2, of_cache()),
        waitlist: Setting::new(10, of_cache()),
        executable: executable("/functions/e", Source::ExecConfig { function: "e".to_owned() }),
        overrides: with_files.overrides.clone(),
        overrides_from: OverridesFrom { all: None, container_resources: Some(of_cache()) },
        ..expected
    };
    assert_eq!(with_files, expected);

    let all = settings(flags_set(), cache, exec, vec![function]).of(&image("f:v1"));
    assert_eq!(cpu(&all).as_deref(), Some("2"));
    let expected = Effective {
        ttl: Setting::new(minutes(3), of_function()),
        max_pods: Setting::new(11, of_function()),
        min_pods: Setting::new(3, of_function()),
        waitlist: Setting::new(12, of_function()),
        overrides: all.overrides.clone(),
        overrides_from: OverridesFrom { all: Some(of_function()), container_resources: Some(of_function()) },
        ..expected
    };
    assert_eq!(all, expected);

    // Silent where it says nothing, field by field.
    let silent = pods(&json!({"templateOverrides": {"serviceAccountName": "s"}}));
    let all = settings(flags_set(), cache, exec, vec![silent]).of(&image("f:v1"));
    assert_eq!(cpu(&all).as_deref(), Some("1"));
    assert_eq!(all.overrides.service_account.as_deref(), Some("s"));
    let expected = Effective {
        ttl: Setting::new(minutes(2), of_cache()),
        max_pods: Setting::new(9, of_cache()),
        min_pods: Setting::new(2, of_cache()),
        waitlist: Setting::new(10, of_cache()),
        overrides: all.overrides.clone(),
        overrides_from: OverridesFrom { all: Some(of_function()), container_resources: Some(of_cache()) },
        ..expected
    };
    assert_eq!(all, expected);
}

#[test]
fn executables_of_function_configs_win_over_the_file() {
    let binary = json!({"image": "f", "binaryExecutor": {"tags": ["v1"], "path": "bin/f"}});
    let pinned = format!("f@sha256:{}", "0".repeat(64));
    let exec = format!("functions: [{{function: e, images: ['f:v1', 'f:v2', 'Odd Name', '{pinned}']}}]");
    let settings = settings(flags(), "", &exec, vec![object("fc", &Value::Null, &binary)]);
    let path = |image: &str, tag: &str| executable(&settings, image, tag).map(|found| found.value);
    assert_eq!(path("f:v1", ""), Some(PathBuf::from("/functions/bin/f")));
    assert_eq!(path("f:v2", ""), Some(PathBuf::from("/functions/e")));
    assert_eq!(path("Odd Name", ""), Some(PathBuf::from("/functions/e")));
    assert_eq!(path("evil.io/f:v1", ""), None);
    assert_eq!(
        settings.of(&image("f:v1")).notes,
        ["--config, function e does not count: FunctionConfig fc does"]
    );

    assert_eq!(path("f", "v1"), Some(PathBuf::from("/functions/bin/f")));
    assert_eq!(path("f:v1", "v2"), Some(PathBuf::from("/functions/e")), "the tag field counts");
    assert_eq!(path("f:v1", "v3"), None);
    assert_eq!(path("Odd Name", "v1"), None);
    assert_eq!(path(&pinned, "v1"), Some(PathBuf::from("/functions/e")), "no tag counts beside a digest");
    assert_eq!(path("f", ">=1"), Some(PathBuf::from("/functions/bin/f")), "v1 is listed");
    assert_eq!(path("f:v1", ">=2"), None, "the tag of the image does not count");
    assert_eq!(path("f:v2", ">=2"), Some(PathBuf::from("/functions/e")), "--config has what was sent");
    assert_eq!(path("f:v2", ">2"), None, "that satisfies no such constraint");
    assert_eq!(path("f:v1", ">=1 <2"), Some(PathBuf::from("/functions/bin/f")), "what kpt resolved it to");
    assert_eq!(
        path("f:v1", "nightly"),
        Some(PathBuf::from("/functions/bin/f")),
        "a field that does not count"
    );

    let absolute = json!({"image": "f", "binaryExecutor": {"tags": ["v1"], "path": "/usr/bin/f"}});
    let settings = super::tests::settings(flags(), "", "", vec![object("fc", &Value::Null, &absolute)]);
    assert_eq!(executable(&settings, "f:v1", "").unwrap().value, Path::new("/usr/bin/f"));
}

#[test]
fn executables_that_are_not_there_do_not_count() {
    let binary = |path: &str| json!({"image": "f", "binaryExecutor": {"tags": ["v1", "v2"], "path": path}});
    let configs = vec![
        object("a", &Value::Null, &binary("a")),
        object("b", &Value::Null, &binary("/opt/b")),
        object("c", &Value::Null, &binary("c")),
    ];
    let exec = "functions: [{function: e, images: ['f:v1']}]";
    let exec = Arc::new(ExecConfig::parse(exec, &flags().functions, PREFIX).unwrap());
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
            "FunctionConfig {name} does not count for binaryExecutor: there is no file {path}; see --functions"
        )
    };

    let none = with(&[]);
    assert_eq!(of(&none, "f:v1").as_deref(), Some("/functions/e"), "that of --config counts, there or not");
    assert_eq!(of(&none, "f:v2"), None, "so it runs in pods");
    let all_gone = [gone("a", "/functions/a"), gone("b", "/opt/b"), gone("c", "/functions/c")];
    assert_eq!(none.of(&image("f:v2")).notes, all_gone);
    let names: Vec<_> =
        none.missing_executables().map(|(config, path)| (config.name.as_str(), path)).collect();
    assert_eq!(names[..2], [("a", "/functions/a".into()), ("b", "/opt/b".into())]);
    assert!(!none.has_same_executables(|path| path == Path::new("/opt/b")), "one has come");

    let second = with(&["/opt/b", "/functions/c"]);
    assert_eq!(of(&second, "f:v1").as_deref(), Some("/opt/b"));
    assert_eq!(
        second.of(&image("f:v1")).notes,
        [
            gone("a", "/functions/a"),
            "FunctionConfig c does not count for binaryExecutor: b comes first by name".to_owned(),
            "--config, function e does not count: FunctionConfig b does".to_owned(),
        ]
    );
    assert_eq!(second.missing_executables().count(), 1);
}

#[test]
fn at_least_as_many_pods_as_are_kept() {
    let limits = |cache: &str, annotations: &Value, flags: Flags| {
        let function = object("fc", annotations, &json!({"image": "f", "podExecutor": {"tags": ["*"]}}));
        settings(flags, cache, "", vec![function]).of(&image("f:v1"))
    };
    let none = json!({});
    let raised = limits("", &json!({MIN_REPLICAS: "3"}), flags());
    assert_eq!(
        (raised.min_pods, raised.max_pods),
        (Setting::new(3, of_function()), Setting::new(3, of_function()))
    );
    assert_eq!(
        raised.notes,
        ["max pods is 3, as FunctionConfig fc says, not 1 (default of --max-parallel-pods-per-function)"]
    );
    let raised = limits("- {name: 'f:v1', maxReplicas: 2}", &json!({MIN_REPLICAS: "3"}), flags());
    assert_eq!(raised.max_pods, Setting::new(3, of_function()));
    let raised = limits("- {name: 'f:v1', minReplicas: 6}", &none, flags_set());
    assert_eq!(raised.max_pods, Setting::new(6, of_cache()));
    let lowered = limits("- {name: 'f:v1', minReplicas: 6}", &json!({MAX_REPLICAS: "4"}), flags());
    assert_eq!(lowered.max_pods, Setting::new(4, of_function()));
    assert_eq!(lowered.min_pods, Setting::new(4, of_function()));
    assert_eq!(
        lowered.notes,
        ["min pods is 4, as FunctionConfig fc says, not 6 (--pod-cache-config, entry f:v1)"]
    );
    let untouched = limits("- {name: 'f:v1', minReplicas: 6}", &json!({MIN_REPLICAS: "0"}), flags());
    assert_eq!((untouched.min_pods.value, untouched.max_pods.value), (0, 1), "none, says the higher source");
    assert!(untouched.notes.is_empty());
}

#[test]
fn what_does_not_count_is_noted() {
    let cache =
        "- {name: 'f:v1', maxReplicas: 3, maxParallelPodsPerFunction: 4}\n- {name: 'f:v1', timeToLive: 1h}";
    let spec =
        |tags: &[&str]| json!({"image": "f", "podExecutor": {"tags": tags, "maxParallelExecutions": 9}});
    let configs = vec![
        object("a", &json!({MAX_REPLICAS: "8"}), &spec(&["v1"])),
        object("b", &Value::Null, &spec(&["v1"])),
        object("c", &Value::Null, &spec(&["*"])),
    ];
    let effective = settings(flags(), cache, "", configs).of(&image("f:v1"));
    assert_eq!(effective.max_pods, Setting::new(8, Source::FunctionConfig { name: "a".to_owned() }));
    assert_eq!(effective.ttl.source, Source::Default("pod-ttl"), "the second entry does not count");
    assert_eq!(
        effective.notes,
        [
            "--pod-cache-config, entry f:v1: maxReplicas (3) counts, not maxParallelPodsPerFunction (4)",
            "--pod-cache-config has 2 entries for this image: the first one counts",
            "FunctionConfig a: annotation fn.kpt.dev/max-replicas (8) counts, not maxParallelExecutions (9)",
            "FunctionConfig b does not count for podExecutor: a comes first by name",
            "FunctionConfig c does not count for podExecutor: a names the tag",
        ]
    );
}

#[test]
fn images_that_are_named_are_warmed_and_kept() {
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
    let kept = |name: &str, pods| (image(name), pods);
    assert_eq!(
        settings.kept(&Resolved::default()),
        [
            kept("g:v1", 1),
            kept("f:v1", 2),
            kept("f:v2", 2),
            kept("f", 2),
            kept("quay.io/f:v1", 2),
            kept("quay.io/f:v2", 2),
            kept("quay.io/f", 2)
        ],
    );
    assert_eq!(settings.of(&image("h:v8")).min_pods.value, 4, "not by name, but when it is called");
}

#[test]
fn sources_are_written_for_people() {
    let sources = [
        Source::BuiltIn,
        Source::Default("pod-ttl"),
        Source::Flag("pod-ttl"),
        Source::ExecConfig { function: "f".to_owned() },
        of_cache(),
        of_function(),
    ];
    let expected = [
        "default",
        "default of --pod-ttl",
        "--pod-ttl",
        "--config, function f",
        "--pod-cache-config, entry f:v1",
        "FunctionConfig fc",
    ];
    assert_eq!(sources.map(|source| source.to_string()), expected);
}
