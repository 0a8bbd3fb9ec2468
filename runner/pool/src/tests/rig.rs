//! A pool that runs scripts: events go in as short steps, and each names the actions it causes.
//!
//! `request 3 -> grant 3 u0 + create 1` expects exactly these actions, `request 4` none, and
//! `request 5 ..` any; `pass 60 about u0` looks only at lines with `u0`. Times are seconds from
//! now, and pod `u0` is the one in slot 0. [`Rig::act`] and [`Rig::show`] list the words.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, Limits, Override, Overrides};
use crate::event::{Action, Creation, Event, OwnedShards, Rejection, Verdict, WriteOutcome};
use crate::pool::Pool;
use crate::types::{
    ImageContent, ImageKey, Phase, Pod, PodName, PodRecipe, Reason, RequestId, ResourceVersion, ShardKey,
    Time, Uid,
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
        rig.run("synced");
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
            rig.run(&format!("see {slot} ..; ready {slot} .."));
        }
        rig.run("pass 90 ..");
        for &slot in slots {
            rig.run(&format!("see {slot} .."));
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

    /// With pods that answer a check only in the script.
    pub(crate) fn with_quiet_pods(config: Config, slots: &[u32]) -> Self {
        Self { pods_answer: false, ..Self::with_pods(config, slots) }
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

    /// Carries out the steps of a script, separated by `;`.
    #[track_caller]
    pub(crate) fn run(&mut self, script: &str) {
        for step in script.split("; ") {
            if let Some(step) = step.strip_suffix(" ..") {
                self.act(step);
                continue;
            }
            let (step, expected) = step.split_once(" -> ").unwrap_or((step, ""));
            assert_eq!(self.act(step).join(" + "), expected, "{step}");
        }
    }

    /// Carries out one step of a script.
    pub(crate) fn act(&mut self, step: &str) -> Vec<String> {
        let (step, about) = step.split_once(" about ").unwrap_or((step, ""));
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        let (first, text) = rest.split_once(' ').unwrap_or((rest, ""));
        let number = first.parse::<u64>().unwrap_or_default();
        let (id, slot) = (RequestId(number), number as u32);
        // A number stands for the pod of that slot.
        let uid = if first.parse::<u32>().is_ok() { uid(slot) } else { Uid::from(first) };
        let reason = other(text);
        let finished = |verdict| Event::Finished { id, verdict };
        let created = |result| Event::Created { name: name(slot), result };
        let event = match verb {
            "pass" => return self.pass(number).into_iter().filter(|line| line.contains(about)).collect(),
            "counts" => return vec![self.counts().map(|count| count.to_string()).join(" ")],
            "is" => {
                assert!(self.pool.is_empty(), "{:?}", self.pool);
                return Vec::new();
            }
            "created" | "written" => {
                let pod = self.pod_as(rest);
                let mut lines = self.step(Event::Seen(pod));
                lines.extend(self.step(match verb {
                    "created" => created(Creation::Ok(uid)),
                    _ => Event::Pushed { uid, result: WriteOutcome::Ok },
                }));
                return lines;
            }
            "request" => {
                let patience = text.strip_prefix("within ").map_or(300, |span| span.parse().unwrap());
                let (image, deadline) = (ImageKey::from(IMAGE), self.now + seconds(patience));
                Event::Request { id, shard_key: ShardKey::from(&image), image, deadline }
            }
            "cancel" => Event::Cancel(id),
            "served" => finished(Verdict::Served),
            "broken" => finished(Verdict::Broken),
            "full" => finished(Verdict::Full),
            "silent" => finished(Verdict::Silent),
            "late" => finished(Verdict::Late { package: text.parse().unwrap() }),
            "see" => Event::Seen(self.pod_as(rest)),
            "gone" => Event::Gone(uid),
            "ready" => Event::Ready(uid),
            "checked" => {
                let (number, answered) = text.split_once(' ').unwrap();
                Event::Checked { uid, number: number.parse().unwrap(), answered: answered == "true" }
            }
            "failed" => Event::Failed { uid, reason },
            "refused" => created(Creation::Refused(reason)),
            "creation" if text == "Exists" => created(Creation::Exists),
            "creation" if text == "Ok" => created(Creation::Ok(uid)),
            "creation" => created(Creation::Unreachable),
            "deleted" => Event::Deleted { uid, result: outcome(text) },
            "pushed" => Event::Pushed { uid, result: outcome(text) },
            "own" if first == "shard" => Event::Own(OwnedShards::Of(Arc::new(|_: &ShardKey| true))),
            "own" if first == "other" => Event::Own(OwnedShards::Of(Arc::new(|_: &ShardKey| false))),
            "own" => Event::Own(OwnedShards::All),
            "disown" => Event::Own(OwnedShards::None),
            "watch" => Event::WatchLost,
            "synced" => Event::Synced(rest.split_terminator(", ").map(|pod| self.pod_as(pod)).collect()),
            "warm" => Event::Warm { image: IMAGE.into(), shard_key: IMAGE.into() },
            "limit" => {
                self.config.limits.max_pods = slot;
                Event::Configure(self.config.clone())
            }
            _ => panic!("unknown step: {step}"),
        };
        self.step(event).into_iter().filter(|line| line.contains(about)).collect()
    }

    pub(crate) fn configure(&mut self, config: Config) -> Vec<String> {
        self.config = config.clone();
        self.step(Event::Configure(config))
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

    /// The pod that a script describes by its slot and what is special about it.
    pub(crate) fn pod_as(&mut self, text: &str) -> Pod {
        let mut words = text.split(' ');
        let mut next = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap();
        let mut pod = self.pod(next() as u32);
        while let Some(word) = words.next() {
            let mut in_seconds = || Some(self.now + seconds(words.next().unwrap().parse().unwrap()));
            match word {
                "lapsing" => pod.reclaim_after = in_seconds(),
                "terminating" => pod.terminating_since = in_seconds(),
                "endless" => pod.reclaim_after = None,
                "outdated" => pod.recipe = made("old", 4000),
                "running" => pod.phase = Phase::Running,
                "failed" => pod.phase = Phase::Failed(other(&words.by_ref().collect::<Vec<_>>().join(" "))),
                "past" => {
                    pod.name.past = words.next().map(Uid::from);
                    pod.uid = "second".into();
                }
                _ => panic!("unknown pod: {text}"),
            }
        }
        pod
    }

    pub(crate) fn see_as(&mut self, slot: u32, change: impl FnOnce(Pod) -> Pod) -> Vec<String> {
        let pod = self.pod(slot);
        self.step(Event::Seen(change(pod)))
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

fn outcome(text: &str) -> WriteOutcome {
    match text {
        "Ok" => WriteOutcome::Ok,
        "Conflict" => WriteOutcome::Conflict,
        "Gone" => WriteOutcome::Gone,
        "Unknown" => WriteOutcome::Unknown,
        _ => WriteOutcome::Unreachable,
    }
}

pub(crate) fn uid(slot: u32) -> Uid {
    Uid::from(format!("u{slot}"))
}

pub(crate) const NOTHING: [&str; 0] = [];
