//! The status page's data: how calls change it, and how many requests the page sends to runners.

use futures_util::future::join_all;
use h2::Reason;
use porch_fn_status_page::{ImageDetail, Numbers, Status};
use porch_fn_tests::caller::Caller;
use porch_fn_tests::fake_runner::{Answer, FakeRunner, How, Point, Reply, soon};
use porch_fn_tests::fleet::{Fleet, start_router};
use porch_fn_tests::process::{get_json, wait_runners_healthy};
use serde_json::Value;
use tokio::time::{Duration, Instant, sleep};
use tonic::Code;

async fn status(fleet: &Fleet) -> Status {
    let (code, page) = fleet.get("/status.json").await;
    assert_eq!(code, 200, "{page}");
    serde_json::from_str(&page).unwrap()
}

/// Waits until the page has the expected value of `told` for each runner, and returns the page.
/// `told` is "yes" if the runner sent a report, "older" if it cannot send one, and "no" if it did
/// not answer in time. On a busy machine, any runner may be late.
async fn status_with(fleet: &Fleet, expected: impl Fn(&str) -> &'static str) -> Status {
    let matching = async {
        loop {
            let page = status(fleet).await;
            let shards = page.shards.iter();
            let others: Vec<_> = shards.filter(|shard| shard.told != expected(&shard.info.address)).collect();
            if others.is_empty() {
                return page;
            }
            assert!(others.iter().all(|shard| shard.told == "no"), "{others:?}");
            sleep(Duration::from_millis(100)).await;
        }
    };
    soon("the runners' reports", matching).await
}

#[tokio::test]
async fn the_page_lists_a_called_image_with_its_owner() {
    let fleet = Fleet::of(3).await;
    let image = fleet.image(&[1]);
    fleet.caller().await.runner_of(&image).await;
    // The fake runners do not support the status request.
    let page = status_with(&fleet, |_| "older").await;
    assert_eq!(page.images.len(), 1);
    assert_eq!(page.images[0].info.image, image);
    assert_eq!(page.images[0].info.owner, fleet.runners[1].address().to_string());
    let owner = page.shards.iter().find(|shard| shard.info.address == page.images[0].info.owner).unwrap();
    assert_eq!((owner.info.owned, owner.info.calls, &*owner.info.state), (1, 1, "healthy"));
    assert!(page.notes[0].starts_with("3 of 3 runners cannot report"), "{:?}", page.notes);
    assert!(page.failures.is_empty(), "{:?}", page.failures);
    // The HTML page is served at both of its paths.
    for path in ["/", "/status"] {
        let (code, html) = fleet.get(path).await;
        assert_eq!(code, 200);
        assert!(html.starts_with("<!doctype html>"), "{path}");
    }
}

#[tokio::test]
async fn failed_attempts_are_listed_with_runner_and_image() {
    let fleet = Fleet::of(2).await;
    let (reset, shed, failed) = (fleet.image(&[0, 1]), fleet.image(&[1, 0]), "example.com/failed:v1");
    fleet.runners[0].on(&reset, Answer::Break(Point::Start, How::Reset(Reason::INTERNAL_ERROR)));
    let mut refusal = Reply::status(Code::ResourceExhausted, "no room: see --max-queue-per-function");
    refusal.headers.insert("porch-fn-retry", "shed".parse().unwrap());
    fleet.runners[1].on(&shed, Answer::Reply(refusal));
    for runner in &fleet.runners {
        runner.on(failed, Answer::Reply(Reply::status(Code::Internal, "the function's own")));
    }
    let caller = fleet.caller().await;
    assert_eq!(caller.runner_of(&reset).await, "1");
    assert_eq!(caller.runner_of(&shed).await, "0");
    caller.evaluate(failed, "package").await.unwrap_err();
    caller.evaluate("", "package").await.unwrap_err();
    let address = |runner: usize| fleet.runners[runner].address().to_string();
    let mut shown: Vec<_> = status(&fleet)
        .await
        .failures
        .into_iter()
        .map(|one| (one.code, one.shard, one.image, one.text, one.by, one.count))
        .collect();
    shown.sort();
    let row = |code: &str, shard: String, image: &str, text: &str| {
        (code.to_owned(), shard, image.to_owned(), text.to_owned(), "router".to_owned(), 1)
    };
    // Failures of functions are reported by their runner, not by the router.
    let expected = [
        row("BROKEN", address(0), &reset, "the stream broke or stalled during the call"),
        row("INVALID_ARGUMENT", String::new(), "", "the request names no function image"),
        row("SHED", address(1), &shed, "no room: see --max-queue-per-function"),
    ];
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn concurrent_viewers_cause_one_request_per_runner_in_two_seconds() {
    let fleet = Fleet::of(3).await;
    let requests = || fleet.runners.iter().map(|runner| runner.log().pod_requests).collect::<Vec<_>>();
    fleet.shards().await;
    assert_eq!(requests(), [0, 0, 0], "nobody has opened the page");
    let began = Instant::now();
    join_all((0..20).map(|_| status(&fleet))).await;
    let most = 1 + usize::try_from(began.elapsed().as_secs() / 2).unwrap();
    assert!(requests().iter().all(|count| (1..=most).contains(count)), "{:?}, {most}", requests());
}

#[tokio::test]
async fn a_hung_runner_does_not_block_the_page() {
    let mut fleet = Fleet::of(2).await;
    fleet.runners[1].hang().await;
    let hung = fleet.runners[1].address().to_string();
    status_with(&fleet, |runner| if runner == hung { "no" } else { "older" }).await;
}

#[tokio::test]
async fn an_owner_that_is_older_or_hangs_is_named() {
    let mut fleet = Fleet::of(2).await;
    for (number, expected) in [(0, "older than 0.2.0"), (1, "did not answer within 1s")] {
        let image = fleet.image(&[number]);
        let owner = fleet.runners[number].address().to_string();
        if number == 1 {
            fleet.runners[number].hang().await;
        }
        let began = Instant::now();
        let (code, page) = fleet.get(&format!("/image.json?image={image}")).await;
        let detail: ImageDetail = serde_json::from_str(&page).unwrap();
        assert_eq!((code, &detail.image, &detail.owner), (200, &image, &owner));
        let error = detail.error.unwrap();
        assert!(error.contains(&owner) && error.contains(expected), "{error}");
        let (code, page) = fleet.get(&format!("/config?image={image}")).await;
        let page: Value = serde_json::from_str(&page).unwrap();
        assert!(code == 503 && page["error"].as_str().unwrap().contains(&owner), "{code} {page}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
    // The router needs some seconds to notice the hung runner.
    let page =
        status_with(
            &fleet,
            |runner| {
                if runner == fleet.runners[1].address().to_string() { "no" } else { "older" }
            },
        );
    assert!(page.await.shards.iter().all(|shard| shard.name.is_empty() && shard.started_ms == 0));
}

#[tokio::test]
async fn the_page_has_the_calls_of_all_routers_or_names_the_missing_one() {
    let fleet = Fleet::of(2).await;
    let first = fleet.router.admin_address();
    let runners = || fleet.runners.iter().map(FakeRunner::address);
    // Nobody listens on port 1.
    let peers = format!("--router-peers=static:///{first},127.0.0.1:1");
    let second = start_router(runners(), &[&peers]).await;
    wait_runners_healthy(second.admin_address()).await;
    let image = fleet.image(&[1]);
    fleet.caller().await.runner_of(&image).await;
    Caller::connect(second.address()).await.runner_of(&image).await;

    let page: Status =
        serde_json::from_value(get_json(second.admin_address(), "/status.json").await).unwrap();
    let calls = |page: &Status| {
        let called = page.shards.iter().find(|shard| shard.info.calls > 0).unwrap();
        (called.info.address.clone(), called.info.calls)
    };
    let owner = fleet.runners[1].address().to_string();
    assert_eq!(calls(&page), (owner.clone(), 2));
    assert_eq!((page.images.len(), &*page.images[0].info.image), (1, &*image));
    let states: Vec<_> = page.routers.iter().map(|one| (&*one.address, &*one.state)).collect();
    let own = second.admin_address().to_string();
    let first = first.to_string();
    assert_eq!(states, [(&*own, "included"), ("127.0.0.1:1", "unreachable"), (&*first, "included")]);
    // Both run on this host.
    assert!(!page.router.is_empty() && page.routers[2].name == page.router);
    let note = page.notes.iter().find(|note| note.contains("2 of 3 routers")).expect("a note");
    assert!(note.contains("127.0.0.1:1: it cannot be reached: "), "{note}");

    // A router that is asked for its own data asks nobody.
    let requests = || fleet.runners.iter().map(|runner| runner.log().pod_requests).sum::<usize>();
    let before = requests();
    let own: Status =
        serde_json::from_value(get_json(second.admin_address(), "/status.json?own").await).unwrap();
    assert_eq!((calls(&own), own.routers.len(), requests()), ((owner, 1), 0, before));
}

/// Whether the numbers are those of `calls` calls of which `failed` failed, all in the last minute.
fn assert_numbers(numbers: &Numbers, calls: u64, failed: u64) {
    let Numbers { minute, ten_minutes, .. } = numbers;
    assert_eq!((numbers.calls, numbers.failed), (calls, failed), "{numbers:?}");
    assert_eq!((minute.calls, minute.failed), (calls, failed), "{numbers:?}");
    let sum = ten_minutes.iter().fold([0, 0], |sum, slot| [sum[0] + slot[0], sum[1] + slot[1]]);
    assert_eq!((ten_minutes.len(), sum), (60, [calls, failed]), "{numbers:?}");
}

#[tokio::test]
async fn the_page_shows_which_function_fails_and_which_is_slow() {
    const HELD: Duration = Duration::from_millis(300);
    let fleet = Fleet::of(2).await;
    let (failing, slow, fast) = (fleet.image(&[0, 1]), fleet.image(&[1, 0]), "example.com/fast:v1");
    fleet.runners[0].on(&failing, Answer::Reply(Reply::status(Code::Internal, "the function's own")));
    let caller = fleet.caller().await;
    for _ in 0..3 {
        caller.evaluate(&failing, "package").await.unwrap_err();
        caller.runner_of(fast).await;
    }
    caller.evaluate("", "package").await.unwrap_err();
    let (gate, held) = fleet.hold(1, &slow).await;
    sleep(HELD).await;
    gate.open();
    soon("the slow call", held).await.unwrap().unwrap();
    // The caller disconnects: this is no failure of the function.
    let (gate, held) = fleet.hold(1, &slow).await;
    held.abort();
    fleet.wait_metric("porch_fn_router_calls_total{code=\"CANCELLED\"}", 1).await;
    drop(gate);

    let page = status(&fleet).await;
    let of = |image: &str| &page.images.iter().find(|one| one.info.image == image).expect(image).numbers;
    assert_numbers(of(&failing), 3, 3);
    assert_numbers(of(fast), 3, 0);
    assert_numbers(of(&slow), 2, 0);
    assert_numbers(&page.totals.numbers, 9, 4);
    // The call without an image.
    assert_numbers(of(""), 1, 1);
    assert_eq!(page.images.last().unwrap().info.image, "");
    assert_eq!(page.totals.images, 3);
    let p99 = of(&slow).minute.p99_ms.unwrap();
    assert!(p99 >= HELD.as_secs_f64() * 1000.0 * 0.93, "{p99}");
    assert_eq!(of(&slow).minute.queue_p95_ms, None, "fake runners report no waits");
    // The calls by the runner that served them. The call without an image reached none.
    let served = page.shards.iter().map(|shard| (&shard.numbers.calls, &shard.numbers.failed));
    let (calls, failed) = served.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert_eq!((calls, failed), (8, 3));
    let failed =
        page.shards.iter().find(|shard| shard.info.address == fleet.runners[0].address().to_string());
    assert_eq!(failed.unwrap().numbers.failed, 3);
}

#[tokio::test]
async fn an_attempt_counts_for_the_runner_that_served_it_and_the_call_counts_once() {
    let (fleet, image, caller) = Fleet::ordered(2, &[]).await;
    fleet.runners[0].on(&image, Answer::Break(Point::Start, How::Reset(Reason::INTERNAL_ERROR)));
    assert_eq!(caller.runner_of(&image).await, "1");
    fleet.runners[0].on(&image, Answer::Reply(Reply::shed(Code::ResourceExhausted, "no room")));
    assert_eq!(caller.runner_of(&image).await, "1");
    let page = status(&fleet).await;
    let of = |runner: usize| {
        let address = fleet.runners[runner].address().to_string();
        &page.shards.iter().find(|shard| shard.info.address == address).unwrap().numbers
    };
    // The broken attempt; the refused one was not served.
    assert_numbers(of(0), 1, 1);
    assert_numbers(of(1), 2, 0);
    assert_numbers(&page.images[0].numbers, 2, 0);
    assert_numbers(&page.totals.numbers, 2, 0);
}

#[tokio::test]
async fn metrics_per_function_are_an_option_with_a_limit() {
    let with = Fleet::with(1, &["--metrics-per-function=1"]).await;
    with.runners[0].on("b.example/f:v1", Answer::Reply(Reply::status(Code::Internal, "no")));
    let caller = with.caller().await;
    caller.runner_of("a.example/f:v1").await;
    caller.evaluate("b.example/f:v1", "package").await.unwrap_err();
    caller.evaluate("c.example/f:v1", "package").await.unwrap();
    for (labels, value) in [
        ("image=\"a.example/f:v1\",outcome=\"ok\"", 1),
        ("image=\"a.example/f:v1\",outcome=\"failed\"", 0),
        ("image=\"other\",outcome=\"failed\"", 1),
        ("image=\"other\",outcome=\"ok\"", 1),
    ] {
        with.wait_metric(&format!("porch_fn_router_function_calls_total{{{labels}}}"), value).await;
    }
    let (_, text) = with.get("/metrics").await;
    assert!(text.contains("porch_fn_router_function_call_seconds_count{image=\"other\"} 2\n"), "{text}");
    assert!(!text.contains("b.example"), "{text}");

    let without = Fleet::of(1).await;
    without.caller().await.runner_of("a.example/f:v1").await;
    let (_, text) = without.get("/metrics").await;
    assert!(!text.contains("a.example") && !text.contains("router_function"), "{text}");

    let flags = ["porch-fn-router", "--runners=static:///a:1", "--metrics-per-function=1001"];
    let refused = porch_fn_flags::parse::<porch_fn_router::Flags>(flags.map(Into::into)).unwrap_err();
    assert!(format!("{refused:?}").contains("0..=1000"), "{refused:?}");
}
