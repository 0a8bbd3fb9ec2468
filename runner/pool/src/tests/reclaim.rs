//! Tests of pushes. A push writes a later `reclaim_after` to a pod. A runner that uses the pod
//! pushes it from time to time. If the pod expires within the clock skew, a call waits for the
//! push.

use super::rig::{Rig, config, seconds};
use crate::config::{Config, Limits};

/// A ready pod that expires in this many seconds.
fn expiring(span: u64) -> Rig {
    let mut rig = Rig::with_pods(config(), &[0]);
    rig.run(&format!("see 0 expiring {span}"));
    rig
}

#[test]
fn a_use_pushes_if_reclaim_after_lags_by_a_minute() {
    let mut rig = expiring(1741);
    rig.run("request 1 -> grant 1 u0; served 1; pass 1; request 2 -> grant 2 u0 + push u0 +1800");
    rig.run("request 3 -> grant 3 u0; written 0; request 4 -> grant 4 u0"); // one push at a time
}

#[test]
fn a_long_deadline_reserves_the_pod_for_at_most_an_hour() {
    expiring(1800).run("request 1 within 2400 -> grant 1 u0 + push u0 +2400");
    expiring(1800).run("request 1 within 86400 -> grant 1 u0 + push u0 +3600");
}

#[test]
fn calls_in_flight_push_again_and_idle_pods_do_not() {
    let mut rig = expiring(1800);
    rig.run("request 1 ..; pass 59; pass 1 -> push u0 +1800; written 0");
    rig.run("pass 60 -> push u0 +1800; written 0; served 1; pass 600");
}

#[test]
fn shortly_before_expiry_the_push_comes_first() {
    expiring(31).run("request 1 -> grant 1 u0 + push u0 +1800"); // no wait: the skew is at most 30 s
    for span in [30, 0] {
        expiring(span).run("request 1 -> push u0 +1800; request 2; written 0 -> grant 1 u0 + grant 2 u0");
    }
    Rig::with_pods(config(), &[0]).run("disown; see 0 endless; request 1 -> push u0 +1800");
}

#[test]
fn without_the_api_server_the_pod_is_used_anyway() {
    let mut rig = expiring(10);
    rig.run("request 1 ..; pushed 0 Unreachable -> grant 1 u0; request 2 -> grant 2 u0");
    rig.run("pass 4; pass 1 -> push u0 +1800; request 3 -> grant 3 u0"); // no call waits for the retry
    rig.run("pushed 0 Unreachable; served 1; served 2; served 3");
    rig.run("pass 60; request 4 -> push u0 +1800"); // calls wait for the push again

    expiring(10).run("request 1 ..; pass 60 -> grant 1 u0"); // a missing answer counts as an error
}

#[test]
fn after_a_conflict_the_push_is_repeated_and_a_vanished_pod_is_replaced() {
    let mut rig = expiring(10);
    rig.run("request 1 ..; pushed 0 Conflict; see 0 expiring 10 -> push u0 +1800");
    rig.run("see 0 -> grant 1 u0; pushed 0 Conflict"); // another runner has pushed it
    expiring(10).run("request 1 ..; pushed 0 Conflict; pass 5 -> push u0 +1800"); // the watch may be late
    expiring(10).run("request 1 ..; pushed 0 Gone -> create 1; gone 0"); // the name of slot 0 is not free yet
}

#[test]
fn a_late_answer_does_not_hide_a_newer_watch_event() {
    let mut rig = expiring(1000);
    // After the push, the owner writes a nearer `reclaim_after`. The watch shows it before the
    // answer to the push arrives.
    rig.run("request 1 -> grant 1 u0 + push u0 +1800; pass 1; see 0 expiring 60 -> push u0 +1800");
    rig.run("pushed 0 Ok; pass 5 -> push u0 +1800");
}

#[test]
fn a_short_ttl_counts_as_four_times_the_skew() {
    for (ttl, skew, expiry, pushed) in [(1, 30, 20, 120), (8, 1, 1, 8)] {
        let limits = Limits { ttl: seconds(ttl), ..config().limits };
        let mut rig = Rig::new(Config { limits, skew: seconds(skew), ..config() });
        rig.run(&format!("see 0 expiring {expiry} ..; ready 0 ..; request 1 within 5 -> push u0 +{pushed}"));
    }
}
