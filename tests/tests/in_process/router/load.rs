//! What runners say of their load decides where a busy image goes that its own runner cannot take.

use porch_fn_tests::caller::framed;
use porch_fn_tests::fake_runner::{Answer, FakeRunner, Gate, Reply, headers};
use porch_fn_tests::fleet::Fleet;
use tokio::task::JoinSet;

/// An answer of a runner that has this many other calls in flight.
fn loaded(load: usize) -> Answer {
    let mut reply = Reply::ok("package".into(), "loaded");
    let load = load.to_string();
    reply.trailers.get_or_insert_default().extend(headers(&[("porch-fn-load", &load)]));
    Answer::Reply(reply)
}

/// How many of 35 calls of an image, all in flight at once, each runner took whose name is not the owner's.
async fn spilled(told: Option<usize>) -> (usize, usize) {
    let fleet = Fleet::of(3).await;
    let (hot, other) = (fleet.image(&[0, 1, 2]), fleet.image(&[1, 0, 2]));
    let caller = fleet.caller().await;
    if let Some(load) = told {
        fleet.runners[1].on(&other, loaded(load));
    }
    let sent = framed(&hot, "package");
    let taken = || {
        let of_it =
            |runner: &FakeRunner| runner.log().calls.iter().filter(|call| call.framed == sent).count();
        fleet.runners.iter().map(of_it).collect::<Vec<_>>()
    };
    let gate = Gate::new();
    fleet.runners.iter().for_each(|runner| runner.on(&hot, gate.echo()));
    let mut calls = JoinSet::new();
    for sent in 1..=35 {
        // What a runner said counts for seconds only.
        if told.is_some() {
            assert_eq!(caller.runner_of(&other).await, "loaded");
        }
        let (caller, hot) = (caller.clone(), hot.clone());
        calls.spawn(async move { caller.runner_of(&hot).await });
        while taken().iter().sum::<usize>() < sent {
            tokio::task::yield_now().await;
        }
    }
    let taken = taken();
    gate.open();
    calls.join_all().await;
    (taken[1], taken[2])
}

#[tokio::test]
async fn a_busy_image_passes_by_a_runner_that_is_busy_with_others_calls() {
    let (second, third) = spilled(None).await;
    assert!(second > 0, "without news, the next in order is the next: {second} and {third}");
    let (second, third) = spilled(Some(40)).await;
    assert!(second == 0 && third > 0, "{second} and {third}");
}

#[tokio::test]
async fn an_image_without_demand_stays_at_home_however_busy_its_runner_is() {
    let fleet = Fleet::of(3).await;
    let image = fleet.image(&[0, 1, 2]);
    fleet.runners[0].on(&image, loaded(1000));
    let caller = fleet.caller().await;
    for _ in 0..20 {
        assert_eq!(caller.runner_of(&image).await, "loaded");
    }
    assert_eq!(fleet.taken(), [20, 0, 0]);
    let page = fleet.shards().await;
    let address = fleet.runners[0].address().to_string();
    assert!(page.shards.iter().any(|shard| shard.address == address && shard.load == 1000), "{page:?}");
}
