//! The status page's data, computed from the router's data and the runners' reports.

use porch_fn_proto::shard::{self, DescribeResponse, ImagePods};

use porch_fn_numbers::Recorder;

use super::*;
use crate::answers::{Answers, MAX_FAILURES, MAX_OF_ONE, MAX_TEXT};

const TIME_UP: &str = "DEADLINE_EXCEEDED";
pub(crate) const IMAGE: &str = "example.com/fn/set-labels:v1";

pub(crate) fn info(address: &str, state: &str) -> ShardInfo {
    let (address, state) = (address.to_owned(), state.to_owned());
    ShardInfo { address, state, listed: true, in_flight: 1, load: 2, calls: 3, failures: 4, owned: 5 }
}

pub(crate) fn known(image: &str, owner: &str, in_flight: usize) -> ImageInfo {
    ImageInfo { image: image.to_owned(), owner: owner.to_owned(), in_flight }
}

fn pods(image: &str, ready: u32) -> ImagePods {
    ImagePods {
        image: image.to_owned(),
        ready,
        starting: 1,
        in_flight: 2,
        waiting: 3,
        ..ImagePods::default()
    }
}

fn report(images: Vec<ImagePods>) -> DescribeResponse {
    DescribeResponse {
        version: "9.9.9".to_owned(),
        pods_scope: "all".to_owned(),
        exec_hash: "abc".to_owned(),
        name: "function-runner-0".to_owned(),
        started_ms: 900,
        images,
        ..DescribeResponse::default()
    }
}

pub(crate) fn ring() -> Ring {
    Ring::new(["a:1", "b:1"])
}

/// What a router with these runners and images knows.
pub(crate) fn known_of(shards: Vec<ShardInfo>, images: Vec<ImageInfo>) -> Known {
    let shards = Shards {
        ring: RingInfo { scheme: 1, virtual_nodes: 256 },
        shards,
        images,
        discovery_error: Some("no such name".to_owned()),
    };
    let router = RouterInfo { name: "router-0".to_owned(), ..RouterInfo::default() };
    Known {
        shards,
        ring: Arc::new(ring()),
        reachable: Vec::new(),
        failures: Vec::new(),
        router,
        recorded: Recordings::default(),
    }
}

/// The status with two runners, `a:1` and `b:1`, and their answers.
fn status(images: Vec<ImageInfo>, answers: &Answers, failures: Vec<Failure>) -> Status {
    let known = known_of(vec![info("a:1", "healthy"), info("b:1", "draining")], images);
    Status::of(Known { failures, ..known }, answers, 1000)
}

/// Calls of 2 ms at the time zero.
fn recorded(calls: &[(&str, bool)]) -> BTreeMap<Arc<str>, Recorded> {
    let mut recorder = Recorder::default();
    for (image, failed) in calls {
        recorder.record(image, Duration::ZERO, Duration::from_millis(2), *failed);
    }
    recorder.recorded(Duration::ZERO)
}

#[test]
fn numbers_of_images_runners_and_totals_have_the_waits_that_runners_report() {
    let mut answers = Answers::default();
    let waits = |image: &str, bucket| shard::QueueWaits {
        image: image.to_owned(),
        buckets: vec![bucket, u32::MAX],
        counts: vec![1, 1],
    };
    let idle = ImagePods { in_flight: 0, waiting: 0, ..pods("p", 1) };
    let waited =
        DescribeResponse { queue_waits: vec![waits(IMAGE, 5), waits("exec", 7)], ..report(vec![idle]) };
    answers.add("a:1", Some(waited));
    let runner = known_of(vec![info("a:1", "healthy")], Vec::new());
    let by_image = recorded(&[(IMAGE, true), (IMAGE, false), ("", true)]);
    let by_runner = HashMap::from([("a:1".to_owned(), by_image[IMAGE].clone())]);
    let page = Status::of(Known { recorded: Recordings { by_image, by_runner }, ..runner }, &answers, 0);
    let names: Vec<_> = page.images.iter().map(|image| image.info.image.as_str()).collect();
    // The image with calls is first, although only the other one has pods. The rest is last.
    assert_eq!(names, [IMAGE, "p", ""]);
    assert_eq!(page.totals.images, 2);
    let read = |numbers: &Numbers| {
        let minute = &numbers.minute;
        let p50 = minute.p50_ms.unwrap();
        assert!((1.9..2.1).contains(&p50), "{p50}");
        (numbers.calls, numbers.failed, minute.queue_p50_ms, minute.queue_p95_ms)
    };
    assert_eq!(read(&page.images[0].numbers), (2, 1, Some(0.005), Some(0.005)));
    assert_eq!(page.images[1].numbers, Numbers::default());
    assert_eq!(read(&page.images[2].numbers), (1, 1, Some(0.007), Some(0.007)));
    assert_eq!(read(&page.shards[0].numbers), (2, 1, Some(0.005), Some(0.007)));
    assert_eq!(read(&page.totals.numbers), (3, 2, Some(0.005), Some(0.007)));
}

#[test]
fn a_runner_is_shown_with_its_report() {
    let mut answers = Answers::default();
    answers.add("a:1", Some(report(vec![pods(IMAGE, 2)])));
    answers.add("b:1", None);
    let owner = ring().owner(IMAGE).unwrap().to_string();
    let page = status(vec![known(IMAGE, &owner, 7)], &answers, Vec::new());
    let json = serde_json::to_value(&page).unwrap();
    let expected = serde_json::json!({
        "address": "a:1", "state": "healthy", "in_flight": 1, "load": 2, "calls": 3, "failures": 4, "owned": 5,
        "share": page.shards[0].share, "pods": if owner == "a:1" { 2 } else { 0 },
        "told": "yes", "version": "9.9.9", "exec_hash": "abc", "name": "function-runner-0", "started_ms": 900,
        "numbers": Recorded::default().numbers(),
    });
    assert_eq!(json["shards"][0], expected);
    let older = &json["shards"][1];
    assert_eq!(
        (&older["told"], &older["name"], &older["started_ms"]),
        (&"older".into(), &"".into(), &0.into())
    );
    assert!((page.shards[0].share + page.shards[1].share - 1.0).abs() < 1e-9);
    assert_eq!((&json["ring"]["scheme"], &json["ring"]["virtual_nodes"]), (&1.into(), &256.into()));
    assert_eq!(page.ring.slices.iter().map(|(_, length)| length).sum::<u16>(), 720);
    let expected = serde_json::json!([{
        "image": IMAGE, "owner": owner, "in_flight": 7,
        "ready": 2, "starting": 1, "terminating": 0, "in_pods": 2, "waiting": 3, "numbers": Numbers::default(),
    }]);
    assert_eq!(json["images"], expected);
    let expected = Totals {
        images: 1,
        ready: 2,
        starting: 1,
        terminating: 0,
        waiting: 3,
        numbers: Recorded::default().numbers(),
    };
    assert_eq!(page.totals, expected);
    assert_eq!(page.discovery_error.as_deref(), Some("no such name"));
    assert_eq!(page.at_ms, 1000);
}

#[test]
fn an_image_that_only_runners_know_has_the_owner_of_its_calls() {
    let mut answers = Answers::default();
    let (tagged, alone) = ("example.com/fn/set-labels:v1.2", "example.com/fn/other:v1");
    answers.add("a:1", Some(report(vec![pods(tagged, 1), pods(alone, 1)])));
    // Calls select the image by its repository and a constraint.
    let repository = "example.com/fn/set-labels";
    let owner = |key: &str| ring().owner(key).unwrap().to_string();
    let page = status(vec![known(repository, &owner(repository), 1)], &answers, Vec::new());
    let found = |image: &str| page.images.iter().find(|one| one.info.image == image).unwrap();
    assert_eq!(found(tagged).info.owner, owner(repository));
    assert_eq!(found(alone).info.owner, owner(alone));
    assert_eq!((found(repository).ready, found(repository).info.in_flight), (0, 1));
    assert_eq!(page.totals.images, 3);
}

#[test]
fn only_the_busiest_images_are_listed_but_all_are_counted() {
    let mut answers = Answers::default();
    for shard in 0..2 {
        let images = (0..900).map(|n| pods(&format!("example.com/f{shard}-{n}:v1"), 1)).collect();
        answers.add(["a:1", "b:1"][shard], Some(report(images)));
    }
    let busy = "example.com/busy:v1";
    let page = status(vec![known(busy, "a:1", 100)], &answers, Vec::new());
    assert_eq!((page.images.len(), page.truncated), (MAX_IMAGES, true));
    assert_eq!(page.images[0].info.image, busy);
    assert_eq!((page.totals.images, page.totals.ready), (1801, 1800));
}

#[test]
fn failures_of_all_servers_are_one_list_with_each_timeout_once() {
    let mut answers = Answers::default();
    let failure = |at_ms, code: &str, image: &str| shard::Failure {
        at_ms,
        count: 1,
        image: image.to_owned(),
        code: code.to_owned(),
        text: "report".to_owned(),
    };
    let failures = vec![failure(5, TIME_UP, IMAGE), failure(9, "INTERNAL", IMAGE)];
    answers.add("a:1", Some(DescribeResponse { failures, ..report(Vec::new()) }));
    let own = |at_ms, shard: &str, code: &str| Failure {
        at_ms,
        count: 2,
        by: String::new(),
        router: String::new(),
        shard: shard.to_owned(),
        image: IMAGE.to_owned(),
        code: code.to_owned(),
        text: "own".to_owned(),
    };
    let own = vec![own(6, "a:1", TIME_UP), own(7, "b:1", TIME_UP), own(8, "a:1", "BROKEN")];
    let page = status(Vec::new(), &answers, own);
    let shown: Vec<_> =
        page.failures.iter().map(|one| (one.at_ms, &*one.by, &*one.shard, &*one.code)).collect();
    let expected = [
        (9, "runner", "a:1", "INTERNAL"),
        (8, "router", "a:1", "BROKEN"),
        (7, "router", "b:1", TIME_UP),
        (5, "runner", "a:1", TIME_UP),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn notes_report_differences_between_runners() {
    let ring = |members: &[&str]| members.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut answers = Answers::default();
    let same = DescribeResponse { has_peers: true, ring: ring(&["a:1", "b:1"]), ..report(Vec::new()) };
    answers.add("a:1", Some(same.clone()));
    answers.add("b:1", Some(same.clone()));
    assert_eq!(status(Vec::new(), &answers, Vec::new()).notes, Vec::<String>::new());

    let other = DescribeResponse { exec_hash: String::new(), ring: ring(&["b:1"]), ..same };
    answers.add("b:1", Some(other));
    let notes = status(Vec::new(), &answers, Vec::new()).notes;
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("(1 with no config, 1 with abc)"), "{}", notes[0]);
    assert!(notes[1].starts_with("1 of 2 runners see other members"), "{}", notes[1]);

    answers.add("b:1", None);
    let notes = status(Vec::new(), &answers, Vec::new()).notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("1 of 2 runners cannot report"), "{}", notes[0]);
}

#[test]
fn pods_in_the_same_scope_are_counted_once() {
    let mut answers = Answers::default();
    // A runner that does not use a pod does not know whether the pod is ready.
    for (runner, scope, ready) in
        [("a", "cluster", 0), ("b", "cluster", 2), ("c", "other", 1), ("d", "", 1), ("e", "", 1)]
    {
        let report = DescribeResponse { pods_scope: scope.to_owned(), ..report(vec![pods("f", ready)]) };
        answers.add(runner, Some(report));
    }
    let found = &answers.images["f"];
    assert_eq!((found.pods(), found.in_flight, found.waiting), ([5, 4, 0], 10, 15));
}

#[test]
fn an_image_has_a_start_error_until_a_runner_reports_a_later_start() {
    let failed = |at_ms, text: &str| ImagePods {
        image: IMAGE.to_owned(),
        start_error: Some(shard::StartError { at_ms, text: text.to_owned() }),
        ..ImagePods::default()
    };
    let started =
        |started_at_ms| ImagePods { image: IMAGE.to_owned(), started_at_ms, ..ImagePods::default() };
    for (reports, expected) in [
        (vec![failed(5, "first"), failed(7, "second"), failed(6, "third")], Some((7, "second"))),
        (vec![failed(5, "first"), started(4)], Some((5, "first"))),
        (vec![failed(5, "first"), started(6)], None),
        (vec![started(6), failed(5, "first")], None),
        // The last start of an image without pods is not shown.
        (vec![started(6)], None),
    ] {
        let mut answers = Answers::default();
        for (runner, one) in reports.into_iter().enumerate() {
            answers.add(&runner.to_string(), Some(report(vec![one])));
        }
        let page = status(Vec::new(), &answers, Vec::new());
        let shown = page.images.first().and_then(|image| image.start_error.as_ref());
        assert_eq!(shown.map(|error| (error.at_ms, &*error.text)), expected);
        assert_eq!(page.images.len(), usize::from(expected.is_some()));
    }
    let mut answers = Answers::default();
    answers.add("a:1", Some(report(vec![failed(5, &"x".repeat(5000))])));
    let page = status(Vec::new(), &answers, Vec::new());
    let json = serde_json::to_value(&page.images[0]).unwrap();
    assert_eq!(json["start_error"]["at_ms"], 5);
    assert_eq!(json["start_error"]["text"].as_str().unwrap().len(), 1000);
}

#[test]
fn answers_are_bounded() {
    let mut answers = Answers::default();
    for runner in 0..20 {
        let images = (0..2 * MAX_OF_ONE).map(|n| pods(&format!("{runner}-{n}{}", "x".repeat(1000)), 1));
        let failure = |at_ms| shard::Failure { at_ms, text: "y".repeat(5000), ..Default::default() };
        let report = DescribeResponse {
            images: images.collect(),
            failures: (0..500).map(failure).collect(),
            ring: (0..5000).map(|n| n.to_string()).collect(),
            has_peers: true,
            ..Default::default()
        };
        answers.add(&runner.to_string(), Some(report));
    }
    assert_eq!((answers.images.len(), answers.truncated), (crate::answers::MAX_IMAGES, true));
    assert!(answers.images.keys().all(|name| name.len() == MAX_TEXT));
    assert_eq!(answers.failures.len(), MAX_FAILURES);
    // Only the latest failures of each runner are kept.
    assert!(answers.failures.iter().all(|one| one.at_ms >= 490 && one.text.len() == MAX_TEXT));
    assert_eq!(answers.runners["3"].as_ref().unwrap().ring.len(), MAX_OF_ONE);
}

#[test]
fn the_page_loads_nothing_else_and_puts_no_data_into_html() {
    let page = [PAGE, SCRIPT, include_str!("page.css")].concat();
    for word in
        ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=\"", "onclick="]
    {
        assert!(!page.contains(word), "{word}");
    }
    assert!(
        !PAGE.contains("<script>") && !PAGE.contains("<style>"),
        "the policy forbids inline scripts and styles"
    );
    // The only URL is SVG's namespace, which is not loaded.
    let addresses: Vec<_> = page.split("://").skip(1).map(|rest| &rest[..18]).collect();
    assert!(addresses.iter().all(|address| *address == "www.w3.org/2000/sv"), "{addresses:?}");
}
