//! Passes each event to the function of the event's image, and then applies that function's rules.
//! `lib.rs` explains the terms.

use std::collections::HashSet;
use std::collections::hash_map::Entry;

use crate::config::Config;
use crate::event::{Action, Event, Verdict};
use crate::function::{Function, FunctionStats, Pool};
use crate::shared::Watch;
use crate::tracked::Tracked;
use crate::types::{ImageKey, Pod, RequestId, Time, Uid};

// === impl Pool ===

impl Pool {
    /// An empty pool. It creates nothing before the first [`Event::Synced`].
    pub fn new(config: Config) -> Self {
        let mut pool = Self::default();
        pool.shared.config = config.sane();
        pool
    }

    /// Processes one event at time `now` and returns the actions.
    pub fn step(&mut self, event: Event, now: Time) -> Vec<Action> {
        self.shared.now = now;
        match event {
            // A repeated id would count a call twice, so the second request is ignored.
            Event::Request { id, .. } if self.shared.calls.contains_key(&id) => {}
            Event::Request { id, image, shard_key, deadline } => {
                self.entry(&image, &shard_key).shard_key.clone_from(&shard_key);
                self.change(&image, |function, shared| function.request(id, deadline, shared));
            }
            Event::Cancel(id) => self.end_call(id, None),
            Event::Finished { id, verdict } => self.end_call(id, Some(verdict)),
            Event::Seen(pod) => {
                let image = pod.name.image.clone();
                self.entry(&image, &pod.shard_key);
                self.change(&image, |function, shared| function.observe(pod, shared));
            }
            Event::Gone(uid) => self.change_pod(&uid, Function::untrack),
            Event::Synced(pods) => self.synced(pods),
            Event::WatchLost if self.shared.watch != Watch::Never => self.shared.watch = Watch::Lost,
            Event::WatchLost => {}
            Event::Created { name, result } => {
                self.change(&name.image, |function, shared| function.created(&name, result, shared));
            }
            Event::Deleted { uid, result } => {
                self.change_pod(&uid, |function, index, shared| function.deleted(index, result, shared));
            }
            Event::Pushed { uid, result } => {
                self.change_pod(&uid, |function, index, shared| function.pushed(index, result, shared));
            }
            Event::Ready(uid) => self.change_pod(&uid, Function::probed_ready),
            Event::Checked { uid, number, answered } => {
                self.change_pod(&uid, |function, index, shared| {
                    function.checked(index, number, answered, shared);
                });
            }
            Event::Failed { uid, reason } => {
                self.change_pod(&uid, |function, index, shared| function.fail(index, reason, shared));
            }
            Event::Configure(config) => {
                self.shared.config = config.sane();
                self.change_all(|function, shared| function.configure(shared));
            }
            Event::RecipeChanged(image) => {
                self.change(&image, |function, shared| function.configure(shared));
            }
            Event::Own(owned) => {
                self.shared.owned = owned;
                self.change_all(|function, shared| function.own(shared));
            }
            Event::Warm { image, shard_key } => {
                let function = self.entry(&image, &shard_key);
                function.warm = Some(shard_key).filter(|_| !function.any_ready());
                self.change(&image, |_, _| {});
            }
            Event::Tick => self.tick(),
        }
        self.hand_out_places();
        std::mem::take(&mut self.shared.actions)
    }

    /// When to send [`Event::Tick`] next, if nothing else happens.
    pub fn next_timer(&self) -> Option<Time> {
        let timer = self.shared.timers.first().map(|&(time, _)| time);
        timer.into_iter().chain(self.shared.evict_at).min()
    }

    /// Counts per image, in the order of the images.
    pub fn stats(&self) -> Vec<FunctionStats> {
        self.functions.values().map(|function| function.stats(&self.shared)).collect()
    }

    /// The images that have pods of this runner.
    pub fn owned_images(&self) -> Vec<ImageKey> {
        let is_ours = |tracked: &Tracked| self.shared.owned.owns(&tracked.pod.shard_key);
        let owned = self.functions.values().filter(|function| function.pods.iter().any(is_ours));
        owned.map(|function| function.image.clone()).collect()
    }

    /// A call finished with `verdict`, or its caller is gone (`None`).
    fn end_call(&mut self, id: RequestId, verdict: Option<Verdict>) {
        let Entry::Occupied(call) = self.shared.calls.entry(id) else { return };
        // Only a granted call can finish.
        if call.get().pod.is_none() && verdict.is_some() {
            return;
        }
        let call = call.remove();
        self.change(&call.image, |function, shared| function.end_call(id, &call, verdict, shared));
    }

    fn synced(&mut self, pods: Vec<Pod>) {
        if !matches!(self.shared.watch, Watch::Current { .. }) {
            // Like this runner, other runners may have been unable to push the pods that they use.
            // So this runner deletes no unused pod for one scan interval, in which they can push.
            let collect_from = self.shared.now + self.shared.config.scan_interval;
            self.shared.watch = Watch::Current { collect_from };
        }
        let listed: HashSet<Uid> = pods.iter().map(|pod| pod.uid.clone()).collect();
        for pod in pods {
            self.entry(&pod.name.image, &pod.shard_key);
            if let Some(function) = self.functions.get_mut(&pod.name.image) {
                function.observe(pod, &mut self.shared);
            }
        }
        for function in self.functions.values_mut() {
            while let Some(index) = function.pods.iter().position(|pod| !listed.contains(&pod.pod.uid)) {
                function.untrack(index, &mut self.shared);
            }
            // `change_all` below applies the rules to one function after the other. The rules of
            // the first function need to know the places that all others take.
            function.update_totals(&mut self.shared);
        }
        self.change_all(|_, _| {});
    }

    fn tick(&mut self) {
        while self.shared.timers.first().is_some_and(|&(time, _)| time <= self.shared.now) {
            let Some((_, image)) = self.shared.timers.pop_first() else { return };
            self.change(&image, |function, _| function.timer = None);
        }
    }
}
