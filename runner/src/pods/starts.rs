//! Measures how pods start, from the actions and events of the pool. Counts only pods that this
//! runner creates, so that the metrics of all runners can be summed.

use std::collections::HashMap;
use std::sync::Arc;

use porch_fn_pool::{Creation, DeleteReason, Event, Phase, Pod, PodName, Time, Uid};

use crate::metrics::Metrics;

/// The pods that are being created or starting.
#[derive(Debug)]
pub(super) struct Starts {
    metrics: Arc<Metrics>,
    /// When the creation of each pod was requested.
    requested: HashMap<PodName, Time>,
    created: HashMap<Uid, Start>,
}

#[derive(Debug)]
struct Start {
    requested: Time,
    /// When the last phase ended.
    since: Time,
    has_address: bool,
    /// The reason for which the pod last waited.
    waiting: Option<&'static str>,
}

impl Starts {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, requested: HashMap::new(), created: HashMap::new() }
    }

    /// Records the action to create a pod.
    pub(super) fn create(&mut self, name: PodName, now: Time) {
        self.requested.insert(name, now);
    }

    /// Records the action to delete a pod.
    pub(super) fn delete(&mut self, uid: &Uid, reason: DeleteReason) {
        if let Some(start) = self.created.remove(uid)
            && reason == DeleteReason::Failed
        {
            self.metrics.pod_start_failed(start.waiting.unwrap_or("not_ready"));
        }
    }

    /// Records an event of the pool.
    pub(super) fn event(&mut self, event: &Event, now: Time) {
        match event {
            Event::Created { name, result } => self.record_creation(name, result, now),
            Event::Seen(pod) => self.seen(pod, now),
            Event::Synced(pods) => {
                self.created.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
                for pod in pods {
                    self.seen(pod, now);
                }
            }
            Event::Ready(uid) => {
                if let Some(start) = self.created.remove(uid) {
                    self.metrics.pod_start_phase("serve", now.since(start.since));
                    self.metrics.pod_start.observe(now.since(start.requested).as_secs_f64());
                }
            }
            Event::Failed { uid, reason } => self.failed(uid, reason.kind),
            Event::Gone(uid) => self.failed(uid, "gone"),
            _ => {}
        }
    }

    fn record_creation(&mut self, name: &PodName, result: &Creation, now: Time) {
        let Some(requested) = self.requested.remove(name) else { return };
        match result {
            Creation::Ok(uid) => {
                let start = Start { requested, since: now, has_address: false, waiting: None };
                self.created.insert(uid.clone(), start);
                self.metrics.pod_start_phase("create", now.since(requested));
            }
            // Another runner created the pod and measures its start.
            Creation::Exists => {}
            Creation::Refused(reason) | Creation::OverQuota(reason) => {
                self.metrics.pod_start_failed(reason.kind);
            }
            Creation::Unknown | Creation::Unreachable => self.metrics.pod_start_failed("no_answer"),
        }
    }

    fn seen(&mut self, pod: &Pod, now: Time) {
        let Some(start) = self.created.get_mut(&pod.uid) else { return };
        match &pod.phase {
            _ if pod.terminating_since.is_some() => self.failed(&pod.uid, "gone"),
            Phase::Failed(reason) => self.failed(&pod.uid, reason.kind),
            Phase::Pending(reason) => start.waiting = reason.as_ref().map(|reason| reason.kind),
            Phase::Running if start.has_address => {}
            Phase::Running => {
                self.metrics.pod_start_phase("address", now.since(start.since));
                (start.since, start.has_address, start.waiting) = (now, true, None);
            }
        }
    }

    fn failed(&mut self, uid: &Uid, reason: &'static str) {
        if self.created.remove(uid).is_some() {
            self.metrics.pod_start_failed(reason);
        }
    }
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

    fn created(result: Creation) -> Event {
        Event::Created { name: name(), result }
    }

    fn ok() -> Event {
        created(Creation::Ok(Uid::from("uid")))
    }

    fn unschedulable() -> Reason {
        Reason::new("unschedulable", "no node")
    }

    /// Creates a pod and records these events, one second apart. Returns the metrics, and whether
    /// all starts have ended.
    fn after(events: &[Event], delete: Option<DeleteReason>) -> (String, bool) {
        let (metrics, text) = metrics();
        let mut starts = Starts::new(metrics);
        starts.create(name(), Time::default());
        let mut now = Time::default();
        for event in events {
            now = now + SECOND.since(Time::default());
            starts.event(event, now);
        }
        if let Some(reason) = delete {
            starts.delete(&Uid::from("uid"), reason);
        }
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
        let others = [created(Creation::Exists), running.clone(), ready];
        assert_eq!(after(&others, None), (String::new(), true), "another runner's pod");
        let create = "phase_seconds_sum{phase=\"create\"} 1.0";
        assert_eq!(after(&[ok(), Event::Synced(Vec::new())], None), (create.to_owned(), true));
        let surplus = after(&[ok(), seen(Phase::Pending(None))], Some(DeleteReason::Surplus));
        assert_eq!(surplus, (create.to_owned(), true));
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
}
