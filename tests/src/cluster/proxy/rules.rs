//! Chooses the fault for each request, and records it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// A fault between a client and the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A watch ends without an error, as after its timeout.
    EndWatch,
    /// The connection of a watch is lost.
    CutWatch,
    /// A watch sends nothing more, but its connection stays open.
    StallWatch,
    /// A watch reports in an event that its resource version is too old (410).
    ExpireWatch,
    /// A watch is refused because its resource version is too old (410).
    RefuseWatch,
    /// A write is not executed: 409.
    Conflict,
    /// A request is not executed: 429 with `Retry-After: 1`.
    TooManyRequests,
    /// A request is not executed: 500.
    ServerError,
    /// A request is executed after this delay.
    Slow(Duration),
    /// A write is executed, but the response is a 500.
    LoseAnswer,
    /// A write is executed, but the connection is lost before the response.
    LoseConnection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    Read,
    Watch,
    Write,
}

/// A fault, and the requests into which it is injected.
#[derive(Debug)]
pub struct Rule {
    fault: Fault,
    only: fn(RequestKind) -> bool,
    chance: f64,
    times: usize,
}

/// The stage of a request at which a fault is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Received,
    /// While a watch is open, a fault is chosen at its start, before each event, and when the rules
    /// change.
    Watching,
}

pub(super) struct Rules {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

struct State {
    rules: Vec<Rule>,
    random: u64,
    /// An entry for each request (`None`: without a fault), and for each fault in an open watch.
    outcomes: Vec<Option<Fault>>,
}

// === impl Fault ===

impl Fault {
    fn applies(self, kind: RequestKind, stage: Stage) -> bool {
        match (self, stage) {
            (Self::EndWatch | Self::CutWatch | Self::StallWatch | Self::ExpireWatch, Stage::Watching)
            | (Self::RefuseWatch, Stage::Received) => kind == RequestKind::Watch,
            (Self::Conflict | Self::LoseAnswer | Self::LoseConnection, Stage::Received) => {
                kind == RequestKind::Write
            }
            (Self::TooManyRequests | Self::ServerError | Self::Slow(_), Stage::Received) => true,
            _ => false,
        }
    }
}

// === impl Rule ===

impl Rule {
    /// Injects a fault into every request to which it applies.
    pub fn new(fault: Fault) -> Self {
        Self { fault, only: |_| true, chance: 1.0, times: usize::MAX }
    }

    /// Limits the rule to these requests.
    pub fn only(self, only: fn(RequestKind) -> bool) -> Self {
        Self { only, ..self }
    }

    /// Injects the fault with this probability.
    pub fn chance(self, chance: f64) -> Self {
        Self { chance, ..self }
    }

    /// Injects the fault at most this many times.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }
}

// === impl Rules ===

impl Rules {
    pub(super) fn new(seed: u64) -> Self {
        let state = State { rules: Vec::new(), random: seed, outcomes: Vec::new() };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    pub(super) fn set(&self, rules: Vec<Rule>) {
        self.lock().rules = rules;
        self.changed.send_replace(());
    }

    /// The receiver gets a message when the rules change.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Chooses the fault for a request. Tries the rules in their order, and uses the first that
    /// applies and whose random draw succeeds.
    pub(super) fn choose(&self, kind: RequestKind, stage: Stage) -> Option<Fault> {
        let mut state = self.lock();
        let State { rules, random, .. } = &mut *state;
        let hit = |rule: &&mut Rule| {
            let applies = rule.times > 0 && rule.fault.applies(kind, stage) && (rule.only)(kind);
            applies && fraction(random) < rule.chance
        };
        let rule = rules.iter_mut().find(hit)?;
        rule.times -= 1;
        Some(rule.fault)
    }

    pub(super) fn record(&self, fault: Option<Fault>) {
        self.lock().outcomes.push(fault);
    }

    pub(super) fn outcomes(&self) -> Vec<Option<Fault>> {
        self.lock().outcomes.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next pseudorandom number from 0 to 1 (`SplitMix64`).
fn fraction(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    f64::from(((mixed ^ (mixed >> 31)) >> 32) as u32) / (f64::from(u32::MAX) + 1.0)
}
