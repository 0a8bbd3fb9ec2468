//! Measures how pods start, and records why they fail to start, from the actions and events of the
//! pool. Counts only pods that this runner creates, so that the metrics of all runners can be
//! summed.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use porch_fn_pool::{
    Creation, DeleteReason, Event, ImageKey, Phase, Pod, PodName, Reason, Rejection, Time, Uid,
};

use super::backend::PodFacts;
use super::start_errors::StartErrors;
use crate::metrics::Metrics;

const NO_ANSWER: &str =
    "the API server did not clearly answer the request to create a pod: the runner's log has its error";
const GONE: &str = "the pod was deleted before it was ready: look for evictions, and for who deletes pods";
const NOT_READY: &str = "the pod ran but was not ready in time: check that the runner reaches the pod (network policies), or raise \
                         --pod-ready-timeout";
const STILL_PENDING: &str = "the pod was pending for too long: check that its image can be pulled in that time, or raise \
                             --pod-pending-timeout";

/// How long each phase of a pod's start took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Phases(pub(crate) Vec<(&'static str, Duration)>);

/// The pods that are being created or starting.
#[derive(Debug)]
pub(super) struct Starts {
    metrics: Arc<Metrics>,
    /// When the creation of each pod was requested.
    requested: HashMap<PodName, Time>,
    created: HashMap<Uid, Start>,
    /// The last start of each image.
    pub(super) errors: StartErrors,
}

#[derive(Debug)]
struct Start {
    image: ImageKey,
    requested: Time,
    /// When the last phase ended.
    since: Time,
    has_address: bool,
    phases: Phases,
    /// The reason for which the pod last waited.
    waiting: Option<Reason>,
}

/// Looks up a pod as people know it.
type Facts<'a> = &'a dyn Fn(&Uid) -> Option<PodFacts>;

impl Starts {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        let (requested, created) = (HashMap::new(), HashMap::new());
        Self { metrics, requested, created, errors: StartErrors::default() }
    }

    /// Records the action to create a pod.
    pub(super) fn create(&mut self, name: PodName, now: Time) {
        self.requested.insert(name, now);
    }

    /// Records the action to delete a pod.
    pub(super) fn delete(&mut self, uid: &Uid, reason: DeleteReason, now: Time, facts: Facts<'_>) {
        if reason != DeleteReason::Failed {
            self.created.remove(uid);
            return;
        }
        let Some(start) = self.created.get(uid) else { return };
        let reason = start.waiting.clone().unwrap_or_else(|| {
            Reason::new("not_ready", if start.has_address { NOT_READY } else { STILL_PENDING })
        });
        self.failed(uid, &reason, now, facts);
    }

    /// Records that a waiting call was rejected. The pod that it waited for may still be starting
    /// without an error, or be another runner's.
    pub(super) fn reject(&mut self, image: &ImageKey, error: &Rejection, now: Time) {
        let is_start = matches!(error, Rejection::PodFailed { .. } | Rejection::NotReady { .. });
        if is_start && !self.errors.has_failed(image, now) {
            self.errors.record_rejection(image, &error.to_string(), now);
        }
    }

    /// Records an event of the pool. Returns the phases of a start that it ends.
    pub(super) fn event(&mut self, event: &Event, now: Time, facts: Facts<'_>) -> Option<Phases> {
        match event {
            Event::Created { name, result } => self.record_creation(name, result, now),
            Event::Seen(pod) => self.seen(pod, now, facts),
            Event::Synced(pods) => {
                self.created.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
                for pod in pods {
                    self.seen(pod, now, facts);
                }
            }
            Event::Ready(uid) => {
                if let Some(mut start) = self.created.remove(uid) {
                    // A pod that announced its address may serve before the API server reports the
                    // address.
                    let phase = if start.has_address { "serve" } else { "announce" };
                    start.end_phase(phase, now, &self.metrics);
                    self.metrics.pod_start.observe(now.since(start.requested).as_secs_f64());
                    self.errors.record_success(&start.image, now);
                    return Some(start.phases);
                }
            }
            Event::Failed { uid, reason } => self.failed(uid, reason, now, facts),
            Event::Gone(uid) => self.failed(uid, &Reason::new("gone", GONE), now, facts),
            _ => {}
        }
        None
    }

    fn record_creation(&mut self, name: &PodName, result: &Creation, now: Time) {
        let Some(requested) = self.requested.remove(name) else { return };
        match result {
            Creation::Ok(uid) => {
                let image = name.image.clone();
                let phases = Phases::default();
                let mut start =
                    Start { image, requested, since: requested, has_address: false, phases, waiting: None };
                start.end_phase("create", now, &self.metrics);
                self.created.insert(uid.clone(), start);
            }
            // Another runner created the pod and measures its start.
            Creation::Exists => {}
            Creation::Refused(reason) | Creation::OverQuota(reason) => {
                self.metrics.pod_start_failed(reason.kind);
                self.errors.record_failure(&name.image, &reason.text, now);
            }
            Creation::Unknown | Creation::Unreachable => {
                self.metrics.pod_start_failed("no_answer");
                self.errors.record_failure(&name.image, NO_ANSWER, now);
            }
        }
    }

    fn seen(&mut self, pod: &Pod, now: Time, facts: Facts<'_>) {
        let Some(start) = self.created.get_mut(&pod.uid) else { return };
        match &pod.phase {
            _ if pod.terminating_since.is_some() => {
                self.failed(&pod.uid, &Reason::new("gone", GONE), now, facts);
            }
            Phase::Failed(reason) => self.failed(&pod.uid, reason, now, facts),
            Phase::Pending(waiting) => {
                if let Some(reason) = waiting
                    && start.waiting.as_ref() != Some(reason)
                {
                    let text = describe(facts(&pod.uid), &reason.text);
                    self.errors.record_failure(&start.image, &text, now);
                }
                start.waiting.clone_from(waiting);
            }
            Phase::Running if start.has_address => {}
            Phase::Running => {
                start.end_phase("address", now, &self.metrics);
                (start.has_address, start.waiting) = (true, None);
            }
        }
    }

    fn failed(&mut self, uid: &Uid, reason: &Reason, now: Time, facts: Facts<'_>) {
        let Some(start) = self.created.remove(uid) else { return };
        self.metrics.pod_start_failed(reason.kind);
        self.errors.record_failure(&start.image, &describe(facts(uid), &reason.text), now);
    }
}

// === impl Start ===

impl Start {
    fn end_phase(&mut self, phase: &'static str, now: Time, metrics: &Metrics) {
        let took = now.since(self.since);
        metrics.pod_start_phase(phase, took);
        self.phases.0.push((phase, took));
        self.since = now;
    }
}

/// Like `create=0.011s, address=0.850s, serve=0.055s`.
impl fmt::Display for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (phase, took)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{phase}={:.3}s", took.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Adds the pod's name and the cluster's own message to a reason.
fn describe(facts: Option<PodFacts>, reason: &str) -> String {
    let Some(PodFacts { name, cause, .. }) = facts else { return reason.to_owned() };
    let cause = cause.map_or_else(String::new, |cause| format!(" ({cause})"));
    format!("pod {name}: {reason}{cause}")
}

#[cfg(test)]
mod tests {
    use porch_fn_pool::Reason;

    use super::*;
    use crate::metrics::tests::metrics;

    const SECOND: Time = Time::from_millis(1000);

    fn name() -> PodName {
        PodName { image: "example.com/f:v1".into(), ..PodName::default() }
    }

    fn pod(phase: Phase) -> Pod {
        Pod { name: name(), uid: Uid::from("uid"), phase, ..Pod::default() }
    }

    fn seen(phase: Phase) -> Event {
        Event::Seen(pod(phase))
    }

    fn facts(uid: &Uid) -> Option<PodFacts> {
        (uid.as_str() == "uid").then(|| PodFacts {
            name: "f-v1-0".to_owned(),
            created: None,
            cause: Some("Unschedulable: 0/3 nodes".to_owned()),
        })
    }

    fn created(result: Creation) -> Event {
        Event::Created { name: name(), result }
    }

    fn ok() -> Event {
        created(Creation::Ok(Uid::from("uid")))
    }

    fn unschedulable() -> Reason {
        Reason::new("unschedulable", "no node")
    }

    /// Creates a pod and records these events, one second apart. Returns the starts and the text of
    /// the metrics.
    fn run(events: &[Event], delete: Option<DeleteReason>) -> (Starts, impl Fn() -> String) {
        let (metrics, text) = metrics();
        let mut starts = Starts::new(metrics);
        starts.create(name(), Time::default());
        let mut now = Time::default();
        for event in events {
            now = now + SECOND.since(Time::default());
            let _ = starts.event(event, now, &facts);
        }
        if let Some(reason) = delete {
            starts.delete(&Uid::from("uid"), reason, now, &facts);
        }
        (starts, text)
    }

    /// Like `run`. Returns the metrics, and whether all starts have ended.
    fn after(events: &[Event], delete: Option<DeleteReason>) -> (String, bool) {
        let (starts, text) = run(events, delete);
        let is_over = starts.requested.is_empty() && starts.created.is_empty();
        let text = text();
        let lines = text.lines().filter_map(|line| line.strip_prefix("porch_fn_runner_pod_start_"));
        let counted = lines.filter(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.contains("_sum") || name.contains("_total")) && value.parse() != Ok(0.0)
        });
        let mut lines: Vec<_> = counted.collect();
        lines.sort_unstable();
        (lines.join("\n"), is_over)
    }

    #[test]
    fn phases_add_up_and_each_pod_is_counted_once() {
        let uid = Uid::from("uid");
        let (running, ready) = (seen(Phase::Running), Event::Ready(uid.clone()));
        let all = "phase_seconds_sum{phase=\"address\"} 1.0\nphase_seconds_sum{phase=\"create\"} 1.0\n\
                   phase_seconds_sum{phase=\"serve\"} 2.0\nseconds_sum 4.0";
        // The last event is a probe of a pod that served before.
        let events = [ok(), running.clone(), running.clone(), ready.clone(), ready.clone()];
        assert_eq!(after(&events, Some(DeleteReason::Failed)), (all.to_owned(), true));
        let early = "phase_seconds_sum{phase=\"announce\"} 1.0\nphase_seconds_sum{phase=\"create\"} 1.0\nseconds_sum 2.0";
        assert_eq!(after(&[ok(), ready.clone(), running.clone()], None), (early.to_owned(), true));
        let others = [created(Creation::Exists), running.clone(), ready];
        assert_eq!(after(&others, None), (String::new(), true), "another runner's pod");
        let create = "phase_seconds_sum{phase=\"create\"} 1.0";
        assert_eq!(after(&[ok(), Event::Synced(Vec::new())], None), (create.to_owned(), true));
        let surplus = after(&[ok(), seen(Phase::Pending(None))], Some(DeleteReason::Surplus));
        assert_eq!(surplus, (create.to_owned(), true));
    }

    #[test]
    fn the_phases_of_a_start_are_returned_with_its_end() {
        let (metrics, _) = metrics();
        let mut starts = Starts::new(metrics);
        starts.create(name(), Time::default());
        let mut at = |millis, event| starts.event(&event, Time::from_millis(millis), &facts);
        assert_eq!(at(11, ok()), None);
        assert_eq!(at(861, seen(Phase::Running)), None);
        let phases = at(900, Event::Ready(Uid::from("uid"))).unwrap();
        assert_eq!(phases.to_string(), "create=0.011s, address=0.850s, serve=0.039s");
        assert_eq!(at(950, Event::Ready(Uid::from("uid"))), None, "the start has ended");
    }

    #[test]
    fn a_failure_is_counted_once_with_its_reason() {
        let uid = Uid::from("uid");
        let ends = Pod { terminating_since: Some(SECOND), ..pod(Phase::Running) };
        for (events, delete, reason) in [
            (vec![ok(), seen(Phase::Failed(unschedulable()))], None, "unschedulable"),
            (vec![ok(), Event::Gone(uid.clone()), Event::Gone(uid)], None, "gone"),
            (vec![ok(), Event::Seen(ends)], Some(DeleteReason::Failed), "gone"),
            (vec![ok()], Some(DeleteReason::Failed), "not_ready"),
            (
                vec![ok(), seen(Phase::Pending(Some(unschedulable())))],
                Some(DeleteReason::Failed),
                "unschedulable",
            ),
            (vec![created(Creation::Unreachable)], None, "no_answer"),
        ] {
            let (lines, is_over) = after(&events, delete);
            let failures = lines.lines().find(|line| line.starts_with("failures"));
            assert_eq!(failures, Some(&*format!("failures_total{{reason=\"{reason}\"}} 1")), "{events:?}");
            assert!(is_over, "{events:?}");
        }
    }
    #[test]
    fn the_last_failed_start_has_the_pods_name_and_the_clusters_message() {
        let uid = || Uid::from("uid");
        let quota = Reason::new("quota", "a ResourceQuota is used up");
        let waits = seen(Phase::Pending(Some(unschedulable())));
        let unschedulable = "pod f-v1-0: no node (Unschedulable: 0/3 nodes)";
        for (events, delete, expected) in [
            (vec![ok(), seen(Phase::Pending(None)), seen(Phase::Running)], None, None),
            (vec![created(Creation::OverQuota(quota))], None, Some((1, "a ResourceQuota is used up"))),
            (vec![created(Creation::Unreachable)], None, Some((1, NO_ANSWER))),
            // The pod still waits. Its text appears before the waiting calls fail.
            (vec![ok(), waits.clone(), waits.clone()], None, Some((2, unschedulable))),
            (vec![ok(), waits.clone()], Some(DeleteReason::Failed), Some((2, unschedulable))),
            (vec![ok(), waits.clone(), seen(Phase::Running), Event::Ready(uid())], None, None),
            (vec![ok(), Event::Ready(uid()), Event::Gone(uid())], None, None),
            (vec![ok()], Some(DeleteReason::Surplus), None),
        ] {
            let (starts, _) = run(&events, delete);
            let last = starts.errors.all(SECOND).remove(&name().image).unwrap_or_default();
            let error = last.start_error.as_ref().map(|error| (error.at_ms / 1000, &*error.text));
            assert_eq!(error, expected, "{events:?}");
            let is_ready = events.iter().any(|event| matches!(event, Event::Ready(_)));
            assert_eq!(last.started_at_ms != 0, is_ready, "{events:?}");
        }
        let (starts, _) = run(&[ok(), seen(Phase::Running)], Some(DeleteReason::Failed));
        let text = starts.errors.all(SECOND).remove(&name().image).unwrap().start_error.unwrap().text;
        assert!(text.starts_with("pod f-v1-0: the pod ran but was not ready in time"), "{text}");
    }

    #[test]
    fn a_rejection_is_recorded_unless_the_reason_is_known() {
        let image = name().image;
        let (mut starts, _) = run(&[], None);
        starts.reject(&image, &Rejection::DeadlineExceeded { waiting: None }, SECOND);
        assert_eq!(starts.errors.all(SECOND).len(), 0, "the call's deadline was too short");
        let error = Rejection::NotReady { timeout: std::time::Duration::from_mins(1), waiting: None };
        starts.reject(&image, &error, SECOND);
        starts.reject(&image, &Rejection::PodFailed { reason: unschedulable() }, SECOND);
        let last = starts.errors.all(SECOND).remove(&image).unwrap().start_error.unwrap();
        assert_eq!((last.at_ms, last.text), (SECOND.as_millis(), error.to_string()));
    }
}
