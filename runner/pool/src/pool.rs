//! Dispatch: finds the image that an event is about, hands the event over, settles that image, and forgets it when
//! nothing is left of it.

use std::collections::{HashMap, HashSet};

use crate::breakage::Breakage;
use crate::capacity::make_places;
use crate::config::Config;
use crate::event::{Action, Event, Rejection, Verdict};
use crate::function::Function;
use crate::scale::Warm;
use crate::shared::{Place, Shared, Totals, Turn, Watch};
use crate::types::{ImageKey, Pod, RequestId, ShardKey, Time, Uid};

/// The pods that this runner knows and the calls that want one.
#[derive(Debug)]
pub struct Pool {
    functions: HashMap<ImageKey, Function>,
    shared: Shared,
}

/// Counts of one image, for metrics and `/shards`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionStats {
    /// The image.
    pub image: ImageKey,
    /// Whether this runner owns it. Who does not, and does not use its pods either, never asks them whether they are ready:
    /// they count as starting.
    pub owned: bool,
    /// Pods that serve.
    pub ready: usize,
    /// Pods on their way, creates under way included.
    pub starting: usize,
    /// Pods that have served and do not answer.
    pub silent: usize,
    /// Pods on their way out.
    pub terminating: usize,
    /// Calls granted and not finished.
    pub in_flight: usize,
    /// Calls waiting.
    pub waiting: usize,
}

// === impl Pool ===

impl Pool {
    /// An empty pool. It creates nothing before the first [`Event::Synced`].
    pub fn new(config: Config) -> Self {
        Self { functions: HashMap::new(), shared: Shared::new(config.sane()) }
    }

    /// Takes in one event at `now` and says what to do.
    pub fn step(&mut self, event: Event, now: Time) -> Vec<Action> {
        let mut actions = Vec::new();
        self.step_into(event, now, &mut actions);
        actions
    }

    /// As [`step`](Self::step), appending to a buffer that the caller reuses.
    pub fn step_into(&mut self, event: Event, now: Time, actions: &mut Vec<Action>) {
        let mut turn = Turn { now, shared: &mut self.shared, out: actions };
        let functions = &mut self.functions;
        match event {
            Event::Request { id, image, shard_key, deadline } => {
                // An id used twice would count a call twice; the first one keeps it.
                if !turn.shared.calls.contains_key(&id) {
                    let function = entry(functions, &image, &shard_key, &turn);
                    function.shard_key = shard_key;
                    function.request(id, deadline, &mut turn);
                    settle(functions, &image, &mut turn);
                }
            }
            Event::Cancel { id } => leave(functions, id, None, &mut turn),
            Event::Finished { id, verdict } => leave(functions, id, Some(verdict), &mut turn),
            Event::Seen(pod) => {
                let image = pod.name.image.clone();
                entry(functions, &image, &pod.shard_key, &turn).observe(pod, &mut turn);
                settle(functions, &image, &mut turn);
            }
            Event::Gone { uid } => with_pod(functions, &uid, &mut turn, |function, index, turn| {
                function.untrack(index, turn);
            }),
            Event::Synced(pods) => synced(functions, pods, &mut turn),
            Event::WatchLost => turn.shared.watch = lost(turn.shared.watch),
            Event::Created { name, result } => {
                if let Some(function) = functions.get_mut(&name.image) {
                    function.created(&name, result, &mut turn);
                    settle(functions, &name.image, &mut turn);
                }
            }
            Event::Deleted { uid, result } => {
                with_pod(functions, &uid, &mut turn, |function, _, turn| {
                    function.deleted(&uid, result, turn);
                });
            }
            Event::Pushed { uid, result } => {
                with_pod(functions, &uid, &mut turn, |function, _, turn| function.pushed(&uid, result, turn));
            }
            Event::Ready { uid } => with_pod(functions, &uid, &mut turn, Function::probed_ready),
            Event::Checked { uid, number, answered } => {
                with_pod(functions, &uid, &mut turn, |function, index, turn| {
                    function.checked(index, number, answered, turn);
                });
            }
            Event::Failed { uid, reason } => with_pod(functions, &uid, &mut turn, |function, index, turn| {
                function.fail(index, Rejection::PodFailed { reason }, turn);
            }),
            Event::Configure(config) => {
                turn.shared.config = config.sane();
                for function in functions.values_mut() {
                    function.configure(&turn);
                }
                know_kept(functions, &turn);
                settle_all(functions, &mut turn);
            }
            Event::Remade { image } => {
                if let Some(function) = functions.get_mut(&image) {
                    function.configure(&turn);
                    settle(functions, &image, &mut turn);
                }
            }
            Event::Own(ownership) => {
                turn.shared.ownership = ownership;
                for function in functions.values_mut() {
                    function.own(&turn);
                }
                know_kept(functions, &turn);
                settle_all(functions, &mut turn);
            }
            Event::Warm { image, shard_key } => {
                let function = entry(functions, &image, &shard_key, &turn);
                if !function.any_ready() {
                    function.warm = Some(Warm::new(shard_key));
                }
                settle(functions, &image, &mut turn);
            }
            Event::Tick => tick(functions, &mut turn),
        }
        make_places(functions, &mut turn, settle);
    }

    /// When to send [`Event::Tick`] next, if nothing else happens.
    pub fn next_timer(&self) -> Option<Time> {
        let timer = self.shared.timers.first().map(|&(time, _)| time);
        timer.into_iter().chain(self.shared.capacity.look_at).min()
    }

    /// Counts per image, in the order of the images.
    pub fn stats(&self) -> Vec<FunctionStats> {
        let mut stats: Vec<_> =
            self.functions.values().map(|function| function.stats(&self.shared)).collect();
        stats.sort_unstable_by(|a, b| a.image.cmp(&b.image));
        stats
    }

    /// Whether nothing is remembered: no pod, no call, no failure.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
            && self.shared.calls.is_empty()
            && self.shared.orphans.is_empty()
            && self.shared.images.is_empty()
            && self.shared.timers.is_empty()
            && self.shared.capacity.wanting.is_empty()
            && self.shared.totals == Totals::default()
    }

    #[cfg(test)]
    pub(crate) fn break_rule(&mut self, rule: crate::breakage::Breakage) {
        self.shared.broken = Some(rule);
    }
}

type Functions = HashMap<ImageKey, Function>;

fn entry<'a>(
    functions: &'a mut Functions,
    image: &ImageKey,
    shard_key: &ShardKey,
    turn: &Turn<'_>,
) -> &'a mut Function {
    functions.entry(image.clone()).or_insert_with(|| Function::new(image.clone(), shard_key.clone(), turn))
}

fn settle(functions: &mut Functions, image: &ImageKey, turn: &mut Turn<'_>) {
    let Some(function) = functions.get_mut(image) else { return };
    function.settle(turn);
    if function.is_idle() {
        function.clear_timer(turn);
        functions.remove(image);
    }
}

/// What is to be kept here need not have been asked for.
fn know_kept(functions: &mut Functions, turn: &Turn<'_>) {
    for (image, shard_key) in turn.shared.config.keep.iter() {
        if turn.keeps_under(shard_key) {
            entry(functions, image, shard_key, turn);
        }
    }
}

/// In a fixed order, so that the same events always give the same actions.
fn settle_all(functions: &mut Functions, turn: &mut Turn<'_>) {
    let mut images: Vec<_> = functions.keys().cloned().collect();
    images.sort_unstable();
    for image in &images {
        settle(functions, image, turn);
    }
}

/// Hands an event about a pod to its image; one about an unknown pod is ignored.
fn with_pod(
    functions: &mut Functions,
    uid: &Uid,
    turn: &mut Turn<'_>,
    act: impl FnOnce(&mut Function, usize, &mut Turn<'_>),
) {
    let Some(image) = turn.shared.images.get(uid).cloned() else { return };
    let Some(function) = functions.get_mut(&image) else { return };
    let Some(index) = function.find(uid) else { return };
    act(function, index, turn);
    settle(functions, &image, turn);
}

/// A call is over (`verdict`) or its caller is gone.
fn leave(functions: &mut Functions, id: RequestId, verdict: Option<Verdict>, turn: &mut Turn<'_>) {
    let Some(call) = turn.shared.calls.get(&id) else { return };
    // Only a granted call can finish.
    if matches!(call.place, Place::Queue(_)) && verdict.is_some() {
        return;
    }
    if verdict.is_none() && turn.shared.broken(Breakage::CancelKeepsLoad) {
        return;
    }
    let Some(call) = turn.shared.calls.remove(&id) else { return };
    match functions.get_mut(&call.image) {
        Some(function) => {
            function.leave(id, &call, verdict, turn);
            settle(functions, &call.image, turn);
        }
        None => turn.shared.forget_orphan(id, &call.place),
    }
}

fn lost(watch: Watch) -> Watch {
    match watch {
        Watch::Never => Watch::Never,
        Watch::Current { .. } | Watch::Lost => Watch::Lost,
    }
}

fn synced(functions: &mut Functions, pods: Vec<Pod>, turn: &mut Turn<'_>) {
    if !matches!(turn.shared.watch, Watch::Current { .. }) {
        // Whoever uses a pod may have been unable to push it as well: give them one scan interval.
        let collect_from = turn.now + turn.shared.config.scan_interval;
        turn.shared.watch = Watch::Current { collect_from };
    }
    let listed: HashSet<Uid> = pods.iter().map(|pod| pod.uid.clone()).collect();
    for pod in pods {
        let image = pod.name.image.clone();
        entry(functions, &image, &pod.shard_key, turn).observe(pod, turn);
    }
    for function in functions.values_mut() {
        function.keep_listed(|uid| listed.contains(uid), turn);
        // The first image that is settled must know of the places that the others take.
        function.count_part(turn);
    }
    know_kept(functions, turn);
    settle_all(functions, turn);
}

fn tick(functions: &mut Functions, turn: &mut Turn<'_>) {
    let mut due = Vec::new();
    while turn.shared.timers.first().is_some_and(|&(time, _)| time <= turn.now) {
        due.extend(turn.shared.timers.pop_first().map(|(_, image)| image));
    }
    for image in &due {
        if let Some(function) = functions.get_mut(image) {
            function.timer = None;
            settle(functions, image, turn);
        }
    }
}
