//! Runs a pool with scripts. Each step of a script is an event and the expected actions.
//!
//! `request 3 -> grant 3 u0 + create 1` expects exactly these actions, `request 4` none, and
//! `request 5 ..` any. `pass 60 about u0` compares only lines (texts of actions) with `u0`. Times
//! are seconds from now, and pod `u0` is the pod in slot 0. [`Rig::act`] defines the words for
//! events, and [`Rig::show`] those for actions.
//!
//! [`Rig::serving`] has an API server that answers at once, and pods that start and end at once.
//! Its functions have short names (`f0`). Its lines contain no names of pods, and no writes except
//! deletes. `call 3 f1 -> grant 3` is a call of one of several functions.

use std::time::Duration;

use crate::config::{Config, Limits};
use crate::event::{Action, Creation, Event, OwnedShards, Rejection, Verdict, WriteOutcome};
use crate::function::{FunctionStats, Pool};
use crate::model::Server;
use crate::types::{
    ImageContent, ImageKey, Lookup, Phase, Pod, PodName, PodRecipe, Reason, RequestId, ResourceVersion, Time,
    Uid,
};

pub(crate) const IMAGE: &str = "registry/fn:v1";

pub(crate) struct Rig {
    pub(crate) pool: Pool,
    pub(crate) now: Time,
    pub(crate) config: Config,
    /// Pods answer checks at once, and lines do not show the checks.
    pub(crate) pods_answer: bool,
    pub(crate) server: Option<Server>,
    /// The number of pods that the server allows. It allows no pods of the function `refused`.
    pub(crate) quota: usize,
    pub(crate) refused: &'static str,
    pub(crate) changes: u64,
}

pub(crate) fn config() -> Config {
    Config { recipe: made("new", 5000), ..Config::default() }
}

/// A recipe with a configuration written at this time in milliseconds.
pub(crate) fn made(version: &str, written: u64) -> PodRecipe {
    PodRecipe::of(version, Some(Time::from_millis(written)))
}

/// Like `made`, with image content. `resolved` (ms): when the tag first resolved to this content.
pub(crate) fn made_with(version: &str, written: u64, digest: &str, resolved: u64) -> PodRecipe {
    let content = ImageContent { digest: digest.into(), resolved: Some(Time::from_millis(resolved)) };
    PodRecipe { content: Some(content), ..made(version, written) }
}

pub(crate) fn limits(max_pods: u32, waitlist: u32) -> Config {
    Config { limits: Limits { max_pods, waitlist, ..config().limits }, ..config() }
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn name(slot: u32) -> PodName {
    PodName { image: IMAGE.into(), slot, past: None }
}

pub(crate) fn other(text: &str) -> Reason {
    Reason::new("other", text)
}

// === impl Rig ===

impl Rig {
    /// A single runner that has listed the pods and found none.
    pub(crate) fn new(config: Config) -> Self {
        let mut rig = Self::unsynced(config);
        rig.run("synced");
        rig
    }

    pub(crate) fn unsynced(config: Config) -> Self {
        let now = Time::from_millis(1_000_000_000);
        let (server, quota, refused, changes) = (None, usize::MAX, "", 0);
        let pool = Pool::new(config.clone());
        Self { pool, now, config, pods_answer: true, server, quota, refused, changes }
    }

    /// A rig with an API server. The first scan interval, in which the pool deletes nothing, is
    /// over.
    pub(crate) fn serving(config: Config) -> Self {
        let mut rig = Self { server: Some(Server::default()), ..Self::unsynced(config) };
        rig.run("synced ..; pass 60 ..");
        rig
    }

    /// A rig with ready, idle pods in these slots. After a list or a change of ownership, the owner
    /// deletes nothing for a while; this time is over.
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
        let (mut events, mut lines) = (vec![event], Vec::new());
        while let Some(event) = events.pop() {
            for action in self.pool.step(event, self.now) {
                let (line, is_delete) = (self.show(&action), matches!(action, Action::Delete { .. }));
                let answers = self.answer(action);
                lines.extend((answers.is_none() || is_delete).then_some(line));
                events.extend(answers.into_iter().flatten());
            }
        }
        lines
    }

    /// The events with which the pods and the API server answer an action, in reverse order. `None`
    /// if the script answers.
    fn answer(&mut self, action: Action) -> Option<Vec<Event>> {
        if let Action::Check { uid, number, .. } = action {
            return self.pods_answer.then(|| vec![Event::Checked { uid, number, answered: true }]);
        }
        let server = self.server.as_mut()?;
        Some(match action {
            Action::Create { name, shard_key, recipe, reclaim_after } => {
                if server.objects.len() >= self.quota || function(&name.image) == self.refused {
                    let result = Creation::OverQuota(other("exceeded quota"));
                    return Some(vec![Event::Created { name, result }]);
                }
                let reclaim_after = Some(reclaim_after);
                let pod = Pod { name: name.clone(), shard_key, recipe, reclaim_after, ..Pod::default() };
                let uid = server.create(pod, 0).unwrap().uid;
                let pod = server.update(&uid, |object| object.pod.phase = Phase::Running).unwrap();
                vec![Event::Created { name, result: Creation::Ok(uid) }, Event::Seen(pod)]
            }
            Action::Push { uid, until, place_wanted, .. } => {
                let pod = server.push(&uid, until, place_wanted).unwrap();
                vec![Event::Pushed { uid, result: WriteOutcome::Ok }, Event::Seen(pod)]
            }
            Action::Delete { uid, .. } => {
                server.remove(&uid);
                vec![Event::Gone(uid.clone()), Event::Deleted { uid, result: WriteOutcome::Ok }]
            }
            Action::Probe { uid, on: true, .. } => vec![Event::Ready(uid)],
            Action::Probe { .. } | Action::Disconnect { .. } | Action::Check { .. } => Vec::new(),
            Action::Grant { .. } | Action::Reject { .. } => return None,
        })
    }

    /// Another runner pushes the function's pod, or asks for its eviction if `until` is `None`.
    fn pushed(&mut self, of: &str, until: Option<Time>) -> Vec<String> {
        let server = self.server.as_mut().unwrap();
        let pod = server.objects.values().find(|object| function(&object.pod.name.image) == of).unwrap();
        let (uid, before) = (pod.pod.uid.clone(), pod.pod.reclaim_after.unwrap());
        let wanted = until.is_none().then_some(self.now);
        let pod = server.push(&uid, until.unwrap_or(before), wanted).unwrap();
        self.step(Event::Seen(pod))
    }

    /// A rig with pods that answer a check only in the script.
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
            assert!(
                self.pool.next_timer().is_none_or(|timer| timer > self.now),
                "the timer does not advance"
            );
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
            // Ready and starting pods, calls in flight and waiting.
            "counts" => {
                let count = |all: &FunctionStats| [all.ready, all.starting, all.in_flight, all.waiting];
                let counts = self.pool.stats().first().map_or([0; 4], count);
                return vec![counts.map(|count| count.to_string()).join(" ")];
            }
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
            "request" | "call" => {
                let (of, patience) = text.split_once("within ").unwrap_or((text, "300"));
                let image = if verb == "call" { image(of.trim_end()) } else { ImageKey::from(IMAGE) };
                let deadline = self.now + seconds(patience.parse().unwrap());
                Event::Request { id, shard_key: image.as_str().into(), image, deadline }
            }
            "serve" => {
                self.changes += 1;
                let id = 1000 + self.changes;
                let mut lines = self.act(&format!("call {id} {first}"));
                lines.extend(self.pass(text.parse().unwrap_or(1)));
                assert!(lines.contains(&format!("grant {id}")), "{step}: {lines:?}");
                return self.act(&format!("served {id}"));
            }
            "pods" => {
                let pods = self.server.as_ref().unwrap().objects.keys();
                return vec![pods.map(|name| function(&name.image)).collect::<Vec<_>>().join(" ")];
            }
            "wanted" => return self.pushed(first, None),
            "used" => return self.pushed(first, Some(self.now + self.config.limits.ttl)),
            "tick" => Event::Tick,
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
            "creation" if text == "OverQuota" => created(Creation::OverQuota(other("quota"))),
            "creation" => created(Creation::Unreachable),
            "deleted" => Event::Deleted { uid, result: outcome(text) },
            "pushed" => Event::Pushed { uid, result: outcome(text) },
            "own" if first == "shard" => Event::Own(OwnedShards::Of(Lookup::by(|_| true))),
            "own" if first == "other" => Event::Own(OwnedShards::Of(Lookup::by(|_| false))),
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

    /// The pod that a script describes by its slot and its special properties.
    pub(crate) fn pod_as(&mut self, text: &str) -> Pod {
        let mut words = text.split(' ');
        let mut next = || words.next().and_then(|word| word.parse::<u64>().ok()).unwrap();
        let mut pod = self.pod(next() as u32);
        while let Some(word) = words.next() {
            let mut in_seconds = || Some(self.now + seconds(words.next().unwrap().parse().unwrap()));
            match word {
                "expiring" => pod.reclaim_after = in_seconds(),
                "terminating" => pod.terminating_since = in_seconds(),
                "endless" => pod.reclaim_after = None,
                "wanted" => pod.place_wanted = in_seconds(),
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

    fn show(&self, action: &Action) -> String {
        let from_now = |time: Time| {
            let millis = time.as_millis().cast_signed().wrapping_sub(self.now.as_millis().cast_signed());
            format!("{}{}", if millis < 0 { "" } else { "+" }, millis as f64 / 1000.0)
        };
        match action {
            Action::Grant { id, .. } if self.server.is_some() => format!("grant {}", id.0),
            Action::Grant { id, uid } => format!("grant {} {uid}", id.0),
            Action::Reject { id, error } => format!(
                "reject {} {}",
                id.0,
                match error {
                    Rejection::PodFailed { reason } => format!("PodFailed {reason}"),
                    Rejection::NotReady { waiting: Some(reason), .. } => format!("NotReady {reason}"),
                    other => format!("{other:?}").split(' ').next().unwrap().to_owned(),
                }
            ),
            Action::Create { name, .. } => match &name.past {
                None => format!("create {}", name.slot),
                Some(past) => format!("create {} past {past}", name.slot),
            },
            Action::Delete { name, reason, .. } if self.server.is_some() => {
                format!("delete {} {reason:?}", function(&name.image))
            }
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
    use WriteOutcome::{Conflict, Gone, Ok, Unknown, Unreachable};
    let mut all = [Ok, Conflict, Gone, Unknown, Unreachable].into_iter();
    all.find(|outcome| format!("{outcome:?}") == text).unwrap()
}

/// The image of a function with this short name.
pub(crate) fn image(function: &str) -> ImageKey {
    format!("registry/{function}:v1").into()
}

fn function(image: &ImageKey) -> &str {
    image.as_str().trim_start_matches("registry/").trim_end_matches(":v1")
}

pub(crate) fn uid(slot: u32) -> Uid {
    Uid::from(format!("u{slot}"))
}

pub(crate) const NOTHING: [&str; 0] = [];
