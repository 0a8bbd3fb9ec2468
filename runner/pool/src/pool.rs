//! Dispatches an event to the function of its image, whose rules then run.

use std::collections::HashSet;

use crate::config::Config;
use crate::event::{Action, Event, Rejection, Verdict};
use crate::function::{Function, FunctionStats, Functions};
use crate::shared::{Place, PoolStep, Shared, Watch};
use crate::types::{Pod, RequestId, Time, Uid};

/// The pods that this runner knows and the calls that want one.
#[derive(Debug)]
pub struct Pool {
    functions: Functions,
    shared: Shared,
}

// === impl Pool ===

impl Pool {
    /// An empty pool. It creates nothing before the first [`Event::Synced`].
    pub fn new(config: Config) -> Self {
        let shared = Shared { config: config.sane(), ..Shared::default() };
        Self { functions: Functions::default(), shared }
    }

    /// Processes one event at time `now` and returns the actions.
    pub fn step(&mut self, event: Event, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        let step = &mut PoolStep::new(now, &mut self.shared, &mut actions);
        let functions = &mut self.functions;
        match event {
            // A repeated id would count a call twice, so the second request is ignored.
            Event::Request { id, .. } if step.shared.calls.contains_key(&id) => {}
            Event::Request { id, image, shard_key, deadline } => {
                functions.change(&image, &shard_key, step, |function, step| {
                    function.shard_key.clone_from(&shard_key);
                    function.request(id, deadline, step);
                });
            }
            Event::Cancel(id) => end_call(functions, id, None, step),
            Event::Finished { id, verdict } => end_call(functions, id, Some(verdict), step),
            Event::Seen(pod) => {
                let (image, shard_key) = (pod.name.image.clone(), pod.shard_key.clone());
                functions.change(&image, &shard_key, step, |function, step| function.observe(pod, step));
            }
            Event::Gone(uid) => functions.change_pod(&uid, step, Function::untrack),
            Event::Synced(pods) => synced(functions, pods, step),
            Event::WatchLost if step.shared.watch != Watch::Never => step.shared.watch = Watch::Lost,
            Event::WatchLost => {}
            Event::Created { name, result } => {
                functions.change_known(&name.image, step, |function, step| {
                    function.created(&name, result, step);
                });
            }
            Event::Deleted { uid, result } => {
                functions.change_pod(&uid, step, |function, index, step| {
                    function.deleted(index, result, step);
                });
            }
            Event::Pushed { uid, result } => {
                functions.change_pod(&uid, step, |function, index, step| {
                    function.push_answered(index, result, step);
                });
            }
            Event::Ready(uid) => functions.change_pod(&uid, step, Function::probed_ready),
            Event::Checked { uid, number, answered } => {
                functions.change_pod(&uid, step, |function, index, step| {
                    function.checked(index, number, answered, step);
                });
            }
            Event::Failed { uid, reason } => functions.change_pod(&uid, step, |function, index, step| {
                function.fail(index, Rejection::PodFailed { reason }, step);
            }),
            Event::Configure(config) => {
                step.shared.config = config.sane();
                functions.change_all(step, |function, step| function.configure(step));
            }
            Event::RecipeChanged(image) => {
                functions.change_known(&image, step, |function, step| function.configure(step));
            }
            Event::Own(owned) => {
                step.shared.owned = owned;
                functions.change_all(step, |function, step| function.own(step));
            }
            Event::Warm { image, shard_key } => {
                functions.change(&image, &shard_key, step, |function, _| {
                    function.warm = Some(shard_key.clone()).filter(|_| !function.any_ready());
                });
            }
            Event::Tick => tick(functions, step),
        }
        functions.hand_out_places(step);
        actions
    }

    /// When to send [`Event::Tick`] next, if nothing else happens.
    pub fn next_timer(&self) -> Option<Time> {
        let timer = self.shared.timers.first().map(|&(time, _)| time);
        timer.into_iter().chain(self.shared.evict_at).min()
    }

    /// Counts per image, in the order of the images.
    pub fn stats(&self) -> Vec<FunctionStats> {
        self.functions.0.values().map(|function| function.stats(&self.shared)).collect()
    }

    /// Whether nothing is remembered: no pod, no call, no failure.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.functions.0.is_empty()
            && self.shared.calls.is_empty()
            && self.shared.images.is_empty()
            && self.shared.timers.is_empty()
            && self.shared.wanting.is_empty()
            && self.shared.totals == crate::shared::Totals::default()
    }
}

/// A call finished with `verdict`, or its caller is gone (`None`).
fn end_call(functions: &mut Functions, id: RequestId, verdict: Option<Verdict>, step: &mut PoolStep<'_>) {
    let Some(call) = step.shared.calls.get(&id) else { return };
    // Only a granted call can finish.
    if matches!(call.place, Place::Queue(_)) && verdict.is_some() {
        return;
    }
    let Some(call) = step.shared.calls.remove(&id) else { return };
    functions.change_known(&call.image, step, |function, step| {
        function.end_call(id, &call, verdict, step);
    });
}

fn synced(functions: &mut Functions, pods: Vec<Pod>, step: &mut PoolStep<'_>) {
    if !matches!(step.shared.watch, Watch::Current { .. }) {
        // Other users of a pod may have been unable to push it, too. Give them one scan interval.
        let collect_from = step.now + step.shared.config.scan_interval;
        step.shared.watch = Watch::Current { collect_from };
    }
    let listed: HashSet<Uid> = pods.iter().map(|pod| pod.uid.clone()).collect();
    for pod in pods {
        let image = pod.name.image.clone();
        functions.entry(&image, &pod.shard_key, step).observe(pod, step);
    }
    for function in functions.0.values_mut() {
        function.untrack_unlisted(&listed, step);
        // The first function that is settled must know the places that the others take.
        function.update_totals(step);
    }
    functions.change_all(step, |_, _| {});
}

fn tick(functions: &mut Functions, step: &mut PoolStep<'_>) {
    while step.shared.timers.first().is_some_and(|&(time, _)| time <= step.now) {
        let Some((_, image)) = step.shared.timers.pop_first() else { return };
        functions.change_known(&image, step, |function, _| function.timer = None);
    }
}
