//! Calls: the choice of their pod, their order, and their end.

use super::rig::{IMAGE, Rig, config, limits, other, seconds};
use crate::config::{Config, ImageSettings, Limits};
use crate::event::{Event, Rejection};
use crate::types::{ImageKey, Lookup};

fn warm(max_pods: u32, slots: &[u32]) -> Rig {
    Rig::with_pods(limits(max_pods, 2), slots)
}

#[test]
fn a_call_gets_the_least_loaded_pod_and_equal_pods_take_turns() {
    let mut rig = warm(3, &[0, 1, 2]);
    rig.run("request 1 -> grant 1 u0; request 2 -> grant 2 u1; request 3 -> grant 3 u2");
    rig.run("served 2; request 4 -> grant 4 u1"); // the least loaded
    rig.run("served 1; served 3; served 4; request 5 -> grant 5 u2"); // the round robin continues
    rig.run("served 5; request 6 -> grant 6 u0");
}

#[test]
fn calls_beyond_the_concurrency_of_a_pod_queue_in_order() {
    let limits = Limits { per_pod: 2, queue: 2, ..config().limits };
    let mut rig = Rig::with_pods(Config { limits, ..config() }, &[0]);
    rig.run("request 1 ..; request 2 ..; request 3; request 4; request 5 -> reject 5 QueueFull");
    rig.run("served 2 -> grant 3 u0; request 6; cancel 1 -> grant 4 u0");
    rig.run("served 3 -> grant 6 u0; counts -> 1 0 2 0");
}

#[test]
fn a_waiting_call_is_rejected_at_its_deadline() {
    let mut rig = Rig::new(config());
    rig.run("request 1 within 5 -> create 0; request 2 within 3");
    assert_eq!(rig.pool.next_timer(), Some(rig.now + seconds(3)));
    rig.run("pass 3 -> reject 2 DeadlineExceeded; pass 2 -> reject 1 DeadlineExceeded");
    rig.run("request 3 within 0 -> reject 3 DeadlineExceeded; counts -> 0 1 0 0");
}

#[test]
fn an_image_may_override_the_settings() {
    let own = Limits { max_pods: 2, waitlist: 1, ..config().limits };
    let own = ImageSettings { limits: own, recipe: config().recipe };
    let overrides = Lookup::by(move |image: &ImageKey| (*image == IMAGE.into()).then(|| own.clone()));
    let mut rig = Rig::new(Config { overrides, ..config() });
    rig.run("request 1 -> create 0; request 2 -> create 1; request 3; request 4");
    rig.run("call 10 other -> create 0; call 11 other; call 12 other"); // `other` has no override
}

#[test]
fn errors_name_a_fix_and_are_deterministic() {
    let texts = [
        Rejection::QueueFull { limit: 1000 }.to_string(),
        Rejection::DeadlineExceeded { waiting: None }.to_string(),
        Rejection::DeadlineExceeded { waiting: Some(other("unschedulable")) }.to_string(),
        Rejection::PodFailed { reason: other("unschedulable") }.to_string(),
        Rejection::NotReady { timeout: seconds(60), waiting: None }.to_string(),
        Rejection::NotReady { timeout: seconds(60), waiting: Some(other("unschedulable")) }.to_string(),
    ];
    assert_eq!(
        texts,
        [
            "1000 calls already wait for a pod of this function: retry later, or raise --max-queue-per-function or \
             --max-parallel-pods-per-function",
            "the deadline passed while the call waited for a pod of this function: allow a longer deadline, warm the \
             function up, or raise --max-parallel-pods-per-function",
            "the deadline passed while the call waited for a pod of this function (unschedulable): allow a longer \
             deadline, warm the function up, or raise --max-parallel-pods-per-function",
            "the function's pod failed to start: unschedulable",
            "no pod of this function was ready within 60s: check that its image starts in that time, or raise \
             --pod-ready-timeout",
            "no pod of this function was ready within 60s (unschedulable): check that its image starts in that time, \
             or raise --pod-ready-timeout",
        ]
    );
}

#[test]
fn after_a_refusal_a_pod_gets_no_more_calls_for_a_while() {
    let mut rig = warm(1, &[0]);
    rig.run("request 1 -> grant 1 u0; request 2 -> grant 2 u0; request 3 -> grant 3 u0; full 3");
    rig.run("request 4; served 1 -> grant 4 u0; request 5"); // the pod takes two calls
    rig.run("pass 1 -> grant 5 u0; request 6 -> grant 6 u0"); // calls of other runners may have ended
}

#[test]
fn a_report_about_an_image_lists_its_pods() {
    let mut rig = warm(4, &[0, 1]);
    rig.run("request 1 -> grant 1 u0; see 2 ..; see 3 terminating 5 ..");
    let mut of_constraint = rig.pod(4);
    (of_constraint.name.image, of_constraint.shard_key) = ("registry/fn:v2".into(), "registry/fn".into());
    rig.step(Event::Seen(of_constraint));
    let pods = |key, limit| -> Vec<_> {
        let pods = rig.pool.pods(key, limit).into_iter();
        pods.map(|pod| (pod.uid.to_string(), pod.state, pod.calls)).collect()
    };
    let pod = |uid: &str, state, calls| (uid.to_owned(), state, calls);
    let all =
        [pod("u0", "ready", 1), pod("u1", "ready", 0), pod("u2", "starting", 0), pod("u3", "terminating", 0)];
    assert_eq!(pods(IMAGE, 100), all);
    assert_eq!(pods(IMAGE, 2), all[..2]);
    // Calls with a tag constraint have started this pod.
    assert_eq!(pods("registry/fn", 100), [pod("u4", "starting", 0)]);
    assert_eq!(pods("registry/fn:v2", 100), [pod("u4", "starting", 0)]);
    assert_eq!(pods("registry/other:v1", 100), []);
}
