//! Keeps a target's set of servers up to date.
//!
//! One task per target asks, and publishes complete sets through a `watch` channel, so that a reader that was busy
//! sees the newest set and nothing in between. A name is looked up, and again when the answer's TTL is over; a Service
//! is watched.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fmt, future::Future, net::IpAddr, path::Path, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use kube::Client;
use tokio::sync::watch;

use super::{
    dns::{DnsResolver, DnsSetupError},
    kubernetes::{self, ServiceRef},
    publish::{Publisher, Snapshot, sorted},
    resolver::{Family, Lookup, LookupError, MAX_VALID_FOR, MIN_VALID_FOR, Resolver},
    target::{HostPort, Target},
};
use porch_fn_kubernetes::{ConnectError, connect};

/// A lookup without an answer for this long has failed.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// A target with what it takes to ask for its servers.
pub struct Source<R = DnsResolver> {
    /// The target, for the log.
    label: String,
    means: Means<R>,
}

enum Means<R> {
    /// Nobody is asked.
    Fixed(Vec<HostPort>),
    Dns(HostPort, R),
    Kubernetes(ServiceRef, Client),
}

/// Why a target's servers cannot be asked for. The user can mend it.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// DNS cannot be used.
    #[error(transparent)]
    Dns(#[from] DnsSetupError),
    /// There is no way to the API server.
    #[error("{target} needs the API server: {source}")]
    Kubernetes {
        /// The target.
        target: String,
        /// Why there is none.
        source: ConnectError,
    },
}

/// Watches a target.
///
/// Returns the task that does it, for the caller to spawn, and the snapshots. The receiver is woken by the
/// first answer, even an empty one, and then by each change of the set. A list, or a name that is an IP
/// address, is answered from the start and never changes.
///
/// The task ends when no receiver is left. Receivers keep the last snapshot.
pub fn watch<R: Resolver + 'static>(
    source: Source<R>,
) -> (impl Future<Output = ()> + Send + use<R>, watch::Receiver<Snapshot>) {
    let Source { label, means } = source;
    let first = match &means {
        Means::Fixed(hosts) => Snapshot {
            generation: 1,
            endpoints: sorted(hosts.iter().map(ToString::to_string)),
            last_error: None,
        },
        _ => Snapshot::default(),
    };
    let (sender, receiver) = watch::channel(first);
    let sender = Arc::new(sender);
    let publisher = Publisher::new(label, Arc::clone(&sender));
    let updates: BoxFuture<'static, ()> = match means {
        Means::Fixed(_) => std::future::pending().boxed(),
        Means::Dns(name, resolver) => Lookups::new(name, resolver, publisher).run().boxed(),
        Means::Kubernetes(service, client) => kubernetes::follow(service, client, publisher).boxed(),
    };
    let task = async move {
        tokio::select! {
            () = sender.closed() => {}
            () = updates => {}
        }
    };
    (task, receiver)
}

/// Looks up a name again and again.
struct Lookups<R> {
    name: HostPort,
    resolver: R,
    publisher: Publisher,
    addresses: BTreeSet<IpAddr>,
}

// === impl Source ===

impl Source {
    /// For `target`, with its DNS server or the system's, and where it takes one the API server of `kubeconfig` or else
    /// of the service account, which `program` asks.
    ///
    /// # Errors
    /// [`SetupError`]. That nobody answers is none.
    pub async fn of(target: Target, kubeconfig: Option<&Path>, program: &str) -> Result<Self, SetupError> {
        let label = target.to_string();
        let means = match target {
            Target::Static(hosts) => Means::Fixed(hosts),
            Target::Dns { name, .. } if name.ip().is_some() => Means::Fixed(vec![name]),
            Target::Dns { name, server } => Means::Dns(name, DnsResolver::new(server)?),
            Target::Kubernetes { namespace, service, port } => {
                let failed = |source| SetupError::Kubernetes { target: label.clone(), source };
                let client = connect(kubeconfig, program).await.map_err(failed)?.client;
                Means::Kubernetes(ServiceRef { namespace, name: service, port }, client)
            }
        };
        Ok(Self { label, means })
    }
}

impl<R> fmt::Debug for Source<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.label).finish()
    }
}

// === impl Lookups ===

impl<R: Resolver> Lookups<R> {
    fn new(name: HostPort, resolver: R, publisher: Publisher) -> Self {
        Self { name, resolver, publisher, addresses: BTreeSet::new() }
    }

    async fn run(mut self) {
        loop {
            let lookup = tokio::time::timeout(LOOKUP_TIMEOUT, self.resolver.lookup(&self.name.host)).await;
            let wait = match lookup {
                Ok(Ok(lookup)) => self.answered(&lookup),
                Ok(Err(error)) => self.publisher.failed(&error),
                Err(_elapsed) => self.publisher.failed(&LookupError::timeout(&self.name.host)),
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes an answer over. Returns when to ask again.
    fn answered(&mut self, lookup: &Lookup) -> Duration {
        let hint = (!lookup.name_exists).then(|| {
            format!("the name {:?} does not exist in DNS; correct the target", self.name.host).into()
        });
        self.addresses = merge(&self.addresses, lookup);
        let port = self.name.port;
        let endpoint = |address: &IpAddr| HostPort { host: address.to_string(), port }.to_string();
        self.publisher.works(hint);
        self.publisher.publish(sorted(self.addresses.iter().map(endpoint)));
        lookup.valid_for.clamp(MIN_VALID_FOR, MAX_VALID_FOR)
    }
}

/// The addresses after an answer. A family that was not answered keeps its own.
fn merge(last: &BTreeSet<IpAddr>, lookup: &Lookup) -> BTreeSet<IpAddr> {
    let kept = last.iter().copied().filter(|address| Some(Family::of(*address)) == lookup.unanswered);
    lookup.addresses.iter().copied().chain(kept).collect()
}
