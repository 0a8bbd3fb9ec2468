//! Everything that the pools do not control: requests, faults, owners, configuration, and the life of pods.

use std::time::Duration;

use super::rng::Rng;
use super::server::{GRACE, Manifest, Truth};
use super::world::{Call, Happening, World};
use crate::config::{Config, Limits, Template};
use crate::event::{Event, Verdict};
use crate::types::{PodName, RequestId, ShardKey, Time, Uid, Version};

pub(crate) fn draw_config(rng: &mut Rng) -> Config {
    let seconds = |seconds| Duration::from_secs(seconds);
    Config {
        limits: Limits {
            max_pods: rng.between(1, 3) as u32,
            waitlist: rng.between(1, 2) as u32,
            per_pod: rng.pick(&[1, 2, 16]),
            queue: rng.pick(&[2, 20]),
            ttl: seconds(rng.pick(&[60, 120, 300])),
        },
        template: Template { version: Version::from("v0"), config_time: None },
        scan_interval: seconds(rng.pick(&[30, 60])),
        ready_timeout: seconds(rng.pick(&[20, 60])),
        ..Config::default()
    }
}

/// How long a steady load lasts, and for how much of it no call may fail.
const STEADY: u64 = 1_800_000;
const STEADY_SETTLED: u64 = 1_700_000;

/// What a history is mostly about: some races need several faults of one kind in a row.
pub(crate) fn draw_focus(rng: &mut Rng) -> &'static [u64] {
    const ALL: &[u64] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    const CONNECTION: &[u64] = &[0, 2, 2, 8, 11];
    const CONFIGURATION: &[u64] = &[3, 5, 5, 5, 11];
    const PODS: &[u64] = &[0, 6, 6, 9, 10];
    rng.pick(&[ALL, CONNECTION, CONFIGURATION, PODS])
}

fn key(image: &crate::types::ImageKey) -> ShardKey {
    ShardKey::from(image)
}

// === impl World ===

impl World {
    /// The first entries of the agenda.
    pub(crate) fn open(&mut self) {
        for runner in 0..self.runners.len() {
            let ownership = self.runners[runner].ownership();
            self.feed(runner, Event::Own(ownership));
            self.after(0, 5000, Happening::Relist { runner, watch: 0 });
        }
        self.reown();
        self.at(self.now, Happening::Load);
        self.after(0, 30_000, Happening::Chaos);
        self.after(300_000, 900_000, Happening::Calm);
    }

    pub(crate) fn request(&mut self, runner: usize, image: usize, patience: u64, must_succeed: bool) {
        self.next_call += 1;
        let id = RequestId(self.next_call);
        let deadline = self.now + patience;
        self.calls.insert(id, Call { runner, deadline, pod: None, must_succeed });
        self.at(deadline + 1000, Happening::Overdue { id });
        if !must_succeed && self.rng.chance(10) {
            self.after(0, patience, Happening::CallerGone { id });
        }
        let image = self.images[image].clone();
        let deadline = self.runners[runner].local(deadline);
        self.feed(runner, Event::Request { id, shard_key: key(&image), image, deadline });
    }

    /// A burst of requests, and the time of the next.
    pub(crate) fn load(&mut self) {
        if self.calm {
            return;
        }
        self.burst();
        match self.near_lapse() {
            Some(time) if self.rng.chance(20) => self.at(time, Happening::Load),
            _ => {
                let pause = self.rng.pick(&[100, 5000, 20_000, 120_000]);
                self.after(1, pause, Happening::Load);
            }
        }
    }

    pub(crate) fn burst(&mut self) {
        let image = self.rng.index(self.images.len());
        let wanted = key(&self.images[image]);
        let owner = self.runners.iter().position(|runner| runner.view.contains(&wanted));
        for _ in 0..self.rng.pick(&[1, 1, 2, 5]) {
            let runner = match owner {
                Some(owner) if self.rng.chance(60) => owner,
                _ => self.rng.index(self.runners.len()),
            };
            let patience = self.rng.pick(&[1000, 20_000, 290_000]);
            self.request(runner, image, patience, false);
        }
    }

    /// A time at which some pod's owner may be about to collect it.
    fn near_lapse(&mut self) -> Option<u64> {
        let uid = self.any_pod()?;
        let lapse = self.server.get(&uid)?.pod.reclaim_after?;
        let time = lapse.as_millis() - self.rng.between(0, 20_000) + self.rng.between(0, 60_000);
        (time > self.now).then_some(time)
    }

    /// One fault or change, and the time of the next.
    pub(crate) fn chaos(&mut self) {
        if self.calm {
            return;
        }
        let runner = self.rng.index(self.runners.len());
        if self.rng.chance(50) {
            self.server.stale = self.server.list();
        }
        match self.rng.pick(self.focus) {
            0 | 1 => self.lose_watch(runner),
            2 => self.begin_outage(),
            3 | 4 => self.reown(),
            5 => self.reconfigure(),
            6 | 7 => self.hit_pod(),
            8 => self.restart(runner),
            9 => self.foreign_create(),
            10 => {
                let image = self.images[self.rng.index(self.images.len())].clone();
                self.feed(runner, Event::Warm { shard_key: key(&image), image });
            }
            _ => self.runners[runner].lag = self.rng.between(0, 15_000),
        }
        let pause = self.rng.pick(&[1000, 30_000, 60_000]);
        self.after(1, pause, Happening::Chaos);
    }

    pub(crate) fn redraw_lag(&mut self, runner: usize) {
        if self.calm {
            self.runners[runner].lag = 50;
        } else if self.rng.chance(10) {
            self.runners[runner].lag = self.rng.pick(&[1, 10, 50, 200, 1000, 15_000]);
        }
    }

    pub(crate) fn lose_watch(&mut self, runner: usize) {
        let state = &mut self.runners[runner];
        state.watch += 1;
        state.connected = false;
        let watch = state.watch;
        self.count("watch lost");
        self.feed(runner, Event::WatchLost);
        self.after(100, 15_000, Happening::Relist { runner, watch });
    }

    pub(crate) fn relist(&mut self, runner: usize, watch: u64) {
        if self.runners[runner].watch != watch {
            return;
        }
        if self.outage.1 > self.now {
            let end = self.outage.1;
            let delay = self.rng.between(1, 3000);
            return self.at(end + delay, Happening::Relist { runner, watch });
        }
        self.redraw_lag(runner);
        let (pods, cursor) =
            if !self.calm && self.rng.chance(30) { self.server.stale.clone() } else { self.server.list() };
        let state = &mut self.runners[runner];
        state.connected = true;
        state.cursor = cursor;
        state.deliver_at = self.now + state.lag;
        let time = state.deliver_at;
        self.at(time, Happening::Listed { runner, watch, pods });
    }

    /// The API server is away for everybody, and every watch breaks some time before it is back.
    fn begin_outage(&mut self) {
        if self.outage.1 > self.now {
            return;
        }
        self.count("outage");
        let length = self.rng.pick(&[5000, 60_000, 300_000, 300_000]);
        self.outage = (self.now, self.now + length);
        for runner in 0..self.runners.len() {
            self.after(0, length - 1, Happening::LoseWatch { runner });
        }
        // Calls that use a pod anyway, and cannot say so before the end.
        for _ in 0..self.rng.between(0, 6) {
            self.after(length - length.min(30_000), length, Happening::Burst);
        }
    }

    /// Each runner hears of new owners, in its own time. Mostly they agree in the end.
    fn reown(&mut self) {
        let agree = self.rng.chance(70);
        let owners: Vec<_> = self.images.iter().map(|_| self.rng.index(self.runners.len())).collect();
        for runner in 0..self.runners.len() {
            let mut view = Vec::new();
            for (image, owner) in owners.iter().enumerate() {
                if if agree { *owner == runner } else { self.rng.chance(50) } {
                    view.push(key(&self.images[image]));
                }
            }
            self.after(0, 20_000, Happening::Own { runner, view });
        }
    }

    fn reconfigure(&mut self) {
        if self.rng.chance(30) {
            self.config.limits.max_pods = self.rng.between(1, 3) as u32;
            self.highest_limit = self.highest_limit.max(self.config.limits.max_pods);
        } else {
            let config_time = Some(Time::from_millis(self.now));
            self.config.template = Template { version: Version::from(self.now.to_string()), config_time };
        }
        for runner in 0..self.runners.len() {
            let config = self.config.clone();
            self.after(0, 30_000, Happening::Configure { runner, config });
        }
    }

    fn restart(&mut self, runner: usize) {
        self.count("restart");
        let gone: Vec<_> =
            self.calls.iter().filter(|(_, call)| call.runner == runner).map(|(id, _)| *id).collect();
        for id in gone {
            let pod = self.calls.remove(&id).and_then(|call| call.pod);
            if let Some(object) = pod.and_then(|uid| self.server.get_mut(&uid)) {
                object.calls.retain(|&(_, other)| other != id);
            }
        }
        let broken = self.broken();
        let state = &mut self.runners[runner];
        state.restart(broken);
        let (watch, ownership) = (state.watch, state.ownership());
        self.feed(runner, Event::Own(ownership));
        self.after(1, 5000, Happening::Relist { runner, watch });
    }

    fn any_pod(&mut self) -> Option<Uid> {
        if self.server.objects.is_empty() {
            return None;
        }
        let index = self.rng.index(self.server.objects.len());
        self.server.objects.values().nth(index).map(|object| object.pod.uid.clone())
    }

    /// Somebody or something ends a pod.
    fn hit_pod(&mut self) {
        let Some(uid) = self.any_pod() else { return };
        match self.rng.between(0, 2) {
            0 => self.pod_fails(&uid),
            1 => self.terminate(&uid),
            _ => self.pod_ends(&uid),
        }
    }

    /// A pod of an older release of the runner, which wrote nothing into it.
    fn foreign_create(&mut self) {
        let image = self.images[self.rng.index(self.images.len())].clone();
        let slot = self.rng.between(0, u64::from(self.config.limits.max_pods) - 1) as u32;
        let manifest = Manifest {
            name: PodName { image: image.clone(), slot, past: None },
            shard_key: key(&image),
            version: Version::from("older"),
            config_time: None,
            reclaim_after: None,
        };
        if let Some(pod) = self.server.create(manifest) {
            self.draw_fate(pod.uid);
        }
    }

    pub(crate) fn draw_fate(&mut self, uid: Uid) {
        let fate = if self.calm { 99 } else { self.rng.between(0, 99) };
        match fate {
            0..10 => self.after(100, 10_000, Happening::PodFails { uid }),
            10..15 => {}
            15..30 => self.after(10_000, 70_000, Happening::PodReady { uid }),
            _ => self.after(200, 4000, Happening::PodReady { uid }),
        }
    }

    pub(crate) fn pod_ready(&mut self, uid: &Uid) {
        let starting = self
            .server
            .get(uid)
            .is_some_and(|object| object.truth == Truth::Starting && object.pod.terminating_since.is_none());
        if !starting {
            return;
        }
        let now = self.now;
        self.server.update(uid, |object| {
            object.truth = Truth::Ready;
            object.ready_since = Some(now);
            object.pod.phase = crate::types::Phase::Running;
        });
        // Before anybody knows of it, which may be just before the owner turns to the pod that this one replaces.
        if !self.calm && self.rng.chance(50) {
            self.after(1, 300, Happening::Burst);
        }
        for runner in 0..self.runners.len() {
            if self.runners[runner].probing.contains(uid) {
                self.after(1, 300, Happening::Probed { runner, uid: uid.clone() });
            }
        }
    }

    pub(crate) fn pod_fails(&mut self, uid: &Uid) {
        if self.server.get(uid).is_some_and(|object| object.truth != Truth::Dead) {
            self.break_calls(uid);
            self.server.fail(uid);
        }
    }

    pub(crate) fn terminate(&mut self, uid: &Uid) {
        let Some(object) = self.server.get(uid).filter(|object| object.pod.terminating_since.is_none())
        else {
            return;
        };
        let busy = !object.calls.is_empty();
        self.server.terminate(uid, self.now);
        let uid = uid.clone();
        if !self.calm && self.rng.chance(10) {
            self.count("stuck pod");
            self.after(GRACE + 1000, GRACE + 200_000, Happening::PodEnds { uid });
        } else if busy {
            self.at(self.now + GRACE, Happening::PodEnds { uid });
        } else {
            self.after(1, 3000, Happening::PodEnds { uid });
        }
    }

    pub(crate) fn pod_ends(&mut self, uid: &Uid) {
        self.break_calls(uid);
        self.server.remove(uid);
    }

    fn break_calls(&mut self, uid: &Uid) {
        let calls = self.server.get_mut(uid).map(|object| std::mem::take(&mut object.calls));
        for (_, id) in calls.into_iter().flatten() {
            self.after(1, 500, Happening::CallEnds { id, verdict: Verdict::Broken });
        }
    }

    /// The faults end, and so do the calls: one owner per image, one configuration, every watch on its way back.
    pub(crate) fn become_calm(&mut self) {
        self.calm = true;
        for id in self.calls.keys().copied().collect::<Vec<_>>() {
            self.caller_gone(id);
        }
        let owners: Vec<_> = self.images.iter().map(|_| self.rng.index(self.runners.len())).collect();
        // Later than anything that is still under way.
        let later = self.now.max(self.outage.1) + 60_000;
        for runner in 0..self.runners.len() {
            let config = self.config.clone();
            self.at(later, Happening::Configure { runner, config });
            let owned = owners.iter().enumerate().filter(|(_, owner)| **owner == runner);
            let view = owned.map(|(image, _)| key(&self.images[image])).collect();
            self.at(later, Happening::Own { runner, view });
        }
        if self.rng.chance(10) {
            let until = later + STEADY;
            self.at(later, Happening::Steady { until });
        } else {
            self.at(later + 600_000, Happening::Checkup);
        }
    }

    pub(crate) fn steady(&mut self, until: u64) {
        if self.now < until {
            // What the faults left behind is gone after some minutes; replacements still go on.
            let must_succeed = self.now + STEADY_SETTLED > until;
            for runner in 0..self.runners.len() {
                let image = self.rng.index(self.images.len());
                self.request(runner, image, 60_000, must_succeed);
            }
            return self.after(1000, 10_000, Happening::Steady { until });
        }
        self.count("steady");
        let limit = self.config.limits.max_pods as usize;
        for image in self.images.clone() {
            let of_image = || self.server.objects.values().filter(|object| object.pod.name.image == image);
            let outdated =
                of_image().filter(|object| object.pod.version != self.config.template.version).count();
            let count = of_image().count();
            if outdated > 0 || count > limit {
                self.violate(format!(
                    "{outdated} of {count} pods outdated, limit {limit}, after half an hour"
                ));
            }
        }
        self.at(self.now + 300_000, Happening::Checkup);
    }

    pub(crate) fn checkup(&mut self) {
        for runner in 0..self.runners.len() {
            for image in 0..self.images.len() {
                self.request(runner, image, 120_000, true);
            }
        }
    }
}
