//! A pod is outdated if a part differs and no differing part is newer.

use super::rig::{NOTHING, Rig, config, limits, made, made_with};
use crate::event::Event;
use crate::types::{ImageContent, Pod, PodRecipe};

/// Whether the owner of `recipe` replaces a pod of `pod`.
fn replaces(recipe: &PodRecipe, pod: &PodRecipe) -> bool {
    let mut rig = Rig::with_pods(crate::Config { recipe: recipe.clone(), ..config() }, &[0]);
    let seen = Pod { recipe: pod.clone(), ..rig.pod(0) };
    rig.step(Event::Seen(seen));
    let lines = rig.pass(120);
    assert_eq!(pod.is_outdated_by(recipe), !lines.is_empty(), "{lines:?}");
    lines == ["create 1"]
}

#[test]
fn a_time_counts_only_where_its_part_differs() {
    // Pairs of times, of the pod's part and of the owner's: earlier, equal, later.
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
fn content_that_the_owner_does_not_know_is_no_difference() {
    let pod = made_with("v1", 500, "old", 9000);
    assert!(!pod.differs_from(&made("v1", 100)));
    assert!(pod.is_outdated_by(&made("v2", 500)), "the configuration still counts");
    assert!(!pod.is_outdated_by(&made("v2", 499)));
}

#[test]
fn what_a_pod_does_not_say_is_the_oldest() {
    let silent = PodRecipe::of("v1", None);
    assert!(silent.is_outdated_by(&made_with("v1", 500, "new", 1)), "its content may be any");
    assert!(silent.is_outdated_by(&PodRecipe::of("v2", None)));
    let content = ImageContent { digest: "old".into(), resolved: None };
    let timeless = PodRecipe { content: Some(content), ..made("v1", 500) };
    assert!(timeless.is_outdated_by(&made_with("v1", 100, "new", 1)));
    assert!(!made_with("v1", 500, "new", 1).is_outdated_by(&timeless));
}

#[test]
fn a_rolling_upgrade_does_not_flap() {
    // The upgraded runner has a later start and a new version. The other runner resolved the same
    // content earlier or later.
    for resolved in [50, 5000] {
        let (old, new) = (made_with("v1", 90, "same", resolved), made_with("v2", 1000, "same", 1100));
        assert!(!replaces(&old, &new), "the old runner leaves the new one's pod alone");
        assert!(replaces(&new, &old), "the new one replaces the old one's");
        assert!(!replaces(&new, &new));
        // Another upgraded runner, started later.
        let third = made_with("v2", 3000, "same", 9000);
        assert!(!replaces(&third, &new) && !replaces(&new, &third));
    }
}

#[test]
fn a_pod_that_leaves_is_not_used_beside_one_of_newer_content() {
    for (digest, resolved, other_is_used) in [("new", 2000, true), ("new", 1000, false), ("old", 2000, false)]
    {
        let mut rig = Rig::with_pods(limits(2, 2), &[0, 1]);
        rig.run("disown");
        let other = Pod { recipe: made_with("new", 90, digest, resolved), ..rig.pod(1) };
        rig.step(Event::Seen(other));
        let leaving = Pod { recipe: made_with("new", 5000, "old", 1500), ..rig.pod_as("0 lapsing 60") };
        rig.step(Event::Seen(leaving));
        for id in 0..16 {
            rig.run(&format!("request {id} -> grant {id} u1"));
        }
        let full = rig.act("request 16");
        assert_eq!(full == NOTHING, other_is_used, "{digest} {resolved}: {full:?}");
    }
}
