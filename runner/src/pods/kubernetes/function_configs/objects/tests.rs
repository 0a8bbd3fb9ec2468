//! Tests which FunctionConfigs are in effect after objects are created, changed, made invalid or
//! deleted.

use serde_json::{Value, json};
use tokio::time::advance;

use super::super::write::FINALIZER;
use super::*;

const PREFIX: &str = "example.com/functions";
const NOW: Time = Time::from_millis(1_800_000_000_000);

fn objects() -> Objects {
    Objects::new(PREFIX.to_owned(), Setting::new(TagSemantics::Exact, Source::Schema))
}

/// An object with this podExecutor, created `second` seconds into the year 2025.
fn object(name: &str, second: u8, pod: &Value) -> Object {
    let object = json!({
        "metadata": {
            "name": name, "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": format!("2025-01-01T00:00:{second:02}Z"),
        },
        "spec": {"image": name, "podExecutor": pod},
    });
    Object::new(serde_json::from_value(object).unwrap())
}

fn changed(mut object: Object, generation: i64, second: u8, pod: Value) -> Object {
    object.metadata.generation = Some(generation);
    object.spec["podExecutor"] = pod;
    object.changed = Some(moment(second));
    object
}

fn observed(generation: i64) -> Write {
    Write::Status { observed: Some(generation), error: None }
}

fn moment(second: u8) -> Time {
    // 2025-01-01T00:00:00Z
    Time::from_millis(1_735_689_600_000 + u64::from(second) * 1000)
}

/// Another object with the same name.
fn another(mut object: Object) -> Object {
    object.metadata.uid = Some("another".into());
    object
}

/// The write that an object needs from the runner that owns its name.
fn written(objects: &Objects, name: &str) -> Option<Write> {
    objects.write_to(name, &objects.entries[name], &OwnedShards::All)
}

fn names(configs: &FunctionConfigs) -> Vec<&str> {
    configs.iter().map(|config| config.name.as_str()).collect()
}

fn time(configs: &FunctionConfigs) -> Option<Time> {
    configs.changed.map(|at| Time::from_millis(u64::try_from(at.as_millisecond()).unwrap()))
}

/// The time to live of the first object's pods, in seconds.
fn ttl(configs: &FunctionConfigs) -> u64 {
    configs.iter().next().unwrap().limits().ttl.unwrap().as_secs()
}

#[test]
fn all_objects_are_in_effect() {
    let mut objects = objects();
    assert_eq!(objects.configs(NOW), None, "there is no object yet");
    objects.apply(object("b", 2, &json!({})));
    objects.apply(object("a", 3, &json!({})));
    let configs = objects.configs(NOW).unwrap();
    assert_eq!((names(&configs), time(&configs)), (vec!["b", "a"], Some(moment(3))));
    assert_eq!(objects.configs(NOW), None, "nothing has changed");
    assert_eq!(objects.counts(), Counts { objects: 2, problems: 0, broken: 0 });

    objects.apply(Object { observed: Some(1), error: "of another".into(), ..object("a", 3, &json!({})) });
    assert_eq!(objects.configs(NOW), None, "a changed status is no new configuration");
    assert_eq!(written(&objects, "a"), None);
}

#[test]
fn the_last_valid_state_of_an_invalid_object_stays_in_effect() {
    let mut objects = objects();
    let good = object("a", 1, &json!({"timeToLive": "5m"}));
    objects.apply(good.clone());
    assert_eq!(ttl(&objects.configs(NOW).unwrap()), 300);

    let broken = changed(good.clone(), 2, 9, json!({"timeToLive": "soon"}));
    objects.apply(broken.clone());
    assert_eq!(objects.configs(NOW), None, "its last valid state");
    assert_eq!(objects.counts(), Counts { objects: 1, problems: 1, broken: 1 });
    let Some(Write::Status { observed: None, error: Some(error) }) = written(&objects, "a") else {
        panic!("no error")
    };
    assert!(error.contains("spec.podExecutor.timeToLive"), "{error}");
    let of_other = objects.write_to("a", &objects.entries["a"], &OwnedShards::None);
    assert_eq!(of_other, None, "only its owner");

    objects.apply(changed(good.clone(), 4, 11, json!({"timeToLive": "6m"})));
    let configs = objects.configs(NOW).unwrap();
    assert_eq!((ttl(&configs), time(&configs)), (360, Some(moment(11))));
    assert_eq!(objects.counts(), Counts { objects: 1, problems: 0, broken: 0 });
    assert_eq!(written(&objects, "a"), Some(observed(4)));

    objects.apply(another(changed(good, 1, 12, json!({"timeToLive": "soon"}))));
    assert_eq!(
        names(&objects.configs(NOW).unwrap()),
        Vec::<&str>::new(),
        "a new object has no earlier state"
    );
}

#[test]
fn every_object_is_parsed_again_after_a_change_of_semantics() {
    let constraint = Setting::new(TagSemantics::Constraint, Source::Schema);
    let mut objects = Objects::new(PREFIX.to_owned(), Setting::new(TagSemantics::Exact, Source::NoSchema));
    objects.apply(object("a", 1, &json!({"tags": ["~0.2"]})));
    objects.apply(object("b", 2, &json!({"tags": ["no tag!"]})));
    let first = objects.configs(NOW).unwrap();
    assert_eq!(first.semantics, Some(Setting::new(TagSemantics::Exact, Source::NoSchema)));
    assert_eq!(names(&first), ["a", "b"]);

    objects.set_semantics(constraint.clone());
    let configs = objects.configs(NOW).unwrap();
    assert_eq!((names(&configs), configs.semantics.as_ref()), (vec!["a"], Some(&constraint)));
    assert_eq!(time(&configs), Some(NOW), "the configuration is newer");
    assert_eq!(objects.counts(), Counts { objects: 2, problems: 1, broken: 1 });

    objects.set_semantics(constraint);
    assert_eq!(objects.configs(NOW), None, "nothing has changed");
    objects.set_semantics(Setting::new(TagSemantics::Exact, Source::Schema));
    assert_eq!(names(&objects.configs(NOW).unwrap()), ["a", "b"]);
}

/// The schema of newer Porch has no `functionRunnerObservedGeneration`: the API server drops it.
#[test]
fn a_pruned_status_field_is_written_once() {
    let mut objects = objects();
    let there = object("a", 1, &json!({}));
    objects.apply(there.clone());
    objects.configs(NOW);
    assert_eq!(written(&objects, "a"), Some(observed(1)));
    objects.record_write("a", &observed(1), true);
    let error = Object { error: "of another".into(), ..there.clone() };
    for event in [there.clone(), error, there.clone()] {
        objects.apply(event);
        assert_eq!(written(&objects, "a"), None);
    }

    let edited = changed(there.clone(), 2, 9, json!({"timeToLive": "5m"}));
    objects.apply(edited.clone());
    assert_eq!(written(&objects, "a"), Some(observed(2)), "once for each generation");
    objects.record_write("a", &observed(2), true);

    // Every version of the schema has the field `error`.
    objects.apply(changed(edited, 3, 10, json!({"timeToLive": "soon"})));
    let Some(broken @ Write::Status { observed: None, error: Some(_) }) = written(&objects, "a") else {
        panic!("no error")
    };
    objects.record_write("a", &broken, true);
    assert_eq!(written(&objects, "a"), None);

    objects.apply(another(there));
    assert_eq!(written(&objects, "a"), Some(observed(1)));
}

#[test]
fn a_deletion_creates_a_newer_configuration() {
    let mut objects = objects();
    for (name, second) in [("a", 1), ("b", 5)] {
        objects.apply(object(name, second, &json!({})));
    }
    assert_eq!(time(&objects.configs(NOW).unwrap()), Some(moment(5)));
    objects.remove("b");
    let configs = objects.configs(NOW).unwrap();
    assert_eq!((names(&configs), time(&configs)), (vec!["a"], Some(NOW)));
    // Clocks may differ, but the configuration's time never goes back.
    objects.apply(object("c", 7, &json!({})));
    assert_eq!(time(&objects.configs(moment(8)).unwrap()), Some(NOW));
    objects.remove("b");
    assert_eq!(objects.configs(NOW), None, "it was already deleted");
}

#[test]
fn an_object_that_is_being_deleted_has_no_effect_and_no_status() {
    let mut objects = objects();
    let mut there = object("a", 1, &json!({}));
    objects.apply(there.clone());
    objects.configs(NOW);
    there.metadata.deletion_timestamp = there.metadata.creation_timestamp.clone();
    there.metadata.finalizers = Some(vec!["other".into(), FINALIZER.into()]);
    objects.apply(there);
    assert_eq!(names(&objects.configs(NOW).unwrap()), Vec::<&str>::new());
    let of_any = objects.write_to("a", &objects.entries["a"], &OwnedShards::None);
    assert_eq!(of_any, Some(Write::Finalizer));
    assert_eq!(objects.counts(), Counts::default());
}

/// No conflict is reported while the meaning of tags is unknown: with another meaning there may be
/// no conflict.
#[test]
fn a_conflict_is_reported_when_the_meaning_of_tags_is_known() {
    let mut objects = Objects::new(PREFIX.to_owned(), Setting::new(TagSemantics::Exact, Source::NoSchema));
    for (name, second) in [("older", 1), ("newer", 2)] {
        let mut object = object(name, second, &json!({"tags": ["v1"]}));
        object.spec["image"] = "same".into();
        objects.apply(object);
    }
    objects.configs(NOW);
    assert_eq!(written(&objects, "newer"), Some(observed(1)));
    objects.set_semantics(Setting::new(TagSemantics::Exact, Source::Schema));
    objects.configs(NOW);
    assert_eq!(written(&objects, "older"), Some(observed(1)));
    let Some(Write::Status { observed: Some(1), error: Some(error) }) = written(&objects, "newer") else {
        panic!("no conflict");
    };
    assert!(error.starts_with("function-runner: ") && error.contains("FunctionConfig older wins"), "{error}");
    assert_eq!(objects.counts(), Counts { objects: 2, problems: 1, broken: 0 });
    // The conflict ends when the other object is deleted.
    objects.remove("older");
    objects.configs(NOW);
    assert_eq!(written(&objects, "newer"), Some(observed(1)));
}

/// A conflicting writer must not cause an endless series of writes.
#[tokio::test(start_paused = true)]
async fn pauses_double_while_another_writer_disagrees_or_writes_fail() {
    for succeeds in [true, false] {
        let mut objects = objects();
        objects.apply(object("a", 1, &json!({})));
        let mut seconds = Vec::new();
        for second in 0..1500 {
            if succeeds {
                // Another writer has removed the observed generation.
                objects.entries.get_mut("a").unwrap().object.observed = None;
            }
            let (at, name, write, _) = objects.next_write(&OwnedShards::All).unwrap();
            if at <= Instant::now() {
                objects.record_write(&name, &write, succeeds);
                seconds.push(second);
            }
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111, 1411]);
    }
}

#[tokio::test(start_paused = true)]
async fn each_object_has_its_own_pause_that_is_reset_after_some_time() {
    let mut objects = objects();
    for name in ["b", "a"] {
        objects.apply(object(name, 1, &json!({})));
    }
    let next = |objects: &Objects| {
        let next = objects.next_write(&OwnedShards::All);
        next.map(|(at, name, ..)| (name, at.saturating_duration_since(Instant::now())))
    };
    assert_eq!(next(&objects), Some(("a".to_owned(), Duration::ZERO)));
    objects.record_write("a", &observed(1), false);
    assert_eq!(next(&objects), Some(("b".to_owned(), Duration::ZERO)));
    objects.record_write("b", &observed(1), true);
    assert_eq!(next(&objects), Some(("a".to_owned(), FIRST_PAUSE)));
    objects.remove("a");
    assert_eq!(next(&objects), None);
    for _ in 0..9 {
        advance(2 * FIRST_PAUSE).await;
        objects.entries.get_mut("b").unwrap().object.observed = None;
        assert_eq!(next(&objects), Some(("b".to_owned(), Duration::ZERO)), "at once");
        objects.record_write("b", &observed(1), true);
    }
}
