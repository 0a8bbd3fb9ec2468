//! One image: its pods, the creates under way, the calls that wait, and the settling that follows every event.
//!
//! Events only record what happened. [`Function::settle`] then looks at the whole image and does what the rules ask
//! for, so that no rule depends on which event came last.

use std::time::Duration;

use crate::config::Settings;
use crate::event::{Action, Rejection};
use crate::pool::FunctionStats;
use crate::queue::Queue;
use crate::replace::Replacement;
use crate::scale::Warm;
use crate::shared::{Shared, Totals, Turn, Watch};
use crate::start::{Backoff, Start};
use crate::tracked::{Health, Tracked};
use crate::types::{ImageKey, Phase, Reason, ShardKey, Time, Uid};

/// An answer later than this never comes.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) image: ImageKey,
    /// Of the last request, for pods created now.
    pub(crate) shard_key: ShardKey,
    pub(crate) settings: Settings,
    /// In the order of slots.
    pub(crate) pods: Vec<Tracked>,
    pub(crate) starts: Vec<Start>,
    pub(crate) queue: Queue,
    pub(crate) backoff: Option<Backoff>,
    /// A warm-up was asked for, and has neither succeeded nor been given up.
    pub(crate) warm: Option<Warm>,
    /// How many pods this runner keeps: none unless it owns the image.
    pub(crate) keep: usize,
    /// The pause between starts of pods to be kept.
    pub(crate) top_up_pause: Option<Backoff>,
    pub(crate) replacement: Option<Replacement>,
    /// Where the round robin goes on.
    pub(crate) next_pick: usize,
    /// A pod that has served is gone, and none has been ready since.
    pub(crate) lost: bool,
    /// Since when no pod has been ready.
    pub(crate) unready_since: Option<Time>,
    /// When a name may become free that a create is waiting for.
    pub(crate) name_free_at: Option<Time>,
    pub(crate) scan_at: Time,
    /// Nothing of the image is collected before.
    pub(crate) collect_from: Time,
    /// Creates in a row that a quota refused, while calls wait.
    pub(crate) refusals: u32,
    /// Since when calls have waited for a place among the pods of all images.
    pub(crate) wants_since: Option<Time>,
    /// As counted among those of all images.
    pub(crate) part: Totals,
    /// As entered into the timers; may be earlier than needed.
    pub(crate) timer: Option<Time>,
}

// === impl Function ===

impl Function {
    pub(crate) fn new(image: ImageKey, shard_key: ShardKey, turn: &Turn<'_>) -> Self {
        let settings = turn.shared.config.settings(&image);
        Self {
            keep: turn.keeps(&settings),
            settings,
            image,
            shard_key,
            pods: Vec::new(),
            starts: Vec::new(),
            queue: Queue::default(),
            backoff: None,
            warm: None,
            top_up_pause: None,
            replacement: None,
            next_pick: 0,
            lost: false,
            unready_since: None,
            name_free_at: None,
            scan_at: turn.now + turn.shared.config.scan_interval,
            collect_from: Time::default(),
            refusals: 0,
            wants_since: None,
            part: Totals::default(),
            timer: None,
        }
    }

    /// The configuration changed.
    pub(crate) fn configure(&mut self, turn: &Turn<'_>) {
        self.settings = turn.shared.config.settings(&self.image);
        self.keep = turn.keeps(&self.settings);
        self.scan_at = self.scan_at.min(turn.now + turn.shared.config.scan_interval);
    }

    /// Brings the image in line with the rules, at the turn's moment.
    pub(crate) fn settle(&mut self, turn: &mut Turn<'_>) {
        self.expire_starts(turn);
        self.expire_answers(turn);
        self.expire_unconfirmed(turn);
        self.expire_probes(turn);
        self.check_pods(turn);
        self.expire_waiters(turn);
        self.grant_waiters(turn);
        self.scan(turn);
        self.retire(turn);
        self.collect(Tracked::is_evicted, turn);
        self.push_pods(turn);
        self.scale(turn);
        self.probe_pods(turn);
        self.delete_failed(turn);
        self.set_timer(turn);
        self.count_part(turn);
    }

    pub(crate) fn count_part(&mut self, turn: &mut Turn<'_>) {
        let owned = |tracked: &&Tracked| tracked.stays() && tracked.owned_since.is_some();
        let part = Totals {
            owned: self.pods.iter().filter(owned).count(),
            replacing: self.replacement.is_some().into(),
            ..self.places(turn)
        };
        turn.shared.totals.change(self.part, part);
        self.part = part;
    }

    /// Nothing left to remember.
    pub(crate) fn is_idle(&self) -> bool {
        self.pods.is_empty()
            && self.starts.is_empty()
            && self.queue.is_empty()
            && self.backoff.is_none()
            && self.warm.is_none()
            && self.keep == 0
    }

    pub(crate) fn find(&self, uid: &Uid) -> Option<usize> {
        self.pods.iter().position(|tracked| tracked.uid() == uid)
    }

    pub(crate) fn pod_mut(&mut self, uid: &Uid) -> Option<&mut Tracked> {
        self.pods.iter_mut().find(|tracked| tracked.uid() == uid)
    }

    pub(crate) fn any_ready(&self) -> bool {
        self.pods.iter().any(Tracked::ready)
    }

    /// Pods that count towards the limit, creates under way included.
    pub(crate) fn count(&self, now: Time) -> usize {
        self.pods.iter().filter(|tracked| tracked.counts(now)).count() + self.unseen_starts()
    }

    /// Pods that are not ready yet, creates under way included.
    pub(crate) fn starting(&self, now: Time) -> usize {
        self.pods.iter().filter(|tracked| tracked.starting(now)).count() + self.unseen_starts()
    }

    pub(crate) fn unseen_starts(&self) -> usize {
        self.starts.iter().filter(|start| start.unseen()).count()
    }

    /// Rejects the calls that have waited too long.
    fn expire_waiters(&mut self, turn: &mut Turn<'_>) {
        while let Some(waiter) = self.pop_expired(turn) {
            let no_room = self.wants_since.is_some();
            turn.reject(waiter, if no_room { Rejection::NoRoom } else { Rejection::DeadlineExceeded });
        }
        if self.any_ready() {
            (self.unready_since, self.lost) = (None, false);
            return;
        }
        if self.wants_since.is_some() {
            self.unready_since = None;
            return;
        }
        self.unready_since.get_or_insert(turn.now);
        while self.unready_limit(turn).is_some_and(|limit| limit <= turn.now) {
            let Some(waiter) = self.queue.pop() else { break };
            let error = if turn.may_create() {
                self.not_ready(turn.shared.config.ready_timeout)
            } else {
                let timeout = turn.shared.config.ready_timeout;
                Rejection::NotReady { timeout, waiting: Some(Reason::NotListed) }
            };
            turn.reject(waiter.id, error);
        }
    }

    /// When the first waiter has waited for the ready timeout without any ready pod. Where pods were lost that have
    /// served, what it waits for is another one: it waits until its deadline.
    fn unready_limit(&self, turn: &Turn<'_>) -> Option<Time> {
        let waiter = self.queue.front()?;
        let lost = turn.may_create() && (self.lost || self.pods.iter().any(|tracked| tracked.served));
        Some(self.unready_since?.max(waiter.since) + turn.shared.config.ready_timeout).filter(|_| !lost)
    }

    pub(crate) fn not_ready(&self, timeout: Duration) -> Rejection {
        let waiting = self.pods.iter().find_map(|tracked| match &tracked.pod.phase {
            Phase::Pending(Some(reason)) if tracked.stays() => Some(reason.clone()),
            _ => None,
        });
        Rejection::NotReady { timeout, waiting }
    }

    /// Enters the earliest moment at which time alone changes something.
    fn set_timer(&mut self, turn: &mut Turn<'_>) {
        let Some(next) = self.next_timer(turn) else { return };
        let next = next.max(turn.now + Duration::from_millis(1));
        if self.timer.is_some_and(|timer| timer <= next) {
            return;
        }
        self.clear_timer(turn);
        turn.shared.timers.insert((next, self.image.clone()));
        self.timer = Some(next);
    }

    pub(crate) fn clear_timer(&mut self, turn: &mut Turn<'_>) {
        if let Some(timer) = self.timer.take() {
            turn.shared.timers.remove(&(timer, self.image.clone()));
        }
    }

    fn next_timer(&self, turn: &Turn<'_>) -> Option<Time> {
        let config = &turn.shared.config;
        let mut next: Option<Time> = None;
        let mut at = |time: Option<Time>| next = next.into_iter().chain(time).min();
        at(self.queue.first_deadline());
        at(self.unready_limit(turn));
        at(self.name_free_at);
        at((!self.pods.is_empty()).then_some(self.scan_at));
        if let Some(backoff) = &self.backoff {
            let wanted = !self.queue.is_empty() || self.warms(turn) || self.is_short(turn.now);
            at(wanted.then_some(backoff.retry_at).filter(|&at| at > turn.now));
            at(Some(backoff.forget_at()));
        }
        at(self.top_up_timer(turn));
        for start in &self.starts {
            at(Some(start.expires_at()));
        }
        for tracked in &self.pods {
            if turn.shared.watch != Watch::Lost {
                at(tracked.confirm_by);
            }
            if let Health::Probing { since, .. } = tracked.health {
                at(Some(since + tracked.patience(config)));
            }
            at(tracked.check_at());
            at(tracked
                .full
                .map(|full| full.until)
                .filter(|&until| until > turn.now && !self.queue.is_empty()));
            at(tracked.silent_at().filter(|&at| at > turn.now));
            at(tracked.place_timer(config, turn.now));
            if let Some(delete) = &tracked.delete {
                at(Some(delete.expires_at(config.retry_interval())));
            } else if tracked.failed() && tracked.stays() && tracked.ours() {
                at(Some(tracked.delete_after));
            }
            at(self.push_timer(tracked, turn));
        }
        next
    }

    /// Stops a probe that no longer serves a purpose.
    pub(crate) fn stop_probe(tracked: &mut Tracked, turn: &mut Turn<'_>) {
        if matches!(tracked.health, Health::Probing { .. } | Health::Overdue) {
            tracked.health = Health::Unknown;
            let (uid, name) = (tracked.pod.uid.clone(), tracked.pod.name.clone());
            turn.out.push(Action::Probe { uid, name, on: false });
        }
    }

    pub(crate) fn stats(&self, shared: &Shared) -> FunctionStats {
        FunctionStats {
            image: self.image.clone(),
            owned: shared.ownership.owns(&self.shard_key),
            ready: self.pods.iter().filter(|tracked| tracked.ready()).count(),
            starting: self.pods.iter().filter(|tracked| tracked.lives() && !tracked.served).count()
                + self.unseen_starts(),
            silent: self
                .pods
                .iter()
                .filter(|tracked| tracked.lives() && tracked.served && !tracked.ready())
                .count(),
            terminating: self.pods.iter().filter(|tracked| !tracked.stays()).count(),
            in_flight: self.pods.iter().map(Tracked::load).sum(),
            waiting: self.queue.len(),
        }
    }
}
