//! Starts of pods, and their failures.

use super::rig::{Rig, config, limits, seconds};
use crate::config::{Config, Limits};

#[test]
fn a_refused_create_rejects_all_waiting_calls() {
    let mut rig = Rig::new(config());
    rig.run("request 1 ..; request 2 ..");
    rig.run("refused 0 quota -> reject 1 PodFailed quota + reject 2 PodFailed quota");
    rig.run("request 3 -> reject 3 PodFailed quota"); // calls during the pause are rejected too
    rig.run("pass 1 ..; request 4 -> create 0");
}

#[test]
fn pauses_between_starts_grow_until_a_success() {
    let mut rig = Rig::new(config());
    rig.run("request 1 -> create 0; refused 0 quota ..; pass 1; request 2 -> create 0; refused 0 quota ..");
    rig.run("pass 1; request 3 -> reject 3 PodFailed quota; pass 1; request 4 -> create 0"); // a pause of 2 s
    rig.run("created 0 ..; ready 0 ..; gone 0; request 5 -> create 0");
    rig.run("refused 0 quota ..; pass 1 ..; request 6 -> create 0"); // again a pause of 1 s
}

#[test]
fn a_pod_that_cannot_start_fails_its_waiters_and_is_deleted() {
    let mut rig = Rig::new(config());
    rig.run("request 1 ..; created 0 ..");
    rig.run("failed 0 image not found -> unprobe u0 + reject 1 PodFailed image not found + delete u0 Failed");
    rig.run("failed 0 image not found"); // a repeated report has no effect
    rig.run("deleted 0 Ok; gone 0; pass 1 ..; request 2 -> create 0");
}

#[test]
fn calls_wait_while_another_pod_is_starting() {
    let mut rig = Rig::new(limits(2, 1));
    rig.run("request 1 ..; request 2 ..; created 0 ..; created 1 ..");
    rig.run("failed 0 image not found -> unprobe u0 + delete u0 Failed");
    rig.run("ready 1 -> grant 1 u1 + grant 2 u1"); // the other pod serves them
}

#[test]
fn only_the_creator_or_the_owner_deletes_a_failed_pod() {
    let mut rig = Rig::new(config());
    rig.run("disown; request 1 ..; created 0 ..");
    rig.run("failed 0 image not found about delete -> delete u0 Failed"); // this runner created it

    let mut rig = Rig::new(config());
    // The failed pod's slot is taken until the owner has deleted the pod.
    rig.run("disown; see 0 failed exit code 1; request 1");
    rig.run("own -> delete u0 Failed; deleted 0 Ok -> create 1; gone 0");
}

#[test]
fn a_conflict_or_a_lost_answer_repeats_the_delete_of_a_failed_pod() {
    let mut rig = Rig::new(config());
    rig.run("request 1 ..; created 0 ..; failed 0 image not found ..; deleted 0 Conflict");
    // The watch shows the pod's new version.
    rig.run("see 0 -> delete u0 Failed; deleted 0 Unreachable; pass 5 -> delete u0 Failed");
    rig.run("deleted 0 Gone; pass 120 ..; is empty");
}

#[test]
fn a_pod_that_is_not_ready_in_time_has_failed() {
    let mut rig = Rig::new(config());
    rig.run("request 1 ..; created 0 ..; see 0 running ..; pass 59");
    // The delete fails, and the pod becomes ready after all.
    rig.run("pass 1 -> reject 1 NotReady + delete u0 Failed; deleted 0 Conflict; ready 0");
    rig.run("request 2 -> grant 2 u0 + push u0 +1800");
}

#[test]
fn a_pod_in_use_by_others_is_not_deleted_although_unreachable_here() {
    let impatient = || Config { pending_timeout: seconds(0), ..config() };
    let mut rig = Rig::with_pods(impatient(), &[0]);
    rig.run("request 1 ..; broken 1 ..; pass 30 ..; see 0 ..; pass 30"); // another runner has pushed it
    rig.run("pass 61 -> delete u0 Failed"); // no further push

    // This runner's own push does not prove that another runner reaches the pod.
    let mut rig = Rig::new(Config { scan_interval: seconds(20), ..impatient() });
    rig.run("pass 100 ..; see 0 endless -> push u0 +1800 + probe u0; see 0 ..");
    rig.run("pass 61 -> delete u0 Failed");
}

#[test]
fn without_a_ready_pod_a_call_waits_at_most_the_ready_timeout() {
    let mut rig = Rig::unsynced(config());
    rig.run("request 1; pass 10 ..; request 2");
    rig.run(&format!("pass 50 -> reject 1 NotReady {}", crate::calls::NOT_LISTED));
    rig.run("synced -> create 0; pass 10 -> reject 2 NotReady");
}

#[test]
fn the_ready_timeout_does_not_apply_while_a_pod_is_busy() {
    let limits = Limits { per_pod: 1, ..config().limits };
    let mut rig = Rig::new(Config { limits, ..config() });
    rig.run("request 1 ..; created 0 ..; see 0 ..; ready 0 ..; request 2 ..");
    rig.run("pass 100 about reject; broken 1 ..; pass 50 -> create 1"); // no reject, even after the pod is lost
}

#[test]
fn a_pod_that_vanishes_while_it_starts_is_started_again_after_a_pause() {
    let mut rig = Rig::new(config());
    rig.run("request 1 ..; created 0 ..; gone 0 -> unprobe u0; request 2"); // no call is rejected
    rig.run("pass 1 -> create 0");

    rig.run("created 0 ..; see 0 terminating 30 -> unprobe u0"); // another client deletes it
    rig.run("gone 0; pass 1; pass 1 -> create 0"); // now the pause is 2 s
}

#[test]
fn the_end_of_a_pod_that_served_is_no_failed_start() {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.run("request 1 ..; broken 1 ..; request 2");
    rig.run("failed 0 out of memory -> unprobe u0 + delete u0 Failed"); // the call still waits
    rig.run("ready 0"); // a late report does not bring it back
    rig.run("deleted 0 Ok -> create 1; gone 0");
}

#[test]
fn after_a_lost_answer_the_create_is_repeated_unless_the_watch_shows_the_pod() {
    let mut rig = Rig::new(config());
    rig.run("request 1 ..; creation 0 Unreachable; pass 4; pass 1 -> create 0");
    rig.run("creation 0 Unreachable ..; see 0 -> probe u0"); // the pod was created after all
    rig.run("ready 0 -> grant 1 u0");
}

#[test]
fn the_watch_and_the_answer_may_come_in_any_order() {
    // The watch shows the pod, and even its end, before the answer arrives.
    let mut rig = Rig::new(config());
    rig.run("request 1 ..; see 0 -> probe u0; counts -> 0 1 0 1"); // one pod, not two
    rig.run("gone 0 -> unprobe u0; creation 0 Ok; pass 2 -> create 0");

    // The answer arrives, but the watch never shows the pod.
    rig.run("created 0 ..; ready 0 ..; served 1; watch lost; pass 120 ..");
    rig.run("counts -> 1 0 0 0; synced ..; pass 60 ..; request 2 -> create 0");
}

#[test]
fn a_name_held_by_a_terminating_pod_is_not_a_success() {
    // The watch may be later or earlier than the answer.
    for order in ["creation 0 Exists; see 0 terminating 30", "see 0 terminating 30; creation 0 Exists"] {
        Rig::new(config()).run(&format!("request 1 ..; {order} -> create 1; counts -> 0 1 0 1; gone 0"));
    }
}
