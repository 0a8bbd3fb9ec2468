//! The agenda of future events, and the course of one simulated run (a history).

use std::collections::BTreeMap;

use super::Counts;
use super::faults::{
    Fault, GENTLE, draw_capacity, draw_config, draw_focus, draw_kept, draw_runner, is_limited,
};
use super::mutants::Mutant;
use super::rng::Rng;
use super::runner::Runner;
use super::server::{Change, Server};
use crate::config::Config;
use crate::event::{Creation, Event};
use crate::types::{ImageKey, Pod, RequestId, ShardKey, Uid};

/// An entry of the agenda.
type Happening = Box<dyn FnOnce(&mut World)>;

/// A call that waits or runs.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) runner: usize,
    pub(crate) image: ImageKey,
    pub(crate) deadline: u64,
    pub(crate) pod: Option<Uid>,
    /// A rejection of this call is a violation, and its caller does not cancel it.
    pub(crate) must_succeed: bool,
}

#[derive(Default)]
pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    entries: u64,
    pub(crate) server: Server,
    pub(crate) runners: Vec<Runner>,
    pub(crate) images: Vec<ImageKey>,
    /// For each image, how often its tag was moved. This number stands for the content.
    pub(crate) tags: Vec<u64>,
    pub(crate) calls: BTreeMap<RequestId, Call>,
    pub(crate) next_call: u64,
    /// The configuration that all runners use once they have read it.
    pub(crate) config: Config,
    pub(crate) highest_limit: u32,
    pub(crate) outage: (u64, u64),
    pub(crate) faults_over: bool,
    /// The faults are long over: the pods that runners keep (`min_pods`) exist and stay.
    pub(crate) settled: bool,
    pub(crate) focus: &'static [Fault],
    /// The number of pods that a quota of the API server allows.
    pub(crate) quota: Option<usize>,
    /// Number of concurrent calls that a pod accepts from all runners together.
    pub(crate) pod_takes: usize,
    /// Requests and watch events are not delayed. Requests and their answers may still be lost.
    pub(crate) gentle: bool,
    /// Percentage of requests to the API server that take 0.5 to 5 s.
    pub(crate) slow: u64,
    pub(crate) counts: Counts,
    pub(crate) violation: Option<String>,
    pub(crate) mutant: Option<Mutant>,
    trace: bool,
}

/// True time at the start, in milliseconds. It is not 0, because the runners were started earlier.
const START: u64 = 1_000_000_000;
/// A history that has not ended by this time is a violation.
const END: u64 = START + 24 * 3_600_000;

/// Runs one history.
pub(crate) fn run(seed: u64, mutant: Option<Mutant>, trace: bool) -> Result<Counts, String> {
    let mut world = World::new(seed, mutant, trace);
    world.play();
    match world.violation {
        Some(violation) => Err(violation),
        None => Ok(world.counts),
    }
}

// === impl World ===

impl World {
    fn new(seed: u64, mutant: Option<Mutant>, trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let images = ["registry/a:v1", "registry/b:v1"][..rng.between(1, 2) as usize].to_vec();
        let images: Vec<_> = images.into_iter().map(ImageKey::from).collect();
        let mut config = draw_config(&mut rng);
        let (quota, gentle) = draw_capacity(&mut rng, &mut config);
        if !is_limited(&config, quota) {
            draw_kept(&mut rng, &images, &mut config);
        }
        let count = rng.between(2, 3) as usize;
        let runners = (0..count).map(|_| draw_runner(&mut rng, &config, START)).collect();
        Self {
            now: START,
            runners,
            tags: vec![0; images.len()],
            images,
            highest_limit: config.limits.max_pods,
            config,
            focus: if gentle { GENTLE } else { draw_focus(&mut rng) },
            slow: if gentle { 0 } else { rng.pick(&[5, 5, 30]) },
            pod_takes: rng.pick(&[2, 64, 64, 64]),
            quota,
            gentle,
            mutant,
            trace,
            rng,
            ..Self::default()
        }
    }

    pub(crate) fn at(&mut self, time: u64, happening: impl FnOnce(&mut Self) + 'static) {
        self.entries += 1;
        self.agenda.insert((time.max(self.now), self.entries), Box::new(happening));
    }

    pub(crate) fn after(&mut self, low: u64, high: u64, happening: impl FnOnce(&mut Self) + 'static) {
        let delay = self.rng.between(low, high);
        self.at(self.now + delay, happening);
    }

    pub(crate) fn count(&mut self, what: impl Into<String>) {
        *self.counts.entry(what.into()).or_default() += 1;
    }

    pub(crate) fn violate(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.log(|| format!("VIOLATION {what}"));
        self.violation.get_or_insert(what);
    }

    pub(crate) fn log(&self, line: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3} {}", (self.now - START) as f64 / 1000.0, line());
        }
    }

    fn play(&mut self) {
        self.open();
        while self.violation.is_none() {
            let timers = self.runners.iter().enumerate();
            let timer = timers.filter_map(|(index, runner)| Some((runner.next_timer()?, index))).min();
            let agenda = self.agenda.first_key_value().map(|(&(time, _), _)| time);
            match (agenda, timer) {
                (None, None) => break,
                (agenda, Some((time, index))) if agenda.is_none_or(|agenda| time <= agenda) => {
                    self.now = self.now.max(time);
                    self.tick(index);
                }
                _ => {
                    let Some(((time, _), happening)) = self.agenda.pop_first() else { break };
                    self.now = self.now.max(time);
                    happening(self);
                }
            }
            self.publish();
            if self.now > END {
                self.violate("the pools never come to rest");
            }
        }
        if self.violation.is_none() {
            self.check_end();
        }
    }

    fn tick(&mut self, index: usize) {
        self.feed(index, Event::Tick);
        if self.runners[index].next_timer().is_some_and(|time| time <= self.now) {
            self.violate("a timer does not advance");
        }
    }

    fn check_end(&mut self) {
        if !self.server.objects.is_empty() {
            self.violate(format!("pods are left: {:?}", self.server.objects.keys()));
        }
        for runner in 0..self.runners.len() {
            if !self.runners[runner].pool.is_empty() {
                self.violate(format!("runner {runner} remembers {:?}", self.runners[runner].pool));
            }
        }
        if !self.calls.is_empty() {
            self.violate("calls are left");
        }
    }

    /// Passes an event to a pool and carries out its actions.
    pub(crate) fn feed(&mut self, index: usize, event: Event) {
        self.log(|| format!("-> {index} {event:?}"));
        let runner = &mut self.runners[index];
        let local = runner.local(self.now);
        let actions = match self.mutant {
            None => runner.pool.step(event, local),
            Some(mutant) => mutant.step(&mut runner.pool, event, local),
        };
        if actions.len() > 200 {
            self.violate("a storm of actions");
        }
        for action in actions {
            self.log(|| format!("   {index} -> {action:?}"));
            self.perform(index, action);
        }
    }

    fn see(&mut self, runner: usize, pod: Pod) {
        if self.runners[runner].reports(&pod) {
            self.feed(runner, Event::Seen(pod));
        }
    }

    /// Sends the new changes to the watches.
    fn publish(&mut self) {
        for runner in 0..self.runners.len() {
            while self.runners[runner].connected && self.runners[runner].cursor < self.server.log.len() {
                self.redraw_lag(runner);
                let state = &mut self.runners[runner];
                state.deliver_at = state.deliver_at.max(self.now + state.lag);
                let change = self.server.log[state.cursor].clone();
                state.cursor += 1;
                let (time, watch) = (state.deliver_at, state.watch);
                self.at(time, move |world| world.deliver(runner, watch, change));
            }
        }
    }

    pub(crate) fn answer(&mut self, runner: usize, life: u64, written: Option<Pod>, event: Event) {
        if self.runners[runner].life == life {
            if let Some(pod) = written {
                self.see(runner, pod);
            }
            if let Event::Created { result: Creation::Ok(uid), .. } = &event {
                self.runners[runner].created.insert(uid.clone());
            }
            self.feed(runner, event);
        }
    }

    fn deliver(&mut self, runner: usize, watch: u64, change: Change) {
        if self.runners[runner].watch != watch {
            return;
        }
        match change {
            Change::Seen(pod) => self.see(runner, pod),
            Change::Gone(uid) => {
                self.runners[runner].report_gone(&uid);
                self.feed(runner, Event::Gone(uid));
            }
        }
    }

    pub(crate) fn listed(&mut self, runner: usize, watch: u64, pods: &[Pod]) {
        if self.runners[runner].watch == watch {
            self.runners[runner].synced = true;
            let pods = self.runners[runner].report_list(pods);
            self.feed(runner, Event::Synced(pods));
        }
    }

    pub(crate) fn own(&mut self, runner: usize, view: Vec<ShardKey>) {
        self.runners[runner].view = view.into_iter().collect();
        let owned = self.runners[runner].owned();
        self.feed(runner, Event::Own(owned));
    }

    /// The runner reads the configuration as it is now.
    pub(crate) fn configure(&mut self, runner: usize) {
        self.runners[runner].config = self.config.clone();
        let config = self.runners[runner].configured();
        self.feed(runner, Event::Configure(config));
    }

    pub(crate) fn probed(&mut self, runner: usize, uid: Uid) {
        if self.server.seems_ready(&uid) && self.runners[runner].probing.remove(&uid) {
            self.feed(runner, Event::Ready(uid));
        }
    }

    pub(crate) fn overdue(&mut self, id: RequestId) {
        if self.calls.get(&id).is_some_and(|call| call.pod.is_none()) {
            self.violate(format!("call {id:?} got no answer by its deadline"));
        }
    }
}
