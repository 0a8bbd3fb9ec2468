//! Time and order: the agenda of what is going to happen, and the course of a history.

use std::collections::BTreeMap;

use super::Counts;
use super::actions::ApiRequest;
use super::chaos::Fault;
use super::rng::Rng;
use super::runner::Runner;
use super::server::{Change, Server};
use crate::breakage::Breakage;
use crate::config::Config;
use crate::event::{Event, Verdict};
use crate::types::{ImageKey, Pod, RequestId, ShardKey, Uid};

/// Something that is going to happen.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A request reaches the API server.
    Arrive {
        runner: usize,
        life: u64,
        sent: u64,
        request: ApiRequest,
    },
    /// Its answer reaches the pool.
    Answer {
        runner: usize,
        life: u64,
        event: Event,
    },
    Watch {
        runner: usize,
        watch: u64,
        change: Change,
    },
    LoseWatch {
        runner: usize,
    },
    Relist {
        runner: usize,
        watch: u64,
    },
    Listed {
        runner: usize,
        watch: u64,
        pods: Vec<Pod>,
    },
    Own {
        runner: usize,
        view: Vec<ShardKey>,
    },
    /// It reads the configuration as it is now.
    Configure {
        runner: usize,
    },
    /// It asks what the tags stand for.
    Resolve {
        runner: usize,
    },
    PodReady {
        uid: Uid,
    },
    PodFails {
        uid: Uid,
    },
    PodEnds {
        uid: Uid,
    },
    PodResumes {
        uid: Uid,
    },
    Probed {
        runner: usize,
        uid: Uid,
    },
    CallEnds {
        id: RequestId,
        verdict: Verdict,
    },
    CallerGone {
        id: RequestId,
    },
    Overdue {
        id: RequestId,
    },
    Load,
    Burst,
    Chaos,
    Calm,
    /// Requests at a steady pace until the given time, then a look at what serves them.
    Steady {
        until: u64,
    },
    /// One request of each image at each runner, none of which may fail.
    Checkup,
    /// A pod hangs, and a call has shown it: the next call is served by another one.
    AfterHang {
        runner: usize,
        image: usize,
    },
    /// A look at what is kept although nobody asks for it; then nothing is kept any more.
    Unkeep,
}

/// A call that waits or runs.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) runner: usize,
    pub(crate) image: ImageKey,
    pub(crate) deadline: u64,
    pub(crate) pod: Option<Uid>,
    /// Nothing is in its way.
    pub(crate) must_succeed: bool,
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    entries: u64,
    pub(crate) server: Server,
    pub(crate) runners: Vec<Runner>,
    pub(crate) images: Vec<ImageKey>,
    /// What their tags stand for: how often each was moved.
    pub(crate) tags: Vec<u64>,
    pub(crate) calls: BTreeMap<RequestId, Call>,
    pub(crate) next_call: u64,
    /// What all runners are to have once they heard of it.
    pub(crate) config: Config,
    pub(crate) highest_limit: u32,
    pub(crate) outage: (u64, u64),
    pub(crate) calm: bool,
    /// The faults are long over: what is kept is there and stays.
    pub(crate) settled: bool,
    pub(crate) focus: &'static [Fault],
    /// How many pods the API server lets be.
    pub(crate) quota: Option<usize>,
    /// Calls of all runners together that a pod takes at once.
    pub(crate) pod_takes: usize,
    /// Watches and requests are never late.
    pub(crate) gentle: bool,
    /// Percentage of requests to the API server that take seconds.
    pub(crate) slow: u64,
    pub(crate) counts: Counts,
    pub(crate) violation: Option<String>,
    broken: Option<Breakage>,
    trace: bool,
}

/// True time at the start; leaves room for clocks that are behind.
const START: u64 = 1_000_000_000;
/// A history that has not come to rest by then never does.
const END: u64 = START + 24 * 3_600_000;

/// Runs one history.
pub(crate) fn run(seed: u64, broken: Option<Breakage>, trace: bool) -> Result<Counts, String> {
    let mut world = World::new(seed, broken, trace);
    world.play();
    match world.violation {
        Some(violation) => Err(violation),
        None => Ok(world.counts),
    }
}

// === impl World ===

impl World {
    fn new(seed: u64, broken: Option<Breakage>, trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let images = ["registry/a:v1", "registry/b:v1"][..rng.between(1, 2) as usize].to_vec();
        let images: Vec<_> = images.into_iter().map(ImageKey::from).collect();
        let mut config = super::chaos::draw_config(&mut rng);
        let (quota, gentle) = super::chaos::draw_capacity(&mut rng, &mut config);
        if !super::chaos::is_limited(&config, quota) {
            super::chaos::draw_kept(&mut rng, &images, &mut config);
        }
        let count = rng.between(2, 3) as usize;
        let runners =
            (0..count).map(|_| super::chaos::draw_runner(&mut rng, &config, START, broken)).collect();
        Self {
            now: START,
            agenda: BTreeMap::new(),
            entries: 0,
            server: Server::default(),
            runners,
            tags: vec![0; images.len()],
            images,
            calls: BTreeMap::new(),
            next_call: 0,
            highest_limit: config.limits.max_pods,
            config,
            outage: (0, 0),
            calm: false,
            settled: false,
            focus: if gentle { super::chaos::GENTLE } else { super::chaos::draw_focus(&mut rng) },
            slow: if gentle { 0 } else { rng.pick(&[5, 5, 30]) },
            pod_takes: rng.pick(&[2, 64, 64, 64]),
            quota,
            gentle,
            counts: Counts::new(),
            violation: None,
            broken,
            trace,
            rng,
        }
    }

    pub(crate) fn at(&mut self, time: u64, happening: Happening) {
        self.entries += 1;
        self.agenda.insert((time.max(self.now), self.entries), happening);
    }

    pub(crate) fn after(&mut self, low: u64, high: u64, happening: Happening) {
        let delay = self.rng.between(low, high);
        self.at(self.now + delay, happening);
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
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

    pub(crate) fn broken(&self) -> Option<Breakage> {
        self.broken
    }

    fn play(&mut self) {
        self.open();
        while self.violation.is_none() {
            let timer = self
                .runners
                .iter()
                .enumerate()
                .filter_map(|(index, runner)| Some((runner.next_timer()?, index)))
                .min();
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
                    self.happen(happening);
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

    /// Gives a pool an event and carries out what it asks for.
    pub(crate) fn feed(&mut self, index: usize, event: Event) {
        self.log(|| format!("-> {index} {event:?}"));
        let runner = &mut self.runners[index];
        let local = runner.local(self.now);
        let actions = runner.pool.step(event, local);
        if actions.len() > 200 {
            self.violate("a storm of actions");
        }
        for action in actions {
            self.log(|| format!("   {index} -> {action:?}"));
            self.perform(index, action);
        }
    }

    /// Gives the watches what has changed.
    fn publish(&mut self) {
        for runner in 0..self.runners.len() {
            while self.runners[runner].connected && self.runners[runner].cursor < self.server.log.len() {
                self.redraw_lag(runner);
                let state = &mut self.runners[runner];
                state.deliver_at = state.deliver_at.max(self.now + state.lag);
                let change = self.server.log[state.cursor].clone();
                state.cursor += 1;
                let (time, watch) = (state.deliver_at, state.watch);
                self.at(time, Happening::Watch { runner, watch, change });
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive { runner, life, sent, request } => self.arrive(runner, life, sent, request),
            Happening::Answer { runner, life, event } => {
                if self.runners[runner].life == life {
                    self.note_answer(runner, &event);
                    self.feed(runner, event);
                }
            }
            Happening::Watch { runner, watch, change } => {
                if self.runners[runner].watch == watch {
                    let event = match change {
                        Change::Seen(pod) => Event::Seen(pod),
                        Change::Gone(uid) => Event::Gone { uid },
                    };
                    self.feed(runner, event);
                }
            }
            Happening::LoseWatch { runner } => self.lose_watch(runner),
            Happening::Relist { runner, watch } => self.relist(runner, watch),
            Happening::Listed { runner, watch, pods } => {
                if self.runners[runner].watch == watch {
                    self.runners[runner].synced = true;
                    self.feed(runner, Event::Synced(pods));
                }
            }
            Happening::Own { runner, view } => {
                self.runners[runner].view = view.into_iter().collect();
                let ownership = self.runners[runner].ownership();
                self.feed(runner, Event::Own(ownership));
            }
            Happening::Configure { runner } => {
                self.runners[runner].config = self.config.clone();
                let config = self.runners[runner].configured();
                self.feed(runner, Event::Configure(config));
            }
            Happening::Resolve { runner } => self.resolve(runner),
            Happening::PodReady { uid } => self.pod_ready(&uid),
            Happening::PodFails { uid } => self.pod_fails(&uid),
            Happening::PodEnds { uid } => self.pod_ends(&uid),
            Happening::PodResumes { uid } => self.pod_resumes(&uid),
            Happening::AfterHang { runner, image } => self.request(runner, image, 8000, true),
            Happening::Probed { runner, uid } => {
                if self.server.seems_ready(&uid) && self.runners[runner].probing.remove(&uid) {
                    self.feed(runner, Event::Ready { uid });
                }
            }
            Happening::CallEnds { id, verdict } => self.call_ends(id, verdict),
            Happening::CallerGone { id } => self.caller_gone(id),
            Happening::Overdue { id } => {
                if self.calls.get(&id).is_some_and(|call| call.pod.is_none()) {
                    self.violate(format!("call {id:?} got no answer by its deadline"));
                }
            }
            Happening::Load => self.load(),
            Happening::Burst => self.burst(),
            Happening::Chaos => self.chaos(),
            Happening::Calm => self.become_calm(),
            Happening::Steady { until } => self.steady(until),
            Happening::Checkup => self.checkup(),
            Happening::Unkeep => self.unkeep(),
        }
    }
}
