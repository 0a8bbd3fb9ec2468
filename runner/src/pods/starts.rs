//! How pods start, for the metrics: told from the orders and events that go by the pool's driver. Only pods that this
//! runner ordered count, so that runners can be added up.

use std::collections::HashMap;
use std::time::Duration;

use porch_fn_pool::{Creation, DeleteReason, Event, Phase, Pod, PodName, Reason, Time, Uid};

/// Part of a start that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A phase: `create`, `address` or `serve`.
    Took(&'static str, Duration),
    /// The pod serves, so long after it was ordered.
    Serves(Duration),
    /// It never will, for a reason of a fixed set.
    Failed(&'static str),
}

/// The starts under way. Each ends with an event or order of its pod.
#[derive(Debug, Default)]
pub(super) struct Starts {
    ordered: HashMap<PodName, Time>,
    created: HashMap<Uid, Start>,
}

#[derive(Debug)]
struct Start {
    ordered: Time,
    /// When its last phase was over.
    since: Time,
    has_address: bool,
    /// What it last waited for.
    waiting: Option<&'static str>,
}

impl Starts {
    /// A pod is ordered.
    pub(super) fn order(&mut self, name: PodName, now: Time) {
        self.ordered.insert(name, now);
    }

    /// A pod is deleted, or is to be.
    pub(super) fn delete(&mut self, uid: &Uid, reason: DeleteReason) -> Option<Step> {
        let start = self.created.remove(uid)?;
        (reason == DeleteReason::Failed).then(|| Step::Failed(start.waiting.unwrap_or("not_ready")))
    }

    /// What an event of the pool says about starts.
    pub(super) fn event(&mut self, event: &Event, now: Time) -> Vec<Step> {
        match event {
            Event::Created { name, result } => self.answered(name, result, now),
            Event::Seen(pod) => self.seen(pod, now),
            Event::Synced(pods) => {
                self.created.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
                pods.iter().flat_map(|pod| self.seen(pod, now)).collect()
            }
            Event::Ready(uid) => match self.created.remove(uid) {
                Some(start) => {
                    vec![Step::Took("serve", now.since(start.since)), Step::Serves(now.since(start.ordered))]
                }
                None => Vec::new(),
            },
            Event::Failed { uid, reason } => self.failed(uid, reason.kind()),
            Event::Gone(uid) => self.failed(uid, "gone"),
            _ => Vec::new(),
        }
    }

    fn answered(&mut self, name: &PodName, result: &Creation, now: Time) -> Vec<Step> {
        let Some(ordered) = self.ordered.remove(name) else { return Vec::new() };
        match result {
            Creation::Ok(uid) => {
                let start = Start { ordered, since: now, has_address: false, waiting: None };
                self.created.insert(uid.clone(), start);
                vec![Step::Took("create", now.since(ordered))]
            }
            // Another runner's start.
            Creation::Exists => Vec::new(),
            Creation::Refused(reason) | Creation::OverQuota(reason) => vec![Step::Failed(reason.kind())],
            Creation::Unknown | Creation::Unreachable => vec![Step::Failed("no_answer")],
        }
    }

    fn seen(&mut self, pod: &Pod, now: Time) -> Vec<Step> {
        let Some(start) = self.created.get_mut(&pod.uid) else { return Vec::new() };
        match &pod.phase {
            _ if pod.terminating_since.is_some() => self.failed(&pod.uid, "gone"),
            Phase::Failed(reason) => self.failed(&pod.uid, reason.kind()),
            Phase::Pending(reason) => {
                start.waiting = reason.as_ref().map(Reason::kind);
                Vec::new()
            }
            Phase::Running if start.has_address => Vec::new(),
            Phase::Running => {
                let took = now.since(start.since);
                (start.since, start.has_address, start.waiting) = (now, true, None);
                vec![Step::Took("address", took)]
            }
        }
    }

    fn failed(&mut self, uid: &Uid, reason: &'static str) -> Vec<Step> {
        self.created.remove(uid).map(|_| Step::Failed(reason)).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use porch_fn_pool::{PodRecipe, ResourceVersion};

    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_millis(0) + Duration::from_millis(millis)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn name() -> PodName {
        PodName { image: "example.com/f:v1".into(), slot: 0, past: None }
    }

    fn pod(phase: Phase) -> Pod {
        Pod {
            name: name(),
            uid: Uid::from("uid"),
            resource_version: ResourceVersion::from("1"),
            shard_key: "key".into(),
            terminating_since: None,
            phase,
            recipe: PodRecipe::of("version", None),
            reclaim_after: None,
            place_wanted: None,
        }
    }

    fn created(result: Creation) -> Event {
        Event::Created { name: name(), result }
    }

    fn unschedulable() -> Reason {
        Reason::Found { kind: "unschedulable", text: "no node".into() }
    }

    /// A pod that was ordered at 0 and created at 10.
    fn begun() -> Starts {
        let mut starts = Starts::default();
        starts.order(name(), at(0));
        let steps = starts.event(&created(Creation::Ok(Uid::from("uid"))), at(10));
        assert_eq!(steps, [Step::Took("create", millis(10))]);
        starts
    }

    fn is_over(starts: &Starts) -> bool {
        starts.ordered.is_empty() && starts.created.is_empty()
    }

    #[test]
    fn phases_add_up() {
        let mut starts = begun();
        assert_eq!(
            starts.event(&Event::Seen(pod(Phase::Running)), at(40)),
            [Step::Took("address", millis(30))]
        );
        assert_eq!(starts.event(&Event::Seen(pod(Phase::Running)), at(50)), []);
        let ready = Event::Ready(Uid::from("uid"));
        assert_eq!(
            starts.event(&ready, at(100)),
            [Step::Took("serve", millis(60)), Step::Serves(millis(100))]
        );
        assert!(is_over(&starts));
        assert_eq!(starts.event(&ready, at(200)), [], "a probe of a pod that served before");
    }

    #[test]
    fn pods_of_others_do_not_count() {
        let mut starts = Starts::default();
        assert_eq!(starts.event(&Event::Seen(pod(Phase::Running)), at(1)), []);
        assert_eq!(starts.event(&Event::Ready(Uid::from("uid")), at(2)), []);
        starts.order(name(), at(3));
        assert_eq!(starts.event(&created(Creation::Exists), at(4)), []);
        assert!(is_over(&starts));
    }

    #[test]
    fn a_failure_counts_once_with_its_reason() {
        let uid = Uid::from("uid");
        let failed = Phase::Failed(unschedulable());
        for (event, reason) in [
            (Event::Seen(pod(failed.clone())), "unschedulable"),
            (Event::Failed { uid: uid.clone(), reason: Reason::Other("?".into()) }, "other"),
            (Event::Gone(uid.clone()), "gone"),
            (Event::Seen(Pod { terminating_since: Some(at(1)), ..pod(Phase::Running) }), "gone"),
        ] {
            let mut starts = begun();
            assert_eq!(starts.event(&event, at(20)), [Step::Failed(reason)]);
            assert_eq!(starts.event(&event, at(21)), []);
            assert_eq!(starts.delete(&uid, DeleteReason::Failed), None);
            assert!(is_over(&starts));
        }
        for (result, reason) in
            [(Creation::Refused(Reason::NameTaken), "name_taken"), (Creation::Unreachable, "no_answer")]
        {
            let mut starts = Starts::default();
            starts.order(name(), at(0));
            assert_eq!(starts.event(&created(result), at(1)), [Step::Failed(reason)]);
            assert!(is_over(&starts));
        }
    }

    #[test]
    fn a_pod_that_is_given_up_failed_for_what_it_waited_for() {
        let uid = Uid::from("uid");
        assert_eq!(begun().delete(&uid, DeleteReason::Failed), Some(Step::Failed("not_ready")));
        assert_eq!(begun().delete(&uid, DeleteReason::Surplus), None);
        let mut starts = begun();
        assert_eq!(starts.event(&Event::Seen(pod(Phase::Pending(Some(unschedulable())))), at(20)), []);
        assert_eq!(starts.delete(&uid, DeleteReason::Failed), Some(Step::Failed("unschedulable")));
    }

    #[test]
    fn pods_that_a_full_list_lacks_are_forgotten() {
        let mut starts = begun();
        assert_eq!(
            starts.event(&Event::Synced(vec![pod(Phase::Running)]), at(20)),
            [Step::Took("address", millis(10))]
        );
        assert_eq!(starts.event(&Event::Synced(Vec::new()), at(30)), []);
        assert!(is_over(&starts));
    }
}
