//! Warm-ups: only the owner starts a pod, and only one.

use super::rig::{Rig, config};

#[test]
fn a_warm_up_starts_one_pod_unless_one_exists() {
    let mut rig = Rig::unsynced(config());
    rig.run("warm; synced -> create 0; warm; created 0 ..; ready 0 ..; warm; gone 0; is empty");
}

#[test]
fn a_warm_up_is_given_up_after_five_failed_starts() {
    let mut rig = Rig::new(config());
    rig.run("warm -> create 0");
    for pause in [1, 2, 4, 8] {
        rig.run(&format!("refused 0 registry away; pass {}; pass 1 -> create 0", pause - 1));
    }
    rig.run("refused 0 registry away; pass 3600; is empty; warm -> create 0"); // given up, then requested again
    // After a failed pod or a create without an answer, the warm-up starts a pod again.
    rig.run("created 0 ..; failed 0 exit code 1 -> unprobe u0 + delete u0 Failed; gone 0");
    rig.run("pass 1 -> create 0; creation 0 Unreachable ..; pass 5 -> create 0; created 0 ..");
    rig.run("ready 0 ..; gone 0; pass 120 ..; is empty"); // the warm-up succeeded
}

#[test]
fn a_failed_warm_up_is_left_to_the_new_owner() {
    let mut rig = Rig::new(config());
    rig.run("warm ..; refused 0 quota; disown; pass 600"); // the owner is unknown
    rig.run("own shard -> create 0; refused 0 quota; own other; pass 120; is empty");
}

#[test]
fn a_warm_up_waits_until_the_owner_of_the_image_is_known() {
    for script in [
        "disown; warm; synced; pass 3600; own shard -> create 0",
        // Only the owner at the time of the first list counts.
        "disown; warm; own other; own shard; synced -> create 0",
        // A warm-up is dropped for good if another runner owns the image.
        "disown; warm; own other; synced; is empty; own shard; own other; warm; is empty",
    ] {
        Rig::unsynced(config()).run(script);
    }
}
