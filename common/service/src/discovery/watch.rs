//! Keeps a target's set of servers up to date.
//!
//! One task per target looks up, waits for the answer's TTL, and looks up again. It publishes complete sets
//! through a `watch` channel, so that a reader that was busy sees the newest set and nothing in between.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, future::Future, net::IpAddr, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use tracing::{info, warn};

use super::{
    resolver::{Family, Lookup, LookupError, MAX_VALID_FOR, MIN_VALID_FOR, Resolver},
    target::{HostPort, Target},
};

/// A lookup without an answer for this long has failed.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Mean waits between failed lookups: from about the first to about the second, doubling.
const RETRY_FROM: Duration = Duration::from_millis(500);
const RETRY_TO: Duration = Duration::from_secs(10);

/// The servers of a target at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Counts the sets. 0: there was no answer yet, and `endpoints` is empty for that reason.
    pub generation: u64,
    /// `host:port`, an IPv6 address in brackets; sorted, each once.
    pub endpoints: Arc<[String]>,
    /// What is wrong with the last lookup: it failed, or the name does not exist. A change of this alone
    /// is visible to who looks, but wakes nobody.
    pub last_error: Option<Arc<str>>,
}

/// Watches `target`.
///
/// Returns the task that does it, for the caller to spawn, and the snapshots. The receiver is woken by the
/// first answer, even an empty one, and then by each change of the set. A list, or a name that is an IP
/// address, is answered from the start and never changes.
///
/// The task ends when `stop` completes or when no receiver is left. Receivers keep the last snapshot.
pub fn watch<R, S>(
    target: Target,
    resolver: R,
    stop: S,
) -> (impl Future<Output = ()> + Send + use<R, S>, watch::Receiver<Snapshot>)
where
    R: Resolver,
    S: Future<Output = ()> + Send,
{
    let label = target.to_string();
    let (fixed, name) = match target {
        Target::Static(hosts) => (Some(hosts), None),
        Target::Dns { name, .. } if name.ip().is_some() => (Some(vec![name]), None),
        Target::Dns { name, .. } => (None, Some(name)),
    };
    let first = fixed.map(|hosts| Snapshot {
        generation: 1,
        endpoints: sorted(hosts.iter().map(ToString::to_string)),
        last_error: None,
    });
    let (sender, receiver) = watch::channel(first.unwrap_or_default());
    let task = async move {
        let updates = async {
            match name {
                Some(name) => Watcher::new(label, name, resolver, &sender).run().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop => {}
            () = sender.closed() => {}
            () = updates => {}
        }
    };
    (task, receiver)
}

struct Watcher<'a, R> {
    /// The target, for the log.
    label: String,
    name: HostPort,
    resolver: R,
    sender: &'a watch::Sender<Snapshot>,
    addresses: BTreeSet<IpAddr>,
    failing: Option<Failing>,
    name_exists: bool,
}

/// A row of failed lookups.
struct Failing {
    since: Instant,
    attempts: u32,
}

// === impl Snapshot ===

impl Snapshot {
    /// Whether there was an answer, possibly an empty one. From then on a router may serve.
    pub fn is_answered(&self) -> bool {
        self.generation > 0
    }
}

// === impl Watcher ===

impl<'a, R: Resolver> Watcher<'a, R> {
    fn new(label: String, name: HostPort, resolver: R, sender: &'a watch::Sender<Snapshot>) -> Self {
        Self { label, name, resolver, sender, addresses: BTreeSet::new(), failing: None, name_exists: true }
    }

    async fn run(mut self) {
        loop {
            let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, self.resolver.lookup(&self.name.host)).await;
            let wait = match lookup {
                Ok(Ok(lookup)) => self.answered(&lookup),
                Ok(Err(error)) => self.failed(&error),
                Err(_elapsed) => self.failed(&LookupError::Timeout { host: self.name.host.clone() }),
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes an answer over. Returns when to ask again.
    fn answered(&mut self, lookup: &Lookup) -> Duration {
        if let Some(failing) = self.failing.take() {
            info!(
                discovery = %self.label,
                attempts = failing.attempts,
                after = ?failing.since.elapsed(),
                "lookups succeed again",
            );
        }
        if self.name_exists && !lookup.name_exists {
            warn!(discovery = %self.label, "the name does not exist in DNS: no endpoints until it does");
        }
        self.name_exists = lookup.name_exists;

        self.addresses = merge(&self.addresses, lookup);
        let endpoints = sorted(
            self.addresses
                .iter()
                .map(|address| HostPort { host: address.to_string(), port: self.name.port }.to_string()),
        );
        let last_error = (!lookup.name_exists).then(|| {
            format!("the name {:?} does not exist in DNS; correct the target", self.name.host).into()
        });
        self.sender.send_if_modified(|snapshot| {
            snapshot.last_error = last_error;
            if snapshot.is_answered() && snapshot.endpoints == endpoints {
                return false;
            }
            let (added, removed) = (
                missing_from(&snapshot.endpoints, &endpoints),
                missing_from(&endpoints, &snapshot.endpoints),
            );
            info!(discovery = %self.label, endpoints = endpoints.len(), added, removed, "endpoints changed");
            snapshot.generation += 1;
            snapshot.endpoints = endpoints;
            true
        });
        lookup.valid_for.clamp(MIN_VALID_FOR, MAX_VALID_FOR)
    }

    /// Notes a failure; the last set stays. Returns when to ask again.
    fn failed(&mut self, error: &LookupError) -> Duration {
        let first = self.failing.is_none();
        let failing = self.failing.get_or_insert_with(|| Failing { since: Instant::now(), attempts: 0 });
        failing.attempts = failing.attempts.saturating_add(1);
        let wait = retry_after(failing.attempts, fastrand::f64());
        self.sender.send_if_modified(|snapshot| {
            if first {
                let kept = snapshot.endpoints.len();
                warn!(discovery = %self.label, %error, kept, "lookups fail: keeping the last endpoints");
            }
            snapshot.last_error = Some(error.to_string().into());
            false
        });
        wait
    }
}

/// The addresses after an answer. A family that was not answered keeps its own.
fn merge(last: &BTreeSet<IpAddr>, lookup: &Lookup) -> BTreeSet<IpAddr> {
    let kept = last.iter().copied().filter(|address| Some(Family::of(*address)) == lookup.unanswered);
    lookup.addresses.iter().copied().chain(kept).collect()
}

/// Doubles with each failure up to a bound; `random` in 0..1 spreads it over ±50 %, so that many routers do
/// not come back to a recovering DNS server at once.
fn retry_after(attempts: u32, random: f64) -> Duration {
    let doubled = RETRY_FROM.saturating_mul(2_u32.saturating_pow(attempts.saturating_sub(1)));
    doubled.min(RETRY_TO).mul_f64(0.5 + random.clamp(0.0, 1.0))
}

fn sorted(endpoints: impl Iterator<Item = String>) -> Arc<[String]> {
    endpoints.collect::<BTreeSet<_>>().into_iter().collect()
}

/// How many of `new` are not in `old`; both are sorted.
fn missing_from(old: &[String], new: &[String]) -> usize {
    new.iter().filter(|endpoint| old.binary_search(endpoint).is_err()).count()
}
