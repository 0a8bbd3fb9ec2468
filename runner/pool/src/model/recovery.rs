//! The end of a history (one random run of the model): the faults are over, and the model checks
//! that everything works without faults.

use std::sync::Arc;

use super::faults::{is_limited, key};
use super::server::{Hang, Object, Truth};
use super::world::World;
use crate::types::ImageKey;

/// Milliseconds of steady load.
const STEADY: u64 = 1_800_000;
/// Milliseconds at the end of the steady load, during which no call may be rejected.
const STEADY_SETTLED: u64 = 1_600_000;
/// The same if `--max-pods` or a quota limits the number of pods.
const STEADY_UNSTUCK: u64 = 1_200_000;
/// Milliseconds without calls: enough for several lifetimes of a pod, and a replacement of each
/// pod.
const UNASKED: u64 = 1_800_000;

// === impl World ===

impl World {
    /// The faults and the calls end. Every image gets one owner, all runners get the same
    /// configuration, and every watch returns.
    pub(crate) fn recover(&mut self) {
        self.faults_over = true;
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            self.caller_gone(id);
        }
        // Pods of lost nodes and pods with hanging calls are removed. Silent pods answer again.
        let pods: Vec<_> =
            self.server.objects.values().map(|object| (object.pod.uid.clone(), object.hang)).collect();
        for (uid, hang) in pods {
            match hang {
                Some(Hang::NodeGone | Hang::Calls) => self.pod_ends(&uid),
                Some(Hang::Silent) => self.pod_resumes(&uid),
                None => {}
            }
        }
        let owners: Vec<_> = self.images.iter().map(|_| self.rng.index(self.runners.len())).collect();
        // All delayed events have arrived by then.
        let later = self.now.max(self.outage.1) + 60_000;
        for runner in 0..self.runners.len() {
            self.at(later, move |world| world.configure(runner));
            self.at(later, move |world| world.resolve(runner));
            let owned = owners.iter().enumerate().filter(|(_, owner)| **owner == runner);
            let view = owned.map(|(image, _)| key(&self.images[image])).collect();
            self.at(later, move |world| world.own(runner, view));
        }
        if self.rng.chance(10) {
            let until = later + STEADY;
            self.at(later, move |world| world.steady(until));
        } else {
            self.at(later + 600_000, Self::checkup);
        }
    }

    pub(crate) fn steady(&mut self, until: u64) {
        if self.now < until {
            // For some minutes calls may be rejected, because effects of the faults, such as
            // replacements, still go on. If the number of pods is limited, this takes longer: an
            // image may also wait until other images' calls, starts and stuck pods have ended.
            let places = self.config.capacity.map(|pods| pods as usize).into_iter().chain(self.quota).min();
            let settled = if places.is_some() { STEADY_UNSTUCK } else { STEADY_SETTLED };
            let must_succeed =
                self.now + settled > until && places.is_none_or(|places| places >= self.images.len());
            for runner in 0..self.runners.len() {
                let image = self.rng.index(self.images.len());
                self.request(runner, image, 60_000, must_succeed);
            }
            return self.after(1000, 10_000, move |world| world.steady(until));
        }
        self.count("steady");
        let limit = self.config.limits.max_pods as usize;
        for image in self.images.clone() {
            let of_image = || self.server.objects.values().filter(|object| object.pod.name.image == image);
            let outdated = of_image().filter(|object| self.is_outdated(&object.pod)).count();
            let count = of_image().count();
            // If the capacity or the quota has no room for the new pod, the outdated pod stays.
            let outdated = if is_limited(&self.config, self.quota) { 0 } else { outdated };
            if outdated > 0 || count > limit {
                self.violate(format!("{outdated} of {count} pods outdated, limit {limit}, at the end"));
            }
        }
        // When only one more pod fits, each runner may create a pod at the same moment.
        let stay = |object: &&Object| !object.is_terminating();
        let there = self.server.objects.values().filter(stay).count();
        let most = self.config.capacity.map(|pods| pods as usize);
        if most.is_some_and(|most| there > most + self.runners.len() - 1) {
            self.violate(format!("{there} pods, and a capacity of {most:?}"));
        }
        self.at(self.now + 300_000, Self::checkup);
    }

    pub(crate) fn checkup(&mut self) {
        for runner in 0..self.runners.len() {
            for image in 0..self.images.len() {
                self.request(runner, image, 120_000, true);
                let image = &self.images[image];
                let at_once = self.calls.last_key_value().is_some_and(|(_, call)| call.pod.is_some());
                if !at_once && self.to_be_kept(image) > 0 && self.runners[runner].view_owns(image) {
                    self.violate("a call waits although the image is kept");
                }
            }
        }
        if self.config.kept_images.is_empty() && !is_limited(&self.config, self.quota) && self.rng.chance(30)
        {
            return self.hang_at_the_end();
        }
        self.settled = true;
        if self.images.iter().any(|image| self.to_be_kept(image) > 0) {
            self.at(self.now + UNASKED, Self::unkeep);
        }
    }

    /// All pods of an image hang. The calls that detect this may fail. The next call comes 10 s
    /// later, with a deadline of only 8 s. It must not be rejected.
    fn hang_at_the_end(&mut self) {
        self.count("hung at the end");
        let (runner, image) = (self.rng.index(self.runners.len()), self.rng.index(self.images.len()));
        let hang = self.rng.pick(&[Hang::Silent, Hang::NodeGone]);
        let of_image = |object: &&Object| object.pod.name.image == self.images[image];
        let pods: Vec<_> =
            self.server.objects.values().filter(of_image).map(|object| object.pod.uid.clone()).collect();
        for uid in &pods {
            self.hang(uid, hang);
        }
        // One call for each pod, so that each hanging pod is detected.
        for _ in &pods {
            self.request(runner, image, 120_000, false);
        }
        self.at(self.now + 10_000, move |world| world.request(runner, image, 8000, true));
    }

    /// Checks that exactly the kept pods exist, and that they are up to date. Then configures the
    /// runners to keep no pods, so that the history can end.
    pub(crate) fn unkeep(&mut self) {
        for image in self.images.clone() {
            let kept = self.to_be_kept(&image);
            let there = self.serving(&image);
            if there != kept {
                self.violate(format!("{there} pods are there, {kept} are to be kept"));
            }
            let outdated = |object: &Object| object.pod.name.image == image && self.is_outdated(&object.pod);
            if self.server.objects.values().any(outdated) {
                self.violate("a kept pod is outdated");
            }
        }
        self.count("kept");
        self.settled = false;
        self.config.kept_images = Arc::default();
        for runner in 0..self.runners.len() {
            self.after(0, 5000, move |world| world.configure(runner));
        }
    }

    /// How many pods of the image are kept once all runners have the same configuration.
    pub(crate) fn to_be_kept(&self, image: &ImageKey) -> usize {
        let limits = &self.config.limits;
        let kept = self.config.kept_images.contains_key(image);
        if kept { limits.min_pods.min(limits.max_pods) as usize } else { 0 }
    }

    /// How many pods of the image serve.
    pub(crate) fn serving(&self, image: &ImageKey) -> usize {
        let serves = |object: &&Object| {
            object.pod.name.image == *image && object.truth == Truth::Ready && !object.is_terminating()
        };
        self.server.objects.values().filter(serves).count()
    }
}
