//! Everything that the pools do not control: requests, faults, owners and configuration.

use std::sync::Arc;
use std::time::Duration;

use super::rng::Rng;
use super::runner::{OFFSETS, Runner};
use super::world::{Call, World};
use crate::config::{Config, Limits};
use crate::event::Event;
use crate::types::{Digest, ImageContent, ImageKey, Pod, PodName, PodRecipe, RequestId, ShardKey, Time};

pub(crate) fn draw_config(rng: &mut Rng) -> Config {
    let seconds = |seconds| Duration::from_secs(seconds);
    Config {
        limits: Limits {
            max_pods: rng.between(1, 3) as u32,
            min_pods: 0,
            waitlist: rng.between(1, 2) as u32,
            per_pod: rng.pick(&[1, 2, 16]),
            queue: rng.pick(&[2, 20]),
            ttl: seconds(rng.pick(&[60, 120, 300])),
        },
        recipe: PodRecipe::of("v0", None),
        scan_interval: seconds(rng.pick(&[30, 60])),
        ready_timeout: seconds(rng.pick(&[20, 60])),
        pending_timeout: seconds(rng.pick(&[0, 90])),
        ..Config::default()
    }
}

/// A runner whose clock is ahead of the true time, and that was started some time ago.
pub(crate) fn draw_runner(rng: &mut Rng, config: &Config, now: u64) -> Runner {
    let (offset, uptime) = (rng.between(0, OFFSETS), rng.between(0, 600_000));
    Runner::new(config.clone(), offset, now - uptime)
}

/// In some histories (random runs), `min_pods` is set for the first image or for all images.
pub(crate) fn draw_kept(rng: &mut Rng, images: &[ImageKey], config: &mut Config) {
    if rng.chance(40) {
        config.limits.min_pods = rng.between(1, u64::from(config.limits.max_pods)) as u32;
        let kept = &images[..rng.between(1, images.len() as u64) as usize];
        config.kept_images = Arc::new(kept.iter().map(|image| (image.clone(), key(image))).collect());
    }
}

/// In some histories, `--max-pods` or a quota allows only a few pods. Some of these histories are
/// gentle ([`World::gentle`]).
pub(crate) fn draw_capacity(rng: &mut Rng, config: &mut Config) -> (Option<usize>, bool) {
    let drawn = rng.between(0, 99);
    if drawn >= 30 {
        return (None, false);
    }
    let pods = rng.between(1, 4);
    config.limits.queue = 20;
    if drawn < 15 {
        config.capacity = Some(pods as u32);
    }
    ((drawn >= 10).then_some(pods as usize), rng.chance(50))
}

pub(crate) fn is_limited(config: &Config, quota: Option<usize>) -> bool {
    config.capacity.is_some() || quota.is_some()
}

/// Causes a fault or a change, for one runner or for all.
pub(crate) type Fault = fn(&mut World, usize);

const WATCH_GAP: Fault = World::lose_watch;
const OUTAGE: Fault = |world, _| world.begin_outage();
const OWNERS: Fault = |world, _| world.reown();
const CONFIGURE: Fault = |world, _| world.reconfigure();
const TAG_MOVES: Fault = |world, _| world.move_tag();
const POD_ENDS: Fault = |world, _| world.hit_pod();
const POD_HANGS: Fault = |world, _| world.hang_pod();
const RESTART: Fault = World::restart;
const OLD_RELEASE: Fault = |world, _| world.create_old();
const WARM_UP: Fault = World::warm_up;
const LAG: Fault = |world, runner| world.runners[runner].lag = world.rng.between(0, 15_000);

/// The kinds of faults in a history. A kind that is listed more often occurs more often: some races
/// need several faults of one kind in a row.
pub(crate) fn draw_focus(rng: &mut Rng) -> &'static [Fault] {
    rng.pick(&[
        &[
            WATCH_GAP,
            OUTAGE,
            OWNERS,
            CONFIGURE,
            TAG_MOVES,
            POD_ENDS,
            POD_ENDS,
            POD_HANGS,
            RESTART,
            OLD_RELEASE,
            WARM_UP,
            LAG,
        ],
        &[WATCH_GAP, OUTAGE, OUTAGE, RESTART, LAG],
        &[OWNERS, CONFIGURE, CONFIGURE, CONFIGURE, LAG],
        &[OWNERS, CONFIGURE, TAG_MOVES, TAG_MOVES, RESTART],
        &[WATCH_GAP, POD_ENDS, POD_ENDS, OLD_RELEASE, WARM_UP],
        &[WATCH_GAP, POD_ENDS, POD_HANGS, POD_HANGS, POD_HANGS, OWNERS, RESTART, LAG],
    ])
}

/// The faults of a gentle history ([`World::gentle`]): none of them delays requests or watch
/// events.
pub(crate) const GENTLE: &[Fault] = &[OWNERS, CONFIGURE, TAG_MOVES, POD_ENDS, RESTART, WARM_UP];

pub(crate) fn key(image: &ImageKey) -> ShardKey {
    ShardKey::from(image.as_str())
}

// === impl World ===

impl World {
    /// Adds the first entries to the agenda.
    pub(crate) fn open(&mut self) {
        for runner in 0..self.runners.len() {
            let owned = self.runners[runner].owned();
            self.feed(runner, Event::Own(owned));
            self.after(0, 5000, move |world| world.relist(runner, 0));
            self.after(0, 120_000, move |world| world.resolve(runner));
        }
        self.reown();
        self.at(self.now, Self::load);
        self.after(0, 30_000, Self::cause_fault);
        self.after(300_000, 900_000, Self::recover);
    }

    pub(crate) fn request(&mut self, runner: usize, image: usize, patience: u64, must_succeed: bool) {
        self.next_call += 1;
        let id = RequestId(self.next_call);
        let deadline = self.now + patience;
        self.at(deadline + 1000, move |world| world.overdue(id));
        if !must_succeed && self.rng.chance(10) {
            self.after(0, patience, move |world| world.caller_gone(id));
        }
        let image = self.images[image].clone();
        self.calls.insert(id, Call { runner, image: image.clone(), deadline, pod: None, must_succeed });
        let deadline = self.runners[runner].local(deadline);
        self.feed(runner, Event::Request { id, shard_key: key(&image), image, deadline });
    }

    /// Sends a burst of requests, and schedules the next burst.
    pub(crate) fn load(&mut self) {
        if self.faults_over {
            return;
        }
        self.burst();
        match self.near_expiry() {
            Some(time) if self.rng.chance(20) => self.at(time, Self::load),
            _ => {
                let pause = self.rng.pick(&[100, 5000, 20_000, 120_000]);
                self.after(1, pause, Self::load);
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

    /// A time near the `reclaim_after` of a random pod: the pod's owner may then be about to delete
    /// it.
    fn near_expiry(&mut self) -> Option<u64> {
        let uid = self.any_pod()?;
        let expiry = self.server.get(&uid)?.pod.reclaim_after?;
        let time =
            expiry.as_millis().saturating_sub(self.rng.between(0, 20_000)) + self.rng.between(0, 60_000);
        (time > self.now).then_some(time)
    }

    /// Causes a fault or change, and schedules the next one.
    pub(crate) fn cause_fault(&mut self) {
        if self.faults_over {
            return;
        }
        let runner = self.rng.index(self.runners.len());
        if !self.gentle && self.rng.chance(50) {
            self.server.stale = self.server.list();
        }
        self.rng.pick(self.focus)(self, runner);
        let pause = self.rng.pick(&[1000, 30_000, 60_000]);
        self.after(1, pause, Self::cause_fault);
    }

    fn warm_up(&mut self, runner: usize) {
        let image = self.images[self.rng.index(self.images.len())].clone();
        self.feed(runner, Event::Warm { shard_key: key(&image), image });
    }

    pub(crate) fn redraw_lag(&mut self, runner: usize) {
        if self.faults_over || self.gentle {
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
        self.after(100, 15_000, move |world| world.relist(runner, watch));
    }

    pub(crate) fn relist(&mut self, runner: usize, watch: u64) {
        if self.runners[runner].watch != watch {
            return;
        }
        if self.outage.1 > self.now {
            let end = self.outage.1;
            let delay = self.rng.between(1, 3000);
            return self.at(end + delay, move |world| world.relist(runner, watch));
        }
        self.redraw_lag(runner);
        let (pods, cursor) = if !self.faults_over && !self.gentle && self.rng.chance(30) {
            self.server.stale.clone()
        } else {
            self.server.list()
        };
        let state = &mut self.runners[runner];
        state.connected = true;
        state.cursor = cursor;
        state.deliver_at = self.now + state.lag;
        let time = state.deliver_at;
        self.at(time, move |world| world.listed(runner, watch, &pods));
    }

    /// The API server is unavailable for all runners. Every watch breaks some time before the end
    /// of the outage.
    fn begin_outage(&mut self) {
        if self.outage.1 > self.now {
            return;
        }
        self.count("outage");
        let length = self.rng.pick(&[5000, 60_000, 300_000, 300_000]);
        self.outage = (self.now, self.now + length);
        for runner in 0..self.runners.len() {
            self.after(0, length - 1, move |world| world.lose_watch(runner));
        }
        // Send requests near the end of the outage. Until its end, no runner can write a later
        // `reclaim_after` for the pods that serve these requests.
        for _ in 0..self.rng.between(0, 6) {
            self.after(length - length.min(30_000), length, Self::burst);
        }
    }

    /// Each runner learns of new owners at a different time. Usually all runners agree in the end.
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
            self.after(0, 20_000, move |world| world.own(runner, view));
        }
    }

    fn reconfigure(&mut self) {
        if self.rng.chance(30) {
            self.config.limits.max_pods = self.rng.between(1, 3) as u32;
            self.highest_limit = self.highest_limit.max(self.config.limits.max_pods);
        } else if !self.config.kept_images.is_empty() && self.rng.chance(30) {
            self.config.limits.min_pods = self.rng.between(0, 3) as u32;
        } else {
            self.config.recipe = PodRecipe::of(self.now.to_string(), Some(Time::from_millis(self.now)));
        }
        for runner in 0..self.runners.len() {
            self.after(0, 30_000, move |world| world.configure(runner));
        }
    }

    /// A tag moves. Some runners learn of it soon, the others at their next registry request.
    fn move_tag(&mut self) {
        self.count("tag moved");
        let image = self.rng.index(self.images.len());
        self.tags[image] += 1;
        for runner in 0..self.runners.len() {
            if self.rng.chance(60) {
                self.after(0, 60_000, move |world| world.resolve(runner));
            }
        }
    }

    /// A runner resolves every tag. If the runner already knew the content, the time of the first
    /// resolution stays.
    pub(crate) fn resolve(&mut self, runner: usize) {
        let resolved = Some(Time::from_millis(self.now));
        for (image, moves) in self.images.iter().zip(&self.tags) {
            let content = ImageContent { digest: Digest::from(moves.to_string()), resolved };
            let known = self.runners[runner].known.entry(image.clone()).or_insert_with(|| content.clone());
            if known.digest != content.digest {
                *known = content;
            }
        }
        let config = self.runners[runner].configured();
        self.feed(runner, Event::Configure(config));
    }

    /// Whether a pod was created from another recipe than the current one.
    pub(crate) fn is_outdated(&self, pod: &Pod) -> bool {
        let image = self.images.iter().position(|image| *image == pod.name.image);
        let tag = image.map(|image| self.tags[image].to_string());
        let content = pod.recipe.content.as_ref().map(|content| content.digest.to_string());
        pod.recipe.version != self.config.recipe.version || content != tag
    }

    fn restart(&mut self, runner: usize) {
        self.count("restart");
        self.calls.retain(|_, call| call.runner != runner);
        for object in self.server.objects.values_mut() {
            object.calls.retain(|&(of, _)| of != runner);
        }
        let state = &mut self.runners[runner];
        state.restart(self.config.clone(), self.now);
        let (watch, owned) = (state.watch, state.owned());
        self.feed(runner, Event::Own(owned));
        self.after(1, 5000, move |world| world.relist(runner, watch));
        self.after(1, 120_000, move |world| world.resolve(runner));
    }

    /// Creates a pod like an older release of the runner did: without times and without a digest.
    fn create_old(&mut self) {
        let image = self.images[self.rng.index(self.images.len())].clone();
        let slot = self.rng.between(0, u64::from(self.config.limits.max_pods) - 1) as u32;
        let shard_key = key(&image);
        let (name, recipe) = (PodName { image, slot, past: None }, PodRecipe::of("older", None));
        if let Some(pod) = self.server.create(Pod { name, shard_key, recipe, ..Pod::default() }, self.now) {
            self.draw_fate(pod.uid);
        }
    }
}
