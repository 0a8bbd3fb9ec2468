//! What is in effect of FunctionConfigs that come, change, break and go.

use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::super::work::FINALIZER;
use super::*;

const PREFIX: &str = "example.com/functions";
const NOW: Time = Time::from_millis(1_800_000_000_000);

fn known() -> Known {
    Known::new(PREFIX.to_owned(), Setting::new(TagSemantics::Exact, Source::Schema))
}

/// An object that was made in this second of a minute, with this in its podExecutor.
fn object(name: &str, second: u8, pod: Value) -> Object {
    let mut object = json!({
        "metadata": {
            "name": name, "uid": format!("uid-{name}"), "generation": 1,
            "creationTimestamp": format!("2025-01-01T00:00:{second:02}Z"),
        },
        "spec": {"image": name},
    });
    object["spec"]["podExecutor"] = pod;
    from(object)
}

fn from(object: Value) -> Object {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    Object::new(object).unwrap()
}

fn changed(mut object: Object, generation: i64, second: u8, pod: Value) -> Object {
    object.generation = generation;
    object.content["metadata"]["generation"] = generation.into();
    object.content["spec"]["podExecutor"] = pod;
    object.changed = Some(moment(second));
    object
}

fn moment(second: u8) -> Time {
    // 2025-01-01T00:00:00Z
    Time::from_millis(1_735_689_600_000 + u64::from(second) * 1000)
}

fn names(configs: &FunctionConfigs) -> Vec<&str> {
    configs.iter().map(|config| config.name.as_str()).collect()
}

fn time(configs: &FunctionConfigs) -> Option<Time> {
    configs.changed().map(|at| Time::from_millis(u64::try_from(at.as_millisecond()).unwrap()))
}

/// How long pods of the first object live.
fn ttl(configs: &FunctionConfigs) -> u64 {
    configs.iter().next().unwrap().limits().ttl.unwrap().as_secs()
}

#[test]
fn what_is_there_is_in_effect() {
    let mut known = known();
    assert_eq!(known.configs(NOW), None, "nothing was said yet");
    assert_eq!(known.seen(object("b", 2, json!({}))), None);
    assert_eq!(known.seen(object("a", 3, json!({}))), None);
    let configs = known.configs(NOW).unwrap();
    assert_eq!((names(&configs), time(&configs)), (vec!["b", "a"], Some(moment(3))));
    assert_eq!(known.configs(NOW), None, "once");
    assert_eq!(known.counts(), Counts { objects: 2, problems: 0, broken: 0 });
}

#[test]
fn only_what_configures_is_a_change() {
    let mut known = known();
    known.seen(object("a", 1, json!({})));
    known.configs(NOW);
    let mut written = object("a", 1, json!({}));
    (written.observed, written.error, written.resource_version) = (Some(1), "of another".into(), "9".into());
    assert_eq!(known.seen(written), None);
    assert_eq!(known.configs(NOW), None);
    assert_eq!(known.object("a").unwrap().observed, Some(1), "but it is known");
    assert_eq!(known.work("a", true), None);
}

#[test]
fn what_breaks_stays_in_effect_as_it_was() {
    let mut known = known();
    let good = object("a", 1, json!({"timeToLive": "5m"}));
    known.seen(good.clone());
    assert_eq!(ttl(&known.configs(NOW).unwrap()), 300);

    let broken = changed(good.clone(), 2, 9, json!({"timeToLive": "soon"}));
    let Some(Judged::Broken { error, kept: true }) = known.seen(broken.clone()) else {
        panic!("it is broken")
    };
    assert!(error.contains("spec.podExecutor.timeToLive"), "{error}");
    assert_eq!(ttl(&known.configs(NOW).unwrap()), 300);
    assert_eq!(known.counts(), Counts { objects: 1, problems: 1, broken: 1 });
    let work = Work::Status { observed: None, error: Some(format!("function-runner: {error}")) };
    assert_eq!(known.work("a", true), Some(work));
    assert_eq!(known.work("a", false), None);
    // It is said once.
    assert_eq!(known.seen(changed(broken.clone(), 3, 10, json!({"timeToLive": "soon"}))), None);

    assert_eq!(known.seen(changed(good, 4, 11, json!({"timeToLive": "6m"}))), Some(Judged::Mended));
    let configs = known.configs(NOW).unwrap();
    assert_eq!((ttl(&configs), time(&configs)), (360, Some(moment(11))));
    assert_eq!(known.counts(), Counts { objects: 1, problems: 0, broken: 0 });
    assert_eq!(known.work("a", true), Some(Work::Status { observed: Some(4), error: None }));
}

#[test]
fn other_semantics_read_every_object_anew() {
    let constraint = Setting::new(TagSemantics::Constraint, Source::Schema);
    let mut known = Known::new(PREFIX.to_owned(), Setting::new(TagSemantics::Exact, Source::NoSchema));
    known.seen(object("a", 1, json!({"tags": ["~0.2"]})));
    known.seen(object("b", 2, json!({"tags": ["no tag!"]})));
    let first = known.configs(NOW).unwrap();
    assert_eq!(first.semantics(), Some(&Setting::new(TagSemantics::Exact, Source::NoSchema)));
    assert_eq!(names(&first), ["a", "b"]);

    let judged = known.read_tags_as(constraint.clone());
    let [(name, Judged::Broken { error, kept: false })] = &judged[..] else { panic!("{judged:?}") };
    assert_eq!(name, "b");
    assert!(error.contains("spec.podExecutor.tags[0]: \"no tag!\" is no version constraint"), "{error}");
    let configs = known.configs(NOW).unwrap();
    assert_eq!((names(&configs), configs.semantics()), (vec!["a"], Some(&constraint)));
    assert_eq!(time(&configs), Some(NOW), "it is a later configuration");
    assert_eq!(known.counts(), Counts { objects: 2, problems: 1, broken: 1 });

    assert_eq!(known.read_tags_as(constraint), []);
    assert_eq!(known.configs(NOW), None, "nothing has changed");
    assert_eq!(known.read_tags_as(Setting::new(TagSemantics::Exact, Source::Schema)), []);
    assert_eq!(names(&known.configs(NOW).unwrap()), ["a", "b"]);
}

/// The schema of newer Porch has no `functionRunnerObservedGeneration`: the API server drops it.
#[test]
fn a_status_field_that_is_pruned_is_written_once() {
    let mut known = known();
    let there = object("a", 1, json!({}));
    known.seen(there.clone());
    known.configs(NOW);
    let applied = Work::Status { observed: Some(1), error: None };
    assert_eq!(known.work("a", true), Some(applied.clone()));
    known.record_write("a", &applied);
    let error = Object { error: "of another".into(), ..there.clone() };
    for event in [there.clone(), error, there.clone()] {
        known.seen(event);
        assert_eq!(known.work("a", true), None);
    }

    let edited = changed(there.clone(), 2, 9, json!({"timeToLive": "5m"}));
    known.seen(edited.clone());
    let applied = Work::Status { observed: Some(2), error: None };
    assert_eq!(known.work("a", true), Some(applied.clone()), "once for each generation");
    known.record_write("a", &applied);

    // The error has a field in every schema.
    known.seen(changed(edited, 3, 10, json!({"timeToLive": "soon"})));
    let Some(broken @ Work::Status { observed: None, error: Some(_) }) = known.work("a", true) else {
        panic!("it is broken")
    };
    known.record_write("a", &broken);
    assert_eq!(known.work("a", true), Some(broken), "until it is there");

    // Another object of that name.
    known.seen(Object { uid: "another".into(), ..there });
    assert_eq!(known.work("a", true), Some(Work::Status { observed: Some(1), error: None }));
}

#[test]
fn another_object_of_the_name_inherits_nothing() {
    let mut known = known();
    let good = object("a", 1, json!({"timeToLive": "5m"}));
    known.seen(good.clone());
    let other = Object { uid: "another".into(), ..changed(good, 1, 9, json!({"timeToLive": "soon"})) };
    assert!(matches!(known.seen(other), Some(Judged::Broken { kept: false, .. })));
    assert_eq!(names(&known.configs(NOW).unwrap()), Vec::<&str>::new());
    assert_eq!(known.counts(), Counts { objects: 1, problems: 1, broken: 1 });
}

#[test]
fn an_end_is_a_later_configuration() {
    let mut known = known();
    for (name, second) in [("a", 1), ("b", 5)] {
        known.seen(object(name, second, json!({})));
    }
    assert_eq!(time(&known.configs(NOW).unwrap()), Some(moment(5)));
    known.gone("b");
    let configs = known.configs(NOW).unwrap();
    assert_eq!((names(&configs), time(&configs)), (vec!["a"], Some(NOW)));
    // Clocks differ, but time does not go back.
    known.seen(object("c", 7, json!({})));
    assert_eq!(time(&known.configs(moment(8)).unwrap()), Some(NOW));
    known.gone("a");
    known.gone("c");
    let later = NOW + std::time::Duration::from_secs(9);
    let configs = known.configs(later).unwrap();
    assert_eq!((names(&configs), time(&configs)), (vec![], Some(later)));
    known.gone("c");
    assert_eq!(known.configs(later), None, "it was gone already");
}

#[test]
fn what_is_being_deleted_has_no_effect_and_no_status() {
    let mut known = known();
    let there = object("a", 1, json!({}));
    known.seen(there.clone());
    known.configs(NOW);
    let ending = Object { ending: true, finalizers: vec!["other".into(), FINALIZER.into()], ..there };
    assert_eq!(known.seen(ending), None);
    assert_eq!(names(&known.configs(NOW).unwrap()), Vec::<&str>::new());
    assert_eq!(known.work("a", false), Some(Work::Finalizer { index: 1 }));
    assert_eq!(known.counts(), Counts::default());
    // One that never could be used goes as well.
    let broken = object("b", 1, json!({"timeToLive": "soon"}));
    known.seen(Object { ending: true, finalizers: vec![FINALIZER.into()], ..broken });
    assert_eq!(known.work("b", true), Some(Work::Finalizer { index: 0 }));
    known.gone("b");
    assert_eq!(known.work("b", true), None);
}

#[test]
fn who_loses_a_conflict_is_told() {
    let mut known = known();
    let of_image = |name: &str, second| {
        let mut object = object(name, second, json!({"tags": ["v1"]}));
        object.content["spec"]["image"] = "same".into();
        object
    };
    known.seen(of_image("older", 1));
    known.seen(of_image("newer", 2));
    known.configs(NOW);
    assert_eq!(known.work("older", true), Some(Work::Status { observed: Some(1), error: None }));
    let Some(Work::Status { observed: Some(1), error: Some(error) }) = known.work("newer", true) else {
        panic!("it loses");
    };
    assert!(
        error.starts_with("function-runner: ") && error.contains("FunctionConfig older counts"),
        "{error}"
    );
    assert_eq!(known.counts(), Counts { objects: 2, problems: 1, broken: 0 });
    // Until the other is gone.
    known.gone("older");
    known.configs(NOW);
    assert_eq!(known.work("newer", true), Some(Work::Status { observed: Some(1), error: None }));
}

/// With the other meaning of tags there may be no conflict.
#[test]
fn no_conflict_is_told_while_it_is_not_known_what_tags_mean() {
    let mut known = Known::new(PREFIX.to_owned(), Setting::new(TagSemantics::Exact, Source::NoSchema));
    for (name, second) in [("older", 1), ("newer", 2)] {
        let mut object = object(name, second, json!({"tags": ["v1"]}));
        object.content["spec"]["image"] = "same".into();
        known.seen(object);
    }
    known.seen(object("broken", 3, json!({"timeToLive": "soon"})));
    known.configs(NOW);
    assert_eq!(known.work("newer", true), Some(Work::Status { observed: Some(1), error: None }));
    let broken = known.work("broken", true);
    assert!(matches!(broken, Some(Work::Status { error: Some(_), .. })), "whatever tags mean");
    assert_eq!(known.counts(), Counts { objects: 3, problems: 1, broken: 1 });
    known.read_tags_as(Setting::new(TagSemantics::Exact, Source::Schema));
    known.configs(NOW);
    assert!(matches!(known.work("newer", true), Some(Work::Status { error: Some(_), .. })));
}

#[test]
fn a_list_tells_what_is_gone() {
    let mut known = known();
    for name in ["a", "b", "c"] {
        known.seen(object(name, 1, json!({})));
    }
    let these = ["b".to_owned(), "d".to_owned()].into();
    assert_eq!(known.others(&these), ["a", "c"]);
}

#[test]
fn there_is_a_limit() {
    let mut known = known();
    let mut one = object("x", 1, json!({}));
    for number in 0..=MAX_OBJECTS {
        one.name = format!("x{number}");
        let judged = known.seen(one.clone());
        assert_eq!(judged, (number == MAX_OBJECTS).then_some(Judged::TooMany), "{number}");
    }
    assert_eq!(known.counts().objects, MAX_OBJECTS);
    // Those that count go on counting.
    one.name = "x0".into();
    one.observed = Some(1);
    assert_eq!(known.seen(one), None);
    assert_eq!(known.object("x0").unwrap().observed, Some(1));
}
