//! A pool in hand: events go in as short calls, actions come out as short lines.
//!
//! `create 0`, `grant 7 u0`, `reject 7 QueueFull`, `push u0 +1800`, `delete u0 Expired`, `probe
//! u0`, `unprobe u0`; moments are seconds from now, and pod `u0` is the one in slot 0.

use std::collections::HashMap;
use std::time::Duration;

use crate::config::{Config, Limits, Override, Overrides};
use crate::event::{Action, Creation, Event, OwnedShards, Rejection, Verdict, WriteOutcome};
use crate::pool::Pool;
use crate::types::{
    ImageContent, ImageKey, Pod, PodName, PodRecipe, Reason, RequestId, ResourceVersion, ShardKey, Time, Uid,
};

pub(crate) const IMAGE: &str = "registry/fn:v1";

pub(crate) struct Rig {
    pub(crate) pool: Pool,
    pub(crate) now: Time,
    pub(crate) config: Config,
    /// Pods answer at once whether they still serve, and lines do not show that they were asked.
    pub(crate) pods_answer: bool,
    changes: u64,
}

pub(crate) fn config() -> Config {
    Config { recipe: made("new", 5000), ..Config::default() }
}

/// From a configuration of so many milliseconds.
pub(crate) fn made(version: &str, written: u64) -> PodRecipe {
    PodRecipe::of(version, Some(Time::from_millis(written)))
}

/// And from the content that the tag has stood for since then.
pub(crate) fn made_with(version: &str, written: u64, digest: &str, resolved: u64) -> PodRecipe {
    let content = ImageContent { digest: digest.into(), resolved: Some(Time::from_millis(resolved)) };
    PodRecipe { content: Some(content), ..made(version, written) }
}

pub(crate) fn limits(max_pods: u32, waitlist: u32) -> Config {
    Config { limits: Limits { max_pods, waitlist, ..config().limits }, ..config() }
}

/// What differs for exact images.
pub(crate) fn overrides(table: HashMap<ImageKey, Override>) -> Overrides {
    Overrides::by(move |image| table.get(image).cloned().unwrap_or_default())
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn name(slot: u32) -> PodName {
    PodName { image: IMAGE.into(), slot, past: None }
}

pub(crate) fn other(text: &str) -> Reason {
    Reason::Other(text.into())
}

// === impl Rig ===

impl Rig {
    /// A single runner that has seen that there are no pods.
    pub(crate) fn new(config: Config) -> Self {
        let mut rig = Self::unsynced(config);
        assert_eq!(rig.step(Event::Synced(Vec::new())), NOTHING);
        rig
    }

    pub(crate) fn unsynced(config: Config) -> Self {
        let now = Time::from_millis(1_000_000_000);
        Self { pool: Pool::new(config.clone()), now, config, pods_answer: true, changes: 0 }
    }

    /// With ready pods in these slots, idle, and past every wait for stable ownership.
    pub(crate) fn with_pods(config: Config, slots: &[u32]) -> Self {
        let mut rig = Self::new(config);
        for &slot in slots {
            rig.see(slot);
            rig.ready(slot);
        }
        rig.pass(90);
        for &slot in slots {
            rig.see(slot);
        }
        rig
    }

    pub(crate) fn step(&mut self, event: Event) -> Vec<String> {
        let mut actions = self.pool.step(event, self.now);
        if self.pods_answer {
            let checked = |action: &Action| match action {
                Action::Check { uid, number, .. } => Some((uid.clone(), *number)),
                _ => None,
            };
            for (uid, number) in actions.iter().filter_map(checked).collect::<Vec<_>>() {
                actions.extend(self.pool.step(Event::Checked { uid, number, answered: true }, self.now));
            }
            actions.retain(|action| checked(action).is_none());
        }
        assert!(self.pool.next_timer().is_none_or(|timer| timer > self.now), "the timer does not advance");
        actions.iter().map(|action| self.show(action)).collect()
    }

    /// Lets time pass, ticking whenever the pool asks for it.
    pub(crate) fn pass(&mut self, span: u64) -> Vec<String> {
        let end = self.now + seconds(span);
        let mut lines = Vec::new();
        while let Some(timer) = self.pool.next_timer().filter(|&timer| timer <= end) {
            self.now = self.now.max(timer);
            lines.extend(self.step(Event::Tick));
        }
        self.now = end;
        lines
    }

    pub(crate) fn request(&mut self, id: u64) -> Vec<String> {
        self.request_within(id, 300)
    }

    pub(crate) fn request_within(&mut self, id: u64, patience: u64) -> Vec<String> {
        let image = ImageKey::from(IMAGE);
        let deadline = self.now + seconds(patience);
        self.step(Event::Request { id: RequestId(id), shard_key: ShardKey::from(&image), image, deadline })
    }

    pub(crate) fn cancel(&mut self, id: u64) -> Vec<String> {
        self.step(Event::Cancel(RequestId(id)))
    }

    pub(crate) fn served(&mut self, id: u64) -> Vec<String> {
        self.step(Event::Finished { id: RequestId(id), verdict: Verdict::Served })
    }

    pub(crate) fn broken(&mut self, id: u64) -> Vec<String> {
        self.step(Event::Finished { id: RequestId(id), verdict: Verdict::Broken })
    }

    /// With pods that answer only what [`checked`](Self::checked) says.
    pub(crate) fn with_quiet_pods(config: Config, slots: &[u32]) -> Self {
        Self { pods_answer: false, ..Self::with_pods(config, slots) }
    }

    /// Of a package of this number.
    pub(crate) fn late(&mut self, id: u64, package: u64) -> Vec<String> {
        self.step(Event::Finished { id: RequestId(id), verdict: Verdict::Late { package } })
    }

    pub(crate) fn full(&mut self, id: u64) -> Vec<String> {
        self.step(Event::Finished { id: RequestId(id), verdict: Verdict::Full })
    }

    pub(crate) fn silent(&mut self, id: u64) -> Vec<String> {
        self.step(Event::Finished { id: RequestId(id), verdict: Verdict::Silent })
    }

    /// The answer to the check of this number, from 1.
    pub(crate) fn checked(&mut self, slot: u32, number: u64, answered: bool) -> Vec<String> {
        self.step(Event::Checked { uid: uid(slot), number, answered })
    }

    /// The pod in a slot, as a watch would show it now: pending, of the configured version, with a
    /// full lifetime.
    pub(crate) fn pod(&mut self, slot: u32) -> Pod {
        self.changes += 1;
        Pod {
            name: name(slot),
            uid: uid(slot),
            resource_version: ResourceVersion::from(self.changes.to_string()),
            shard_key: IMAGE.into(),
            recipe: made("new", 5000),
            reclaim_after: Some(self.now + self.config.limits.ttl),
            ..Pod::default()
        }
    }

    /// That pod, lapsing in so many seconds.
    pub(crate) fn lapsing(&mut self, slot: u32, span: u64) -> Pod {
        Pod { reclaim_after: Some(self.now + seconds(span)), ..self.pod(slot) }
    }

    /// That pod with its deletion timestamp in so many seconds.
    pub(crate) fn terminating(&mut self, slot: u32, span: u64) -> Pod {
        Pod { terminating_since: Some(self.now + seconds(span)), ..self.pod(slot) }
    }

    pub(crate) fn seen(&mut self, pod: Pod) -> Vec<String> {
        self.step(Event::Seen(pod))
    }

    pub(crate) fn see(&mut self, slot: u32) -> Vec<String> {
        self.see_as(slot, |pod| pod)
    }

    /// The watch shows the pod in a slot, changed by `change`.
    pub(crate) fn see_as(&mut self, slot: u32, change: impl FnOnce(Pod) -> Pod) -> Vec<String> {
        let pod = self.pod(slot);
        self.seen(change(pod))
    }

    pub(crate) fn see_lapsing(&mut self, slot: u32, span: u64) -> Vec<String> {
        let pod = self.lapsing(slot, span);
        self.seen(pod)
    }

    pub(crate) fn see_terminating(&mut self, slot: u32, span: u64) -> Vec<String> {
        let pod = self.terminating(slot, span);
        self.seen(pod)
    }

    /// A push of the pod in a slot succeeds, with a full lifetime.
    pub(crate) fn write(&mut self, slot: u32) -> Vec<String> {
        let pod = self.pod(slot);
        self.written(pod)
    }

    pub(crate) fn gone(&mut self, slot: u32) -> Vec<String> {
        self.step(Event::Gone(uid(slot)))
    }

    pub(crate) fn ready(&mut self, slot: u32) -> Vec<String> {
        self.step(Event::Ready(uid(slot)))
    }

    pub(crate) fn failed(&mut self, slot: u32, reason: &str) -> Vec<String> {
        self.step(Event::Failed { uid: uid(slot), reason: other(reason) })
    }

    pub(crate) fn created(&mut self, slot: u32) -> Vec<String> {
        let pod = self.pod(slot);
        let mut lines = self.seen(pod);
        lines.extend(self.creation(slot, Creation::Ok(uid(slot))));
        lines
    }

    pub(crate) fn creation(&mut self, slot: u32, result: Creation) -> Vec<String> {
        self.step(Event::Created { name: name(slot), result })
    }

    pub(crate) fn deleted(&mut self, slot: u32, result: WriteOutcome) -> Vec<String> {
        self.step(Event::Deleted { uid: uid(slot), result })
    }

    pub(crate) fn pushed(&mut self, slot: u32, result: WriteOutcome) -> Vec<String> {
        self.step(Event::Pushed { uid: uid(slot), result })
    }

    /// A push succeeds and writes this.
    pub(crate) fn written(&mut self, pod: Pod) -> Vec<String> {
        let slot = pod.name.slot;
        let mut lines = self.seen(pod);
        lines.extend(self.pushed(slot, WriteOutcome::Ok));
        lines
    }

    pub(crate) fn own(&mut self, owned: bool) -> Vec<String> {
        self.step(Event::Own(if owned { OwnedShards::All } else { OwnedShards::None }))
    }

    /// `[ready, starting, in flight, waiting]`.
    pub(crate) fn counts(&self) -> [usize; 4] {
        let stats = self.pool.stats();
        stats.first().map_or([0; 4], |stats| [stats.ready, stats.starting, stats.in_flight, stats.waiting])
    }

    fn show(&self, action: &Action) -> String {
        let from_now = |time: Time| {
            let millis = time.as_millis().cast_signed() - self.now.as_millis().cast_signed();
            format!("{}{}", if millis < 0 { "" } else { "+" }, millis as f64 / 1000.0)
        };
        match action {
            Action::Grant { id, uid } => format!("grant {} {uid}", id.0),
            Action::Reject { id, error } => format!(
                "reject {} {}",
                id.0,
                match error {
                    Rejection::QueueFull { .. } => "QueueFull".to_owned(),
                    Rejection::NoRoom => "NoRoom".to_owned(),
                    Rejection::DeadlineExceeded => "DeadlineExceeded".to_owned(),
                    Rejection::PodFailed { reason } => format!("PodFailed {reason}"),
                    Rejection::NotReady { waiting: None, .. } => "NotReady".to_owned(),
                    Rejection::NotReady { waiting: Some(reason), .. } => format!("NotReady {reason}"),
                }
            ),
            Action::Create { name, .. } => match &name.past {
                None => format!("create {}", name.slot),
                Some(past) => format!("create {} past {past}", name.slot),
            },
            Action::Delete { uid, reason, .. } => format!("delete {uid} {reason:?}"),
            Action::Check { uid, .. } => format!("check {uid}"),
            Action::Disconnect { uid, .. } => format!("cut {uid}"),
            Action::Push { uid, until, .. } => format!("push {uid} {}", from_now(*until)),
            Action::Probe { uid, on: true, .. } => format!("probe {uid}"),
            Action::Probe { uid, on: false, .. } => format!("unprobe {uid}"),
        }
    }
}

pub(crate) fn uid(slot: u32) -> Uid {
    Uid::from(format!("u{slot}"))
}

pub(crate) const NOTHING: [&str; 0] = [];
