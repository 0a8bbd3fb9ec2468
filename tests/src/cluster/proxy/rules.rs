//! Which fault is done to which request, and what was done.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// What can go wrong on the way to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A watch ends, as it does after its time.
    EndWatch,
    /// The connection of a watch is lost.
    CutWatch,
    /// A watch goes silent: nobody notices.
    StallWatch,
    /// A watch says in an event that its version is too old (410).
    ExpireWatch,
    /// A watch is refused since its version is too old (410).
    RefuseWatch,
    /// A write is not carried out: 409.
    Conflict,
    /// A request is not carried out: 429 with `Retry-After: 1`.
    TooManyRequests,
    /// A request is not carried out: 500.
    ServerError,
    /// A request is carried out so late.
    Slow(Duration),
    /// A write is carried out and answered with a 500.
    LoseAnswer,
    /// A write is carried out and its connection broken.
    LoseConnection,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Read,
    Watch,
    Write,
}

/// A fault, and what it is done to: by itself to all requests that it can be done to, always.
#[derive(Debug)]
pub struct Rule {
    fault: Fault,
    only: fn(Asked) -> bool,
    chance: f64,
    times: usize,
}

/// When a rule is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// A request came in.
    Asked,
    /// A watch is open: at its begin, at the begin of each event, and when the rules change.
    Watching,
}

/// The rules that hold.
pub(super) struct Rules {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

struct State {
    rules: Vec<Rule>,
    random: u64,
    /// What was done to each request, and to watches that were open.
    passed: Vec<Option<Fault>>,
}

// === impl Fault ===

impl Fault {
    fn applies(self, asked: Asked, when: When) -> bool {
        match (self, when) {
            (Self::EndWatch | Self::CutWatch | Self::StallWatch | Self::ExpireWatch, When::Watching)
            | (Self::RefuseWatch, When::Asked) => asked == Asked::Watch,
            (Self::Conflict | Self::LoseAnswer | Self::LoseConnection, When::Asked) => asked == Asked::Write,
            (Self::TooManyRequests | Self::ServerError | Self::Slow(_), When::Asked) => true,
            _ => false,
        }
    }
}

// === impl Rule ===

impl Rule {
    /// Always, to all that the fault can be done to.
    pub fn new(fault: Fault) -> Self {
        Self { fault, only: |_| true, chance: 1.0, times: usize::MAX }
    }

    /// To these requests alone.
    pub fn only(self, only: fn(Asked) -> bool) -> Self {
        Self { only, ..self }
    }

    /// With a probability.
    pub fn chance(self, chance: f64) -> Self {
        Self { chance, ..self }
    }

    /// No more often than that.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }
}

// === impl Rules ===

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        let state = State { rules: Vec::new(), random: seed, passed: Vec::new() };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    pub(super) fn set(&self, rules: Vec<Rule>) {
        self.lock().rules = rules;
        self.changed.send_replace(());
    }

    /// Tells of changes.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// The fault to be done now.
    pub(super) fn roll(&self, asked: Asked, when: When) -> Option<Fault> {
        let mut state = self.lock();
        let State { rules, random, .. } = &mut *state;
        let hit = |rule: &&mut Rule| {
            let applies = rule.times > 0 && rule.fault.applies(asked, when) && (rule.only)(asked);
            applies && fraction(random) < rule.chance
        };
        let rule = rules.iter_mut().find(hit)?;
        rule.times -= 1;
        Some(rule.fault)
    }

    pub(super) fn record(&self, fault: Option<Fault>) {
        self.lock().passed.push(fault);
    }

    pub(super) fn passed(&self) -> Vec<Option<Fault>> {
        self.lock().passed.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next number of a sequence of well-mixed ones, in 0..1 (`SplitMix64`).
fn fraction(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    f64::from(((mixed ^ (mixed >> 31)) >> 32) as u32) / (f64::from(u32::MAX) + 1.0)
}
