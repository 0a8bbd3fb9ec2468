//! A recipe has two parts: configuration and image content. A pod is outdated if its recipe differs
//! from the owner's, and no differing part is newer in the pod.

use super::rig::{NOTHING, Rig, config, limits, made, made_with};
use crate::config::Config;
use crate::event::Event;
use crate::types::{ImageContent, Pod, PodRecipe};

#[test]
fn times_are_compared_only_for_parts_that_differ() {
    // Pairs: the time in the pod, and the time in the owner's recipe.
    let times = [(4000, 6000), (5000, 5000), (6000, 4000)];
    for (pod_written, own_written) in times {
        for (pod_resolved, own_resolved) in times {
            let newer_version = pod_written > own_written;
            let newer_content = pod_resolved > own_resolved;
            for (version, digest, differs, outdated) in [
                ("same", "same", false, false),
                ("other", "same", true, !newer_version),
                ("same", "other", true, !newer_content),
                ("other", "other", true, !newer_version && !newer_content),
            ] {
                let pod = made_with(version, pod_written, digest, pod_resolved);
                let own = made_with("same", own_written, "same", own_resolved);
                assert_eq!(pod.differs_from(&own), differs, "{pod:?} {own:?}");
                assert_eq!(pod.is_outdated_by(&own), outdated, "{pod:?} {own:?}");
            }
        }
    }
}

#[test]
fn unknown_content_never_differs_for_the_owner_and_is_oldest_in_a_pod() {
    let (silent, known) = (PodRecipe::of("v1", None), made_with("v1", 500, "new", 1));
    let content = ImageContent { digest: "old".into(), resolved: None };
    let timeless = PodRecipe { content: Some(content), ..made("v1", 500) };
    for (pod, own, outdated) in [
        (&made_with("v1", 500, "old", 9000), &made("v1", 100), false),
        (&made_with("v1", 500, "old", 9000), &made("v2", 500), true), // the configuration differs
        (&made_with("v1", 500, "old", 9000), &made("v2", 499), false),
        (&silent, &known, true), // the pod's content is unknown
        (&silent, &PodRecipe::of("v2", None), true),
        (&timeless, &made_with("v1", 100, "new", 1), true),
        (&known, &timeless, false),
    ] {
        assert_eq!(pod.is_outdated_by(own), outdated, "{pod:?} {own:?}");
    }
}

#[test]
fn a_rolling_upgrade_does_not_flap() {
    // The upgraded runner has a later start and a new version. The other runner resolved the same
    // content earlier or later. `third` is the recipe of another upgraded runner, which was started
    // later.
    let (new, third) = (made_with("v2", 1000, "same", 1100), made_with("v2", 3000, "same", 9000));
    for resolved in [50, 5000] {
        let old = made_with("v1", 90, "same", resolved);
        assert!(old.is_outdated_by(&new) && !new.is_outdated_by(&old));
        assert!(!new.is_outdated_by(&third) && !third.is_outdated_by(&new));
        let mut rig = Rig::with_pods(Config { recipe: old, ..config() }, &[0]);
        let pod = Pod { recipe: new.clone(), ..rig.pod(0) };
        rig.step(Event::Seen(pod));
        assert_eq!(rig.pass(120), NOTHING, "the old runner leaves the new one's pod alone");
    }
}

#[test]
fn a_leaving_pod_gets_no_calls_beside_a_pod_with_newer_content() {
    for (digest, resolved, other_is_used) in [("new", 2000, true), ("new", 1000, false), ("old", 2000, false)]
    {
        let mut rig = Rig::with_pods(limits(2, 2), &[0, 1]);
        rig.run("disown");
        let other = Pod { recipe: made_with("new", 90, digest, resolved), ..rig.pod(1) };
        rig.step(Event::Seen(other));
        let leaving = Pod { recipe: made_with("new", 5000, "old", 1500), ..rig.pod_as("0 expiring 60") };
        rig.step(Event::Seen(leaving));
        for id in 0..16 {
            rig.run(&format!("request {id} -> grant {id} u1"));
        }
        let full = rig.act("request 16");
        assert_eq!(full == NOTHING, other_is_used, "{digest} {resolved}: {full:?}");
    }
}
