//! The data of several routers as one page: what is added, what is left out, and what a note says.

use std::time::Duration;

use porch_fn_numbers::{Numbers, Recorder};
use porch_fn_ring::Ring;

use super::*;
use crate::answers::Answers;
use crate::shards::{RingInfo, ShardInfo};
use crate::{Shards, own_status};

fn shard(address: &str, calls: usize) -> ShardInfo {
    let (address, state) = (address.to_owned(), "healthy".to_owned());
    ShardInfo { address, state, listed: true, in_flight: 1, load: 9, calls, failures: 2, owned: 0 }
}

/// A router with these runners, calls and images.
fn known(name: &str, shards: &[(&str, usize)], images: &[(&str, usize)]) -> Known {
    let ring = Ring::new(shards.iter().map(|(address, _)| *address));
    let images = images.iter().map(|(image, in_flight)| ImageInfo {
        image: (*image).to_owned(),
        owner: ring.owner(image).unwrap().to_string(),
        in_flight: *in_flight,
    });
    let failure = Failure {
        at_ms: 5,
        count: 3,
        by: String::new(),
        router: String::new(),
        shard: "a:1".to_owned(),
        image: "f:v1".to_owned(),
        code: "BROKEN".to_owned(),
        text: name.to_owned(),
    };
    // Each router had one call of f:v1 at b:1, which took 2 ms.
    let mut recorder = Recorder::default();
    recorder.record("f:v1", Duration::ZERO, Duration::from_millis(2), true);
    let by_image = recorder.recorded(Duration::ZERO);
    let by_runner = HashMap::from([("b:1".to_owned(), by_image["f:v1"].clone())]);
    Known {
        recorded: Recordings { by_image, by_runner },
        shards: Shards {
            ring: RingInfo { scheme: 1, virtual_nodes: 256 },
            shards: shards.iter().map(|(address, calls)| shard(address, *calls)).collect(),
            images: images.collect(),
            discovery_error: None,
        },
        ring: Arc::new(ring),
        reachable: Vec::new(),
        failures: vec![failure],
        router: RouterInfo {
            name: name.to_owned(),
            address: "0.0.0.0:9464".to_owned(),
            count: 2,
            peers: Some(Peers { addresses: ["r0:9464".to_owned()].into(), error: None }),
        },
    }
}

/// The own page of the router `name`, whose process has the same name.
fn own(name: &str, known: Known) -> (String, Answer) {
    // As it is sent.
    let json = serde_json::to_string(&own_status(known, name)).unwrap();
    (format!("{name}:9464"), Ok(serde_json::from_str(&json).unwrap()))
}

fn joined(mut this: Known, answers: Vec<(String, Answer)>) -> Status {
    let (routers, notes) = join(&mut this, "r0", answers);
    let status = Status::of(this, &Answers::default(), 1);
    Status { routers, notes, ..status }
}

fn states(status: &Status) -> Vec<(&str, &str, &str)> {
    status.routers.iter().map(|one| (&*one.name, &*one.address, &*one.state)).collect()
}

#[test]
fn calls_and_failures_of_all_routers_are_added() {
    let runners = [("a:1", 10), ("b:1", 20)];
    let this = known("r0", &runners, &[("f:v1", 1), ("g:v1", 0)]);
    let peer = known("r1", &[("b:1", 5), ("gone:1", 7)], &[("f:v1", 4), ("h:v1", 2)]);
    let page = joined(this, vec![own("r1", peer)]);
    let numbers = page.shards.iter().map(|shard| &shard.info);
    let numbers: Vec<_> =
        numbers.map(|one| (&*one.address, one.calls, one.failures, one.in_flight, one.load)).collect();
    assert_eq!(numbers, [("a:1", 10, 2, 1, 9), ("b:1", 25, 4, 2, 9)]);
    let images: Vec<_> = page.images.iter().map(|one| (&*one.info.image, one.info.in_flight)).collect();
    assert_eq!(images, [("f:v1", 5), ("h:v1", 2), ("g:v1", 0)]);
    let owner = Ring::new(["a:1", "b:1"]).owner("h:v1").unwrap().to_string();
    assert_eq!(page.images[1].info.owner, owner);
    assert_eq!(page.shards.iter().find(|one| one.info.address == owner).unwrap().info.owned, 1);
    assert_eq!((page.totals.images, page.truncated), (3, false));
    let numbers = [&page.images[0].numbers, &page.shards[1].numbers, &page.totals.numbers];
    for Numbers { calls, failed, minute, .. } in numbers {
        assert_eq!((calls, failed, minute.calls, minute.failed), (&2, &2, 2, 2));
        assert!((1.9..2.1).contains(&minute.p95_ms.unwrap()), "{minute:?}");
    }
    let failures: Vec<_> =
        page.failures.iter().map(|one| (&*one.by, &*one.router, one.count, &*one.text)).collect();
    assert_eq!(failures, [("router", "r0", 3, "r0"), ("router", "r1", 3, "r1")]);
    let expected = [("r0", "0.0.0.0:9464", "included"), ("r1", "r1:9464", "included")];
    assert_eq!((states(&page), page.notes.len()), (expected.to_vec(), 0));
}

#[test]
fn the_calls_of_all_other_images_are_one_entry_for_all_routers() {
    let router = |name| {
        let mut recorder = Recorder::default();
        recorder.record("", Duration::ZERO, Duration::from_millis(2), false);
        let mut router = known(name, &[("a:1", 10)], &[]);
        router.recorded.by_image = recorder.recorded(Duration::ZERO);
        router
    };
    let page = joined(router("r0"), vec![own("r1", router("r1"))]);
    let images = page.images.iter().map(|one| (&*one.info.image, &*one.info.owner, one.numbers.calls));
    assert_eq!(images.collect::<Vec<_>>(), [("", "", 2)]);
    assert_eq!((page.totals.images, page.shards[0].info.owned), (0, 0));
}

#[test]
fn a_router_counts_once_although_it_finds_itself_or_another_has_two_addresses() {
    let runners = [("a:1", 10)];
    let router = |name| own(name, known(name, &runners, &[]));
    let (_, twice) = router("r1");
    let answers = vec![router("r0"), router("r1"), ("[fd00::1]:9464".to_owned(), twice)];
    let page = joined(known("r0", &runners, &[]), answers);
    assert_eq!(states(&page), [("r0", "r0:9464", "included"), ("r1", "r1:9464", "included")]);
    assert_eq!((page.shards[0].info.calls, page.notes.len()), (20, 0));
}

#[test]
fn notes_say_which_part_is_shown() {
    let runners = [("a:1", 10)];
    let this = || known("r0", &runners, &[]);
    let (address, older) = own("r2", known("r2", &runners, &[]));
    let older = Status { instance: String::new(), router: String::new(), ..older.unwrap() };
    let older = (address, Ok(Status { version: "0.1.0".to_owned(), ..older }));
    let silent = |name: &str| (format!("{name}:9464"), Err("it did not answer within 1s".to_owned()));
    let page = joined(this(), vec![silent("r1"), older]);
    assert_eq!(
        states(&page),
        [("r0", "0.0.0.0:9464", "included"), ("", "r1:9464", "unreachable"), ("", "r2:9464", "older")]
    );
    assert_eq!(page.shards[0].info.calls, 10);
    let expected = "The numbers of calls are those of 1 of 3 routers, because routers do not answer (r1:9464: it did not \
                    answer within 1s). Check";
    assert!(page.notes[0].starts_with(expected), "{}", page.notes[0]);
    let expected = "The numbers of calls are those of 1 of 3 routers, because 1 router is of an older version, such as \
                    0.1.0 at r2:9464. Upgrade them.";
    assert_eq!(page.notes[1..], [expected]);

    // A note names only a few.
    let page = joined(this(), (0..9).map(|number| silent(&format!("s{number}"))).collect());
    assert!(page.notes[0].contains("1 of 10 routers") && page.notes[0].contains("; and 6 more)"));

    let mut many = this();
    let addresses = (0..70).map(|number| format!("r{number}:9464")).collect();
    many.router.peers = Some(Peers { addresses, error: Some("SERVFAIL".to_owned()) });
    let page = joined(many, Vec::new());
    assert!(page.notes[0].contains("1 of 7 routers, because at most 64"), "{}", page.notes[0]);
    assert_eq!(page.notes[1], "Routers may be missing: SERVFAIL. Check --router-peers.");

    let mut lost = this();
    lost.router.peers = Some(Peers::default());
    let page = joined(lost, Vec::new());
    assert!(page.notes[0].contains("discovery finds no ready router"), "{:?}", page.notes);
}

#[test]
fn without_peers_a_router_says_that_it_is_one_of_several() {
    let mut this = known("r0", &[("a:1", 10)], &[]);
    this.router.peers = None;
    let (routers, notes) = join(&mut this, "r0", Vec::new());
    assert_eq!(routers, []);
    assert!(notes[0].contains("this router, one of 2 (--router-count)"), "{}", notes[0]);
    this.router.count = 1;
    assert_eq!(join(&mut this, "r0", Vec::new()), (Vec::new(), Vec::new()));
}

#[test]
fn what_a_peer_sends_is_bounded() {
    let long = "x".repeat(5000);
    let images: Vec<_> = (0..2 * MAX_IMAGES).map(|number| format!("{number}{long}")).collect();
    let images: Vec<_> = images.iter().map(|image| (&**image, 1)).collect();
    let mut peer = known(&long, &[("a:1", 1)], &images);
    peer.failures[0].image.clone_from(&long);
    let mut this = known("r0", &[("a:1", 1)], &[("f:v1", 0)]);
    join(&mut this, "r0", vec![own("r1", peer)]);
    assert_eq!(this.shards.images.len(), 1 + MAX_IMAGES);
    let texts = this.shards.images.iter().map(|image| &image.image).chain([&this.failures[1].image]);
    assert!(texts.map(String::len).all(|length| length <= crate::answers::MAX_TEXT));
    let page = Status::of(this, &Answers::default(), 1);
    assert_eq!((page.images.len(), page.truncated), (MAX_IMAGES, true));
}
